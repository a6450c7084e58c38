package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/compat/hbase/master"
	"github.com/trestledb/trestle/compat/hbase/model"
	hbase "github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/zk"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/servertls"
	"github.com/trestledb/trestle/gateway/backend"
)

// An hbaseFront serves HBase clients. The zero one serves nobody.
type hbaseFront struct {
	zk     *zk.Server // nil: none
	opened closers
}

// hbaseTables are what HBase clients work on.
type hbaseTables struct {
	backend.Backend
	tablets master.Tablets // nil: they are not worked on by hand
	backups backend.Backups
	// locate and join are of a cluster. join tells the others of this server, and
	// calls set with those that live now and whenever that changes.
	locate model.Locator
	join   func(ctx context.Context, me model.Server, set func([]model.Place)) (leave func(), err error)
}

// openHBase begins to serve HBase clients if the settings say so.
func openHBase(ctx context.Context, cfg *settings.Serve, b hbaseTables, who *auth.Auth, certificates *servertls.Server, memory *budget.Budget, m *ops.Metrics, log *slog.Logger) (_ *hbaseFront, err error) {
	f := new(hbaseFront)
	if cfg.HBaseListen == "" {
		return f, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop(context.WithoutCancel(ctx)))
		}
	}()
	l, err := net.Listen("tcp", cfg.HBaseListen)
	if err != nil {
		return nil, fmt.Errorf("listen for HBase clients: %w; choose another address with --hbase-listen", err)
	}
	f.opened.add(func() { _ = l.Close() }) // again, if it was served
	me, err := hbaseName(cfg, l.Addr().(*net.TCPAddr))
	if err != nil {
		return nil, err
	}
	project, instance, _ := strings.Cut(cfg.HBasePlace, "/")
	catalog, err := model.Open(ctx, b.Backend, model.Mapping{Project: project, Instance: instance}, me)
	if err != nil {
		return nil, err
	}
	// The namespace "default" is there from the beginning, as an instance too.
	instances := admin.New(b.Backend, admin.Options{Zone: cfg.Zone, Log: log})
	if err := instances.EnsureInstance(ctx, catalog.Mapping().InstanceName(model.DefaultNamespace)); err != nil {
		return nil, err
	}
	o := hbase.Options{Memory: memory, ResponseMemory: int64(hbaseShare * float64(cfg.Memory)), Observer: hbaseObserver{m, cfg}, Log: log}
	mo := master.Options{Tablets: b.tablets, Backups: b.backups, Ensure: instances.EnsureInstance, Log: log}
	held := b.Backend
	if who.On() {
		held = who.Guard(b.Backend)
		o.Sees, mo.Sees = who.Sees, who.Sees
	}
	if who.On() || who.AuditsData() {
		o.Authorize = func(ctx context.Context, c *hbase.Call, what hbase.Action, table string) (context.Context, error) {
			return who.Enter(ctx, hbasePeer(cfg, c), hbaseMethods[what], table)
		}
	}
	if who != nil {
		mo.Authorize = func(ctx context.Context, c *hbase.Call, rpc, resource string) (context.Context, error) {
			return who.Enter(ctx, hbasePeer(cfg, c), rpc, resource)
		}
	}
	if certificates != nil {
		o.TLS, o.Name = certificates.TLS(), servertls.Name
	}
	var serving sync.WaitGroup
	f.opened.add(serving.Wait)
	hm := master.New(catalog, mo)
	f.opened.add(hm.Close)
	o.Services = hm.Services()
	server, err := hbase.New(catalog, held, o)
	if err != nil {
		return nil, err
	}
	f.opened.addStop(server.Stop)
	var zl net.Listener
	if cfg.HBaseZK != "" {
		if zl, err = net.Listen("tcp", cfg.HBaseZK); err != nil {
			return nil, fmt.Errorf("listen for ZooKeeper clients: %w; choose another address with --hbase-zookeeper-listen", err)
		}
		f.opened.add(func() { _ = zl.Close() }) // as above
		f.zk = zk.NewServer(zk.Options{Log: log})
		f.opened.add(f.zk.Close)
		f.publish(catalog)
	}
	if b.join != nil {
		catalog.Spread(b.locate)
		leave, err := b.join(ctx, me, func(places []model.Place) {
			catalog.SetPlaces(places)
			f.publish(catalog)
		})
		if err != nil {
			return nil, err
		}
		f.opened.add(leave)
	}
	attrs := []any{"address", l.Addr().String(), "name", me.HostPort()}
	if zl != nil {
		attrs = append(attrs, "zookeeper", zl.Addr().String())
		serving.Go(func() {
			if err := f.zk.Serve(zl); err != nil {
				log.Error("ZooKeeper server ended", "error", err)
			}
		})
	}
	log.Info("serving HBase clients", attrs...)
	serving.Go(func() {
		if err := server.Serve(l); err != nil {
			log.Error("HBase server ended", "error", err)
		}
	})
	return f, nil
}

// publish tells ZooKeeper's clients which servers live. Each process is the
// master to those who ask it, and has hbase:meta.
func (f *hbaseFront) publish(catalog *model.Catalog) {
	if f.zk == nil {
		return
	}
	name := func(s model.Server) zk.ServerName {
		return zk.ServerName{Host: s.Host, Port: uint16(s.Port), StartCode: int64(s.StartCode)}
	}
	me := name(catalog.Server())
	c := zk.Cluster{ID: catalog.ClusterID(), Master: me, Meta: me}
	for _, s := range catalog.Servers() {
		c.Servers = append(c.Servers, name(s))
	}
	f.zk.Publish(c.Tree())
}

// stop ends the server: calls under way may finish until ctx is done.
func (f *hbaseFront) stop(ctx context.Context) error { return f.opened.close(ctx) }

// hbaseName returns the name that clients are told.
func hbaseName(cfg *settings.Serve, at *net.TCPAddr) (model.Server, error) {
	me := model.Server{Host: at.IP.String(), Port: uint32(at.Port), StartCode: uint64(time.Now().UnixMilli())}
	if at.IP.IsUnspecified() {
		me.Host = "localhost"
	}
	if names := cfg.ServerNames(); len(names) > 0 && !at.IP.IsLoopback() {
		me.Host = names[0]
	}
	if cfg.HBaseName == "" {
		return me, nil
	}
	host, port, err := net.SplitHostPort(cfg.HBaseName)
	if err != nil {
		me.Host = cfg.HBaseName
		return me, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return me, fmt.Errorf("hbase-advertise: %q has no port", cfg.HBaseName)
	}
	me.Host, me.Port = host, uint32(n)
	return me, nil
}

// hbasePeer returns who makes a call, as far as that is proved or believed. Without login
// everybody is believed.
func hbasePeer(cfg *settings.Serve, c *hbase.Call) auth.Peer {
	if c.Certificate == "" && (cfg.HBaseTrust || !cfg.AuthOn()) {
		return auth.Peer{User: c.User, Addr: c.Addr}
	}
	return auth.Peer{User: c.Certificate, Expires: c.Expires, Addr: c.Addr}
}

// hbaseMethods are the RPCs that ask for the same permissions.
var hbaseMethods = map[hbase.Action]string{
	hbase.Read:      bigtablepb.Bigtable_ReadRows_FullMethodName,
	hbase.Write:     bigtablepb.Bigtable_MutateRow_FullMethodName,
	hbase.ReadWrite: bigtablepb.Bigtable_CheckAndMutateRow_FullMethodName,
}
