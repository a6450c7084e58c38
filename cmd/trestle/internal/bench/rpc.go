package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// rawCodec passes messages as the bytes they are.
type rawCodec struct{}

// A raw is a message. As a request, bytes must not change until the call has
// ended; as a response, they are valid until the next one or free.
type raw struct {
	bytes []byte
	first int        // if not 0, only that many bytes of a message are kept
	buf   mem.Buffer // what bytes are of, or nil: they are of own
	own   []byte     // reused; gRPC's pool would clear a buffer each time
}

func (m *raw) free() {
	if m.buf != nil {
		m.buf.Free()
	}
	m.buf, m.bytes = nil, nil
}

// Name makes the content type that of protocol buffers, which the bytes are.
func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*raw)
	if !ok {
		return nil, fmt.Errorf("cannot marshal a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*raw)
	if !ok {
		return fmt.Errorf("cannot unmarshal a %T", v)
	}
	m.free()
	if len(data) == 1 {
		data.Ref()
		m.buf, m.bytes = data[0], data[0].ReadOnlyData()
		return nil
	}
	n := data.Len()
	if m.first > 0 {
		n = min(n, m.first)
	}
	m.own = slices.Grow(m.own[:0], n)[:n]
	data.CopyTo(m.own)
	m.bytes = m.own
	return nil
}

var rawCall = []grpc.CallOption{grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(256 << 20), grpc.MaxCallSendMsgSize(256 << 20)}

// dialAll opens n connections to addr.
func dialAll(addr string, n int) ([]*grpc.ClientConn, error) {
	var conns []*grpc.ClientConn
	for range n {
		c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return conns, errors.Join(fmt.Errorf("dial %s: %w", addr, err), closeAll(conns))
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*grpc.ClientConn) error {
	var errs []error
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// traffic counts the messages of one kind of call.
type traffic struct {
	calls, messages       uint64 // messages are responses
	sentBytes, recvdBytes uint64
}

func (t *traffic) add(o traffic) {
	t.calls += o.calls
	t.messages += o.messages
	t.sentBytes += o.sentBytes
	t.recvdBytes += o.recvdBytes
}

var serverStream = &grpc.StreamDesc{ServerStreams: true}

// unary makes a call whose answer is one message.
func (w *worker) unary(ctx context.Context, method string, answer func(b []byte) error) error {
	in := raw{bytes: w.req}
	defer w.resp.free()
	if err := w.conn.Invoke(ctx, method, &in, &w.resp, rawCall...); err != nil {
		w.req = nil // gRPC may still hold it
		return err
	}
	w.unaryTraffic.add(traffic{1, 1, uint64(len(w.req)), uint64(len(w.resp.bytes))})
	return answer(w.resp.bytes)
}

// stream makes a call whose answer is any number of messages.
func (w *worker) stream(ctx context.Context, method string, answer func(b []byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also when answer refuses a message
	s, err := w.conn.NewStream(ctx, serverStream, method, rawCall...)
	if err != nil {
		return err
	}
	in := raw{bytes: w.req}
	sent := traffic{calls: 1, sentBytes: uint64(len(w.req))}
	fail := func(err error) error {
		w.req = nil // gRPC may still hold it
		return err
	}
	// io.EOF of a send says that the stream is over: RecvMsg tells why.
	if err := s.SendMsg(&in); err != nil && !errors.Is(err, io.EOF) {
		return fail(err)
	}
	if err := s.CloseSend(); err != nil {
		return fail(err)
	}
	defer w.resp.free()
	for {
		err := s.RecvMsg(&w.resp)
		if errors.Is(err, io.EOF) {
			w.streamTraffic.add(sent)
			return nil
		}
		if err != nil {
			return fail(err)
		}
		sent.messages++
		sent.recvdBytes += uint64(len(w.resp.bytes))
		if err := answer(w.resp.bytes); err != nil {
			return fail(err)
		}
	}
}
