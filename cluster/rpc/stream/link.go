package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/engine/tryio"
)

// A link is the connections to a server.
type link struct {
	p      *peer
	grpc   *grpc.ClientConn // connects with the first call
	mux    net.Conn
	cancel context.CancelFunc
	send   *sender
	done   chan struct{} // closed when its goroutines have ended
	failed chan struct{} // closed when it has failed

	// lastHeard is when something came last, as now says. waiting counts the calls
	// that wait for something.
	lastHeard atomic.Int64
	waiting   atomic.Int64

	// retired says that the link takes no new calls and ends with the last that waits.
	retired atomic.Bool

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*call
	err   error
	// conns are the connections for scans, idle those that are not in use. There are none
	// before plain, by now.
	conns             map[*scanConn]struct{}
	idle              []*scanConn
	noScanConnsBefore int64
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
	tcp := p.d.o.dialer()
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return tcp.DialContext(ctx, "tcp", addr) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(16<<20),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryAfter, Multiplier: 1.6, MaxDelay: time.Second}, MinConnectTimeout: p.d.o.Connect}))
	if err != nil {
		return nil, err
	}
	connecting, connected := context.WithTimeout(context.Background(), p.d.o.Connect)
	mux, err := dialMux(connecting, tcp, p.addr, p.d.o.TLS, greeting)
	connected()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{p: p, grpc: conn, mux: mux, cancel: cancel, send: newSender(mux), done: make(chan struct{}), failed: make(chan struct{}), calls: map[uint64]*call{}, conns: map[*scanConn]struct{}{}}
	l.lastHeard.Store(now())
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.send.run(ctx); err != nil && ctx.Err() == nil {
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

// processStart is when the process did, about.
var processStart = time.Now()

// now is a monotonic clock, in nanoseconds.
func now() int64 { return int64(time.Since(processStart)) }

// receive passes answers on until the connection ends.
func (l *link) receive() error {
	from := &frameReader{from: tryio.NewReader(l.mux)}
	for {
		b, err := from.read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server ended the connection")
			}
			return err
		}
		l.lastHeard.Store(now())
		f := decoderOf(b)
		number, kind := f.Uvarint(), f.Byte()
		if f.Bad() {
			return errMalformed
		}
		if kind == answerBye {
			l.retire()
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

var errServerEnding = errors.New("the server is about to end")

// retire makes new calls go over a new link. This one ends with its last call.
func (l *link) retire() {
	l.p.forget(l)
	l.retired.Store(true)
	l.acquire()
	l.release()
}

// acquire is called before something is asked for, release when it has come.
func (l *link) acquire() { l.waiting.Add(1) }

func (l *link) release() {
	if l.waiting.Add(-1) == 0 && l.retired.Load() {
		l.fail(errServerEnding)
	}
}

// watch gives the link up if the server is silent for too long while something
// waits for it.
func (l *link) watch(ctx context.Context) {
	silence := l.p.d.o.Silence
	tick := time.NewTicker(silence / 4)
	defer tick.Stop()
	waited := time.Now() // since when no call has been waiting
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.dropIdleConns()
		if l.waiting.Load() == 0 {
			waited = time.Now()
			continue
		}
		quiet := time.Duration(now() - l.lastHeard.Load())
		if quiet > silence && time.Since(waited) > silence {
			l.fail(errors.New("it does not answer"))
			return
		}
		if quiet > silence/4 {
			l.send.tell(0, opPing, 0)
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
// did not leave. The caller is in charge of the frames to send if it says so.
func (l *link) begin(c *call, head, body []byte) (number uint64, charge, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.retired.Load() {
		return 0, false, false
	}
	l.next++
	number = l.next
	l.calls[number] = c
	// Within the lock, so that numbers leave in order.
	if charge, ok = l.send.add(number, head, body); !ok {
		delete(l.calls, number)
	}
	return number, charge, ok
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

// boundContext returns a context that ends with the link too.
func (l *link) boundContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-l.failed:
			// One that only leaves lets calls of their own end: gRPC's GOAWAY does.
			if l.err != nil && !errors.Is(l.err, errServerEnding) {
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
