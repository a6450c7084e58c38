package chunk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

type testRow struct {
	key   []byte
	cells []row.Cell
}

// collect returns a Send that keeps decoded and raw messages.
type collect struct {
	t     testing.TB
	parts bool // takes rows apart
	raw   [][]byte
	msgs  []*bigtablepb.ReadRowsResponse
}

func (c *collect) send(b mem.BufferSlice) error {
	if c.parts {
		return Parts(b, c.take)
	}
	return c.take(b)
}

func (c *collect) take(b mem.BufferSlice) error {
	raw := b.Materialize()
	b.Free()
	m := new(bigtablepb.ReadRowsResponse)
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("message does not parse: %w", err)
	}
	c.raw, c.msgs = append(c.raw, raw), append(c.msgs, m)
	return nil
}

// plain is the encoder written for reading: one row as protobuf structs.
func plain(r testRow) []*bigtablepb.ReadRowsResponse_CellChunk {
	var out []*bigtablepb.ReadRowsResponse_CellChunk
	for i, c := range r.cells {
		ch := &bigtablepb.ReadRowsResponse_CellChunk{TimestampMicros: c.Timestamp, Value: c.Value, Labels: c.Labels}
		newFamily := i == 0 || r.cells[i-1].Family != c.Family
		if i == 0 {
			ch.RowKey = r.key
		}
		if newFamily {
			ch.FamilyName = wrapperspb.String(c.Family)
		}
		if newFamily || !bytes.Equal(r.cells[i-1].Qualifier, c.Qualifier) {
			ch.Qualifier = wrapperspb.Bytes(c.Qualifier)
		}
		if i == len(r.cells)-1 {
			ch.RowStatus = &bigtablepb.ReadRowsResponse_CellChunk_CommitRow{CommitRow: true}
		}
		for len(ch.Value) > valuePart {
			first, rest := proto.CloneOf(ch), &bigtablepb.ReadRowsResponse_CellChunk{Value: ch.Value[valuePart:], RowStatus: ch.RowStatus}
			first.Value, first.ValueSize, first.RowStatus = ch.Value[:valuePart], int32(len(c.Value)), nil
			out, ch = append(out, first), rest
		}
		out = append(out, ch)
	}
	return out
}

// validate is the strict reading of the API's contract: what a client may
// insist on. Go's insists on rows that are whole in a message.
func validate(msgs []*bigtablepb.ReadRowsResponse, whole bool) ([]testRow, error) {
	var rows []testRow
	var last []byte
	var cur *testRow
	var family string
	var qualifier []byte
	size := int32(0) // of the value that has not ended
	for i, m := range msgs {
		if len(m.Chunks) == 0 && m.LastScannedRowKey == nil && m.RequestStats == nil {
			return nil, fmt.Errorf("message %d is empty", i)
		}
		if m.RequestStats != nil && i != len(msgs)-1 {
			return nil, fmt.Errorf("stats in message %d of %d", i, len(msgs))
		}
		for j, c := range m.Chunks {
			at := fmt.Sprintf("message %d chunk %d", i, j)
			if c.GetResetRow() || c.ValueSize > 0 && c.GetCommitRow() {
				return nil, fmt.Errorf("%s has reset_row, or commit_row inside a cell", at)
			}
			if size > 0 {
				v := &cur.cells[len(cur.cells)-1].Value
				*v = append(*v, c.Value...)
				if len(c.RowKey) > 0 || c.FamilyName != nil || c.Qualifier != nil || c.TimestampMicros != 0 || len(c.Labels) > 0 ||
					c.ValueSize != 0 && c.ValueSize != size || c.ValueSize == 0 && len(*v) != int(size) {
					return nil, fmt.Errorf("%s continues a value of %d bytes, %d till here, and begins another cell, or is of %d", at, size, len(*v), c.ValueSize)
				}
				if size = c.ValueSize; c.GetCommitRow() {
					rows = append(rows, *cur)
					last, cur = cur.key, nil
				}
				continue
			}
			if cur == nil {
				if len(c.RowKey) == 0 || c.FamilyName == nil || c.Qualifier == nil {
					return nil, fmt.Errorf("%s begins a row without key, family or qualifier", at)
				}
				if last != nil && bytes.Compare(c.RowKey, last) <= 0 {
					return nil, fmt.Errorf("%s: key %q after %q", at, c.RowKey, last)
				}
				cur = &testRow{key: c.RowKey}
			} else if len(c.RowKey) > 0 {
				return nil, fmt.Errorf("%s has a key inside a row", at)
			}
			if c.FamilyName != nil {
				if c.Qualifier == nil {
					return nil, fmt.Errorf("%s has a family and no qualifier", at)
				}
				family = c.FamilyName.Value
			}
			if c.Qualifier != nil {
				qualifier = c.Qualifier.Value
			}
			size = c.ValueSize
			cur.cells = append(cur.cells, row.Cell{Family: family, Qualifier: qualifier, Timestamp: c.TimestampMicros, Value: c.Value, Labels: c.Labels})
			if c.GetCommitRow() {
				rows = append(rows, *cur)
				last, cur = cur.key, nil
			}
		}
		if cur != nil && (whole || i == len(msgs)-1) {
			return nil, fmt.Errorf("message %d ends inside a row", i)
		}
		if m.LastScannedRowKey != nil {
			if last != nil && bytes.Compare(m.LastScannedRowKey, last) < 0 {
				return nil, fmt.Errorf("message %d: last scanned %q before %q", i, m.LastScannedRowKey, last)
			}
		}
	}
	return rows, nil
}

func write(w *Writer, rows []testRow) error {
	full := false
	for _, r := range rows {
		if full {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		w.StartRow(r.key)
		for i := range r.cells {
			w.Cell(&r.cells[i])
		}
		var err error
		if full, err = w.EndRow(); err != nil {
			return err
		}
	}
	return nil
}

func sameRows(t interface{ Fatalf(string, ...any) }, got, want []testRow) {
	var nonEmpty []testRow
	for _, r := range want {
		if len(r.cells) > 0 {
			nonEmpty = append(nonEmpty, r)
		}
	}
	want = nonEmpty
	if len(got) != len(want) {
		t.Fatalf("got %d rows, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i].key, want[i].key) || len(got[i].cells) != len(want[i].cells) {
			t.Fatalf("row %d: got %q with %d cells, want %q with %d", i, got[i].key, len(got[i].cells), want[i].key, len(want[i].cells))
		}
		for j := range want[i].cells {
			a, b := got[i].cells[j], want[i].cells[j]
			if a.Family != b.Family || !bytes.Equal(a.Qualifier, b.Qualifier) || a.Timestamp != b.Timestamp ||
				!bytes.Equal(a.Value, b.Value) || strings.Join(a.Labels, "|") != strings.Join(b.Labels, "|") {
				t.Fatalf("row %d cell %d: got %+v, want %+v", i, j, a, b)
			}
		}
	}
}

func genRows(t *rapid.T) []testRow {
	n := rapid.IntRange(0, 30).Draw(t, "rows")
	// Lengths around the places where a varint grows, and those that fill
	// segments and messages.
	length := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(100, 140), rapid.IntRange(16300, 16400),
		rapid.SampledFrom([]int{smallSegment, largeSegment, valuePart, valuePart + 1, 3 * valuePart, 9 * valuePart / 2}))
	var rows []testRow
	for i := range n {
		r := testRow{key: fmt.Appendf(nil, "row%04d%s", i, strings.Repeat("k", rapid.SampledFrom([]int{0, 1, 118, 119, 120, 121, 4000}).Draw(t, "pad")))}
		cells := rapid.IntRange(0, 6).Draw(t, "cells")
		fam, qual, ts := 0, 0, int64(0)
		for range cells {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				fam, qual = fam+1, 0
			case 1:
				qual++
			}
			ts = rapid.Int64Range(0, 1<<52).Draw(t, "ts")
			c := row.Cell{Family: fmt.Sprintf("f%d", fam), Timestamp: ts}
			if qual > 0 {
				c.Qualifier = bytes.Repeat([]byte{byte(qual)}, rapid.SampledFrom([]int{1, 126, 127, 128, 16384}).Draw(t, "qlen"))
			}
			c.Value = make([]byte, length.Draw(t, "len"))
			for k := range min(len(c.Value), 16) {
				c.Value[k] = byte(rand.Uint32())
			}
			for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "labels") {
				c.Labels = append(c.Labels, rapid.StringMatching("[a-z]{0,15}").Draw(t, "label"))
			}
			r.cells = append(r.cells, c)
		}
		rows = append(rows, r)
	}
	return rows
}

// pieces returns what gives pieces to w as another server's do.
func pieces(w *Writer) func(*scan.Piece, mem.BufferSlice) error {
	return func(p *scan.Piece, b mem.BufferSlice) error {
		raw := b.Materialize()
		b.Free()
		if p.Rows > 1 && len(raw) > MaxMessage {
			return fmt.Errorf("a piece of %d rows in %d bytes", p.Rows, len(raw))
		}
		for len(raw) > 0 {
			room, err := w.Room(len(raw))
			if err != nil {
				return err
			}
			raw = raw[copy(room, raw):]
		}
		full, err := w.Encoded(p)
		if err == nil && full {
			err = w.Flush()
		}
		return err
	}
}

// The bytes are those that the generated code makes of the same rows, the
// stream is one that a strict client accepts, and nothing stays in use. All this
// too if rows come as pieces from elsewhere, or some of them do.
func TestAgainstGeneratedCode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rows := genRows(rt)
		out := &collect{t: t, parts: rapid.Bool().Draw(rt, "parts")}
		held := budget.New(1 << 30)
		w := NewWriter(Options{Send: out.send, Budget: held})
		for rest, encoded := rows, rapid.Bool().Draw(rt, "encoded"); len(rest) > 0; encoded = !encoded {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "part")
			if !encoded {
				err := write(w, rest[:n])
				if err == nil && w.full() {
					err = w.Flush()
				}
				if err != nil {
					rt.Fatal(err)
				}
			} else {
				e := NewWriter(Options{Piece: pieces(w)})
				if err := errors.Join(write(e, rest[:n]), e.Flush()); err != nil {
					rt.Fatal(err)
				}
				e.Close()
			}
			rest = rest[n:]
		}
		var returned int64
		for _, r := range rows {
			if len(r.cells) > 0 {
				returned++
			}
		}
		if w.RowsReturned() != returned {
			rt.Fatalf("%d rows, want %d", w.RowsReturned(), returned)
		}
		if err := w.Finish(nil); err != nil {
			rt.Fatal(err)
		}
		w.Close()
		got, err := validate(out.msgs, !out.parts)
		if err != nil {
			rt.Fatal(err)
		}
		sameRows(rt, got, rows)
		for i, m := range out.msgs {
			n := 0
			for _, c := range m.Chunks {
				if c.GetCommitRow() {
					n++
				}
			}
			if (n > 1 || out.parts) && len(out.raw[i]) > MaxMessage {
				rt.Fatalf("message %d holds %d rows in %d bytes", i, n, len(out.raw[i]))
			}
		}
		var want, have []byte
		for _, r := range rows {
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&bigtablepb.ReadRowsResponse{Chunks: plain(r)})
			if err != nil {
				rt.Fatal(err)
			}
			want = append(want, b...)
		}
		for _, b := range out.raw {
			have = append(have, b...)
		}
		if !bytes.Equal(want, have) {
			rt.Fatalf("bytes differ from the generated code's")
		}
		if held.Used() != 0 {
			rt.Fatalf("the budget did not get everything back")
		}
	})
}

func bigRow(key string, cells, size int) testRow {
	r := testRow{key: []byte(key)}
	v := make([]byte, size)
	for i := range cells {
		r.cells = append(r.cells, row.Cell{Family: "f", Qualifier: fmt.Appendf(nil, "%06d", i), Timestamp: 1000, Value: v})
	}
	return r
}

func TestMessages(t *testing.T) {
	out := &collect{t: t}
	w := NewWriter(Options{Send: out.send})
	var rows []testRow
	for i := range 1000 {
		rows = append(rows, bigRow(fmt.Sprintf("a%04d", i), 1, 1000))
	}
	rows = append(rows, bigRow("b", 1, 5<<20), bigRow("c", 1, 10))
	if err := write(w, rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish([]byte{3<<3 | 2, 0}); err != nil { // empty request_stats
		t.Fatal(err)
	}
	got, err := validate(out.msgs, !out.parts)
	if err != nil {
		t.Fatal(err)
	}
	sameRows(t, got, rows)
	if n := len(out.raw[0]); n < firstMessage || n > 2*firstMessage {
		t.Errorf("first message has %d bytes", n)
	}
	for i, b := range out.raw[1:] {
		if len(b) > MaxMessage && len(out.msgs[i+1].Chunks) != 1+(5<<20-1)/valuePart {
			t.Errorf("message %d has %d bytes and %d chunks, not one row's", i+1, len(b), len(out.msgs[i+1].Chunks))
		}
	}
	if n := len(out.raw[1]); n < fullMessage || n > fullMessage+2000 {
		t.Errorf("second message has %d bytes", n)
	}
	if out.msgs[len(out.msgs)-1].RequestStats == nil {
		t.Errorf("no stats in the last message")
	}
}

func TestStatsOfAnEmptyRead(t *testing.T) {
	out := &collect{t: t}
	w := NewWriter(Options{Send: out.send})
	if err := w.Finish([]byte{3<<3 | 2, 0}); err != nil {
		t.Fatal(err)
	}
	if len(out.msgs) != 1 || out.msgs[0].RequestStats == nil {
		t.Fatalf("got %v", out.msgs)
	}
}

// TestAbandonedRow: a read that fails in the middle of a row gives the rows
// before it.
func TestAbandonedRow(t *testing.T) {
	for before := range 3 {
		c := &collect{t: t}
		w := NewWriter(Options{Send: c.send})
		big := bytes.Repeat([]byte("x"), 300<<10)
		for i := range before {
			w.StartRow(fmt.Appendf(nil, "row%d", i))
			w.Cell(&row.Cell{Family: "f", Qualifier: []byte("q"), Value: big})
			if _, err := w.EndRow(); err != nil {
				t.Fatal(err)
			}
		}
		w.StartRow([]byte("torn"))
		for i := range 3 {
			w.Cell(&row.Cell{Family: "f", Qualifier: fmt.Append(nil, i), Value: big})
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		rows, err := validate(c.msgs, !c.parts)
		if err != nil || len(rows) != before {
			t.Errorf("%d rows instead of %d, %v", len(rows), before, err)
		}
	}
}

// What is said of pieces is true: rows, cells, keys, and which row goes on.
func TestPieces(t *testing.T) {
	var got []scan.Piece
	size := 0
	e := NewWriter(Options{Piece: func(p *scan.Piece, b mem.BufferSlice) error {
		n := b.Len()
		b.Free()
		if size += n; n > 3<<20 {
			t.Errorf("a piece of %d bytes", n)
		}
		c := *p
		c.Key = bytes.Clone(p.Key)
		got = append(got, c)
		return nil
	}})
	rows := []testRow{bigRow("a", 3, 10), bigRow("b", 2, 10), bigRow("c", 5, 800<<10), bigRow("d", 1, 2<<20), {key: []byte("e")}, bigRow("f", 1, 1)}
	if err := errors.Join(write(e, rows), e.Flush()); err != nil {
		t.Fatal(err)
	}
	want := []scan.Piece{
		{Rows: 2, Cells: 5, Key: []byte("b")},
		{Key: []byte("c"), Open: true}, {Key: []byte("c"), Open: true}, {Key: []byte("c"), Open: true}, {Key: []byte("c"), Open: true}, {Rows: 1, Cells: 5, Key: []byte("c")},
		{Key: []byte("d"), Open: true}, {Rows: 1, Cells: 1, Key: []byte("d")}, {Rows: 1, Cells: 1, Key: []byte("f")},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	// A row that is too large is, also if most of it is gone.
	e.StartRow([]byte("g"))
	for i := range 300 {
		e.Cell(&row.Cell{Family: "f", Qualifier: fmt.Append(nil, i), Value: make([]byte, 1<<20)})
	}
	if _, err := e.EndRow(); !errors.Is(err, fault.FailedPrecondition) || !strings.Contains(fmt.Sprintf("%+v", err), "256 MiB") {
		t.Error(err)
	}
	if size > 262<<20 {
		t.Errorf("%d bytes were passed on", size)
	}
	e.Close()
}

// Pieces that are not whole leave nothing behind, and no row is larger than it
// may be, whatever a peer sends.
func TestBrokenPieces(t *testing.T) {
	out := &collect{t: t}
	w := NewWriter(Options{Send: out.send})
	defer w.Close()
	if err := write(w, []testRow{bigRow("a", 1, 10)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Room(100); err != nil { // and nothing comes
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	open := func(n int) (err error) {
		for n > 0 && err == nil {
			var b []byte
			if b, err = w.Room(n); err == nil && (len(b) == 0 || len(b) > n) {
				t.Fatalf("room for %d of %d bytes", len(b), n)
			}
			n -= len(b)
		}
		if err == nil {
			_, err = w.Encoded(&scan.Piece{Key: []byte("b"), Open: true})
		}
		return err
	}
	var err error
	pieces := 0
	for ; err == nil && pieces < 1000; pieces++ {
		err = open(1 << 20)
	}
	if !errors.Is(err, fault.Internal) || pieces < 250 || pieces > 256 {
		t.Errorf("%d pieces, %v", pieces, err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Room(0); err == nil {
		t.Error("room for nothing")
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := write(w, []testRow{bigRow("c", 1, 10)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	got, err := validate(out.msgs, !out.parts)
	if err != nil {
		t.Fatal(err)
	}
	sameRows(t, got, []testRow{bigRow("a", 1, 10), bigRow("c", 1, 10)})
}

func TestTooLargeRow(t *testing.T) {
	out := &collect{t: t}
	held := budget.New(1 << 30)
	w := NewWriter(Options{Send: out.send, Budget: held})
	rows := []testRow{bigRow("a", 2, 10), bigRow("big", 257, 1<<20)}
	err := write(w, rows)
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.FailedPrecondition || f.Reason != "LargeRowReadError" || f.Metadata["rowKeyBase64Encoded"] != "Ymln" {
		t.Fatalf("got %#v", err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := validate(out.msgs, !out.parts)
	if err != nil {
		t.Fatal(err)
	}
	sameRows(t, got, rows[:1])
	w.Close()
	if held.Used() != 0 {
		t.Fatal("the budget did not get everything back")
	}
}

func TestBudget(t *testing.T) {
	limit := budget.New(8 << 20)
	var held []mem.BufferSlice
	hold := func(b mem.BufferSlice) error { held = append(held, b); return nil }
	w := NewWriter(Options{Send: hold, Budget: limit})
	rows := []testRow{bigRow("a", 1, 5<<20), bigRow("b", 1, 5<<20)}
	err := write(w, rows)
	if fault.KindOf(err) != fault.Unavailable || w.RowsReturned() != 1 {
		t.Fatalf("got %v after %d rows", err, w.RowsReturned())
	}
	w.Close()
	for _, b := range held {
		b.Free()
	}
	if limit.Used() != 0 {
		t.Fatal("the budget did not get everything back")
	}
	out := &collect{t: t}
	w = NewWriter(Options{Send: out.send, Budget: limit})
	if err := write(w, rows[1:]); err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// A buffer that nobody frees does not use the budget up for ever.
func TestBudgetOfDroppedBuffers(t *testing.T) {
	held := budget.New(8 << 20)
	w := NewWriter(Options{Send: func(mem.BufferSlice) error { return nil }, Budget: held})
	if err := write(w, []testRow{bigRow("a", 1, 5<<20)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	w = nil
	for range 100 {
		runtime.GC()
		if held.Used() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the budget did not get everything back")
}

func TestLastScanned(t *testing.T) {
	now := time.Unix(1e9, 0)
	out := &collect{t: t}
	w := NewWriter(Options{Send: out.send, LastScanned: true, Now: func() time.Time { return now }})
	w.Scanned([]byte("a"))
	if full, _ := w.EndRow(); full {
		t.Fatal("full before a second has passed")
	}
	now = now.Add(scannedEvery)
	w.Scanned([]byte("b"))
	w.StartRow([]byte("bb"))
	if full, _ := w.EndRow(); !full {
		t.Fatal("not full after a second")
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Scanned([]byte("c"))
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(out.msgs) != 1 || string(out.msgs[0].LastScannedRowKey) != "b" {
		t.Fatalf("got %v", out.msgs)
	}
	// The key of a row that was sent says nothing new.
	now = now.Add(scannedEvery)
	if err := write(w, []testRow{bigRow("d", 1, 1)}); err != nil {
		t.Fatal(err)
	}
	w.Scanned([]byte("d"))
	if err := w.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if len(out.msgs) != 2 || out.msgs[1].LastScannedRowKey != nil {
		t.Fatalf("got %v", out.msgs)
	}
}

func TestSendFails(t *testing.T) {
	held := budget.New(64 << 20)
	broken := errors.New("broken")
	w := NewWriter(Options{Budget: held, Send: func(b mem.BufferSlice) error { b.Free(); return broken }})
	if err := write(w, []testRow{bigRow("a", 1, 100), bigRow("b", 1, 8<<20)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	w.Close()
	if held.Used() != 0 {
		t.Fatal("the budget did not get everything back")
	}
}

func benchmark(b *testing.B, cells, size int) {
	w := NewWriter(Options{Send: func(s mem.BufferSlice) error { s.Free(); return nil }})
	r := bigRow("user1234567890", cells, size)
	b.SetBytes(int64(cells * size))
	b.ReportAllocs()
	for b.Loop() {
		w.StartRow(r.key)
		for i := range r.cells {
			w.Cell(&r.cells[i])
		}
		full, err := w.EndRow()
		if err != nil {
			b.Fatal(err)
		}
		if full {
			if err := w.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkRow1x1KB(b *testing.B)   { benchmark(b, 1, 1000) }
func BenchmarkRow10x100B(b *testing.B) { benchmark(b, 10, 100) }
func BenchmarkRow1x1MB(b *testing.B)   { benchmark(b, 1, 1<<20) }

func BenchmarkPointRead(b *testing.B) {
	r := bigRow("user1234567890", 1, 1000)
	send := func(s mem.BufferSlice) error { s.Free(); return nil }
	b.ReportAllocs()
	for b.Loop() {
		w := NewWriter(Options{Send: send})
		w.StartRow(r.key)
		w.Cell(&r.cells[0])
		if _, err := w.EndRow(); err != nil {
			b.Fatal(err)
		}
		if err := w.Finish(nil); err != nil {
			b.Fatal(err)
		}
		w.Close()
	}
}

// The first message goes out sooner than others, but of a page; what is left of a message
// is told.
func TestFirstMessage(t *testing.T) {
	for _, page := range []bool{false, true} {
		out := &collect{t: t}
		w := NewWriter(Options{Send: out.send, Page: page})
		first := firstMessage
		if page {
			first = fullMessage
		}
		if n := w.Space(); n != first {
			t.Errorf("page is %v: %d bytes of space, want %d", page, n, first)
		}
		var rows []testRow
		for i := range 600 {
			rows = append(rows, bigRow(fmt.Sprintf("a%04d", i), 1, 1000))
		}
		if err := write(w, rows[:5]); err != nil {
			t.Fatal(err)
		}
		if n := w.Space(); n > first-5000 || n < first-7000 {
			t.Errorf("page is %v: %d bytes of space after 5 rows of 1,000", page, n)
		}
		if err := write(w, rows[5:]); err != nil {
			t.Fatal(err)
		}
		if n := len(out.raw[0]); n < first || n > first+2000 {
			t.Errorf("page is %v: the first message has %d bytes", page, n)
		}
		if n := len(out.raw[1]); n < fullMessage {
			t.Errorf("page is %v: the second message has %d bytes", page, n)
		}
		w.Close()
	}
}
