package telemetry

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway/wire"
)

// Options say where traces go and which requests are traced.
type Options struct {
	// Endpoint is the URL of a collector that speaks OTLP over gRPC: http://HOST:PORT, or
	// https:// for TLS.
	Endpoint string
	// Sample is the part of the requests that are traced of those that come without a trace.
	// Of the others the caller says whether.
	Sample float64
	// Role is the kind of process, such as "gateway"; Version is the program's.
	Role, Version string
	Log           *slog.Logger
}

// A Tracer is a request.Tracer that sends spans to a collector. It holds 2,048 of them at
// most: what the collector does not take is lost, and no request waits for it.
type Tracer struct {
	provider  *sdk.TracerProvider
	tracer    trace.Tracer
	threshold uint64
}

var _ request.Tracer = (*Tracer)(nil)

// New returns a Tracer. The collector need not be there.
func New(ctx context.Context, o Options) (*Tracer, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(o.Endpoint), otlptracegrpc.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("trace to %s: %w", o.Endpoint, err)
	}
	var last atomic.Int64 // when it was logged last, in Unix seconds
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now := time.Now().Unix()
		if was := last.Load(); now-was >= 60 && last.CompareAndSwap(was, now) {
			o.Log.Warn("traces are lost", "endpoint", o.Endpoint, "error", err)
		}
	}))
	about := resource.NewSchemaless(attribute.String("service.name", "trestle"), attribute.String("service.namespace", o.Role), attribute.String("service.version", o.Version))
	p := sdk.NewTracerProvider(sdk.WithSampler(sdk.AlwaysSample()), sdk.WithResource(about),
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(2048), sdk.WithBatchTimeout(2*time.Second), sdk.WithExportTimeout(5*time.Second)))
	t := &Tracer{provider: p, tracer: p.Tracer("github.com/trestledb/trestle")}
	switch {
	case o.Sample >= 1:
		t.threshold = math.MaxUint64
	case o.Sample > 0:
		t.threshold = uint64(o.Sample * math.MaxUint64)
	}
	return t, nil
}

// Close sends what is left, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Sample implements request.Tracer.
func (t *Tracer) Sample(method, parent string) request.Span {
	ctx := context.Background()
	if of, ok := parse(parent); ok {
		if !of.IsSampled() {
			return nil
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, of)
	} else if t.threshold == 0 || rand.Uint64() > t.threshold {
		return nil
	}
	return t.start(ctx, strings.TrimPrefix(method, "/"), trace.SpanKindServer)
}

// Remote implements request.Tracer.
func (t *Tracer) Remote(of request.SpanContext, name string) request.Span {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: of.Trace, SpanID: of.Span, TraceFlags: trace.TraceFlags(of.Flags), Remote: true}))
	return t.start(ctx, name, trace.SpanKindServer)
}

func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind) request.Span {
	ctx, s := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return &span{t, ctx, s}
}

// parse reads a W3C traceparent. ok is false if it is none: a trace begins here then.
func parse(s string) (c trace.SpanContext, ok bool) {
	// 00-TRACE-SPAN-FLAGS; later versions may have more behind that.
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || len(s) > 55 && (s[:2] == "00" || s[55] != '-') || strings.ToLower(s) != s {
		return c, false
	}
	var version, flags [1]byte
	var of trace.SpanContextConfig
	for _, f := range []struct {
		to []byte
		s  string
	}{{version[:], s[:2]}, {of.TraceID[:], s[3:35]}, {of.SpanID[:], s[36:52]}, {flags[:], s[53:55]}} {
		if _, err := hex.Decode(f.to, []byte(f.s)); err != nil {
			return c, false
		}
	}
	of.TraceFlags, of.Remote = trace.TraceFlags(flags[0]), true
	c = trace.NewSpanContext(of)
	return c, c.IsValid()
}

// A span is a request.Span.
type span struct {
	t   *Tracer
	ctx context.Context
	s   trace.Span
}

func (s *span) Child(name string) request.Span { return s.t.start(s.ctx, name, trace.SpanKindInternal) }

func (s *span) Int(name string, v int64) { s.s.SetAttributes(attribute.Int64(name, v)) }

func (s *span) String(name, v string) { s.s.SetAttributes(attribute.String(name, v)) }

func (s *span) Context() request.SpanContext {
	c := s.s.SpanContext()
	return request.SpanContext{Trace: c.TraceID(), Span: c.SpanID(), Flags: byte(c.TraceFlags())}
}

// End ends the span. Of an error only the code is told: its text may have a row key.
func (s *span) End(err error) {
	if err != nil {
		s.s.SetStatus(codes.Error, wire.Code(err).String())
	}
	s.s.End()
}
