package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/data"
	"github.com/trestledb/trestle/gateway/rest"
	"github.com/trestledb/trestle/gateway/sql"
)

// gatewayOver puts over tables everything that clients reach: the Bigtable APIs,
// REST, HBase's protocol, and login before all of them. Until its stack is drained
// below stays open, to which it adds what is to be closed then.
func gatewayOver(ctx context.Context, cfg *settings.Serve, tables hbaseTables, m *ops.Metrics, log *slog.Logger, below *closers) (_ *stack, _ *gateway.Server, err error) {
	certificates, err := openTLS(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	who, notices, closeAuth, err := openAuth(ctx, cfg, tables.Backend, m, log)
	if err != nil {
		return nil, nil, err
	}
	below.add(closeAuth)
	o := gatewayOptions(cfg, m, log)
	measure(&o, cfg, m)
	o.Streams, o.Auth = m.NewStreams(data.StreamEnds), who
	if certificates != nil {
		o.Credentials = certificates.Credentials()
	}
	tables.Backend = counted{tables.Backend, backend.ViewsOf(tables.Backend), m}
	front, err := gateway.New(tables.Backend, o)
	if err != nil {
		return nil, nil, err
	}
	m.ObserveReaders(front.ChangeStreams)
	fail := func(err error) (*stack, *gateway.Server, error) { return nil, nil, errors.Join(err, front.Stop(ctx)) }
	api, err := rest.New(front, rest.Options{Memory: o.Memory})
	if err != nil {
		return fail(err)
	}
	hb, err := openHBase(ctx, cfg, tables, who, certificates, o.Memory, m, log)
	if err != nil {
		return fail(err)
	}
	return &stack{
		rest: api, who: who, notices: notices, serve: front.Serve,
		drain: func(ctx context.Context) error {
			stopped := make(chan error, 1)
			go func() { stopped <- hb.stop(ctx) }()
			return errors.Join(front.Stop(ctx), <-stopped)
		},
		ready: func() error { return nil },
	}, front, nil
}

// gatewayOptions lets requests and answers share their part of the memory.
func gatewayOptions(cfg *settings.Serve, m *ops.Metrics, log *slog.Logger) gateway.Options {
	return gateway.Options{
		Zone: cfg.Zone, Cluster: cfg.Cluster, Emulator: cfg.Emulator,
		NoSessions:       cfg.Sessions == settings.Off,
		GRPCGo:           cfg.Transport == settings.GRPCGo,
		Reflection:       true, // what it tells is public
		Memory:           budgetOf(cfg),
		RequestMemory:    int64(unaskedShare * float64(cfg.Memory)),
		MaxChangeStreams: int(cfg.Streams),
		Log:              log,
		Query:            queryOptions(cfg),
		SQL:              sql.Options{Dir: cfg.DataDir},
	}
}
