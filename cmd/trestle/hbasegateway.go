package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	hbase "github.com/trestledb/trestle/compat/hbase/backend"
	"github.com/trestledb/trestle/gateway/admin"
)

// hbaseScheme begins the address of an HBase as a backend.
const hbaseScheme = "hbase://"

const gatewayHelp = `Answers clients of a cluster without serving tablets. With --backend it answers
Bigtable clients from the tables of an existing HBase instead; --hbase-instance
is its namespace "default", and nothing but credentials is kept in --data-dir.`

// gatewayOverHBase answers Bigtable clients from the tables of an HBase.
func gatewayOverHBase(p *process, flags *settings.Flags, address string) int {
	cfg, err := flags.Load(p.environ)
	if err != nil {
		return p.misused(err)
	}
	o, err := hbaseOptions(address, cfg.HBasePlace)
	if err != nil {
		return p.misused(err)
	}
	log := newLogger(p.stderr, cfg.LogFormat, cfg.LogLevel)
	ctx, release := untilSignal(log, stopLimit)
	defer release()
	err = runServer(ctx, cfg.Serve, log, hbaseStack(o), func(at announcement) {
		p, flush := p.atOnce()
		defer flush()
		fmt.Fprintf(p.stdout, "tables in            %s%s\n", hbaseScheme, o.Quorum)
		p.printAddresses(at)
	}, nil)
	if err != nil {
		return p.failed(err)
	}
	return exitOK
}

// hbaseOptions reads an address, and place, which is project/instance.
func hbaseOptions(address, place string) (hbase.Options, error) {
	var o hbase.Options
	rest, ok := strings.CutPrefix(address, hbaseScheme)
	if !ok {
		return o, fmt.Errorf("--backend is %q; %sHOST:PORT is known", address, hbaseScheme)
	}
	quorum, root, found := strings.Cut(rest, "/")
	if found && root != "" {
		path, err := url.PathUnescape(root)
		if err != nil {
			return o, fmt.Errorf("--backend: %w", err)
		}
		o.Root = "/" + path
	}
	for i, host := range strings.Split(quorum, ",") {
		if host == "" {
			return o, fmt.Errorf("--backend %q names no ZooKeeper server", address)
		}
		if !strings.Contains(host, ":") {
			host += ":2181"
		}
		if i > 0 {
			o.Quorum += ","
		}
		o.Quorum += host
	}
	o.Project, o.Instance, _ = strings.Cut(place, "/")
	return o, o.Validate()
}

// hbaseStack opens a gateway over HBase.
func hbaseStack(o hbase.Options) opener {
	return func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
		o.Log = log
		// gohbase logs each attempt as an error; what it cannot do comes back as one.
		if cfg.LogLevel > slog.LevelDebug {
			logrus.SetOutput(io.Discard)
		}
		b, err := hbase.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		below.add(b.Close)
		instances := admin.New(b, admin.Options{Zone: cfg.Zone, Log: log})
		if err := instances.EnsureInstance(ctx, "projects/"+o.Project+"/instances/"+o.Instance); err != nil {
			return nil, err
		}
		only := *cfg
		only.HBaseListen = "" // its clients have the HBase itself
		st, _, err := gatewayOver(ctx, &only, hbaseTables{Backend: b}, m, log, below)
		if err != nil {
			return nil, err
		}
		st.stats = func() ops.Stats { return ops.Stats{} }
		st.operatedBy = "this gateway's tablets are HBase's regions: use HBase's own tools"
		return st, nil
	}
}
