package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/leaktest"
)

// TestFailedStart: a server that cannot start, for the last of what it opens, ends
// everything that it had opened before, and says why and nothing else.
func TestFailedStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	for setting, set := range map[string]func(*settings.Serve){
		"hbase-listen": func(c *settings.Serve) { c.HBaseListen = taken.Addr().String() },
		"hbase-zookeeper-listen": func(c *settings.Serve) {
			c.HBaseListen, c.HBaseZK = "127.0.0.1:0", taken.Addr().String()
		},
	} {
		before := goleak.IgnoreCurrent()
		cfg := settings.Serve{Temporary: true, Insecure: true, Durability: settings.Async, AuditLog: settings.Off, Memory: settings.MachineMemory() / 4,
			Zone: "local-a", Cluster: "trestle", Listen: "127.0.0.1:0", HBasePlace: "default/default"}
		set(&cfg)
		err := runServer(context.Background(), cfg, log, openStack, func(announcement) { t.Error("it serves") }, nil)
		if err == nil || !strings.HasSuffix(err.Error(), "choose another address with --"+setting) {
			t.Errorf("%s: %v", setting, err)
		}
		leaktest.None(t, before)
	}
}
