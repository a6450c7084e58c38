package session

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// A session is one stream. The goroutine of its handler receives. It serves a
// call itself if the client waits for the answer, which spares a change of
// goroutines, a tenth of the call. A client that does not wait, but has sent the
// next call meanwhile, has its calls served by workers.
type session struct {
	svc           *Service
	stream        grpc.ServerStream
	conn          net.Addr
	rows          Rows
	reads, writes bool
	leaves        time.Time // when it is told to go away
	cancel        context.CancelFunc

	// waiting is when the wait for the next message began, in Unix nanoseconds;
	// sent when the last frame went out.
	waiting, sent atomic.Int64
	sending       sync.Mutex // held during SendMsg

	slots chan struct{} // one for each call in flight
	work  chan *call    // to idle workers
	tasks sync.WaitGroup

	mu struct {
		sync.Mutex
		calls   []*call
		last    int64 // id of the latest call
		idle    int   // workers that wait, or will
		away    time.Time
		beating bool // a heartbeat is being sent
		ended   bool // no more tasks
	}
}

// roundTrip is less than a client needs to take an answer and send a call. One
// that does not have to be waited for so long was on its way before.
const roundTrip = 20 * time.Microsecond

// maxIdle is how many workers of a session wait for work.
const maxIdle = 4

// open takes the first message and answers it.
func (s *session) open(field func(*Target) *string) error {
	req := requests.Get().(*wire.SessionRequest)
	defer func() {
		req.Release()
		requests.Put(req)
	}()
	if err := s.stream.RecvMsg(req); err != nil {
		if errors.Is(err, io.EOF) {
			return fault.New(fault.Invalid, "The stream ended before open_session")
		}
		return err
	}
	if err := req.Malformed(); err != nil {
		return malformed(err)
	}
	if req.Payload != wire.OpenSession {
		return fault.InvalidField("open_session", "A session begins with open_session")
	}
	if !req.Reads() && !req.Writes() {
		return fault.InvalidField("open_session.payload.permission", "The permission must be PERMISSION_READ, PERMISSION_WRITE or PERMISSION_READ_WRITE")
	}
	s.reads, s.writes = req.Reads(), req.Writes()
	t := Target{Profile: req.Profile, Writes: s.writes}
	*field(&t) = req.Name
	var err error
	if s.rows, err = s.svc.o.Open(s.stream.Context(), t); err != nil {
		return err
	}
	if err := s.svc.add(s); err != nil {
		return err
	}
	// Clients take the peer from headers that come before any message.
	err = s.stream.SendHeader(nil)
	for _, frame := range [...][]byte{s.svc.opened, s.svc.params} {
		if err == nil {
			err = s.send(wire.Encoded(frame))
		}
	}
	if err != nil {
		s.svc.remove(s)
	}
	return err
}

func malformed(err error) error {
	return fault.New(fault.Invalid, "The message is no SessionRequest: %v", err)
}

// run serves calls until the client closes the session or is gone.
func (s *session) run() error {
	err := s.receive()
	s.mu.Lock()
	s.mu.ended = true
	if s.mu.away.IsZero() {
		s.mu.away = time.Now() // calls in flight have the grace to end
	}
	if err != nil {
		for _, c := range s.mu.calls {
			c.cancel(context.Canceled)
		}
	}
	s.mu.Unlock()
	close(s.work)
	if err != nil {
		s.cancel() // a frame may be waiting for a client that does not read
	}
	s.tasks.Wait()
	return err
}

func (s *session) receive() error {
	for {
		before := time.Now()
		s.waiting.Store(before.UnixNano())
		s.slots <- struct{}{} // serve gives it back
		req := requests.Get().(*wire.SessionRequest)
		c, err := s.next(req)
		if c == nil {
			<-s.slots
			req.Release()
			requests.Put(req)
			return err
		}
		s.waiting.Store(0)
		if err = s.admit(c); err != nil {
			s.serve(c) // it is refused
		} else if len(s.slots) == 1 && c.start.Sub(before) > roundTrip {
			s.serve(c)
		} else {
			s.hand(c)
		}
	}
}

// next receives a call. It returns neither a call nor an error when the client
// has closed the session.
func (s *session) next(req *wire.SessionRequest) (*call, error) {
	if err := s.stream.RecvMsg(req); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	}
	if err := req.Malformed(); err != nil {
		return nil, malformed(err)
	}
	switch req.Payload {
	case wire.CloseSession:
		return nil, nil
	case wire.VirtualCall:
	default:
		return nil, fault.New(fault.Invalid, "An open session takes virtual_rpc and close_session only")
	}
	c := &call{Context: s.stream.Context(), req: req, start: time.Now()}
	if req.HasTimeout {
		c.deadline = c.start.Add(req.Timeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.ID <= s.mu.last {
		return nil, fault.InvalidField("virtual_rpc.rpc_id", "Ids of virtual calls must increase, but %d came after %d", req.ID, s.mu.last)
	}
	return c, nil
}

// admit notes the call as one in flight, or refuses it.
func (s *session) admit(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.last = c.req.ID
	s.mu.calls = append(s.mu.calls, c)
	if !s.mu.away.IsZero() {
		// The client was told that calls after the last admitted one are not made.
		c.refused = &fault.Error{Kind: fault.Unavailable, Reason: "SESSION_GOING_AWAY", RetryAfter: time.Millisecond, Msg: "The session is going away, use another"}
	}
	return c.refused
}

// hand gives a call to a worker.
func (s *session) hand(c *call) {
	s.mu.Lock()
	idle := s.mu.idle > 0
	if idle {
		s.mu.idle--
	}
	s.mu.Unlock()
	if idle {
		s.work <- c
		return
	}
	s.tasks.Go(func() { s.worker(c) })
}

func (s *session) worker(c *call) {
	for {
		s.serve(c)
		s.mu.Lock()
		stay := s.mu.idle < maxIdle && !s.mu.ended
		if stay {
			s.mu.idle++
		}
		s.mu.Unlock()
		if !stay {
			return
		}
		var ok bool
		if c, ok = <-s.work; !ok {
			return
		}
	}
}

// serve makes a call and answers it.
func (s *session) serve(c *call) {
	method := MethodReadRow
	if c.req.Op == wire.VirtualMutateRow {
		method = MethodMutateRow
	}
	o := s.svc.o.Observer
	c.record.Method = method
	o.CallStarted(&c.record)
	err := s.call(c, method)
	elapsed := time.Since(c.start)
	// An answer that cannot be sent is the receiver's to notice: the stream is
	// broken.
	n, _ := s.answer(c, err, elapsed)
	o.CallDone(c, &c.record, err, c.start, elapsed, int64(c.req.WireLen()), int64(n))
	s.mu.Lock()
	i := slices.Index(s.mu.calls, c)
	s.mu.calls[i] = s.mu.calls[len(s.mu.calls)-1]
	s.mu.calls[len(s.mu.calls)-1] = nil
	s.mu.calls = s.mu.calls[:len(s.mu.calls)-1]
	s.mu.Unlock()
	req := c.req
	c.row.Reset()
	req.Release()
	requests.Put(req)
	<-s.slots
}

func (s *session) call(c *call, method string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.svc.o.Observer.CallPanicked(c, method, p)
		}
	}()
	if c.refused != nil {
		return c.refused
	}
	if err := c.req.Check(); err != nil {
		return err
	}
	if err := c.Err(); err != nil {
		return err
	}
	switch c.req.Op {
	case wire.VirtualReadRow:
		if !s.reads {
			return fault.New(fault.PermissionDenied, "The session was opened for writing only")
		}
		c.row.Budget = s.svc.o.Budget
		c.stats, err = s.rows.ReadRow(c, c.req.Key, c.req.Filter, &c.row)
		return err
	default:
		if !s.writes {
			return fault.New(fault.PermissionDenied, "The session was opened for reading only")
		}
		return s.rows.MutateRow(c, &c.req.Entry)
	}
}

// send sends a frame.
func (s *session) send(m any) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	err := s.stream.SendMsg(m)
	s.sent.Store(time.Now().UnixNano())
	return err
}

// task runs f unless the session is ending. It is called with s.mu held.
func (s *session) taskLocked(f func()) bool {
	if s.mu.ended {
		return false
	}
	s.tasks.Go(f)
	return true
}

// sendAway tells the client to use another session.
func (s *session) sendAway(reason, description string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.away.IsZero() {
		return
	}
	s.mu.away = time.Now()
	frame := encode(&bigtablepb.SessionResponse{Payload: &bigtablepb.SessionResponse_GoAway{GoAway: &bigtablepb.GoAwayResponse{
		Reason: reason, Description: description, LastRpcIdAdmitted: s.mu.last}}})
	s.taskLocked(func() { _ = s.send(frame) })
}

// heartbeat is that frame.
var heartbeat = encode(&bigtablepb.SessionResponse{Payload: &bigtablepb.SessionResponse_Heartbeat{Heartbeat: &bigtablepb.HeartbeatResponse{}}})

// look does what is due at now. shortSince is when memory became short, zero if
// it is not.
func (s *session) look(now, shortSince time.Time) {
	if now.After(s.leaves) {
		s.sendAway("SESSION_AGE", "The session is old, open another")
	}
	if wait := s.waiting.Load(); wait != 0 && !shortSince.IsZero() {
		// It may be in the middle of a message that holds memory; that cannot be told.
		since := time.Unix(0, wait)
		if shortSince.After(since) {
			since = shortSince
		}
		if now.Sub(since) >= time.Second {
			s.cancel()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.calls) > 0 {
		gone := s.stream.Context().Err() != nil
		for _, c := range s.mu.calls {
			switch {
			case gone:
				c.cancel(context.Canceled)
			case !c.deadline.IsZero() && now.After(c.deadline):
				c.cancel(context.DeadlineExceeded)
			}
		}
		if now.Sub(time.Unix(0, s.sent.Load())) >= s.svc.o.KeepAlive/4 && !s.mu.beating {
			// Not here: a client that does not read must not hold up the others.
			s.mu.beating = s.taskLocked(func() {
				_ = s.send(heartbeat)
				s.mu.Lock()
				s.mu.beating = false
				s.mu.Unlock()
			})
		}
	}
	if away := s.mu.away; !away.IsZero() {
		if d := now.Sub(away); d >= s.svc.o.Grace || d >= s.svc.o.Quiet && len(s.mu.calls) == 0 {
			s.cancel()
		}
	}
}
