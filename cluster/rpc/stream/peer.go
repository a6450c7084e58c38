package stream

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
)

// A peer is a server at another address.
type peer struct {
	d    *Dialer
	addr string
	// inline, if it is set, answers in the place of a server that is connected to: see Inline.
	inline *Server

	mu         sync.Mutex
	link       *link         // nil if there is none that can be asked
	connecting chan struct{} // closed when an attempt is over
	failed     error         // of the last attempt
	failedAt   time.Time
}

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

// answerLost returns the error of a call whose answer did not come.
func (p *peer) answerLost(err error, changes bool) error {
	p.d.Lost.Add(1)
	if changes {
		return errors.Join(rpc.ErrUnknown, fault.New(fault.Unavailable, "tablet server %s: %w", p.addr, err))
	}
	return p.unreachable(err)
}

// ask asks a question of a request and returns the body of the answer.
func (p *peer) ask(ctx context.Context, op byte, body *[]byte, changes bool) (decoder, error) {
	r := request.From(ctx)
	if r == nil {
		return p.askFor(ctx, op, *body, changes)
	}
	span := r.StartSpan("call tablet server")
	*body = r.AppendTo(*body, span)
	answer, err := p.askFor(ctx, op, *body, changes)
	request.End(span, err)
	return answer, err
}

func (p *peer) askFor(ctx context.Context, op byte, body []byte, changes bool) (decoder, error) {
	if err := ctx.Err(); err != nil {
		return decoder{}, err
	}
	p.d.Forwarded.Add(1)
	if p.inline != nil {
		return p.inline.answerInline(ctx, op, body)
	}
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
		l.acquire()
		if len(body) > smallBytes {
			defer l.release()
			return p.askUnary(ctx, l, op, body, changes)
		}
		var charge, ok bool
		if number, charge, ok = l.begin(c, h, body); ok {
			if charge {
				l.send.flush(l.waiting.Load() > 1)
			}
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
			l.send.tell(number, opCancel, 0)
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
		return decoder{}, p.answerLost(err, changes)
	}
	return result(kind, answer)
}

// errUseScan is the error of an answer that asks to use Scan.
var errUseScan = errors.New("use Scan")

func result(kind byte, answer decoder) (decoder, error) {
	switch kind {
	case answerOK:
		return answer, nil
	case answerLarge:
		return answer, errUseScan
	case answerError:
		return decoder{}, answer.error()
	}
	return decoder{}, errMalformed
}

// askUnary asks a question by a call of its own.
func (p *peer) askUnary(ctx context.Context, l *link, op byte, body []byte, changes bool) (decoder, error) {
	in := &raw{b: append([]byte{op}, body...)}
	var out raw
	during, cancel := l.boundContext(ctx)
	defer cancel()
	if err := l.grpc.Invoke(during, methodCall, in, &out); err != nil {
		return decoder{}, p.translateGRPC(ctx, err, changes)
	}
	l.lastHeard.Store(now())
	answer := decoderOf(out.b)
	kind := answer.Byte()
	return result(kind, answer)
}

// translateGRPC translates an error of gRPC itself. ctx is the caller's.
func (p *peer) translateGRPC(ctx context.Context, err error, changes bool) error {
	if errors.Is(err, io.EOF) {
		return p.answerLost(errors.New("the server ended the call"), changes)
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
	return p.answerLost(err, changes)
}

// change asks for a change.
func (p *peer) change(ctx context.Context, op byte, body []byte) (decoder, error) {
	answer, err := p.ask(ctx, op, &body, true)
	batches.Put(&body)
	return answer, err
}
