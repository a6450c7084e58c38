package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
)

// takes notes what a Writer is told.
type takes struct {
	got  []string
	fail error // of Flush
}

func (w *takes) Record(r *changes.Record, at changes.Position) (bool, error) {
	w.got = append(w.got, fmt.Sprintf("%+v at %+v", *r, at))
	return len(r.Key) > 0 && r.Key[0] == 'f', nil
}

func (w *takes) Flush() error {
	w.got = append(w.got, "flush")
	return w.fail
}

func (w *takes) Watermark(at changes.Position) error {
	w.got = append(w.got, fmt.Sprintf("mark %+v", at))
	return nil
}

var someChanges = []changes.Record{
	{Stamp: 7, Key: []byte("a"), Changes: []changes.Change{{Op: changes.SetCell, Family: 3, Qualifier: []byte("q"), Timestamp: -5, Value: []byte("v")}, {Op: changes.DeleteRow}}},
	{Stamp: 9, Key: []byte("b"), Collected: true, Through: 6, ChunkEnd: 20, Changes: []changes.Change{{Op: changes.DeleteColumn, Family: 1, Qualifier: []byte("q"), Times: cell.TimeRange{Start: 1, End: 2}}}},
	{Stamp: 10, Key: []byte("f")},
}

// TestChanges: what a server gives comes to a client in another process, and its end does.
func TestChanges(t *testing.T) {
	f := &fake{}
	_, p, _ := serve(t, f, Options{}, ServerOptions{})
	want := &rpc.ChangesRead{Life: 4, Within: row.Range{Start: []byte("a"), End: []byte("z")}, Until: 99, Every: time.Second, Rows: true,
		From: changes.Position{Through: 3, ChunkEnd: 8, Row: []byte("r"), Stamp: 5}}
	boom := errors.New("boom")
	ends := map[string]error{"until": nil, "gone": rpc.ErrNotServing}
	for name, end := range ends {
		f.changes = func(_ context.Context, at rpc.Target, req *rpc.ChangesRead, w changes.Writer) error {
			if at.Tablet != 5 || !reflect.DeepEqual(req, want) {
				t.Errorf("asked for %+v of %v", req, at)
			}
			for i := range someChanges {
				if _, err := w.Record(&someChanges[i], someChanges[i].After()); err != nil {
					return err
				}
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if err := w.Watermark(changes.Position{Through: 30}); err != nil {
				return err
			}
			_, _ = w.Record(&someChanges[0], someChanges[0].After()) // comes with the end
			return end
		}
		w := &takes{}
		if err := p.ReadChanges(t.Context(), rpc.Target{Tablet: 5, Schema: 1}, want, w); !errors.Is(err, end) {
			t.Errorf("%s: %v", name, err)
		}
		direct := &takes{}
		for i := range someChanges {
			_, _ = direct.Record(&someChanges[i], someChanges[i].After())
		}
		_ = direct.Flush()
		_ = direct.Watermark(changes.Position{Through: 30})
		_, _ = direct.Record(&someChanges[0], someChanges[0].After())
		_ = direct.Flush()
		if !reflect.DeepEqual(w.got, direct.got) {
			t.Errorf("%s: got\n%q, want\n%q", name, w.got, direct.got)
		}
		if err := p.ReadChanges(t.Context(), rpc.Target{Tablet: 5, Schema: 1}, want, &takes{fail: boom}); !errors.Is(err, boom) {
			t.Errorf("%s: the writer's error becomes %v", name, err)
		}
	}
	// A reader that goes away ends the call at the server.
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	f.changes = func(ctx context.Context, _ rpc.Target, _ *rpc.ChangesRead, w changes.Writer) error {
		defer close(ended)
		_ = w.Watermark(changes.Position{Through: 1})
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	if err := p.ReadChanges(ctx, rpc.Target{Tablet: 5}, want, &takes{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}

// TestChangesRead: each field of a request comes to another process by itself. One of an earlier
// version ends before what this one adds.
func TestChangesRead(t *testing.T) {
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int64:
			v.SetInt(-7)
		case reflect.Uint64:
			v.SetUint(7)
		case reflect.Slice:
			v.SetBytes([]byte("r"))
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i))
			}
		default:
			t.Fatalf("a field of kind %v", v.Kind())
		}
	}
	decode := func(b []byte) *rpc.ChangesRead {
		d := decoderOf(b)
		defer func() {
			if d.Bad() || d.Len() > 0 {
				t.Errorf("%x is malformed", b)
			}
		}()
		return d.changesRead()
	}
	for i := range reflect.TypeFor[rpc.ChangesRead]().NumField() {
		var req rpc.ChangesRead
		fill(reflect.ValueOf(&req).Elem().Field(i))
		req.From.Born = 0 // which the caller knows, and no server
		if got := decode(appendChangesRead(nil, &req)); !reflect.DeepEqual(got, &req) {
			t.Errorf("%+v became %+v", req, *got)
		}
	}
	earlier := []byte{4, 1, 'a', 1, 'z', 3, 8, 1, 'r', 5, 99, 20}
	want := &rpc.ChangesRead{Life: 4, Within: row.Range{Start: []byte("a"), End: []byte("z")}, Until: 99, Every: 10, Untold: true,
		From: changes.Position{Through: 3, ChunkEnd: 8, Row: []byte("r"), Stamp: 5}}
	if got := decode(earlier); !reflect.DeepEqual(got, want) {
		t.Errorf("of an earlier version: %+v", *got)
	}
}

func FuzzChanges(f *testing.F) {
	var b []byte
	for i := range someChanges {
		b = appendChanges(b, &someChanges[i])
	}
	b = appendPosition(append(b, changesMark), &changes.Position{Through: 3, ChunkEnd: 8, Row: []byte("r"), Stamp: 5})
	f.Add(append(b, changesEnd))
	for _, req := range []rpc.ChangesRead{{Untold: true}, {Rows: true}, {}} {
		req.Life, req.Within, req.Until, req.Every = 4, row.Range{Start: []byte("a")}, 99, time.Second
		f.Add(appendChangesRead(nil, &req))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &changesWriter{}
		var r changesReader
		_ = r.give(decoderOf(bytes.Clone(b)), &reencodes{w})
		d := decoderOf(b)
		req := d.changesRead()
		if d.Bad() {
			return
		}
		d = decoderOf(appendChangesRead(nil, req))
		if again := d.changesRead(); d.Bad() || d.Len() > 0 || !reflect.DeepEqual(again, req) {
			t.Errorf("%+v became %+v", *req, *again)
		}
	})
}

// reencodes encodes what it takes again.
type reencodes struct{ *changesWriter }

func (w *reencodes) Flush() error                        { return nil }
func (w *reencodes) Watermark(at changes.Position) error { return nil }
