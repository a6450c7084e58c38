package stream

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A fake serves what its functions do.
type fake struct {
	mu     sync.Mutex
	read   func(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error)
	mutate func(ctx context.Context, at rpc.Target, e *row.Entry) error
	many   func(entries []row.Entry) ([]error, error)
	cond   func(key []byte, p *filter.Node, then, otherwise []row.Mutation) (bool, error)
	modify func(key []byte, rules []row.Rule) ([]row.Cell, error)
	drop   func(r row.Range) error
	apply  func(rows []rpc.ViewRow) error
	ctl    func(what string, args ...any) error

	changes func(ctx context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error
	details []rpc.TabletDetail
}

func (f *fake) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	f.mu.Lock()
	read := f.read
	f.mu.Unlock()
	if read == nil {
		return nil, scan.Stats{}, nil
	}
	return read(ctx, at, req, w)
}

// reads sets what a read does.
func (f *fake) reads(read func(context.Context, rpc.Target, *rpc.Read, scan.Writer) ([]row.Range, scan.Stats, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read = read
}

func (f *fake) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	if f.mutate == nil {
		return nil
	}
	return f.mutate(ctx, at, e)
}

func (f *fake) MutateRows(_ context.Context, _ rpc.Target, entries []row.Entry) ([]error, error) {
	if f.many == nil {
		return make([]error, len(entries)), nil
	}
	return f.many(entries)
}

func (f *fake) CheckAndMutateRow(_ context.Context, _ rpc.Target, key []byte, p *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	if f.cond == nil {
		return false, nil
	}
	return f.cond(key, p, then, otherwise)
}

func (f *fake) UpdateRow(_ context.Context, _ rpc.Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) ([]row.Cell, rpc.UpdateOutcome, error) {
	cells := []row.Cell{{Family: "f", Qualifier: key, Timestamp: 1, Value: fmt.Appendf(nil, "%v", read != nil)}}
	if string(token) == "made before" {
		return nil, rpc.AppliedBefore, nil
	}
	if !bytes.Equal(seen, rpc.Digest(cells)) {
		return cells, rpc.NotApplied, nil
	}
	if string(token) != "token" || len(muts) != 2 || !muts[1].Sticky {
		return nil, rpc.NotApplied, nil
	}
	return nil, rpc.Applied, nil
}

func (f *fake) ReadModifyWriteRow(_ context.Context, _ rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	if f.modify == nil {
		return nil, nil
	}
	return f.modify(key, rules)
}

func (f *fake) ApplyView(_ context.Context, _ rpc.Target, rows []rpc.ViewRow) error {
	if f.apply == nil {
		return nil
	}
	return f.apply(rows)
}

func (f *fake) DropRange(_ context.Context, _ rpc.Target, r row.Range) error {
	if f.drop == nil {
		return nil
	}
	return f.drop(r)
}

func (f *fake) ReadChanges(ctx context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
	if f.changes == nil {
		return nil
	}
	return f.changes(ctx, at, req, w)
}

func (f *fake) call(what string, args ...any) error {
	if f.ctl == nil {
		return nil
	}
	return f.ctl(what, args...)
}

func (f *fake) Load(_ context.Context, keys []rpc.TabletKey) error { return f.call("load", keys) }
func (f *fake) Unload(_ context.Context, t []metadata.TabletID) error {
	return f.call("unload", t)
}
func (f *fake) Split(_ context.Context, t metadata.TabletID, at []byte) error {
	return f.call("split", t, at)
}
func (f *fake) Merge(_ context.Context, l, r metadata.TabletID) error  { return f.call("merge", l, r) }
func (f *fake) Flush(_ context.Context, t []metadata.TabletID) error   { return f.call("flush", t) }
func (f *fake) Compact(_ context.Context, t []metadata.TabletID) error { return f.call("compact", t) }
func (f *fake) Pause(_ context.Context, n uint64, t []metadata.TabletID, hold time.Duration) error {
	return f.call("pause", n, t, hold)
}
func (f *fake) Cut(_ context.Context, n uint64) ([]*metadata.Row, error) {
	return []*metadata.Row{{Table: 9, Tablet: metadata.TabletID(n), Start: []byte{1}, End: []byte{2}}}, f.call("cut", n)
}
func (f *fake) Resume(_ context.Context, n uint64) error { return f.call("resume", n) }
func (f *fake) Needed(_ context.Context, o []string) ([]string, error) {
	return o[:1], f.call("in use", o)
}
func (f *fake) Attend(_ context.Context, incarnation uint64, epoch int64, echo time.Duration) (time.Duration, error) {
	return echo + 5, f.call("attend", incarnation, epoch, echo)
}
func (f *fake) Status(context.Context) (*rpc.Status, error) {
	return &rpc.Status{Server: "s", Incarnation: 7, Tablets: []rpc.TabletStatus{{Tablet: 1 << 40, Start: []byte{0, 255}, Bytes: 3, CPU: 0.5}}}, f.call("status")
}

func (f *fake) Describe(_ context.Context, table uint64, groups bool) ([]rpc.TabletDetail, error) {
	return f.details, f.call("describe", table, groups)
}
func (f *fake) Sum(_ context.Context, table uint64) (*rpc.TabletSum, error) {
	return &rpc.TabletSum{Tablets: 2, Bytes: 1 << 40, Reads: 0.5, Groups: map[uint16]rpc.GroupState{3: {Files: 4}}}, f.call("sum", table)
}
func (f *fake) SplitKey(_ context.Context, t metadata.TabletID) ([]byte, bool, error) {
	return []byte{0, 255}, t != 0, f.call("split key", t)
}
func (f *fake) Cuts(_ context.Context, t metadata.TabletID) ([][]byte, error) {
	return [][]byte{{0}, {0, 255}}, f.call("cuts", t)
}
func (f *fake) Verify(_ context.Context, t metadata.TabletID) ([]rpc.Verified, error) {
	return []rpc.Verified{{Object: "x.sst", Bytes: 7, Error: "bad"}}, f.call("verify", t)
}
func (f *fake) Ask(_ context.Context, what string, question []byte) ([]byte, error) {
	return append([]byte{0, 255}, question...), f.call("ask", what)
}
func (f *fake) DropDamaged(_ context.Context, t metadata.TabletID, o string) (*rpc.Loss, error) {
	return &rpc.Loss{First: []byte{1}, Last: []byte{2}, Entries: 3, Bytes: 4}, f.call("drop damaged", t, o)
}

// serve returns a server of f and the way to it.
func serve(t testing.TB, f *fake, o Options, so ServerOptions) (*Server, rpc.TabletServer, *Dialer) {
	t.Helper()
	return serveAs(t, f, o, so, func(*Server) {})
}

// serveAs is serve with a server that as has changed.
func serveAs(t testing.TB, f *fake, o Options, so ServerOptions, as func(*Server)) (*Server, rpc.TabletServer, *Dialer) {
	t.Helper()
	return serveOn(t, listen(t), f, o, so, as)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveOn is serveAs on a listener.
func serveOn(t testing.TB, l net.Listener, f *fake, o Options, so ServerOptions, as func(*Server)) (*Server, rpc.TabletServer, *Dialer) {
	t.Helper()
	s := NewServer(f, so)
	as(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	d := NewDialer(o)
	t.Cleanup(func() {
		d.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Stop(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, d.Dial(l.Addr().String()), d
}

// collect keeps rows.
type collect struct {
	rows    []bufferedRow
	flushes int
	every   int // EndRow says full after so many rows; 0: never
}

type bufferedRow struct {
	Key   string
	Cells []row.Cell
	Done  bool
}

func (c *collect) StartRow(key []byte) { c.rows = append(c.rows, bufferedRow{Key: string(key)}) }
func (c *collect) Cell(x *row.Cell) {
	r := &c.rows[len(c.rows)-1]
	r.Cells = append(r.Cells, x.Clone())
}
func (c *collect) EndRow() (bool, error) {
	c.rows[len(c.rows)-1].Done = true
	return c.every > 0 && len(c.rows)%c.every == 0, nil
}
func (c *collect) Scanned(key []byte) {
	c.rows = append(c.rows, bufferedRow{Key: "scanned " + string(key)})
}
func (c *collect) Flush() error { c.flushes++; return nil }

var testMutations = []row.Mutation{
	{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: -1, Value: []byte("v"), Truncate: true},
	{Op: row.SetCell, Family: "f", Timestamp: 5, Until: 9},
	{Op: row.DeleteColumn, Family: "f", Qualifier: []byte{0}, Times: cell.TimeRange{Start: 1, End: 2}, Sticky: true},
	{Op: row.DeleteFamily, Family: "g"},
	{Op: row.DeleteRow},
	{Op: row.AddToCell, Family: "s", Qualifier: []byte("q"), Input: row.Input{Kind: row.IntInput, Int: -3, Float: 1.5, Bytes: []byte("x")}},
}

var testFilter = &filter.Node{Op: filter.Chain, Children: []*filter.Node{
	{Op: filter.Condition, Children: []*filter.Node{{Op: filter.PassAll}, nil, {Op: filter.BlockAll}}},
	{Op: filter.Interleave, Children: []*filter.Node{{Op: filter.FamilyRegex, Pattern: []byte("a|b")}, {Op: filter.StripValue}}},
	{Op: filter.ColumnRange, Family: "f", Start: filter.Bound{Key: []byte("a"), Set: true, Open: true}, End: filter.Bound{Set: true}},
	{Op: filter.ValueRange, End: filter.Bound{Key: []byte("z"), Set: true}},
	{Op: filter.TimestampRange, Times: cell.AllTime}, {Op: filter.CellsPerColumnLimit, N: 1}, {Op: filter.RowSample, P: 0.25},
	{Op: filter.ApplyLabel, Label: "l"}, {Op: filter.ValueBitmask, Pattern: []byte{1}}, {Op: filter.Sink},
	{Op: filter.Columns, Columns: map[string][]row.Range{"f": {{Start: []byte("a")}}}, Children: []*filter.Node{nil}},
}}

func TestCalls(t *testing.T) {
	ctx := t.Context()
	at := rpc.Target{Tablet: 1<<33 + 5, Schema: 3}
	f := &fake{}
	_, s, d := serve(t, f, Options{}, ServerOptions{})
	same := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	entry := row.Entry{Key: []byte("k"), Mutations: testMutations, Token: row.Token{Token: []byte("token"), Start: time.UnixMicro(12345)}}
	f.mutate = func(_ context.Context, gotAt rpc.Target, e *row.Entry) error {
		same("target", gotAt, at)
		same("entry", *e, entry)
		return nil
	}
	if err := s.MutateRow(ctx, at, &entry); err != nil {
		t.Fatal(err)
	}
	// As large as a request may be, by a call of its own.
	f.mutate = func(_ context.Context, _ rpc.Target, e *row.Entry) error {
		same("length", len(e.Mutations[0].Value), 80<<20)
		return rpc.ErrNotServing
	}
	err := s.MutateRow(ctx, at, &row.Entry{Key: []byte("k"), Mutations: []row.Mutation{{Op: row.SetCell, Value: make([]byte, 80<<20)}}})
	same("error", err, error(rpc.ErrNotServing))

	f.many = func(entries []row.Entry) ([]error, error) {
		same("entries", entries, []row.Entry{entry, {Key: []byte("b")}})
		return []error{nil, &fault.Error{Kind: fault.Exhausted, Msg: "m", Field: "f", Reason: "R", Metadata: map[string]string{"a": "b"}, RetryAfter: time.Second}}, nil
	}
	errs, err := s.MutateRows(ctx, at, []row.Entry{entry, {Key: []byte("b")}})
	if err != nil || errs[0] != nil {
		t.Fatal(err, errs)
	}
	same("one error", errs[1], &fault.Error{Kind: fault.Exhausted, Msg: "m", Field: "f", Reason: "R", Metadata: map[string]string{"a": "b"}, RetryAfter: time.Second})

	f.cond = func(key []byte, p *filter.Node, then, otherwise []row.Mutation) (bool, error) {
		same("filter", p, testFilter)
		same("then", then, testMutations)
		same("otherwise", len(otherwise), 0)
		return true, nil
	}
	if ok, err := s.CheckAndMutateRow(ctx, at, []byte("k"), testFilter, testMutations, nil); err != nil || !ok {
		t.Error(ok, err)
	}
	cells := []row.Cell{{Family: "f", Qualifier: []byte("q"), Timestamp: -7, Value: []byte("v"), Labels: []string{"a", "b"}}, {Family: "g"}}
	rules := []row.Rule{{Family: "f", Qualifier: []byte("q"), Append: []byte{}, IsAppend: true}, {Family: "f", Increment: -1 << 62}}
	f.modify = func(_ []byte, r []row.Rule) ([]row.Cell, error) {
		same("rules", r, rules)
		return cells, nil
	}
	got, err := s.ReadModifyWriteRow(ctx, at, []byte("k"), rules)
	if err != nil {
		t.Error(err)
	}
	same("cells", got, cells)
	seen, done, err := s.UpdateRow(ctx, at, []byte("k"), nil, testFilter, nil, nil)
	if err != nil || done != rpc.NotApplied || len(seen) != 1 || string(seen[0].Value) != "true" {
		t.Error(seen, done, err)
	}
	if rest, done, err := s.UpdateRow(ctx, at, []byte("k"), []byte("token"), testFilter, rpc.Digest(seen), []row.Mutation{{}, {Op: row.DeleteFamily, Family: "f", Sticky: true}}); err != nil || done != rpc.Applied || len(rest) > 0 {
		t.Error(rest, done, err)
	}
	if rest, done, err := s.UpdateRow(ctx, at, []byte("k"), []byte("made before"), testFilter, rpc.Digest(seen), nil); err != nil || done != rpc.AppliedBefore || len(rest) > 0 {
		t.Error(rest, done, err)
	}
	f.drop = func(r row.Range) error {
		same("range", r, row.Range{Start: []byte("a")})
		return errors.Join(rpc.ErrUnknown, context.DeadlineExceeded)
	}
	if err := s.DropRange(ctx, at, row.Range{Start: []byte("a")}); !errors.Is(err, rpc.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, fault.Unavailable) {
		t.Error(err)
	}
	var told []string
	f.ctl = func(what string, args ...any) error {
		told = append(told, fmt.Sprint(what, args))
		return nil
	}
	for _, err := range []error{
		s.Load(ctx, []rpc.TabletKey{{Table: 1, End: []byte{0xff}}}), s.Unload(ctx, []metadata.TabletID{1 << 60}), s.Split(ctx, 5, []byte("m")),
		s.Merge(ctx, 1, 2), s.Flush(ctx, []metadata.TabletID{3}), s.Compact(ctx, nil),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(s.Pause(ctx, 1<<63, []metadata.TabletID{3}, time.Second), s.Resume(ctx, 4)); err != nil {
		t.Error(err)
	}
	cut, err := s.Cut(ctx, 1<<62)
	wantCut, _ := (&fake{}).Cut(ctx, 1<<62)
	same("rows", cut, wantCut)
	used, err2 := s.Needed(ctx, []string{"a", "b"})
	if err != nil || err2 != nil || len(used) != 1 || used[0] != "a" {
		t.Error(err, err2, used)
	}
	if reading, err := s.Attend(ctx, 6, 1<<40, time.Second); err != nil || reading != time.Second+5 {
		t.Error(reading, err)
	}
	same("control", told[6:], []string{"pause[9223372036854775808 [3] 1s]", "resume[4]", "cut[4611686018427387904]", "in use[[a b]]", "attend[6 1099511627776 1s]"})
	same("control", told[:6], []string{"load[[{1 [255]}]]", "unload[[1000000000000000]]", "split[5 [109]]", "merge[1 2]", "flush[[3]]", "compact[[]]"})
	st, err := s.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := f.Status(ctx)
	same("status", st, want)
	sum, err := s.Sum(ctx, 5)
	if err != nil {
		t.Fatal(err)
	}
	wantSum, _ := (&fake{}).Sum(ctx, 5)
	same("sum", sum, wantSum)
	// What is here is not asked for over the network.
	d.Here("here", f)
	same("local", d.Dial("here"), rpc.TabletServer(f))
}

// rows makes a read of n rows of some bytes, in the manner of a tablet server:
// it ends early when the writer is full.
func rows(n, bytes int) func(context.Context, rpc.Target, *rpc.Read, scan.Writer) ([]row.Range, scan.Stats, error) {
	return func(ctx context.Context, _ rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		var st scan.Stats
		var i int
		if _, err := fmt.Sscanf(string(req.Ranges[0].Start), "%06d", &i); err != nil {
			return nil, st, err
		}
		for ; i < n; i++ {
			if ctx.Err() != nil {
				return nil, st, ctx.Err()
			}
			key := fmt.Appendf(nil, "%06d", i)
			w.StartRow(key)
			for left := bytes; left >= 0; left -= 100 << 10 {
				w.Cell(&row.Cell{Family: "f", Qualifier: key, Timestamp: int64(left), Value: make([]byte, min(left, 100<<10))})
			}
			full, err := w.EndRow()
			if err != nil {
				return nil, st, err
			}
			st.RowsSeen++
			st.RowsReturned++
			if req.Limit > 0 && st.RowsReturned == req.Limit {
				return nil, st, nil
			}
			if full {
				if i+1 == n {
					return nil, st, nil
				}
				return []row.Range{{Start: fmt.Appendf(nil, "%06d", i+1)}}, st, nil
			}
		}
		w.Scanned([]byte("x"))
		return nil, st, nil
	}
}

func TestReads(t *testing.T) {
	f := &fake{}
	_, s, _ := serve(t, f, Options{}, ServerOptions{})
	all := []row.Range{{Start: []byte("000000")}}
	for _, c := range []struct {
		name         string
		rows, bytes  int
		req          rpc.Read
		want         int
		flushesEvery int
	}{
		{"none", 0, 0, rpc.Read{Ranges: all}, 0, 0},
		{"many messages", 3000, 1000, rpc.Read{Ranges: all}, 3000, 7},
		{"limit", 3000, 1000, rpc.Read{Ranges: all, Limit: 1500}, 1500, 0},
		{"one of a short limit", 10, 100, rpc.Read{Ranges: all, Limit: 1}, 1, 0},
		{"one row", 1, 10, rpc.Read{Ranges: []row.Range{row.Single([]byte("000000"))}}, 1, 0},
		{"one row that is torn", 1, 30 << 20, rpc.Read{Ranges: []row.Range{row.Single([]byte("000000"))}}, 1, 0},
		{"rows that are torn", 3, 10 << 20, rpc.Read{Ranges: all}, 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.reads(rows(c.rows, c.bytes))
			w := &collect{every: c.flushesEvery}
			rest, stats, err := s.ReadRows(t.Context(), rpc.Target{}, &c.req, w)
			if err != nil || len(rest) > 0 {
				t.Fatal(rest, err)
			}
			n, size := 0, 0
			for _, r := range w.rows {
				if r.Done {
					if want := fmt.Sprintf("%06d", n); r.Key != want {
						t.Fatalf("row %q, want %q", r.Key, want)
					}
					n++
				}
				for _, c := range r.Cells {
					size += len(c.Value)
					if c.Family != "f" || string(c.Qualifier) != r.Key {
						t.Fatalf("%q %q", c.Family, c.Qualifier)
					}
				}
			}
			if n != c.want || stats.RowsReturned != int64(c.want) || size != c.want*c.bytes {
				t.Errorf("%d rows of %d bytes, stats %+v", n, size, stats)
			}
			if c.flushesEvery > 0 && w.flushes < n/c.flushesEvery {
				t.Errorf("%d flushes", w.flushes)
			}
		})
	}
	t.Run("error after rows", func(t *testing.T) {
		f.reads(func(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
			w.StartRow([]byte("a"))
			if _, err := w.EndRow(); err != nil {
				return nil, scan.Stats{}, err
			}
			w.StartRow([]byte("b"))
			return nil, scan.Stats{}, rpc.ErrNotServing
		})
		w := &collect{}
		_, _, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, w)
		if !errors.Is(err, rpc.ErrNotServing) || len(w.rows) != 1 || !w.rows[0].Done {
			t.Errorf("%v %+v", err, w.rows)
		}
	})
	t.Run("the writer has enough", func(t *testing.T) {
		f.reads(rows(1<<30, 1000))
		enough := errors.New("enough")
		_, _, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: all}, &stopping{after: 500, err: enough})
		if err != enough {
			t.Error(err)
		}
	})
}

type stopping struct {
	collect
	after int
	err   error
}

func (s *stopping) EndRow() (bool, error) {
	if s.after--; s.after == 0 {
		return false, s.err
	}
	return false, nil
}

// A reader that does not go on holds the server back.
func TestBackpressure(t *testing.T) {
	var given atomic.Int64
	f := &fake{}
	inner := rows(1<<20, 10_000)
	f.reads(func(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		rest, st, err := inner(ctx, at, req, w)
		given.Add(st.RowsReturned)
		return rest, st, err
	})
	_, s, _ := serve(t, f, Options{}, ServerOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	held := &holding{until: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, _, err := s.ReadRows(ctx, rpc.Target{}, &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}}, held)
		done <- err
	}()
	last := int64(-1)
	for n := given.Load(); n != last || n == 0; n = given.Load() {
		last = n
		time.Sleep(300 * time.Millisecond)
	}
	if last*10_000 > 64<<20 {
		t.Errorf("%d rows were read for a client that takes none", last)
	}
	cancel()
	close(held.until)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type holding struct {
	collect
	until chan struct{}
}

func (h *holding) EndRow() (bool, error) {
	<-h.until
	return false, nil
}

func TestOutOfOrderAndCancel(t *testing.T) {
	f := &fake{}
	release := make(chan struct{})
	came, ended := make(chan struct{}, 10), make(chan error, 10)
	var deadline atomic.Bool
	f.mutate = func(ctx context.Context, _ rpc.Target, e *row.Entry) error {
		switch string(e.Key) {
		case "slow":
			<-release
		case "cancelled":
			_, ok := ctx.Deadline()
			deadline.Store(ok)
			came <- struct{}{}
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
		return nil
	}
	_, s, _ := serve(t, f, Options{}, ServerOptions{})
	slow := make(chan error, 1)
	go func() { slow <- s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("slow")}) }()
	for range 10 {
		if err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("quick")}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-slow:
		t.Fatal("the slow call was answered: ", err)
	default:
	}
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-came
		cancel()
	}()
	if err := s.MutateRow(ctx, rpc.Target{}, &row.Entry{Key: []byte("cancelled")}); err != context.Canceled {
		t.Error(err)
	}
	if err := <-ended; err != context.Canceled || deadline.Load() {
		t.Error(err)
	}
	// On a busy machine a call may not leave before its deadline.
	for limit := time.Second; ; limit *= 2 {
		ctx, cancel = context.WithTimeout(t.Context(), limit)
		err := s.MutateRow(ctx, rpc.Target{}, &row.Entry{Key: []byte("cancelled")})
		if cancel(); !errors.Is(err, context.DeadlineExceeded) || limit > time.Minute {
			t.Fatalf("within %v: %v", limit, err)
		}
		select {
		case <-ended:
		case <-time.After(limit):
			continue
		}
		break
	}
	if !deadline.Load() {
		t.Error("the deadline did not travel")
	}
}

// What is lost when a server goes away.
func TestLost(t *testing.T) {
	f := &fake{}
	came := make(chan struct{}, 10)
	hold := make(chan struct{})
	f.mutate = func(ctx context.Context, _ rpc.Target, e *row.Entry) error {
		came <- struct{}{}
		<-hold
		return nil
	}
	f.reads(func(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
		came <- struct{}{}
		<-hold
		return nil, scan.Stats{}, nil
	})
	server, s, d := serve(t, f, Options{}, ServerOptions{})
	calls := map[string]func() error{
		"write":       func() error { return s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{}) },
		"large write": func() error { return s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: make([]byte, 100_000)}) },
		"small read": func() error {
			_, _, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Limit: 1}, new(collect))
			return err
		},
		"scan": func() error {
			_, _, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.All}}, new(collect))
			return err
		},
	}
	var mu sync.Mutex
	errs := map[string]error{}
	var asking sync.WaitGroup
	for name, call := range calls {
		asking.Go(func() {
			err := call()
			mu.Lock()
			errs[name] = err
			mu.Unlock()
		})
	}
	for range calls {
		<-came
	}
	answered := make(chan struct{})
	go func() {
		asking.Wait()
		close(answered)
	}()
	go func() {
		select {
		case <-answered:
		case <-time.After(time.Minute):
		}
		close(hold)
	}()
	server.closeAll()
	<-answered
	for name, err := range errs {
		if changes := name == "write" || name == "large write"; !errors.Is(err, fault.Unavailable) || errors.Is(err, rpc.ErrUnknown) != changes {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Now nobody is there: nothing leaves.
	err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{})
	if !errors.Is(err, fault.Unavailable) || errors.Is(err, rpc.ErrUnknown) {
		t.Error(err)
	}
	if d.Lost.Load() != 2+2 {
		t.Errorf("%d calls lost", d.Lost.Load())
	}
}

// A server that stops loses no call, and what is asked meanwhile is not lost
// either.
func TestStop(t *testing.T) {
	f := &fake{mutate: func(context.Context, rpc.Target, *row.Entry) error {
		time.Sleep(time.Millisecond)
		return nil
	}}
	server, s, _ := serve(t, f, Options{}, ServerOptions{})
	var asking sync.WaitGroup
	var ok atomic.Int64
	var stopped atomic.Bool
	for range 8 {
		asking.Go(func() {
			for { // until a call is refused that was made after the end
				after := stopped.Load()
				switch err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("k")}); {
				case err == nil && after:
					t.Error("the server answered after it was stopped")
					return
				case err == nil:
					ok.Add(1)
				case !errors.Is(err, fault.Unavailable) || errors.Is(err, rpc.ErrUnknown):
					t.Error(err)
					return
				case after:
					return
				}
			}
		})
	}
	for ok.Load() < 200 {
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	server.Stop(t.Context())
	stopped.Store(true)
	if d := time.Since(start); d > time.Minute {
		t.Errorf("stopping took %v", d)
	}
	asking.Wait()
}

// A server that is silent is given up, one that is only slow is not.
func TestSilence(t *testing.T) {
	var slow atomic.Int64
	f := &fake{mutate: func(context.Context, rpc.Target, *row.Entry) error {
		time.Sleep(time.Duration(slow.Load()))
		return nil
	}}
	_, s, _ := serve(t, f, Options{}, ServerOptions{})
	// On a busy machine the answer to a ping may take some time.
	for silence := time.Second; ; silence *= 2 {
		slow.Store(int64(silence * 5 / 2))
		d := NewDialer(Options{Silence: silence})
		err := d.Dial(s.(*peer).addr).MutateRow(t.Context(), rpc.Target{}, &row.Entry{})
		if d.Close(); err == nil {
			break
		} else if !errors.Is(err, rpc.ErrUnknown) || silence > 10*time.Second {
			t.Fatalf("given up within %v: %v", silence, err)
		}
	}
	slow.Store(0)
	l := listen(t)
	defer l.Close()
	go silent(l, s.(*peer).addr)
	d := NewDialer(Options{Silence: 300 * time.Millisecond})
	defer d.Close()
	mute := d.Dial(l.Addr().String())
	start := time.Now()
	if err := mute.MutateRow(t.Context(), rpc.Target{}, &row.Entry{}); !errors.Is(err, rpc.ErrUnknown) {
		t.Error(err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v to notice", took)
	}
}

// silent passes on what comes, and no answer after the greeting.
func silent(l net.Listener, to string) {
	in, err := l.Accept()
	if err != nil {
		return
	}
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		b := make([]byte, 1)
		for range len(greeting) {
			if _, err := out.Read(b); err != nil {
				return
			}
			if _, err := in.Write(b); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 4096)
	for {
		n, err := in.Read(b)
		if err != nil {
			return
		}
		if _, err := out.Write(b[:n]); err != nil {
			return
		}
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	one, two := newAuthority(t, filepath.Join(dir, "1")), newAuthority(t, filepath.Join(dir, "2"))
	server, client := one.tls(t)
	_, stranger := two.tls(t)
	_, good, _ := serve(t, &fake{}, Options{TLS: client}, ServerOptions{TLS: server})
	if err := good.MutateRow(t.Context(), rpc.Target{}, &row.Entry{}); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]*tls.Config{"stranger": stranger, "plain": nil, "no certificate": {InsecureSkipVerify: true}} {
		d := NewDialer(Options{TLS: c})
		if err := d.Dial(good.(*peer).addr).MutateRow(t.Context(), rpc.Target{}, &row.Entry{}); !errors.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
		d.Close()
	}
}

type authority struct{ cert, key, ca string }

func newAuthority(t *testing.T, dir string) authority {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	must(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(err)
	return authority{write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER), write("ca.pem", "CERTIFICATE", caDER)}
}

func (a authority) tls(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	server, client, err := TLS(a.cert, a.key, a.ca)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// FuzzQuestion gives anything to a server's decoder: it answers, and what it
// takes for an entry is the same when it has been written and read again.
func FuzzQuestion(f *testing.F) {
	at := rpc.Target{Tablet: 5, Schema: 1}
	f.Add(byte(opMutateRow), appendEntry(appendTarget(nil, at), &row.Entry{Key: []byte("k"), Mutations: testMutations, Token: row.Token{Token: []byte("t"), Start: time.UnixMicro(1)}}))
	f.Add(byte(opMutateRows), appendEntries(appendTarget(nil, at), []row.Entry{{Key: []byte("k"), Mutations: testMutations}}))
	f.Add(byte(opCheckAndMutateRow), appendMutations(appendMutations(appendFilter(appendBytes(appendTarget(nil, at), []byte("k")), testFilter), testMutations), nil))
	f.Add(byte(opReadModifyWriteRow), appendRules(appendBytes(appendTarget(nil, at), []byte("k")), []row.Rule{{Family: "f", IsAppend: true}, {Increment: 2}}))
	f.Add(byte(opDropRange), appendRange(appendTarget(nil, at), row.Range{Start: []byte("a"), End: []byte("b")}))
	f.Add(byte(opReadRows), appendRead(appendTarget(nil, at), &rpc.Read{Ranges: []row.Range{row.Single([]byte("a"))}, Limit: 4, Reversed: true, Filter: testFilter}))
	f.Add(byte(opControl), []byte(`{"Call":"Load","Keys":[{"Table":1,"End":"AA=="}]}`))
	f.Fuzz(func(t *testing.T, op byte, body []byte) {
		again := func(what string, got, want []byte) {
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %x, then %x", what, want, got)
			}
		}
		s := NewServer(&fake{
			mutate: func(_ context.Context, _ rpc.Target, e *row.Entry) error {
				b := appendEntry(nil, e)
				var e2 row.Entry
				d := decoderOf(b)
				d.entry(&e2)
				again("entry", appendEntry(nil, &e2), b)
				return d.err()
			},
			read: func(_ context.Context, _ rpc.Target, r *rpc.Read, _ scan.Writer) ([]row.Range, scan.Stats, error) {
				d := decoderOf(appendRead(nil, r))
				d.read()
				return nil, scan.Stats{}, d.err()
			},
		}, ServerOptions{})
		out := s.answer(t.Context(), nil, op, decoderOf(body))
		d := decoderOf(out)
		if kind := d.Byte(); kind == answerError {
			if err := d.error(); err == nil || d.Bad() {
				t.Errorf("error %v", err)
			}
		}
	})
}

// FuzzAnswer gives anything to the decoders of answers.
func FuzzAnswer(f *testing.F) {
	w := &rowWriter{full: 100, large: 1000}
	w.StartRow([]byte("a"))
	w.Cell(&row.Cell{Family: "f", Qualifier: []byte("q"), Value: []byte("v"), Labels: []string{"l"}})
	w.Cell(&row.Cell{Family: "f", Qualifier: []byte("q"), Value: []byte("v")})
	_, _ = w.EndRow()
	w.Scanned([]byte("b"))
	w.done(&scan.Stats{RowsSeen: 1}, []row.Range{row.All})
	f.Add(w.b)
	f.Add(appendError(nil, errors.Join(rpc.ErrUnknown, fault.InvalidField("a", "b"))))
	f.Add(appendErrors(nil, []error{nil, rpc.ErrNotServing}))
	f.Add(appendCells(nil, []row.Cell{{Family: "f", Qualifier: []byte("q")}}))
	f.Add(appendFrame(nil, 300, []byte{1, 2}, []byte("body")))
	f.Add(appendDetails(nil, details))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = detailsOf(b)
		c := new(collect)
		r := &rowReader{to: c}
		_ = r.read(b)
		d := decoderOf(b)
		if err := d.error(); err == nil {
			t.Error("an error that is none")
		}
		d = decoderOf(b)
		_, _ = d.errors(3)
		d = decoderOf(b)
		d.cells()
		d = decoderOf(b)
		for d.Len() > 0 {
			if _, rest := d.frame(); !d.Bad() {
				_ = rest.Byte()
			}
		}
	})
}
