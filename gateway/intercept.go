package gateway

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/session"
	"github.com/trestledb/trestle/gateway/wire"
)

// Response metadata that clients' metrics are made of. Some take the location
// from the headers (Java, Go), some from the trailers only (Node), the time from
// the headers.
const (
	locationHeader = "x-goog-ext-425905942-bin" // ResponseParams
	timingHeader   = "server-timing"
	timingPrefix   = "gfet4t7; dur="
)

// peerHeader names the server of a session's stream. Java's client takes a header
// without it, that of a refusal included, for a failure of its own.
const peerHeader = "bigtable-peer-info" // PeerInfo

// opens are the methods whose answers have a peerHeader.
var opens = map[string]bool{
	bigtablepb.Bigtable_OpenTable_FullMethodName: true, bigtablepb.Bigtable_OpenAuthorizedView_FullMethodName: true,
	bigtablepb.Bigtable_OpenMaterializedView_FullMethodName: true,
}

// dataPrefix begins the methods that answer with that metadata.
const dataPrefix = "/" + "google.bigtable.v2.Bigtable" + "/"

// An interceptor is around every RPC: it turns panics and faults into
// statuses, adds response metadata, and tells the Observer.
type interceptor struct {
	gate     *gate
	observer Observer
	first    FirstObserver  // may be nil
	tracer   request.Tracer // may be nil
	slow     slowLog
	log      *slog.Logger
	origin   *origin  // of a request that was not placed
	nowhere  *origin  // of what is not there
	places   sync.Map // place to its *origin
	// admin is around the methods that are not of the data API, which are unary;
	// nil if there is nothing. Requests for data do not pay for it.
	admin    grpc.UnaryServerInterceptor
	frontend int64 // stands for this process
	peer     metadata.MD
	// sessions are the methods whose streams carry other requests. They are told
	// to the observer by what carries them.
	sessions map[string]bool
}

// A place is where a request is served.
type place struct{ zone, cluster string }

// An origin is the response metadata that names a place. It is made once and used for all
// answers of its kind, which keep it as it is.
type origin struct {
	value    []string    // of locationHeader; nil for nowhere
	location metadata.MD // for trailers
	// timed are location and time for the rest, by milliseconds; made when first
	// needed.
	timed [timedMillis]atomic.Pointer[metadata.MD]
}

// timedMillis is how many milliseconds answers take for which metadata are kept.
const timedMillis = 32

func newOrigin(p place) *origin {
	b, err := proto.Marshal(&bigtablepb.ResponseParams{ZoneId: &p.zone, ClusterId: &p.cluster})
	if err != nil { // not valid UTF-8: the API cannot have created it
		return new(origin)
	}
	o := &origin{value: []string{string(b)}}
	o.location = metadata.MD{locationHeader: o.value}
	return o
}

// after returns the metadata of an answer, or of its beginning, that took d. It
// is in whole milliseconds as with Google, and one at least, since clients take
// zero for not measured.
func (o *origin) after(d time.Duration) metadata.MD {
	millis := max(d.Milliseconds(), 1)
	kept := millis < timedMillis
	if kept {
		if md := o.timed[millis].Load(); md != nil {
			return *md
		}
	}
	md := metadata.MD{timingHeader: {timingPrefix + strconv.FormatInt(millis, 10)}}
	if o.value != nil {
		md[locationHeader] = o.value
	}
	if kept {
		o.timed[millis].Store(&md)
	}
	return md
}

func newInterceptor(g *gate, o Options) *interceptor {
	i := &interceptor{gate: g, observer: o.Observer, tracer: o.Tracer, slow: slowLog{o.Slow, o.SlowRequest}, log: o.Log, origin: newOrigin(place{o.Zone, o.Cluster}), nowhere: new(origin),
		frontend: rand.Int64N(1<<62) + 1}
	i.first, _ = o.Observer.(FirstObserver)
	b, err := proto.Marshal(&bigtablepb.PeerInfo{ApplicationFrontendId: i.frontend, TransportType: bigtablepb.PeerInfo_TRANSPORT_TYPE_SESSION_CLOUD_PATH})
	if err != nil {
		panic(err) // only strings can be invalid
	}
	i.peer = metadata.Pairs(peerHeader, base64.URLEncoding.EncodeToString(b))
	return i
}

// served notes where the request of ctx is served, which its answer will name.
func (i *interceptor) served(ctx context.Context, p place) {
	if p.zone == "" || p.cluster == "" || session.Served(ctx, p.zone, p.cluster) {
		return
	}
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	if a == nil {
		return
	}
	v, ok := i.places.Load(p)
	if !ok {
		v, _ = i.places.LoadOrStore(p, newOrigin(p))
	}
	a.origin, _ = v.(*origin)
}

// originOf returns where a request was served that ended with err. A table that
// is not there, unlike a family of it, is nowhere.
func (i *interceptor) originOf(ctx context.Context, err error) *origin {
	if err != nil && fault.KindOf(err) == fault.NotFound && !schema.IsNoFamily(err) {
		return i.nowhere
	}
	if a, _ := ctx.Value(arrivalKey{}).(*arrival); a != nil && a.origin != nil {
		return a.origin
	}
	return i.origin
}

// begin returns the record of the request of ctx, and has it traced if it is to be.
func (i *interceptor) begin(ctx context.Context, method string) *request.Record {
	a, _ := ctx.Value(arrivalKey{}).(*arrival)
	if a == nil {
		return &request.Record{Method: method} // not admitted by a gate: a test's
	}
	a.record.Method = method
	if i.tracer != nil {
		a.record.Span = i.tracer.Sample(method, a.parent)
	}
	return &a.record
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	i.gate.arrived(ctx)
	record := i.begin(ctx, info.FullMethod)
	if i.observer != nil {
		i.observer.RPCStarted(record)
	}
	resp, err = i.callUnary(ctx, req, info, handler)
	elapsed := time.Since(start)
	if strings.HasPrefix(info.FullMethod, dataPrefix) {
		o := i.originOf(ctx, err)
		_ = grpc.SetHeader(ctx, o.after(elapsed))
		if o.location != nil {
			_ = grpc.SetTrailer(ctx, o.location)
		}
	}
	if err != nil {
		err = i.status(ctx, err)
	}
	if i.observer != nil {
		sent := 0
		if err == nil {
			sent = wire.Size(resp)
		}
		i.observer.RPCDone(record, status.Code(err), elapsed, int64(wire.Size(req)), int64(sent))
	}
	if i.slow.isSlow(elapsed) {
		i.slow.tell(record, status.Code(err), start, elapsed, int64(wire.Size(req)), int64(wire.Size(resp)))
	}
	EndSpan(record, err)
	return resp, err
}

func (i *interceptor) callUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, i.panicked(ctx, info.FullMethod, p)
		}
	}()
	if i.admin != nil && !strings.HasPrefix(info.FullMethod, dataPrefix) {
		return i.admin(ctx, req, info, handler)
	}
	return handler(ctx, req)
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	start := time.Now()
	ctx := ss.Context()
	isData := strings.HasPrefix(info.FullMethod, dataPrefix)
	observer := i.observer
	if i.sessions[info.FullMethod] {
		observer = nil
	}
	i.gate.begun(ctx)
	record := request.From(ctx)
	if observer != nil {
		record = i.begin(ctx, info.FullMethod)
	}
	s := &serverStream{ServerStream: ss, i: i, record: record, start: start, count: observer != nil, placed: !isData,
		only: !info.IsClientStream}
	if opens[info.FullMethod] {
		_ = ss.SetHeader(i.peer)
	}
	if info.IsClientStream && !i.sessions[info.FullMethod] {
		// Messages may come at any time in the stream's life.
		i.gate.arrived(ctx)
	}
	if observer != nil {
		observer.RPCStarted(record)
	}
	err = i.callStream(srv, s, info, handler)
	s.message.kept.Release()
	i.gate.arrived(ctx)
	elapsed := time.Since(start)
	if isData {
		s.place(err)
		if o := i.originOf(ctx, err); o.location != nil {
			ss.SetTrailer(o.location)
		}
	}
	if err != nil {
		err = i.status(ctx, err)
	}
	if observer != nil {
		observer.RPCDone(record, status.Code(err), elapsed, s.received, s.sent)
		if i.slow.isSlow(elapsed) && info.FullMethod != bigtablepb.Bigtable_ReadChangeStream_FullMethodName {
			i.slow.tell(record, status.Code(err), start, elapsed, s.received, s.sent)
		}
		EndSpan(record, err)
	}
	return err
}

func (i *interceptor) callStream(srv any, ss *serverStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = i.panicked(ss.Context(), info.FullMethod, p)
		}
	}()
	return handler(srv, ss)
}

// panicked turns a panic of one request into its failure.
func (i *interceptor) panicked(ctx context.Context, method string, p any) error {
	if i.observer != nil {
		i.observer.Panicked(method)
	}
	id := wire.NewErrorID()
	i.log.LogAttrs(ctx, slog.LevelError, "handler panicked", slog.String("method", method),
		slog.String("error_id", id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	st, err := status.New(codes.Internal, fmt.Sprintf("Internal error (error id %s)", id)).
		WithDetails(&errdetails.ErrorInfo{Reason: "INTERNAL", Domain: wire.ErrorDomain, Metadata: map[string]string{"errorId": id}})
	if err != nil {
		return fault.New(fault.Internal, "panic %s", id)
	}
	return st.Err()
}

// status turns err into what the client is told, with the id of the request. RetryInfo is
// kept from clients that say what they understand and do not name it.
func (i *interceptor) status(ctx context.Context, err error) error {
	p := wire.Status(ctx, i.log, err).Proto()
	if f := wire.Features(ctx); f != nil && !f.GetRetryInfo() {
		p.Details = slices.DeleteFunc(p.Details, func(d *anypb.Any) bool { return d.MessageIs((*errdetails.RetryInfo)(nil)) })
	}
	wire.AddRequestInfo(p, request.From(ctx))
	return status.ErrorProto(p)
}

// A serverStream tells the gate when the request is here, puts location and time
// into the headers before they go out, and counts bytes.
type serverStream struct {
	grpc.ServerStream
	i              *interceptor
	record         *request.Record
	start          time.Time
	count          bool
	placed         bool
	sends          bool // a message was sent
	only           bool // one request message
	arrived        bool
	message        incoming
	received, sent int64
}

// place completes the headers of an answer; err is how the handler ended, if it
// has.
func (s *serverStream) place(err error) {
	if !s.placed {
		s.placed = true
		_ = s.ServerStream.SetHeader(s.i.originOf(s.Context(), err).after(time.Since(s.start)))
	}
}

func (s *serverStream) RecvMsg(m any) error {
	s.message.kept.Release() // of the one before
	err := s.i.gate.receive(s.Context(), s.only, m, &s.message, s.ServerStream)
	if !s.arrived {
		s.arrived = true
		s.i.gate.arrived(s.Context())
	}
	if s.count && err == nil {
		s.received += int64(wire.Size(m))
	}
	return err
}

func (s *serverStream) SendHeader(md metadata.MD) error {
	s.place(nil)
	return headerStatus(s.ServerStream.SendHeader(md))
}

// headerStatus returns the error of SendHeader as a status: unlike SendMsg it
// returns what the transport says where that has ended.
func headerStatus(err error) error {
	if _, ok := status.FromError(err); !ok {
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

func (s *serverStream) SendMsg(m any) error {
	if !s.sends {
		s.sends = true
		elapsed := time.Since(s.start)
		if !s.placed {
			s.placed = true
			if err := s.ServerStream.SetHeader(s.i.originOf(s.Context(), nil).after(elapsed)); err != nil {
				return headerStatus(err)
			}
		}
		if s.count && s.i.first != nil {
			s.i.first.FirstMessage(s.record, elapsed)
		}
	}
	if s.count {
		s.sent += int64(wire.Size(m))
	}
	return s.ServerStream.SendMsg(m)
}
