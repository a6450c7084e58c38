package tablet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// lossyMeta makes every change, and says of the one that fails that it cannot
// tell, or that it was not made. Then somebody writes to the tablets.
type lossyMeta struct {
	changes, fails int
	err            error
	write          func()
}

var errAnswerLost = fault.New(fault.Unavailable, "the answer was lost")

func (m *lossyMeta) change(r *metadata.Row) error {
	if m.changes++; m.changes == m.fails {
		m.write()
		return m.err
	}
	if r != nil {
		r.Version++
	}
	return nil
}

// CAS implements metadata.Store.
func (m *lossyMeta) CAS(_ context.Context, r *metadata.Row) error { return m.change(r) }

// Of a tablet whose rows others perhaps serve, as the answer to a change of
// METADATA was lost, no write is acknowledged: it would be in a log that is
// replayed for another tablet, or for none.
func TestLeave(t *testing.T) {
	ops := map[string]func(ctx context.Context, m *lossyMeta, a, b *Tablet) error{
		"release": func(ctx context.Context, _ *lossyMeta, a, _ *Tablet) error {
			return a.Release(ctx, func(r *metadata.Row) { r.Assignment = &metadata.Assignment{} })
		},
		"split": func(ctx context.Context, _ *lossyMeta, a, _ *Tablet) error {
			return a.Split(ctx, []byte("b"), 11, 12, func(...*Tablet) {})
		},
		"merge": func(ctx context.Context, m *lossyMeta, a, b *Tablet) error {
			return Merge(ctx, a, b, 13, func(*metadata.Row) error { return m.change(nil) }, func(...*Tablet) {})
		},
	}
	// The marks that say that a split or a merge is coming are no one's loss: the
	// server ends, and its log is replayed for the tablets as they are.
	marks := map[string]int{"split": 1, "merge": 1}
	for name, do := range ops {
		for fails := 1; ; fails++ {
			if !leaveOnce(t, fmt.Sprintf("%s, change %d", name, fails), fails, errAnswerLost, fails <= marks[name], do) {
				if fails <= marks[name]+1 {
					t.Errorf("%s makes %d changes", name, fails-1)
				}
				break
			}
		}
		// What is certain not to have happened changes nothing.
		leaveOnce(t, name+" refused", marks[name]+1, errors.Join(errAnswerLost, metadata.ErrNotApplied), true, do)
	}
}

func applyAndWait(ctx context.Context, t *Tablet, b *Batch) error {
	pos, err := t.ApplyAsync(ctx, b)
	if err != nil {
		return err
	}
	return t.Wait(ctx, pos)
}

// leaveOnce does something during which a change fails, and tells whether so
// many changes were made.
func leaveOnce(t *testing.T, name string, fails int, err error, serves bool, do func(context.Context, *lossyMeta, *Tablet, *Tablet) error) bool {
	t.Helper()
	ctx := t.Context()
	objects, oerr := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if oerr != nil {
		t.Fatal(oerr)
	}
	log, lerr := commitlog.CreateSegments(ctx, objects, 7, commitlog.SegmentOptions{})
	if lerr != nil {
		t.Fatal(lerr)
	}
	defer log.Close()
	cache := sstable.NewCache(1<<20, 0)
	defer cache.Close()
	var ids atomic.Uint64
	var fatal atomic.Bool
	m := &lossyMeta{err: err}
	env := &Env{Options: Options{}.WithDefaults(), Commit: log, Meta: m, Objects: objects, Cache: cache, Memory: NewMemory(1<<20, func() {}),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: func() uint64 { return ids.Add(1) }, Remove: func(string) {}, Work: func(*Tablet) {},
		Fatal: func(error) { fatal.Store(true) }}
	sch := &schema.Table{ID: 5, NextFamily: 1, Families: map[string]schema.Family{"f": {Name: "f"}}}
	var ts []*Tablet
	for i, r := range []*metadata.Row{{Table: 5, Tablet: 1, End: []byte("m")}, {Table: 5, Tablet: 2, Start: []byte("m")}} {
		r.Version = 1
		one := Open(env, r, func() *schema.Table { return sch })
		one.Start()
		defer one.Close()
		ts = append(ts, one)
		b := NewBatch([]byte{"an"[i]})
		b.Set(0, []byte("q"), 1, []byte("before"))
		if err := applyAndWait(ctx, one, b); err != nil {
			t.Fatal(err)
		}
	}
	writes := make(chan error, 2)
	written := 0
	m.write = func() {
		// The writes wait until the operation is over.
		for i, one := range ts {
			written++
			go func() {
				b := NewBatch([]byte{"an"[i]})
				b.Set(0, []byte("q"), 2, []byte("meanwhile"))
				writes <- applyAndWait(ctx, one, b)
			}()
		}
		time.Sleep(time.Millisecond) // not needed; so they do wait
	}
	// Flushes change rows, too, and are not what this is about.
	for _, one := range ts {
		one.Rotate()
		if _, err := one.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	m.changes, m.fails = 0, fails
	got := do(ctx, m, ts[0], ts[1])
	if written == 0 {
		if got != nil || fatal.Load() {
			t.Errorf("%s: %v", name, got)
		}
		return false
	}
	if got == nil {
		t.Errorf("%s: no error", name)
	}
	if sure := errors.Is(err, metadata.ErrNotApplied); fatal.Load() == sure {
		t.Errorf("%s: the server must end: %v", name, !sure)
	}
	acked := 0
	for range written {
		if <-writes == nil {
			acked++
		}
	}
	want := written
	if !serves {
		if want = 1; strings.HasPrefix(name, "merge") {
			want = 0 // both tablets go
		}
	}
	if acked != want {
		t.Errorf("%s: %d writes were acknowledged, not %d", name, acked, want)
	}
	return true
}
