package stream

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// Options are the settings of a Dialer.
type Options struct {
	// TLS is spoken if it is set.
	TLS *tls.Config
	// Silence is how long a server that is asked something may be silent before
	// it is taken for lost; a living one answers pings. Default 5 s.
	Silence time.Duration
	// Connect is how long connecting may take. Default 3 s.
	Connect time.Duration
}

// A Dialer reaches tablet servers over the network.
type Dialer struct {
	o Options
	// Forwarded counts calls that went to other processes, Local those that did
	// not have to, Lost those whose answer did not come.
	Forwarded, Local, Lost atomic.Int64

	mu     sync.RWMutex
	peers  map[string]*peer
	local  map[string]rpc.TabletServer
	closed bool
}

var _ rpc.Dialer = (*Dialer)(nil)

// NewDialer returns a Dialer.
func NewDialer(o Options) *Dialer {
	if o.Silence == 0 {
		o.Silence = 5 * time.Second
	}
	if o.Connect == 0 {
		o.Connect = 3 * time.Second
	}
	return &Dialer{o: o, peers: map[string]*peer{}, local: map[string]rpc.TabletServer{}}
}

// Here says that an address is that of a server in this process.
func (d *Dialer) Here(addr string, s rpc.TabletServer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.local[addr] = s
}

// Dial implements rpc.Dialer. It connects with the first call.
func (d *Dialer) Dial(addr string) rpc.TabletServer {
	d.mu.RLock()
	s, p := d.local[addr], d.peers[addr]
	d.mu.RUnlock()
	if s != nil {
		d.Local.Add(1)
		return s
	}
	if p == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if p = d.peers[addr]; p == nil {
			p = &peer{d: d, addr: addr}
			d.peers[addr] = p
		}
	}
	return p
}

// Close ends all connections. Calls under way end as if the servers were lost.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	peers := d.peers
	d.peers = map[string]*peer{}
	d.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		l := p.link
		p.mu.Unlock()
		if l != nil {
			l.fail(errors.New("this process ends"))
			<-l.done
		}
	}
}

// A peer is a server at another address.
type peer struct {
	d    *Dialer
	addr string

	mu         sync.Mutex
	link       *link         // nil if there is none that can be asked
	connecting chan struct{} // closed when an attempt is over
	failed     error         // of the last attempt
	failedAt   time.Time
}

var _ rpc.TabletServer = (*peer)(nil)

// retryAfter is how soon another attempt to connect is made.
const retryAfter = 50 * time.Millisecond

func (p *peer) unreachable(err error) error {
	return fault.New(fault.Unavailable, "tablet server %s cannot be reached: %w", p.addr, err)
}

// get returns a link, connecting if need be.
func (p *peer) get(ctx context.Context) (*link, error) {
	for {
		p.mu.Lock()
		if l := p.link; l != nil {
			p.mu.Unlock()
			return l, nil
		}
		if p.connecting == nil {
			if p.failed != nil && time.Since(p.failedAt) < retryAfter {
				err := p.failed
				p.mu.Unlock()
				return nil, p.unreachable(err)
			}
			p.connecting = make(chan struct{})
			go p.connect()
		}
		wait := p.connecting
		p.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
		l, err := p.link, p.failed
		p.mu.Unlock()
		if l == nil && err != nil {
			return nil, p.unreachable(err)
		}
	}
}

func (p *peer) connect() {
	l, err := newLink(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.d.mu.RLock()
	closed := p.d.closed
	p.d.mu.RUnlock()
	if closed && l != nil {
		go l.fail(errors.New("this process ends"))
	} else {
		p.link = l
	}
	p.failed, p.failedAt = err, time.Now()
	close(p.connecting)
	p.connecting = nil
}

// forget makes the next call connect again.
func (p *peer) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == l {
		p.link = nil
	}
}

// A link is the connections to a server.
type link struct {
	p      *peer
	grpc   *grpc.ClientConn // connects with the first call
	mux    net.Conn
	cancel context.CancelFunc
	send   *sender
	done   chan struct{} // closed when its goroutines have ended
	failed chan struct{} // closed when it has failed

	// heard is when something came last, as now says. waiting counts the calls
	// that wait for something.
	heard   atomic.Int64
	waiting atomic.Int64

	// leaving says that there are to be no new calls: the link ends with the last
	// that waits.
	leaving atomic.Bool

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*call
	err   error
	// conns are the connections for scans, idle those that nobody uses. There are
	// none before plain, by now.
	conns map[*scanConn]struct{}
	idle  []*scanConn
	plain int64
}

// A call is a question that waits for its answer.
type call struct {
	done   chan struct{} // takes one
	kind   byte
	answer decoder
	// sent says, of one that failed, that the question may have arrived.
	sent bool
	err  error
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newLink(p *peer) (*link, error) {
	creds := insecure.NewCredentials()
	if p.d.o.TLS != nil {
		creds = credentials.NewTLS(p.d.o.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(16<<20),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryAfter, Multiplier: 1.6, MaxDelay: time.Second}, MinConnectTimeout: p.d.o.Connect}))
	if err != nil {
		return nil, err
	}
	connecting, connected := context.WithTimeout(context.Background(), p.d.o.Connect)
	mux, err := dialMux(connecting, p.addr, p.d.o.TLS, greeting)
	connected()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{p: p, grpc: conn, mux: mux, cancel: cancel, send: newSender(), done: make(chan struct{}), failed: make(chan struct{}), calls: map[uint64]*call{}, conns: map[*scanConn]struct{}{}}
	l.heard.Store(now())
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.send.run(ctx, l.mux); err != nil && ctx.Err() == nil {
			l.fail(err)
		}
	})
	running.Go(func() { l.fail(l.receive()) })
	running.Go(func() { l.watch(ctx) })
	go func() {
		running.Wait()
		_ = conn.Close()
		close(l.done)
	}()
	return l, nil
}

// began is when the process did, about.
var began = time.Now()

// now is a clock that nobody sets, in nanoseconds.
func now() int64 { return int64(time.Since(began)) }

// receive passes answers on until there are no more.
func (l *link) receive() error {
	from := &frameReader{from: l.mux}
	for {
		b, err := from.read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server ended the connection")
			}
			return err
		}
		l.heard.Store(now())
		f := decoder{b: b}
		number, kind := f.uvarint(), f.byte()
		if f.bad {
			return errMalformed
		}
		if kind == answerBye {
			l.leave()
			continue
		}
		l.mu.Lock()
		c := l.calls[number]
		delete(l.calls, number)
		l.mu.Unlock()
		if c != nil {
			c.kind, c.answer = kind, f
			c.done <- struct{}{}
		}
	}
}

var errBye = errors.New("the server is about to end")

// leave makes new calls go over a new link. This one ends with its last call.
func (l *link) leave() {
	l.p.forget(l)
	l.leaving.Store(true)
	l.hold()
	l.release()
}

// hold is called before something is asked for, release when it has come.
func (l *link) hold() { l.waiting.Add(1) }

func (l *link) release() {
	if l.waiting.Add(-1) == 0 && l.leaving.Load() {
		l.fail(errBye)
	}
}

// watch gives the link up if the server is silent for too long while something
// waits for it.
func (l *link) watch(ctx context.Context) {
	silence := l.p.d.o.Silence
	tick := time.NewTicker(silence / 4)
	defer tick.Stop()
	waited := time.Now() // since when nobody waits
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.prune()
		if l.waiting.Load() == 0 {
			waited = time.Now()
			continue
		}
		quiet := time.Duration(now() - l.heard.Load())
		if quiet > silence && time.Since(waited) > silence {
			l.fail(errors.New("it does not answer"))
			return
		}
		if quiet > silence/4 {
			l.send.add(0, []byte{opPing, 0}, nil)
		}
	}
}

// fail ends the link.
func (l *link) fail(err error) {
	l.p.forget(l)
	taken := l.send.end()
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	lost, conns := l.calls, l.conns
	l.calls, l.conns, l.idle = nil, nil, nil
	l.mu.Unlock()
	close(l.failed)
	l.cancel()
	_ = l.mux.Close()
	for c := range conns {
		_ = c.Close()
	}
	for number, c := range lost {
		c.sent, c.err = number <= taken, err
		c.done <- struct{}{}
	}
}

// begin asks a question. It returns false if the link has failed: the question
// did not leave.
func (l *link) begin(c *call, head, body []byte) (uint64, bool) {
	l.mu.Lock()
	if l.err != nil || l.leaving.Load() {
		l.mu.Unlock()
		return 0, false
	}
	l.next++
	number := l.next
	l.calls[number] = c
	// Within the lock, so that numbers leave in order.
	ok := l.send.add(number, head, body)
	if !ok {
		delete(l.calls, number)
	}
	l.mu.Unlock()
	return number, ok
}

// head appends an operation and the time that ctx leaves it.
func head(ctx context.Context, b []byte, op byte) []byte {
	b = append(b, op)
	deadline, ok := ctx.Deadline()
	if !ok {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(max(time.Until(deadline).Microseconds(), 1)))
}

// lost returns the error of a call whose answer did not come.
func (p *peer) lost(err error, changes bool) error {
	p.d.Lost.Add(1)
	if changes {
		return errors.Join(rpc.ErrUnknown, fault.New(fault.Unavailable, "tablet server %s: %w", p.addr, err))
	}
	return p.unreachable(err)
}

// ask asks a question and returns what is in the answer.
func (p *peer) ask(ctx context.Context, op byte, body []byte, changes bool) (decoder, error) {
	if err := ctx.Err(); err != nil {
		return decoder{}, err
	}
	p.d.Forwarded.Add(1)
	var l *link
	var number uint64
	c := calls.Get().(*call)
	defer func() { calls.Put(c) }()
	var buf [16]byte
	h := head(ctx, buf[:0], op)
	for attempt := 0; ; attempt++ {
		var err error
		if l, err = p.get(ctx); err != nil {
			return decoder{}, err
		}
		l.hold()
		if len(body) > smallBytes {
			defer l.release()
			return p.askAlone(ctx, l, op, body, changes)
		}
		var ok bool
		if number, ok = l.begin(c, h, body); ok {
			break
		}
		l.release()
		if p.forget(l); attempt == 3 {
			return decoder{}, p.unreachable(errors.New("connections end as soon as they begin"))
		}
	}
	defer l.release()
	select {
	case <-c.done:
	case <-ctx.Done():
		l.mu.Lock()
		_, waits := l.calls[number]
		delete(l.calls, number)
		l.mu.Unlock()
		if waits {
			l.send.add(number, []byte{opCancel, 0}, nil)
			return decoder{}, ctx.Err()
		}
		<-c.done // it is there just now
	}
	kind, answer, sent, err := c.kind, c.answer, c.sent, c.err
	*c = call{done: c.done}
	if err != nil {
		if !sent {
			return decoder{}, p.unreachable(err)
		}
		return decoder{}, p.lost(err, changes)
	}
	return result(kind, answer)
}

// errScan is the error of an answer that asks to use Scan.
var errScan = errors.New("use Scan")

func result(kind byte, answer decoder) (decoder, error) {
	switch kind {
	case answerOK:
		return answer, nil
	case answerLarge:
		return answer, errScan
	case answerError:
		return decoder{}, answer.error()
	}
	return decoder{}, errMalformed
}

// askAlone asks a question by a call of its own.
func (p *peer) askAlone(ctx context.Context, l *link, op byte, body []byte, changes bool) (decoder, error) {
	in := &raw{b: append([]byte{op}, body...)}
	var out raw
	during, cancel := l.during(ctx)
	defer cancel()
	if err := l.grpc.Invoke(during, methodCall, in, &out); err != nil {
		return decoder{}, p.broken(ctx, err, changes)
	}
	l.heard.Store(now())
	answer := decoder{b: out.b}
	kind := answer.byte()
	return result(kind, answer)
}

// during returns a context that ends with the link too.
func (l *link) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-l.failed:
			// One that only leaves lets calls of their own end: gRPC's GOAWAY does.
			if l.err != nil && !errors.Is(l.err, errBye) {
				cancel(l.err)
			}
		case <-stop:
		}
	}()
	var once sync.Once
	return ctx, func() {
		once.Do(func() { close(stop) })
		cancel(nil)
	}
}

// broken translates an error of gRPC itself. ctx is the caller's.
func (p *peer) broken(ctx context.Context, err error, changes bool) error {
	if errors.Is(err, io.EOF) {
		return p.lost(errors.New("the server ended the call"), changes)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Unauthenticated, codes.PermissionDenied:
		return fault.New(fault.Internal, "tablet server %s refuses this one: %w", p.addr, err)
	}
	return p.lost(err, changes)
}

// ReadRows implements rpc.Data. Rows that have come are the caller's, also if
// the answer ends early.
func (p *peer) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	body := batches.Get(0)
	defer batches.Put(body)
	*body = appendRead(appendTarget((*body)[:0], at), req)
	r := readers.Get().(*rowReader)
	defer readers.Put(r)
	*r = rowReader{to: w}
	defer func() { *r = rowReader{} }()
	if small(req) {
		answer, err := p.ask(ctx, opReadRows, *body, false)
		if err == nil {
			if err = r.read(answer.b); err == nil && !r.ended {
				err = errMalformed
			}
			return r.rest, r.stats, err
		}
		if !errors.Is(err, errScan) {
			return req.Ranges, scan.Stats{}, err
		}
	}
	r.encoded = scan.Encoded(w)
	if err := p.large(ctx, *body, r); err != nil {
		return req.Ranges, scan.Stats{}, err
	}
	return r.rest, r.stats, nil
}

var readers = sync.Pool{New: func() any { return new(rowReader) }}

// large asks for what may be more than a short message.
func (p *peer) large(ctx context.Context, body []byte, r *rowReader) error {
	l, err := p.get(ctx)
	if err != nil {
		return err
	}
	l.hold()
	defer l.release()
	var encoding uint64
	if r.encoded != nil {
		encoding = r.encoded.Encoding()
	}
	question := batches.Get(0)
	*question = appendBytes((*question)[:0], binary.AppendUvarint(body, encoding))
	known, err := p.scan(ctx, l, *question, r)
	batches.Put(question)
	if !known {
		err = p.scanGRPC(ctx, l, body, r)
	}
	return err
}

// small tells whether a read is likely to be answered by a short message.
func small(req *rpc.Read) bool {
	const rows = 16
	if req.Limit > 0 && req.Limit <= rows {
		return true
	}
	if len(req.Ranges) > rows {
		return false
	}
	for _, r := range req.Ranges {
		if !r.IsSingle() {
			return false
		}
	}
	return true
}

// change asks for a change.
func (p *peer) change(ctx context.Context, op byte, body []byte) (decoder, error) {
	answer, err := p.ask(ctx, op, body, true)
	batches.Put(&body)
	return answer, err
}

// MutateRow implements rpc.Data.
func (p *peer) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	_, err := p.change(ctx, opMutateRow, appendEntry(appendTarget(batches.empty(), at), e))
	return err
}

// MutateRows implements rpc.Data.
func (p *peer) MutateRows(ctx context.Context, at rpc.Target, entries []row.Entry) ([]error, error) {
	answer, err := p.change(ctx, opMutateRows, appendEntries(appendTarget(batches.empty(), at), entries))
	if err != nil {
		return nil, err
	}
	errs, err := answer.errors(len(entries))
	return errs, err
}

// appendErrors writes those of errs that are not nil.
func appendErrors(b []byte, errs []error) []byte {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	b = binary.AppendUvarint(b, uint64(failed))
	for i, err := range errs {
		if err != nil {
			b = appendError(binary.AppendUvarint(b, uint64(i)), err)
		}
	}
	return b
}

func (d *decoder) errors(n int) ([]error, error) {
	errs := make([]error, n)
	for range d.count() {
		i := d.uvarint()
		if i >= uint64(n) {
			d.fail()
		}
		if d.bad {
			break
		}
		errs[i] = d.error()
	}
	return errs, d.err()
}

// CheckAndMutateRow implements rpc.Data.
func (p *peer) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	b := appendFilter(appendBytes(appendTarget(batches.empty(), at), key), predicate)
	answer, err := p.change(ctx, opCheckAndMutateRow, appendMutations(appendMutations(b, then), otherwise))
	if err != nil {
		return false, err
	}
	matched := answer.byte() != 0
	return matched, answer.err()
}

// ReadModifyWriteRow implements rpc.Data.
func (p *peer) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	answer, err := p.change(ctx, opReadModifyWriteRow, appendRules(appendBytes(appendTarget(batches.empty(), at), key), rules))
	if err != nil {
		return nil, err
	}
	cells := answer.cells()
	return cells, answer.err()
}

// UpdateRow implements rpc.Data.
func (p *peer) UpdateRow(ctx context.Context, at rpc.Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) ([]row.Cell, rpc.Became, error) {
	body := appendFilter(appendBytes(appendBytes(appendTarget(batches.empty(), at), key), token), read)
	body = appendMutations(appendBytes(body, seen), muts)
	answer, err := p.ask(ctx, opUpdateRow, body, len(seen) > 0)
	batches.Put(&body)
	if err != nil {
		return nil, rpc.Nothing, err
	}
	became := rpc.Became(answer.byte())
	if became > rpc.Repeated {
		answer.fail()
	}
	cells := answer.cells()
	return cells, became, answer.err()
}

// DropRange implements rpc.Data.
func (p *peer) DropRange(ctx context.Context, at rpc.Target, r row.Range) error {
	_, err := p.change(ctx, opDropRange, appendRange(appendTarget(batches.empty(), at), r))
	return err
}

// A control is a call of rpc.Control, which is rare: it travels as JSON.
type control struct {
	Call        string
	Keys        []rpc.TabletKey     `json:",omitempty"`
	Tablets     []metadata.TabletID `json:",omitempty"`
	At          []byte              `json:",omitempty"`
	Left, Right metadata.TabletID   `json:",omitempty"`
	Number      uint64              `json:",omitempty"`
	Hold        time.Duration       `json:",omitempty"`
	Objects     []string            `json:",omitempty"`
	Table       uint64              `json:",omitempty"`
	Epoch       int64               `json:",omitempty"`
}

func (p *peer) control(ctx context.Context, c *control, out any) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	l, err := p.get(ctx)
	if err != nil {
		return err
	}
	p.d.Forwarded.Add(1)
	l.hold()
	defer l.release()
	answer, err := p.askAlone(ctx, l, opControl, body, false)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer.b, out); err != nil {
		return fault.New(fault.Internal, "answer of tablet server %s: %w", p.addr, err)
	}
	return nil
}

// Load implements rpc.Control.
func (p *peer) Load(ctx context.Context, keys []rpc.TabletKey) error {
	return p.control(ctx, &control{Call: "Load", Keys: keys}, nil)
}

// Unload implements rpc.Control.
func (p *peer) Unload(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Unload", Tablets: tablets}, nil)
}

// Split implements rpc.Control.
func (p *peer) Split(ctx context.Context, tablet metadata.TabletID, at []byte) error {
	return p.control(ctx, &control{Call: "Split", Left: tablet, At: at}, nil)
}

// Merge implements rpc.Control.
func (p *peer) Merge(ctx context.Context, left, right metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Merge", Left: left, Right: right}, nil)
}

// Flush implements rpc.Control.
func (p *peer) Flush(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Flush", Tablets: tablets}, nil)
}

// Compact implements rpc.Control.
func (p *peer) Compact(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Compact", Tablets: tablets}, nil)
}

// Pause implements rpc.Control.
func (p *peer) Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error {
	return p.control(ctx, &control{Call: "Pause", Number: number, Tablets: tablets, Hold: hold}, nil)
}

// Cut implements rpc.Control.
func (p *peer) Cut(ctx context.Context, number uint64) (rows []*metadata.Row, err error) {
	return rows, p.control(ctx, &control{Call: "Cut", Number: number}, &rows)
}

// Resume implements rpc.Control.
func (p *peer) Resume(ctx context.Context, number uint64) error {
	return p.control(ctx, &control{Call: "Resume", Number: number}, nil)
}

// Needed implements rpc.Control.
func (p *peer) Needed(ctx context.Context, objects []string) (used []string, err error) {
	return used, p.control(ctx, &control{Call: "Needed", Objects: objects}, &used)
}

// Attend implements rpc.Control.
func (p *peer) Attend(ctx context.Context, incarnation uint64, epoch int64, echo time.Duration) (reading time.Duration, err error) {
	err = p.control(ctx, &control{Call: "Attend", Number: incarnation, Epoch: epoch, Hold: echo}, &reading)
	return reading, err
}

// Status implements rpc.Control.
func (p *peer) Status(ctx context.Context) (*rpc.Status, error) {
	st := new(rpc.Status)
	return st, p.control(ctx, &control{Call: "Status"}, st)
}

// Describe implements rpc.Operate.
func (p *peer) Describe(ctx context.Context, table uint64) (out []rpc.TabletDetail, err error) {
	err = p.control(ctx, &control{Call: "Describe", Table: table}, &out)
	return out, err
}

// A splitKey is the answer of SplitKey.
type splitKey struct {
	Key []byte
	OK  bool
}

// SplitKey implements rpc.Operate.
func (p *peer) SplitKey(ctx context.Context, tablet metadata.TabletID) ([]byte, bool, error) {
	var k splitKey
	err := p.control(ctx, &control{Call: "SplitKey", Left: tablet}, &k)
	return k.Key, k.OK, err
}

// Verify implements rpc.Operate.
func (p *peer) Verify(ctx context.Context, tablet metadata.TabletID) (out []rpc.Verified, err error) {
	err = p.control(ctx, &control{Call: "Verify", Left: tablet}, &out)
	return out, err
}

// DropDamaged implements rpc.Operate.
func (p *peer) DropDamaged(ctx context.Context, tablet metadata.TabletID, object string) (*rpc.Loss, error) {
	l := new(rpc.Loss)
	return l, p.control(ctx, &control{Call: "DropDamaged", Left: tablet, Objects: []string{object}}, l)
}
