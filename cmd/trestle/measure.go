package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/cmd/trestle/internal/telemetry"
	hbase "github.com/trestledb/trestle/compat/hbase/server"
	hbasewire "github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/wire"
)

// openMeasures makes m tell of requests what the settings say. What it returns sends the
// traces that are left.
func openMeasures(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, admin *ops.Admin, log *slog.Logger) (stop func(), err error) {
	if cfg.SlowRequest > 0 {
		m.Slow = ops.NewSlowLog(nil)
		if cfg.SlowLog {
			m.Slow = ops.NewSlowLog(log)
		}
		admin.ShowSlow(m.Slow)
	}
	if cfg.OTLPEndpoint == "" {
		return func() {}, nil
	}
	version, _, _ := ops.BuildInfo()
	t, err := telemetry.New(ctx, telemetry.Options{Endpoint: cfg.OTLPEndpoint, Sample: cfg.TraceSample, Role: cfg.Cluster, Version: version, Log: log})
	if err != nil {
		return nil, err
	}
	m.Tracer = t
	return func() {
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := t.Close(last); err != nil {
			log.Warn("traces are lost", "error", err)
		}
	}, nil
}

// measure has the gateway tell m of requests.
func measure(o *gateway.Options, cfg *settings.Serve, m *ops.Metrics) {
	o.Observer, o.Tracer = m, m.Tracer
	if m.Slow != nil {
		o.Slow, o.SlowRequest, o.SlowKeys = cfg.SlowRequest, m.Slow.Add, cfg.SlowKeys
	}
}

// hbaseObserver tells m of the calls of HBase clients.
type hbaseObserver struct {
	m   *ops.Metrics
	cfg *settings.Serve
}

var _ hbase.Observer = hbaseObserver{}

// CallStarted implements hbase.Observer.
func (h hbaseObserver) CallStarted(r *request.Record, parent string) {
	r.Keys = h.m.Slow != nil && h.cfg.SlowKeys
	if h.m.Tracer != nil {
		r.Span = h.m.Tracer.Sample(r.Method, parent)
	}
	h.m.RPCStarted(r)
}

// CallDone implements hbase.Observer.
func (h hbaseObserver) CallDone(r *request.Record, c *hbase.Call, err error, start time.Time, elapsed time.Duration, received, sent int64) {
	code := wire.Code(err)
	if e := (*hbasewire.Exception)(nil); errors.As(err, &e) {
		code = codes.Unknown // has no code of gRPC
	}
	r.Principal = hbasePeer(h.cfg, c).Member()
	h.m.RPCDone(r, code, elapsed, received, sent)
	if h.m.Slow != nil && elapsed >= h.cfg.SlowRequest {
		h.m.Slow.Add(r.Slow(code.String(), start, elapsed, received, sent))
	}
	gateway.EndSpan(r, err)
}
