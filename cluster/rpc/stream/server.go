package stream

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// ServerOptions are the settings of a Server.
type ServerOptions struct {
	// TLS is spoken if it is set.
	TLS *tls.Config
	// Log takes what should not happen. Default: nothing.
	Log *slog.Logger
}

// A Server lets other processes ask a tablet server.
type Server struct {
	to   rpc.TabletServer
	o    ServerOptions
	grpc *grpc.Server

	mu      sync.Mutex
	senders map[*sender]bool
	leaving bool
}

// NewServer returns a Server that asks to.
func NewServer(to rpc.TabletServer, o ServerOptions) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{to: to, o: o, senders: map[*sender]bool{}}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(4 << 20), grpc.InitialConnWindowSize(16 << 20),
		// A process that is gone without a word is noticed.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.WaitForHandlers(true),
	}
	if o.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	mux, scan := muxDesc, scanDesc
	mux.Handler = func(_ any, st grpc.ServerStream) error { return s.mux(st) }
	scan.Handler = func(_ any, st grpc.ServerStream) error { return s.scan(st) }
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: service[1 : len(service)-1],
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{mux, scan},
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in raw
			if err := dec(&in); err != nil {
				return nil, err
			}
			d := decoder{b: in.b}
			op := d.byte()
			return &raw{b: s.answer(ctx, nil, op, d)}, nil
		}}},
	}, s)
	return s
}

// Serve answers on l until Stop.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop asks for no more calls, and returns when those that came are answered.
// What is left when ctx ends is cut off.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	s.leaving = true
	for q := range s.senders {
		q.add(0, []byte{answerBye}, nil)
	}
	s.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.grpc.Stop()
		<-stopped
	}
}

// mux answers questions as they come, each on its own. There is no bound on
// them here: whoever asks bounds its own requests, and a question that waits
// must not keep out the one that it waits for.
func (s *Server) mux(st grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	q := newSender()
	s.mu.Lock()
	s.senders[q] = true
	leaving := s.leaving
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.senders, q)
		s.mu.Unlock()
	}()
	if leaving {
		q.add(0, []byte{answerBye}, nil)
	}
	var sending, answering sync.WaitGroup
	sending.Go(func() {
		if q.run(ctx, st.SendMsg) != nil {
			cancel()
		}
	})
	var mu sync.Mutex
	asked := map[uint64]context.CancelFunc{}
	defer func() {
		cancel()
		answering.Wait()
		sending.Wait()
	}()
	for {
		var m raw
		if err := st.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		d := &decoder{b: m.b}
		for len(d.b) > 0 {
			number, f := d.frame()
			op, left := f.byte(), f.uvarint()
			if d.bad || f.bad {
				return errMalformed
			}
			switch op {
			case opPing:
				q.add(0, []byte{answerOK}, nil)
				continue
			case opCancel:
				mu.Lock()
				stop := asked[number]
				mu.Unlock()
				if stop != nil {
					stop()
				}
				continue
			}
			var one context.Context
			var stop context.CancelFunc
			if left > 0 {
				one, stop = context.WithTimeout(ctx, time.Duration(min(left, 1<<40))*time.Microsecond)
			} else {
				one, stop = context.WithCancel(ctx)
			}
			mu.Lock()
			asked[number] = stop
			mu.Unlock()
			answering.Go(func() {
				b := s.answer(one, batches.empty(), op, f)
				q.add(number, b[:1], b[1:])
				batches.Put(&b)
				mu.Lock()
				delete(asked, number)
				mu.Unlock()
				stop()
			})
		}
	}
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
		return s.control(ctx, b, d.b)
	}
	at := d.target()
	switch op {
	case opMutateRow:
		e := new(row.Entry)
		if d.entry(e); d.bad {
			return b, errMalformed
		}
		return b, s.to.MutateRow(ctx, at, e)
	case opMutateRows:
		entries := d.entries()
		if d.bad {
			return b, errMalformed
		}
		errs, err := s.to.MutateRows(ctx, at, entries)
		if err != nil {
			return b, err
		}
		return appendErrors(b, errs), nil
	case opCheckAndMutateRow:
		key, predicate, then, otherwise := d.bytes(), d.filter(0), d.mutations(), d.mutations()
		if d.bad {
			return b, errMalformed
		}
		matched, err := s.to.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		if matched {
			return append(b, 1), err
		}
		return append(b, 0), err
	case opReadModifyWriteRow:
		key, rules := d.bytes(), d.rules()
		if d.bad {
			return b, errMalformed
		}
		cells, err := s.to.ReadModifyWriteRow(ctx, at, key, rules)
		return appendCells(b, cells), err
	case opDropRange:
		r := d.rowRange()
		if d.bad {
			return b, errMalformed
		}
		return b, s.to.DropRange(ctx, at, r)
	case opReadRows:
		req := d.read()
		if d.bad {
			return b, errMalformed
		}
		w := &rowWriter{b: b, full: rowsBytes, large: tearBytes}
		rest, stats, err := s.to.ReadRows(ctx, at, req, w)
		if err == nil {
			w.done(&stats, rest)
		}
		return w.b, err
	}
	return b, errMalformed
}

// scan answers a large read. Nothing is held while a message waits to be sent,
// except within a row that is larger than tearBytes.
func (s *Server) scan(st grpc.ServerStream) error {
	var in raw
	if err := st.RecvMsg(&in); err != nil {
		return err
	}
	d := decoder{b: in.b}
	at, req := d.target(), d.read()
	if d.bad {
		return errMalformed
	}
	empty := func() []byte { return append(batches.empty(), answerOK) }
	w := &rowWriter{b: empty(), full: rowsBytes, large: tearBytes}
	w.send = func(b []byte) ([]byte, error) {
		if err := st.SendMsg(&raw{b, true}); err != nil {
			return nil, err
		}
		return empty(), nil
	}
	var total scan.Stats
	for {
		rest, stats, err := s.to.ReadRows(st.Context(), at, req, w)
		if err != nil {
			if st.Context().Err() != nil {
				return st.Context().Err()
			}
			// What is complete of the rows is true all the same.
			w.drop()
			if err := w.Flush(); err != nil {
				return err
			}
			return st.SendMsg(&raw{b: appendError([]byte{answerError}, err)})
		}
		total.RowsSeen += stats.RowsSeen
		total.RowsReturned += stats.RowsReturned
		total.CellsSeen += stats.CellsSeen
		total.CellsReturned += stats.CellsReturned
		if req.Limit > 0 {
			if req.Limit -= stats.RowsReturned; req.Limit <= 0 {
				rest = nil
			}
		}
		if req.Ranges = rest; len(rest) == 0 {
			break
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	w.done(&total, nil)
	return w.Flush()
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
	case "InUse":
		return appendJSON(b)(s.to.InUse(ctx, c.Objects))
	case "Status":
		return appendJSON(b)(s.to.Status(ctx))
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
