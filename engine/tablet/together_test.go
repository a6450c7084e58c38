package tablet

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// lone returns a tablet of all rows, whose log is in memory.
func lone(t testing.TB) *Tablet {
	t.Helper()
	log, err := commitlog.Open(vfs.NewMem(), "log", commitlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	w, err := log.Start()
	if err != nil {
		t.Fatal(err)
	}
	env := &Env{Options: Options{}.WithDefaults(), Commit: w, Memory: NewMemory(1<<30, nil), Log: slog.New(slog.DiscardHandler),
		Now: time.Now, Remove: func(string) {}, Work: func(*Tablet) {}, Fatal: func(err error) { t.Error(err) }}
	sch := &schema.Table{ID: 5, NextFamily: 1, Families: map[string]schema.Family{"f": {Name: "f"}}}
	one := Open(env, &metadata.Row{Table: 5, Tablet: 1, Version: 1}, func() *schema.Table { return sch })
	one.Start()
	t.Cleanup(one.Close)
	return one
}

// versions returns what was written to the column q of a row, the newest first.
func versions(t *Tablet, key string) (values []string) {
	it := t.write.mem.Iterator(cell.MaxSeq)
	defer it.Close()
	prefix := cell.AppendRow(nil, []byte(key))
	for ok := it.SeekRow(prefix); ok && bytes.HasPrefix(it.Entry().Key, prefix); ok = it.Next() {
		values = append(values, string(it.Entry().Value))
	}
	return values
}

// TestWritesWaitForDecisions: a batch that changes a row which somebody looks at to
// change it comes after that change, others need not wait.
func TestWritesWaitForDecisions(t *testing.T) {
	one, ctx := lone(t), t.Context()
	var others []string // rows with other locks
	for i := 0; len(others) < 3; i++ {
		if k := fmt.Sprint("other", i); one.stripe([]byte(k)) != one.stripe([]byte("row")) {
			others = append(others, k)
		}
	}
	set := func(value string, keys ...string) error {
		b := NewBatch([]byte(keys[0]))
		defer b.Free()
		b.Set(0, []byte("q"), 1, []byte(value))
		for _, k := range keys[1:] {
			b.Row([]byte(k))
			b.Set(0, []byte("q"), 1, []byte(value))
		}
		return applyAndWait(ctx, one, b)
	}
	var writer sync.WaitGroup
	err := one.Update(ctx, []byte("row"), func(_ *View, b *Batch) error {
		if err := set("apart", others...); err != nil {
			return err
		}
		began := make(chan struct{})
		writer.Go(func() {
			close(began)
			if err := set("later", append(others, "row")...); err != nil {
				t.Error(err)
			}
		})
		<-began
		time.Sleep(5 * time.Millisecond) // not needed; so it does wait
		b.Set(0, []byte("q"), 1, []byte("decided"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	writer.Wait()
	for key, want := range map[string]string{"row": "[later decided]", others[0]: "[later apart]"} {
		if got := fmt.Sprint(versions(one, key)); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	// A decision that nothing comes of leaves no trace.
	if err := one.Update(ctx, []byte("row"), func(*View, *Batch) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if one.write.deciding != (stripeSet{}) {
		t.Error("somebody still decides")
	}
}

// TestNothingBetween: between what somebody sees of a row and what he makes of it
// nothing is written to the row, however many write batches of it.
func TestNothingBetween(t *testing.T) {
	one, ctx := lone(t), context.Background()
	const rows, each = 6, 300
	key := func(i int) []byte { return fmt.Appendf(nil, "row%d", i) }
	var n atomic.Int64
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for range each {
				b := NewBatch(key(0))
				for i := range rows {
					if i > 0 {
						b.Row(key(i))
					}
					for range rng.IntN(3) {
						b.Set(0, []byte("q"), 1, fmt.Appendf(nil, "%d", n.Add(1)))
					}
				}
				if _, err := one.ApplyAsync(ctx, b); err != nil {
					t.Error(err)
				}
				b.Free()
			}
		})
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 8))
			for range each {
				if _, err := one.UpdateAsync(ctx, key(rng.IntN(rows)), func(v *View, b *Batch) error {
					_, seen, _, err := v.Newest(nil, 0, []byte("q"))
					b.Set(0, []byte("q"), 1, fmt.Appendf(nil, "%d saw %s", n.Add(1), seen))
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	decided := 0
	for i := range rows {
		got := append(versions(one, string(key(i))), "")
		for j, value := range got[:len(got)-1] {
			_, saw, ok := bytes.Cut([]byte(value), []byte(" saw "))
			if !ok {
				continue
			}
			if decided++; string(saw) != got[j+1] {
				t.Fatalf("%s: %.80q follows %.80q", key(i), value, got[j+1])
			}
		}
	}
	if decided != 4*each {
		t.Errorf("%d decisions, want %d", decided, 4*each)
	}
}
