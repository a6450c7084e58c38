package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/scan"
)

const (
	// maxIdleConns bounds the idle connections for scans that are kept, idleLimit for how
	// long they are.
	maxIdleConns = 64
	idleLimit    = 30 * time.Second
	// retryScanConns is how long a server that knows no connections for scans is not
	// asked for one again.
	retryScanConns = time.Minute
)

// An Encoder is a Writer that makes pieces of rows: see scan.EncodedWriter.
type Encoder interface {
	scan.Writer
	// Close frees the Encoder's buffers.
	Close()
}

// Encoders returns an Encoder of an encoding, nil if it has none of that number.
// Pieces are given to pass, which owns the buffers.
type Encoders func(encoding uint64, pass func(*scan.Piece, mem.BufferSlice) error) Encoder

// Fragments returns an Encoder that makes of rows what a fragment of a query says: see
// scan.FragmentWriter. It is nil if it cannot: rows are sent then.
type Fragments func(fragment []byte, pass func(*scan.Piece, mem.BufferSlice) error) Encoder

// A gatherer is an Encoder that makes one piece of the rows of many reads.
type gatherer interface {
	// Holds tells whether there are rows of which nothing was passed on: no position
	// behind them may be told.
	Holds() bool
	// Finish passes on what is left, as no more rows will come.
	Finish() error
}

// An answerer makes messages of the rows of a scan.
type answerer interface {
	scan.Writer
	// drop takes back the row that is open, as far as it was not sent.
	drop()
	// end sends the rest, and the last record.
	end(*scan.Stats) error
}

// end implements answerer.
func (w *rowWriter) end(stats *scan.Stats) error {
	w.done(stats, nil)
	return w.Flush()
}

// scanTo gives the rows of a scan to w. refused is the error of the read, for the caller.
// The complete rows count all the same.
func (s *Server) scanTo(ctx context.Context, at rpc.Target, req *rpc.Read, w answerer) (refused, err error) {
	var total scan.Stats
	for {
		rest, stats, err := s.to.ReadRows(ctx, at, req, w)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			w.drop()
			return err, w.Flush()
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
			return nil, w.end(&total)
		}
		if err := w.Flush(); err != nil {
			return nil, err
		}
	}
}

// A pieceWriter sends rows as pieces.
type pieceWriter struct {
	Encoder
	gather gatherer  // the Encoder, if it is one
	head   rowWriter // of the next message
	send   func(head []byte, piece mem.BufferSlice) error
	// scanned is the key of the last Scanned, behind the rows that were sent.
	scanned     []byte
	scannedSent bool // there is nothing in scanned
	last        *scan.Stats
}

var (
	_ answerer         = (*pieceWriter)(nil)
	_ scan.SpaceWriter = (*pieceWriter)(nil)
)

// Space implements scan.SpaceWriter.
func (w *pieceWriter) Space() int { return scan.Space(w.Encoder) }

// StartRow implements scan.Writer.
func (w *pieceWriter) StartRow(key []byte) {
	if !w.scannedSent { // so that most rows write nothing here
		w.scannedSent = true
	}
	w.Encoder.StartRow(key)
}

// Scanned implements scan.Writer.
func (w *pieceWriter) Scanned(key []byte) {
	w.scanned, w.scannedSent = append(w.scanned[:0], key...), false
}

// pass takes pieces from the Encoder.
func (w *pieceWriter) pass(p *scan.Piece, b mem.BufferSlice) error {
	w.head.piece(p, b.Len())
	return w.message(b)
}

// message sends a message, with the last record if that is to come and no row
// is.
func (w *pieceWriter) message(b mem.BufferSlice) error {
	if !w.scannedSent {
		w.head.Scanned(w.scanned)
	}
	if w.last != nil {
		w.head.done(w.last, nil)
	}
	err := w.send(w.head.b, b)
	b.Free()
	w.head.b, w.scannedSent, w.last = w.head.b[:1], true, nil
	return err
}

// Flush implements scan.Writer.
func (w *pieceWriter) Flush() error {
	err := w.Encoder.Flush()
	if w.gather != nil && w.gather.Holds() {
		return err
	}
	if err == nil && (!w.scannedSent || w.last != nil) {
		err = w.message(nil)
	}
	return err
}

func (w *pieceWriter) drop() {} // Flush does

func (w *pieceWriter) end(stats *scan.Stats) error {
	if w.gather != nil {
		if err := w.gather.Finish(); err != nil {
			return err
		}
	}
	w.last = stats
	return w.Flush()
}

// scans answers the scans that come on a connection, one after the other.
func (s *Server) scans(c net.Conn) {
	if !s.greet(c, greetingScan, func() { s.scanning[c] = struct{}{} }) {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan []byte)
	var answering sync.WaitGroup
	answering.Go(func() {
		for b := range asked {
			if s.scanOn(ctx, c, b) != nil {
				_ = c.Close()
			}
		}
	})
	// The caller closes the connection to give a scan up.
	for from := (&frameReader{from: c}); ; {
		b, err := from.read()
		if err != nil {
			break
		}
		asked <- b
	}
	cancel()
	_ = c.Close()
	close(asked)
	answering.Wait()
	s.mu.Lock()
	delete(s.scanning, c)
	s.mu.Unlock()
	s.serving.Done()
}

// scanOn answers a scan. An error is that of the connection.
func (s *Server) scanOn(ctx context.Context, c net.Conn, question []byte) (err error) {
	var length [binary.MaxVarintLen64]byte
	var parts, rest net.Buffers
	var broken error // the connection
	send := func(head []byte, piece mem.BufferSlice) error {
		parts = append(parts[:0], length[:binary.PutUvarint(length[:], uint64(len(head)))], head)
		for _, b := range piece {
			parts = append(parts, b.ReadOnlyData())
		}
		rest = parts // which WriteTo consumes
		_, broken = rest.WriteTo(c)
		clear(parts)
		return broken
	}
	refuse := func(err error) error { return send(appendError([]byte{answerError}, err), nil) }
	defer func() {
		if r := recover(); r != nil {
			s.o.Log.Error("a scan of another server ended in a panic", "panic", r, "stack", string(debug.Stack()))
			err = refuse(fault.New(fault.Internal, "panic: %v", r))
		}
	}()
	d := decoderOf(question)
	at, req := d.target(), d.read()
	encoding := d.Uvarint()
	// Bytes behind the encoding are a fragment, which may be empty, and what the scan is
	// part of.
	var fragment []byte
	if d.Len() > 0 {
		fragment = d.bytes()
	}
	if d.Bad() {
		return errMalformed
	}
	ctx, of := s.begin(ctx, new(request.Record), d.Rest())
	defer func() { of.ended(err) }()
	b := append(batches.empty(), answerOK)
	var w answerer
	pieces := &pieceWriter{head: rowWriter{b: b, work: of.work()}, send: send, scannedSent: true}
	switch {
	case len(fragment) > 0:
		if s.o.Fragments != nil {
			pieces.Encoder = s.o.Fragments(fragment, pieces.pass)
			pieces.gather, _ = pieces.Encoder.(gatherer)
		}
	case encoding != 0 && s.o.Encoders != nil:
		pieces.Encoder = s.o.Encoders(encoding, pieces.pass)
	}
	if pieces.Encoder != nil {
		defer func() {
			pieces.Close()
			b := pieces.head.b
			batches.Put(&b)
		}()
		w = pieces
	} else {
		cells := &rowWriter{b: b, full: rowsBytes, large: maxRowPart, work: of.work(), send: func(b []byte) ([]byte, error) { return b[:1], send(b, nil) }}
		defer func() {
			b := cells.b
			batches.Put(&b)
		}()
		w = cells
	}
	refused, err := s.scanTo(ctx, at, req, w)
	switch {
	case broken != nil || ctx.Err() != nil:
		return err
	case refused == nil:
		refused = err // of the Encoder, which may find an error in the last rows only when it ends
	}
	if refused == nil {
		return nil
	}
	return refuse(refused)
}

// A scanConn is a connection for scans, one at a time.
type scanConn struct {
	net.Conn
	from *bufio.Reader
	// idle is since when it has not been in use, by now.
	idle int64
}

// conn returns a connection for a scan: one that was in use before, or a new
// one; nil if the server knows none.
func (l *link) conn(ctx context.Context) (*scanConn, error) {
	l.mu.Lock()
	n := len(l.idle)
	switch {
	case l.err != nil:
		l.mu.Unlock()
		return nil, l.p.answerLost(l.err, false)
	case n > 0:
		c := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		return c, nil
	case now() < l.noScanConnsBefore:
		l.mu.Unlock()
		return nil, nil
	}
	l.mu.Unlock()
	connecting, connected := context.WithTimeout(ctx, l.p.d.o.Connect)
	nc, err := dialMux(connecting, l.p.d.o.dialer(), l.p.addr, l.p.d.o.TLS, greetingScan)
	connected()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, errGreeting):
		l.noScanConnsBefore = now() + int64(retryScanConns)
		return nil, nil
	case err != nil:
		return nil, l.p.unreachable(err)
	case l.err != nil:
		return nil, errors.Join(l.p.unreachable(l.err), nc.Close())
	}
	c := &scanConn{Conn: nc, from: bufio.NewReader(nc)}
	l.conns[c] = struct{}{}
	return c, nil
}

// keepConn takes back a connection without pending data. dropConn closes one that is of no
// use.
func (l *link) keepConn(c *scanConn) {
	l.mu.Lock()
	if l.err != nil || len(l.idle) >= maxIdleConns {
		l.mu.Unlock()
		l.dropConn(c)
		return
	}
	c.idle = now()
	l.idle = append(l.idle, c)
	l.mu.Unlock()
}

func (l *link) dropConn(c *scanConn) {
	_ = c.Close()
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}

// dropIdleConns drops connections that were not in use for idleLimit.
func (l *link) dropIdleConns() {
	limit := now() - int64(idleLimit)
	l.mu.Lock()
	var old []*scanConn
	l.idle = slices.DeleteFunc(l.idle, func(c *scanConn) bool {
		if c.idle < limit {
			old = append(old, c)
			return true
		}
		return false
	})
	l.mu.Unlock()
	for _, c := range old {
		l.dropConn(c)
	}
}

// scan asks for rows over a connection of its own. known is false if the server
// knows no such connections: nothing was asked then.
func (p *peer) scan(ctx context.Context, l *link, body []byte, r *rowReader) (known bool, err error) {
	c, err := l.conn(ctx)
	if c == nil {
		return err != nil, err
	}
	p.d.Forwarded.Add(1)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	whole, err := c.scan(l, body, r)
	if !stop() || !whole {
		l.dropConn(c)
	} else {
		l.keepConn(c)
	}
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return true, ctx.Err()
	case errors.Is(err, errTruncated):
		return true, p.answerLost(err, false)
	}
	return true, err
}

// scan gives the answer of a question to r. whole tells whether all of it has
// come.
func (c *scanConn) scan(l *link, question []byte, r *rowReader) (whole bool, err error) {
	if _, err := c.Write(question); err != nil {
		return false, errors.Join(errTruncated, err)
	}
	r.from = c.from
	message := batches.Get(0)
	defer batches.Put(message)
	for !r.ended {
		b, err := readMessage(c.from, (*message)[:0])
		if *message = b; err != nil {
			return false, err
		}
		l.lastHeard.Store(now())
		if len(b) == 0 {
			return false, errMalformed
		}
		switch b[0] {
		case answerOK:
			if err := r.read(b[1:]); err != nil {
				return false, err
			}
		case answerError:
			d := decoderOf(b[1:])
			return true, d.error()
		default:
			return false, errMalformed
		}
	}
	return true, nil
}

// readMessage reads a message behind b, which is empty. Memory comes as bytes
// do, whatever the length says.
func readMessage(from *bufio.Reader, b []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(from)
	if err != nil {
		return b, errors.Join(errTruncated, err)
	}
	if n > maxMessage {
		return b, errMalformed
	}
	for len(b) < int(n) {
		have := len(b)
		b = slices.Grow(b, min(int(n)-have, max(have, batchBytes)))
		b = b[:min(cap(b), int(n))]
		if _, err := io.ReadFull(from, b[have:]); err != nil {
			return b, errors.Join(errTruncated, err)
		}
	}
	return b, nil
}

// scanGRPC is scan for a server that knows no connections for scans.
func (p *peer) scanGRPC(ctx context.Context, l *link, body []byte, r *rowReader) error {
	p.d.Forwarded.Add(1)
	during, cancel := l.boundContext(ctx)
	defer cancel()
	s, err := l.grpc.NewStream(during, &scanDesc, methodScan)
	if err != nil {
		return p.translateGRPC(ctx, err, false)
	}
	if err := s.SendMsg(&raw{b: append([]byte(nil), body...)}); err != nil && !errors.Is(err, io.EOF) {
		return p.translateGRPC(ctx, err, false)
	}
	if err := s.CloseSend(); err != nil {
		return p.translateGRPC(ctx, err, false)
	}
	m := raw{pooled: true}
	defer m.free()
	for !r.ended {
		m.free() // rows were valid during the calls of the Writer only
		if err := s.RecvMsg(&m); err != nil {
			return p.translateGRPC(ctx, err, false)
		}
		l.lastHeard.Store(now())
		if len(m.b) == 0 {
			return errMalformed
		}
		switch kind := m.b[0]; kind {
		case answerOK:
			if err := r.read(m.b[1:]); err != nil {
				return err
			}
		case answerError:
			d := decoderOf(m.b[1:])
			return d.error()
		default:
			return errMalformed
		}
	}
	return nil
}
