package etcd

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/locktest"
)

// start runs a real etcd in this process.
func start(t *testing.T) *clientv3.Client {
	t.Helper()
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.LogLevel = "fatal"
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd does not get ready")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + e.Clients[0].Addr().String()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestSuite(t *testing.T) {
	c := start(t)
	n := 0
	locktest.Run(t, func(*testing.T) lock.Service {
		n++
		return New(c, fmt.Sprintf("trestle/%d/", n))
	}, time.Second)
}
