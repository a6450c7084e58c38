package stream

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tryio"
)

// ServerOptions are the settings of a Server.
type ServerOptions struct {
	// TLS is spoken if it is set.
	TLS *tls.Config
	// Log takes what should not happen. Default: nothing.
	Log *slog.Logger
	// Encoders encode the rows of scans for callers with an EncodedWriter. Default: none.
	Encoders Encoders
	// Fragments runs parts of queries over the rows of scans. Default: none, rows are sent.
	Fragments Fragments
	// Tracer traces what is part of requests that are traced. Default: nothing.
	Tracer request.Tracer
}

// A Server lets other processes ask a tablet server.
type Server struct {
	to   rpc.TabletServer
	o    ServerOptions
	grpc *grpc.Server
	// grpcScansOnly is set by tests: scans go over gRPC, as those of earlier versions did.
	grpcScansOnly bool

	mu    sync.Mutex
	muxes map[net.Conn]*sender
	// scanning are the connections for scans.
	scanning map[net.Conn]struct{}
	serving  sync.WaitGroup // muxes and scanning
	stopping bool

	work      chan *question // to an idle worker
	idle      atomic.Int64   // how many wait
	workers   sync.WaitGroup
	closeWork sync.Once // once no more work will come
}

// NewServer returns a Server that asks to.
func NewServer(to rpc.TabletServer, o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{to: to, o: o, muxes: map[net.Conn]*sender{}, scanning: map[net.Conn]struct{}{}, work: make(chan *question)}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(4 << 20), grpc.InitialConnWindowSize(16 << 20),
		// A process that is gone without a word is noticed.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.WaitForHandlers(true),
	}
	s.grpc = grpc.NewServer(opts...)
	scan, changes := scanDesc, changesDesc
	changes.Handler = func(_ any, st grpc.ServerStream) error { return s.changes(st) }
	scan.Handler = func(_ any, st grpc.ServerStream) error { return s.scan(st) }
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: service[1 : len(service)-1],
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{scan, changes},
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in raw
			if err := dec(&in); err != nil {
				return nil, err
			}
			d := decoderOf(in.b)
			op := d.Byte()
			return &raw{b: s.answer(ctx, nil, op, d)}, nil
		}}},
	}, s)
	return s
}

// Serve answers on l until Stop.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return l.Close()
	}
	s.mu.Unlock()
	split := newDemuxListener(l, s.o.TLS, s.handlers())
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(split) }()
	err := split.run()
	if e := <-served; !errors.Is(e, grpc.ErrServerStopped) {
		err = errors.Join(err, e)
	}
	return err
}

// handlers returns the functions that serve connections, by greeting.
func (s *Server) handlers() map[string]func(net.Conn) {
	m := map[string]func(net.Conn){greeting: s.mux}
	if !s.grpcScansOnly {
		m[greetingScan] = s.scans
	}
	return m
}

// Stop tells callers to ask no more, and returns when the calls received are answered.
// Calls left when ctx ends are cut off.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.stopping = true
	for _, q := range s.muxes {
		q.tell(0, answerBye)
	}
	s.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop() // closes the listener first
		s.serving.Wait()      // callers end them after the last answer
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.closeAll()
		<-stopped
	}
	s.closeWork.Do(func() { close(s.work) })
	s.workers.Wait()
}

// closeAll ends all connections. gRPC's are last, as it may wait for its calls.
func (s *Server) closeAll() {
	s.mu.Lock()
	s.stopping = true
	for c := range s.muxes {
		_ = c.Close()
	}
	for c := range s.scanning {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.grpc.Stop()
}

// greet answers a greeting and adds the connection to those that are served, or closes it.
// Both happen before Stop or after it: a caller that is greeted asks at once, and what it
// asks of a connection that nobody serves counts as lost.
func (s *Server) greet(c net.Conn, greeting string, add func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		// So few bytes, the first, wait for nobody.
		if _, err := c.Write([]byte(greeting)); err == nil && c.SetDeadline(time.Time{}) == nil {
			add()
			s.serving.Add(1)
			return true
		}
	}
	_ = c.Close()
	return false
}

// mux answers questions as they come, each on its own. There is no bound on them here.
// Callers bound their own requests, and a question that waits must not keep out the one
// that it waits for.
func (s *Server) mux(c net.Conn) {
	m := &mux{s: s, send: newSender(c), asked: map[uint64]*question{}}
	if !s.greet(c, greeting, func() { s.muxes[c] = m.send }) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var sending sync.WaitGroup
	sending.Go(func() {
		if m.send.run(ctx) != nil {
			_ = c.Close()
		}
	})
	m.receive(c)
	m.send.end()
	m.cancel()
	m.answering.Wait()
	cancel()
	_ = c.Close()
	sending.Wait()
	s.mu.Lock()
	delete(s.muxes, c)
	s.mu.Unlock()
	s.serving.Done()
}

// A mux is a connection on which another process asks questions.
type mux struct {
	s         *Server
	send      *sender
	answering sync.WaitGroup

	mu    sync.Mutex
	asked map[uint64]*question
}

// receive has questions answered until the connection ends.
func (m *mux) receive(c net.Conn) {
	from := &frameReader{from: tryio.NewReader(c)}
	for {
		b, err := from.read()
		if err != nil {
			return
		}
		q := &question{m: m, body: decoderOf(b)}
		q.number, q.op = q.body.Uvarint(), q.body.Byte()
		left := q.body.Uvarint()
		if q.body.Bad() {
			return
		}
		switch q.op {
		case opPing:
			m.send.tell(0, answerOK)
			continue
		case opCancel:
			m.mu.Lock()
			asked := m.asked[q.number]
			m.mu.Unlock()
			if asked != nil {
				asked.end(context.Canceled)
			}
			continue
		}
		if left > 0 {
			q.until = time.Now().Add(time.Duration(min(left, 1<<40)) * time.Microsecond)
		}
		m.mu.Lock()
		m.asked[q.number] = q
		m.mu.Unlock()
		m.answering.Add(1)
		select {
		case m.s.work <- q:
		default:
			m.s.workers.Go(func() { m.s.worker(q) })
		}
	}
}

// maxIdleWorkers bounds the goroutines that wait for questions.
const maxIdleWorkers = 128

// worker answers a question, then others: it has the stack by then that
// answering takes.
func (s *Server) worker(q *question) {
	for q != nil {
		q.answer()
		if s.idle.Add(1) <= maxIdleWorkers {
			q = <-s.work // nil when no more work will come
		} else {
			q = nil
		}
		s.idle.Add(-1)
	}
}

// cancel ends the questions that are being answered.
func (m *mux) cancel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range m.asked {
		q.end(context.Canceled)
	}
}

// A question is being answered. It is its own context: that ends with the
// connection, or when the caller says so. The caller keeps the time, and is
// gone if it says nothing when it is up.
type question struct {
	m      *mux
	number uint64
	op     byte
	body   decoder
	until  time.Time // zero: no deadline

	// record is of the request that it is part of, if it is measured.
	record   request.Record
	measured bool

	mu   sync.Mutex
	done chan struct{} // made when it is asked for
	err  error
}

var _ context.Context = (*question)(nil)

func (q *question) answer() {
	defer q.m.answering.Done()
	b := q.m.s.answer(q, batches.empty(), q.op, q.body)
	q.m.mu.Lock()
	delete(q.m.asked, q.number)
	others := len(q.m.asked) > 0
	q.m.mu.Unlock()
	charge, _ := q.m.send.add(q.number, b[:1], b[1:])
	batches.Put(&b)
	if charge {
		q.m.send.flush(others)
	}
	q.end(context.Canceled) // for contexts derived from it
}

func (q *question) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return
	}
	if q.err = err; q.done != nil {
		close(q.done)
	}
}

// Deadline implements context.Context.
func (q *question) Deadline() (time.Time, bool) { return q.until, !q.until.IsZero() }

// Done implements context.Context.
func (q *question) Done() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done == nil {
		if q.done = make(chan struct{}); q.err != nil {
			close(q.done)
		}
	}
	return q.done
}

// Err implements context.Context.
func (q *question) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Value implements context.Context.
func (q *question) Value(key any) any {
	if q.measured && request.IsKey(key) {
		return &q.record
	}
	return nil
}

// answer appends the answer of a question, its kind first.
func (s *Server) answer(ctx context.Context, b []byte, op byte, d decoder) (out []byte) {
	start := len(b)
	defer func() {
		if r := recover(); r != nil {
			s.o.Log.Error("a call of another server ended in a panic", "op", op, "panic", r, "stack", string(debug.Stack()))
			out = appendError(append(b[:start], answerError), fault.New(fault.Internal, "panic: %v", r))
		}
	}()
	b = append(b, answerOK)
	b, err := s.do(ctx, b, op, d)
	switch {
	case errors.Is(err, errLarge):
		return append(b[:start], answerLarge)
	case err != nil:
		return appendError(append(b[:start], answerError), err)
	}
	return b
}

func (s *Server) do(ctx context.Context, b []byte, op byte, d decoder) ([]byte, error) {
	if op == opControl {
		return s.control(ctx, b, d.Rest())
	}
	at := d.target()
	var own *request.Record
	if _, ok := ctx.(*question); !ok {
		own = new(request.Record)
	}
	switch op {
	case opMutateRow:
		e := new(row.Entry)
		if d.entry(e); d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		err := s.to.MutateRow(ctx, at, e)
		return of.end(b, err), err
	case opMutateRows:
		entries := d.entries()
		if d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		errs, err := s.to.MutateRows(ctx, at, entries)
		if err != nil {
			of.ended(err)
			return b, err
		}
		return of.end(appendErrors(b, errs), nil), nil
	case opCheckAndMutateRow:
		key, predicate, then, otherwise := d.bytes(), d.filter(0), d.mutations(), d.mutations()
		if d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		matched, err := s.to.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		if matched {
			return of.end(append(b, 1), err), err
		}
		return of.end(append(b, 0), err), err
	case opReadModifyWriteRow:
		key, rules := d.bytes(), d.rules()
		if d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		cells, err := s.to.ReadModifyWriteRow(ctx, at, key, rules)
		return of.end(appendCells(b, cells), err), err
	case opUpdateRow:
		key, token, read, seen, muts := d.bytes(), d.bytes(), d.filter(0), d.bytes(), d.mutations()
		if d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		cells, became, err := s.to.UpdateRow(ctx, at, key, token, read, seen, muts)
		return of.end(appendCells(append(b, byte(became)), cells), err), err
	case opApplyView:
		rows := d.viewRows()
		if d.Bad() {
			return b, errMalformed
		}
		return b, s.to.ApplyView(ctx, at, rows)
	case opDropRange:
		r := d.rowRange()
		if d.Bad() {
			return b, errMalformed
		}
		return b, s.to.DropRange(ctx, at, r)
	case opReadRows:
		req := d.read()
		if d.Bad() {
			return b, errMalformed
		}
		ctx, of := s.begin(ctx, own, d.Rest())
		w := &rowWriter{b: b, full: rowsBytes, large: maxRowPart, work: of.work()}
		rest, stats, err := s.to.ReadRows(ctx, at, req, w)
		if err == nil {
			w.done(&stats, rest)
		}
		of.ended(err)
		return w.b, err
	}
	return b, errMalformed
}

// scan answers a large read of a server that knows no connections for scans.
// Nothing is held while a message waits to be sent,
// except within a row that is larger than maxRowPart.
func (s *Server) scan(st grpc.ServerStream) error {
	var in raw
	if err := st.RecvMsg(&in); err != nil {
		return err
	}
	d := decoderOf(in.b)
	at, req := d.target(), d.read()
	if d.Bad() {
		return errMalformed
	}
	empty := func() []byte { return append(batches.empty(), answerOK) }
	w := &rowWriter{b: empty(), full: rowsBytes, large: maxRowPart}
	w.send = func(b []byte) ([]byte, error) {
		if err := st.SendMsg(&raw{b, true}); err != nil {
			return nil, err
		}
		return empty(), nil
	}
	refused, err := s.scanTo(st.Context(), at, req, w)
	if refused != nil && err == nil {
		err = st.SendMsg(&raw{b: appendError([]byte{answerError}, refused)})
	}
	return err
}

func (s *Server) control(ctx context.Context, b, body []byte) ([]byte, error) {
	var c control
	if err := json.Unmarshal(body, &c); err != nil {
		return b, errMalformed
	}
	switch c.Call {
	case "Load":
		return b, s.to.Load(ctx, c.Keys)
	case "Unload":
		return b, s.to.Unload(ctx, c.Tablets)
	case "Split":
		return b, s.to.Split(ctx, c.Left, c.At)
	case "Merge":
		return b, s.to.Merge(ctx, c.Left, c.Right)
	case "Flush":
		return b, s.to.Flush(ctx, c.Tablets)
	case "Compact":
		return b, s.to.Compact(ctx, c.Tablets)
	case "Pause":
		return b, s.to.Pause(ctx, c.Number, c.Tablets, c.Hold)
	case "Cut":
		return appendJSON(b)(s.to.Cut(ctx, c.Number))
	case "Resume":
		return b, s.to.Resume(ctx, c.Number)
	case "Needed":
		return appendJSON(b)(s.to.Needed(ctx, c.Objects))
	case "Attend":
		return appendJSON(b)(s.to.Attend(ctx, c.Number, c.Epoch, c.Hold))
	case "Status":
		return appendJSON(b)(s.to.Status(ctx))
	case "Describe":
		details, err := s.to.Describe(ctx, c.Table, !c.Plain)
		if err != nil || !c.Packed {
			return appendJSON(b)(details, err)
		}
		return appendDetails(b, details), nil
	case "Sum":
		return appendJSON(b)(s.to.Sum(ctx, c.Table))
	case "SplitKey":
		var k splitKey
		var err error
		k.Key, k.OK, err = s.to.SplitKey(ctx, c.Left)
		return appendJSON(b)(k, err)
	case "Cuts":
		return appendJSON(b)(s.to.Cuts(ctx, c.Left))
	case "Verify":
		return appendJSON(b)(s.to.Verify(ctx, c.Left))
	case "Ask":
		if len(c.Objects) != 1 {
			return b, errMalformed
		}
		return appendJSON(b)(s.to.Ask(ctx, c.Objects[0], c.At))
	case "DropDamaged":
		if len(c.Objects) != 1 {
			return b, errMalformed
		}
		return appendJSON(b)(s.to.DropDamaged(ctx, c.Left, c.Objects[0]))
	}
	return b, fault.New(fault.Unimplemented, "this tablet server knows no call %q", c.Call)
}

// appendJSON returns what appends the result of a call.
func appendJSON(b []byte) func(any, error) ([]byte, error) {
	return func(v any, err error) ([]byte, error) {
		if err != nil {
			return b, err
		}
		j, err := json.Marshal(v)
		return append(b, j...), err
	}
}
