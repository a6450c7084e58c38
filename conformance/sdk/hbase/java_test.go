package hbase

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/compat/hbase/master"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/zk"
	"github.com/trestledb/trestle/conformance/target"
)

// TestMain keeps gohbase from logging each attempt as an error.
func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// serve starts a server, or a cluster, and returns its addresses and those of
// its ZooKeeper, as clients take them.
func serve(t *testing.T) (rpc, zookeeper string) {
	t.Helper()
	if target.OnCluster() {
		c := target.ServeCluster(t, target.ClusterOptions{Gateways: 1, HBase: true})
		return strings.Join(c.HBase, ","), strings.Join(c.ZooKeeper, ",")
	}
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	store, err := standalone.Open(ctx, standalone.Options{Dir: t.TempDir(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, zl := listen(), listen()
	me := model.Server{Host: "127.0.0.1", Port: uint32(l.Addr().(*net.TCPAddr).Port), StartCode: uint64(time.Now().UnixMilli())}
	catalog, err := model.Open(ctx, store, model.Mapping{Project: "p", Instance: "main"}, me)
	if err != nil {
		t.Fatal(err)
	}
	m := master.New(catalog, master.Options{Tablets: store, Backups: store})
	s, err := server.New(catalog, store, server.Options{Services: m.Services(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	z := zk.NewServer(zk.Options{})
	name := zk.ServerName{Host: me.Host, Port: uint16(me.Port), StartCode: int64(me.StartCode)}
	z.Publish(zk.Cluster{ID: catalog.ClusterID(), Master: name, Meta: name, Servers: []zk.ServerName{name}}.Tree())
	done := make(chan error, 2)
	go func() { done <- s.Serve(l) }()
	go func() { done <- z.Serve(zl) }()
	t.Cleanup(func() {
		z.Close()
		stop, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := s.Stop(stop); err != nil {
			t.Error(err)
		}
		m.Close()
		for range 2 {
			// A test that is skipped may stop the server before it serves.
			if err := <-done; err != nil && !errors.Is(err, server.ErrStopped) {
				t.Error(err)
			}
		}
		if err := store.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String(), zl.Addr().String()
}

// jars returns the directory with the jars of a program and of what it depends
// on, one of those that testdata/fetch.sh makes.
func jars(t *testing.T, of string) string {
	t.Helper()
	dir := os.Getenv(jarsEnv)
	if dir == "" {
		t.Skip(jarsEnv + " is not set")
	}
	return filepath.Join(dir, of)
}

const jarsEnv = "HBASE_JARS"

// java runs a program of one file with the client's jars, and the settings of
// the hbase-site.xml in a directory, if one is given. It returns what the
// program prints.
func java(t *testing.T, conf, program string, args ...string) string {
	t.Helper()
	path := jars(t, "client") + "/*"
	if conf != "" {
		path = conf + ":" + path
	}
	return run(t, path, program, args...)
}

// run is java with any class path.
func run(t *testing.T, path, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "java", slices.Concat(javaFlags, []string{"-cp", path, program}, args)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, io.Discard
	err := cmd.Run()
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "ok ") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Errorf("%s %q: %v", program, args, err)
	}
	return out.String()
}

func TestSmoke(t *testing.T) {
	jars(t, "client")
	rpc, zookeeper := serve(t)
	t.Run("registry", func(t *testing.T) { java(t, "", "Smoke.java", "rpc", rpc) })
	t.Run("zookeeper", func(t *testing.T) { java(t, "", "Smoke.java", "zk", zookeeper) })
}

// TestAsync runs asynchbase, with which OpenTSDB reads and writes.
func TestAsync(t *testing.T) {
	path := jars(t, "async") + "/*"
	_, zookeeper := serve(t)
	if err := table(t.Context(), zookeeper, "async"); err != nil {
		t.Fatal(err)
	}
	if out := run(t, path, "Async.java", zookeeper, "async"); !strings.Contains(out, "ok delete\n") {
		t.Errorf("it ended early: %s", out)
	}
}

var (
	differCalls = flag.Int("differ.calls", 2000, "how many random calls to make to both clusters")
	differSeed  = flag.Int64("differ.seed", 0, "which ones; 0 is others each time")
)

// TestAgainstHBase makes the same calls to a real HBase.
func TestAgainstHBase(t *testing.T) {
	jars(t, "client")
	peer := os.Getenv("HBASE_PEER")
	if peer == "" {
		peer, _ = startHBase(t)
	}
	_, zookeeper := serve(t)
	seed := *differSeed
	if seed == 0 {
		seed = time.Now().UnixMilli()
	}
	t.Logf("seed %d", seed)
	java(t, "", "Differ.java", zookeeper, peer, strconv.FormatInt(seed, 10), strconv.Itoa(*differCalls))
}
