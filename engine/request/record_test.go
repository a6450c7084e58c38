package request

import (
	"bytes"
	"context"
	"testing"
	"time"
)

// What one process tells another of a request and of the work for it arrives, and what is
// no such thing changes nothing.
func TestWire(t *testing.T) {
	a := new(Record)
	var b Record
	of, ok := b.Parse(a.AppendTo(nil, nil))
	if !ok || of != nil || b.ID() != a.ID() || a.ID() == 0 {
		t.Errorf("%v %v %x %x", of, ok, a.ID(), b.ID())
	}
	if _, ok := b.Parse(a.AppendTo(nil, nil)[:8]); ok {
		t.Error("8 bytes")
	}
	a.BeginTablet(1).End()
	a.AddRead(2, 1<<40, 3)
	a.AddMemoryWait(time.Second)
	a.AddCompactionWait(2 * time.Second)
	a.BeginLogWait().End(nil)
	enc := a.Work.AppendTo(nil)
	for n := range enc {
		var w Work
		if w.AddEncoded(enc[:n]) || w.Tablets.Load() != 0 {
			t.Errorf("%d bytes of %d", n, len(enc))
		}
	}
	for range 2 {
		if !b.Work.AddEncoded(append(enc, 1, 2, 3)) {
			t.Error("refused")
		}
	}
	if b.Work.Tablets.Load() != 2 || b.Work.BlockBytes.Load() != 2<<40 || b.Work.CompactionWait.Load() != int64(4*time.Second) || b.Work.LogWait.Load() != 2*a.Work.LogWait.Load() {
		t.Errorf("%x", b.Work.AppendTo(nil))
	}
	// A request that nobody measures.
	none := From(context.Background())
	none.NoteKey([]byte("k"))
	none.AddRead(1, 2, 3)
	none.BeginLogWait().End(nil)
	none.BeginTablet(1).End()
	none.SetFace(REST)
	if none.ID() != 0 || none.StartSpan("x") != nil {
		t.Error("it is measured")
	}
	// The first key and the first table are kept, keys only where they are wanted.
	for _, keys := range []bool{false, true} {
		r := &Record{Keys: keys}
		for _, s := range []string{"", "first", "second"} {
			r.NoteKey([]byte(s))
		}
		r.SetTable(1, "one")
		r.SetTable(2, "two")
		if (r.Key == "first") != keys || !keys && r.Key != "" || r.TableName != "one" || r.Table != 1 {
			t.Errorf("key %q, table %q", r.Key, r.TableName)
		}
	}
	if s := IDString(0xAB); s != "00000000000000ab" {
		t.Error(s)
	}
}

// FuzzParse gives anything to the decoders.
func FuzzParse(f *testing.F) {
	a := new(Record)
	f.Add(a.AppendTo(nil, nil))
	f.Add(append(append([]byte{traced}, bytes.Repeat([]byte{1}, 8)...), bytes.Repeat([]byte{2}, 25)...))
	f.Add(a.Work.AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if of, ok := r.Parse(b); ok && of != nil && len(b) < 34 {
			t.Error("a span of nothing")
		}
		if r.Work.AddEncoded(b) {
			again := new(Work)
			if !again.AddEncoded(r.Work.AppendTo(nil)) || again.SSTables.Load() != r.Work.SSTables.Load() {
				t.Error("not the same when written and read again")
			}
		}
	})
}

func BenchmarkFrom(b *testing.B) {
	ctx := With(context.Background(), new(Record))
	for range 6 {
		ctx = context.WithValue(ctx, b, b)
	}
	b.ReportAllocs()
	for b.Loop() {
		From(ctx).BeginTablet(1).End()
	}
}
