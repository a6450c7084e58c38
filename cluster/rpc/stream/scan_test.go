package stream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
)

// messages collects what a client of the gateway gets.
type messages struct {
	mu   sync.Mutex
	list [][]byte
}

func (m *messages) send(b mem.BufferSlice) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, b.Materialize())
	b.Free()
	return nil
}

// keys returns the keys of the rows, if all is as it should be: messages are of
// whole rows, and large only if they are of one.
func (m *messages) keys(t *testing.T) (keys []string) {
	t.Helper()
	for i, b := range m.list {
		r := new(bigtablepb.ReadRowsResponse)
		if err := proto.Unmarshal(b, r); err != nil {
			t.Fatal(err)
		}
		rows := 0
		for k, c := range r.Chunks {
			if len(c.RowKey) > 0 {
				keys = append(keys, string(c.RowKey))
				rows++
			}
			if begins := k == 0 || r.Chunks[k-1].GetCommitRow(); begins != (len(c.RowKey) > 0) {
				t.Fatalf("message %d, chunk %d: key %q", i, k, c.RowKey)
			}
		}
		if n := len(r.Chunks); n > 0 && !r.Chunks[n-1].GetCommitRow() {
			t.Fatalf("message %d ends within a row", i)
		}
		if rows > 1 && len(b) > 4<<20 {
			t.Errorf("message %d has %d bytes and %d rows", i, len(b), rows)
		}
	}
	return keys
}

// TestEncoded: what a client gets of rows that another server has is what it
// would get of rows that are here, byte for byte.
func TestEncoded(t *testing.T) {
	a := newAuthority(t, filepath.Join(t.TempDir(), "1"))
	serverTLS, clientTLS := a.tls(t)
	all := []row.Range{{Start: []byte("000000")}}
	for _, how := range []string{"plain text", "TLS", "a server that has no encoders", "an earlier server"} {
		t.Run(how, func(t *testing.T) {
			f := &fake{}
			so, o := ServerOptions{Encoders: encoders}, Options{}
			switch how {
			case "TLS":
				so.TLS, o.TLS = serverTLS, clientTLS
			case "a server that has no encoders":
				so.Encoders = nil
			}
			s, peer, _ := serveAs(t, f, o, so, func(s *Server) { s.grpcScansOnly = how == "an earlier server" })
			for _, c := range []struct {
				name        string
				rows, bytes int
				limit       int64
			}{
				{"none", 0, 0, 0}, {"one", 1, 10, 0}, {"many", 3000, 1000, 0}, {"limit", 3000, 1000, 1500},
				{"large", 20, 300 << 10, 0}, {"torn", 3, 5 << 20, 0}, {"torn and small", 1, 30 << 20, 0},
			} {
				f.reads(rows(c.rows, c.bytes))
				read := func(s rpc.Data) *messages {
					m := new(messages)
					w := chunk.NewWriter(chunk.Options{Send: m.send})
					defer w.Close()
					req := &rpc.Read{Ranges: slices.Clone(all), Limit: c.limit}
					want := int64(c.rows)
					if c.limit > 0 {
						want = min(want, c.limit)
					}
					for left := req.Limit; len(req.Ranges) > 0; req.Limit = left {
						rest, stats, err := s.ReadRows(t.Context(), rpc.Target{}, req, w)
						if err == nil {
							err = w.Flush()
						}
						if err != nil {
							t.Fatal(c.name, err)
						}
						if left -= stats.RowsReturned; c.limit > 0 && left == 0 {
							rest = nil
						}
						req.Ranges = rest
					}
					if w.RowsReturned() != want {
						t.Errorf("%s: %d rows, want %d", c.name, w.RowsReturned(), want)
					}
					return m
				}
				got, want := read(peer), read(f)
				if !slices.Equal(got.keys(t), want.keys(t)) || !bytes.Equal(slices.Concat(got.list...), slices.Concat(want.list...)) {
					t.Errorf("%s: %d and %d bytes", c.name, len(slices.Concat(got.list...)), len(slices.Concat(want.list...)))
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if n := len(s.scanning); n != 1 && how != "an earlier server" {
				t.Errorf("scans one after the other took %d connections", n)
			}
		})
	}
}

// tracked notes what is said of pieces.
type tracked struct {
	*chunk.Writer
	said    []string
	flushes int
}

func (w *tracked) Encoded(p *scan.Piece) (bool, error) {
	w.said = append(w.said, fmt.Sprintf("%d rows of %d cells to %s, open %v", p.Rows, p.Cells, p.Key, p.Open))
	return w.Writer.Encoded(p)
}

func (w *tracked) Scanned(key []byte) {
	w.said = append(w.said, "scanned "+string(key))
	w.Writer.Scanned(key)
}

func (w *tracked) Flush() error {
	w.flushes++
	return w.Writer.Flush()
}

// TestScanEnds: rows that are complete count, however a scan ends.
func TestScanEnds(t *testing.T) {
	f := &fake{}
	s, peer, _ := serve(t, f, Options{}, ServerOptions{Encoders: encoders})
	one := func(w scan.Writer, key string, cells, bytes int) error {
		w.StartRow([]byte(key))
		for i := range cells {
			w.Cell(&row.Cell{Family: "f", Qualifier: fmt.Append(nil, i), Value: make([]byte, bytes)})
		}
		_, err := w.EndRow()
		return err
	}
	for _, c := range []struct {
		name string
		read func(ctx context.Context, w scan.Writer) error
		keys string
		said string
		err  error
	}{
		{"in order", func(_ context.Context, w scan.Writer) error {
			err := one(w, "a", 2, 1)
			w.Scanned([]byte("b"))
			return err
		}, "a", "1 rows of 2 cells to a, open false|scanned b", nil},
		{"not served any more", func(_ context.Context, w scan.Writer) error {
			return errors.Join(one(w, "a", 2, 1), one(w, "b", 1, 1), rpc.ErrNotServing)
		}, "a b", "2 rows of 3 cells to b, open false", rpc.ErrNotServing},
		{"within a row", func(_ context.Context, w scan.Writer) error {
			err := one(w, "a", 1, 1)
			w.StartRow([]byte("b"))
			w.Cell(&row.Cell{Family: "f"})
			return errors.Join(err, rpc.ErrNotServing)
		}, "a", "1 rows of 1 cells to a, open false", rpc.ErrNotServing},
		{"within a row that is torn", func(_ context.Context, w scan.Writer) error {
			err := one(w, "a", 1, 1)
			w.StartRow([]byte("b"))
			for range 3 {
				w.Cell(&row.Cell{Family: "f", Value: make([]byte, 900<<10)})
			}
			return errors.Join(err, rpc.ErrNotServing)
		}, "a", "1 rows of 1 cells to a, open false|0 rows of 0 cells to b, open true|0 rows of 0 cells to b, open true", rpc.ErrNotServing},
		{"too large", func(_ context.Context, w scan.Writer) error {
			return errors.Join(one(w, "a", 1, 1), one(w, "b", 260, 1<<20))
		}, "a", "", fault.FailedPrecondition},
		{"a panic", func(_ context.Context, w scan.Writer) error {
			_ = one(w, "a", 1, 1)
			panic("not so")
		}, "", "", fault.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.reads(func(ctx context.Context, _ rpc.Target, _ *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
				return nil, scan.Stats{}, c.read(ctx, w)
			})
			m := new(messages)
			w := &tracked{Writer: chunk.NewWriter(chunk.Options{Send: m.send})}
			defer w.Close()
			_, _, err := peer.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, w)
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Errorf("%v, want %v", err, c.err)
			}
			if err := w.Flush(); err != nil {
				t.Error(err)
			}
			if got := strings.Join(m.keys(t), " "); got != c.keys {
				t.Errorf("rows %s, want %s", got, c.keys)
			}
			if got := strings.Join(w.said, "|"); c.said != "" && got != c.said {
				t.Errorf("said %s\nwant %s", got, c.said)
			}
		})
	}
	t.Run("given up", func(t *testing.T) {
		ended := make(chan error, 1)
		f.reads(func(ctx context.Context, _ rpc.Target, _ *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
			for i := 0; ; i++ {
				if err := one(w, fmt.Sprintf("%09d", i), 1, 1000); err != nil || ctx.Err() != nil {
					ended <- ctx.Err()
					return nil, scan.Stats{}, errors.Join(err, ctx.Err())
				}
				if i%100 == 0 {
					if err := w.Flush(); err != nil {
						<-ctx.Done() // the connection is closed, which is all that there is to be noticed
					}
				}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := chunk.NewWriter(chunk.Options{Send: func(b mem.BufferSlice) error { b.Free(); cancel(); return nil }})
		defer w.Close()
		if _, _, err := peer.ReadRows(ctx, rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, w); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-ended; err == nil {
			t.Error("the server was not told")
		}
	})
	t.Run("the client is gone", func(t *testing.T) {
		f.reads(rows(1000, 1000))
		w := chunk.NewWriter(chunk.Options{Send: func(b mem.BufferSlice) error { b.Free(); return io.ErrClosedPipe }})
		defer w.Close()
		if _, _, err := peer.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}}, w); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})
	t.Run("the server is gone", func(t *testing.T) {
		f.reads(func(ctx context.Context, _ rpc.Target, _ *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
			err := errors.Join(one(w, "a", 1, 20<<10), w.Flush())
			<-ctx.Done()
			return nil, scan.Stats{}, errors.Join(err, ctx.Err())
		})
		w := chunk.NewWriter(chunk.Options{Send: func(b mem.BufferSlice) error { b.Free(); s.closeAll(); return nil }})
		defer w.Close()
		_, _, err := peer.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, w)
		if !errors.Is(err, fault.Unavailable) || w.RowsReturned() != 1 {
			t.Errorf("%v, %d rows", err, w.RowsReturned())
		}
	})
}

// TestScanConnections: connections are used again, and are not kept for ever.
func TestScanConnections(t *testing.T) {
	f := &fake{read: rows(10, 10)}
	s, to, _ := serve(t, f, Options{}, ServerOptions{Encoders: encoders})
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.scanning)
	}
	read := func() {
		if _, _, err := to.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}}, new(collect)); err != nil {
			t.Error(err)
		}
	}
	for range 20 {
		read()
	}
	if n := count(); n != 1 {
		t.Errorf("%d connections", n)
	}
	var many sync.WaitGroup
	for range 8 {
		many.Go(func() {
			for range 20 {
				read()
			}
		})
	}
	many.Wait()
	if n := count(); n > 8 {
		t.Errorf("%d connections of 8 callers", n)
	}
	l := to.(*peer).link
	l.mu.Lock()
	for _, c := range l.idle {
		c.idle -= int64(2 * idleLimit)
	}
	l.mu.Unlock()
	l.dropIdleConns()
	l.mu.Lock()
	idle, conns := len(l.idle), len(l.conns)
	l.mu.Unlock()
	if idle != 0 || conns != 0 {
		t.Errorf("%d connections of %d are kept", idle, conns)
	}
	read()
	// Stopping waits for nobody.
	stopped := make(chan struct{})
	go func() { s.Stop(context.Background()); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Error("an idle connection keeps the server")
		s.closeAll()
	}
}

// FuzzScanAnswer gives anything to who takes encoded rows.
func FuzzScanAnswer(f *testing.F) {
	seed := func(n, bytes int) []byte {
		here, there := net.Pipe()
		s := NewServer(&fake{read: rows(n, bytes)}, ServerOptions{Encoders: encoders})
		q := appendRead(appendTarget(nil, rpc.Target{}), &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}})
		go func() {
			_ = s.scanOn(context.Background(), there, append(q, chunk.Encoding))
			_ = there.Close()
		}()
		b, err := io.ReadAll(here)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(seed(0, 0))
	f.Add(seed(3, 10))
	f.Add(seed(20, 100))
	f.Add(append([]byte{2, answerOK, recordPiece}, 1, 1, 1, 'k', 0, 5))
	f.Add([]byte{10, answerOK, recordPiece, 0, 0, 1, 'k', 1, 1, recordScanned, 0, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := new(link)
		w := chunk.NewWriter(chunk.Options{Send: func(b mem.BufferSlice) error { b.Free(); return nil }, LastScanned: true})
		defer w.Close()
		c := &scanConn{Conn: nowhere{}, from: bufio.NewReader(bytes.NewReader(b))}
		r := &rowReader{to: w, encoded: w}
		whole, err := c.scan(l, nil, r)
		if err == nil && (!whole || !r.ended || r.open || r.torn) {
			t.Error("an answer without an end")
		}
		_ = w.Flush()
	})
}

// nowhere is a connection that takes everything.
type nowhere struct{ net.Conn }

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
