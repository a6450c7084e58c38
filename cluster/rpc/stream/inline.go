package stream

import (
	"bytes"
	"context"
	"errors"

	"github.com/trestledb/trestle/cluster/rpc"
)

// Inline returns a server as other processes see it, without a connection: what is asked and
// answered is encoded and decoded, and all else is a call. The simulation of a cluster finds with
// it what is not sent. A panic of the server is the caller's.
func Inline(to rpc.TabletServer) rpc.TabletServer {
	return &peer{d: new(Dialer), inline: &Server{to: to}}
}

// answerInline answers a question.
func (s *Server) answerInline(ctx context.Context, op byte, body []byte) (decoder, error) {
	// What is decoded points into the body, which is its owner's.
	b, err := s.do(ctx, nil, op, decoderOf(bytes.Clone(body)))
	switch {
	case errors.Is(err, errLarge):
		return decoder{}, errUseScan
	case err != nil:
		d := decoderOf(appendError(nil, err))
		return decoder{}, d.error()
	}
	return decoderOf(b), nil
}

// scanInline answers a large read.
func (s *Server) scanInline(ctx context.Context, body []byte, r *rowReader) error {
	d := decoderOf(bytes.Clone(body))
	at, req := d.target(), d.read()
	if d.Bad() {
		return errMalformed
	}
	w := &rowWriter{b: []byte{answerOK}, full: rowsBytes, large: maxRowPart}
	w.send = func(b []byte) ([]byte, error) { return []byte{answerOK}, r.read(b[1:]) }
	refused, err := s.scanTo(ctx, at, req, w)
	if err == nil && refused != nil {
		d := decoderOf(appendError(nil, refused))
		err = d.error()
	}
	if err == nil && !r.ended {
		err = errMalformed
	}
	return err
}
