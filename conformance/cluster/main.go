package cluster

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// actAs is set for processes of a test binary that are something else. Its name
// does not begin with TRESTLE_, which a server takes for settings.
const actAs = "CLUSTER_ACT_AS"

// ready begins what they print when they serve.
const ready = "serves"

// Main is called by TestMain before anything else. In a process that is to be
// etcd or a store it does not return.
func Main() {
	var err error
	switch os.Getenv(actAs) {
	case "":
		return
	case "etcd":
		err = runEtcd(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6:]...)
	case "s3":
		err = runStore(os.Args[1], false)
	case "careless-s3":
		err = runStore(os.Args[1], true)
	default:
		err = fmt.Errorf("%s=%s", actAs, os.Getenv(actAs))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// runEtcd is a member of etcd; initial names all of them. files, if any, are its
// certificate, key, and the authority of its clients'.
func runEtcd(name, dir, client, peer, initial string, files ...string) error {
	c := embed.NewConfig()
	c.Name, c.Dir = name, dir
	c.LogLevel = "error"
	u, err := url.Parse(client)
	if err != nil {
		return err
	}
	p, err := url.Parse(peer)
	if err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*u}, []url.URL{*u}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*p}, []url.URL{*p}
	c.InitialCluster = initial
	if len(files) > 0 {
		c.ClientTLSInfo = transport.TLSInfo{CertFile: files[0], KeyFile: files[1], TrustedCAFile: files[2], ClientCertAuth: true}
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
		fmt.Println(ready)
	case <-time.After(time.Minute):
		return fmt.Errorf("etcd is not ready after a minute")
	}
	return <-e.Err()
}

// runStore speaks S3 and keeps objects in memory. A careless one ignores the
// condition of a PUT, as some servers do.
func runStore(addr string, careless bool) error {
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		return err
	}
	h := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println(ready)
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if careless {
			r.Header.Del("If-None-Match")
		}
		h.ServeHTTP(w, r)
	}))
}
