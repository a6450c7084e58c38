package standalone

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestCallsAfterTheEnd: once the only tablet server has ended, closed or failed,
// every call is refused at once: there is no other to wait for.
func TestCallsAfterTheEnd(t *testing.T) {
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			ctx := context.Background() // no end of its own
			s, err := Open(ctx, Options{Dir: "d", FS: vfs.NewMem()})
			if err != nil {
				t.Fatal(err)
			}
			sch := &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}
			if _, err := s.CreateTable(ctx, sch, nil); err != nil {
				t.Fatal(err)
			}
			if how == "killed" {
				s.TabletServer().Kill()
			} else if err := s.Close(ctx); err != nil {
				t.Fatal(err)
			}
			other := sch.Clone()
			other.Name += "2"
			set := []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000}}
			for what, call := range map[string]func() error{
				"MutateRow": func() error { return s.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: set}) },
				"MutateRows": func() error {
					var one error
					err := s.MutateRows(ctx, table, []row.Entry{{Key: []byte("r"), Mutations: set}}, func(_ int, err error) { one = err })
					if err == nil {
						err = one
					}
					return err
				},
				"ReadRows": func() error {
					_, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, nil)
					return err
				},
				"DropRowRange": func() error { return s.DropRowRange(ctx, table, nil) },
				"CreateTable":  func() error { _, err := s.CreateTable(ctx, other, nil); return err },
				"UpdateTable": func() error {
					_, err := s.UpdateTable(ctx, table, func(*schema.Table) error { return nil })
					return err
				},
			} {
				done := make(chan error, 1)
				go func() { done <- call() }()
				select {
				case err := <-done:
					// A killed server's lock service lives, and so schemas can change.
					if fault.KindOf(err) != fault.Unavailable && (how == "closed" || err != nil) {
						t.Errorf("%s: %v", what, err)
					}
				case <-time.After(time.Minute):
					t.Errorf("%s waits for nobody", what)
				}
			}
			for range 2 {
				if err := s.Close(ctx); err != nil && how == "closed" {
					t.Errorf("close again: %v", err)
				}
			}
		})
	}
}

// TestAbandoned: a table that a process was making when it died is forgotten by
// the next one at once, also if that has written the item of its name since: the
// sweeper waits for all that is pending.
func TestAbandoned(t *testing.T) {
	ctx := t.Context()
	o := Options{Dir: "d", FS: vfs.NewMem()}
	o.Master.Purge, o.Master.Interval = 10*time.Millisecond, 10*time.Millisecond
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	sch := &schema.Table{Name: table, ID: s.TabletServer().Incarnation()<<32 + 1<<31, Granularity: 1000, Families: map[string]schema.Family{}}
	if _, err := catalog.WriteName(ctx, s.Lock(), table, catalog.Name{catalog.NewPending(sch, time.Now())}, 0); err != nil {
		t.Fatal(err)
	}
	left := func() int {
		n, _, err := catalog.ReadName(ctx, s.Lock(), table)
		if err != nil {
			t.Fatal(err)
		}
		return len(n)
	}
	time.Sleep(200 * time.Millisecond) // somebody of this process might be making it
	if left() != 1 {
		t.Error("what is in the making is purged")
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(ctx))
	gone := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); left() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("what a dead process was making stays")
			}
		}
	}
	gone()
	_, version, err := catalog.ReadName(ctx, s.Lock(), table)
	if err != nil {
		t.Fatal(err)
	}
	// As a client leaves it that writes the item for a table of its own.
	if _, err := catalog.WriteName(ctx, s.Lock(), table, catalog.Name{catalog.NewPending(sch, time.Now())}, version); err != nil {
		t.Fatal(err)
	}
	gone()
}

// TestPurgedAtTheEnd: a process that ends between the two halves of a purge, when the
// table's item is gone and its tablets are served, leaves rows that the next one
// deletes.
func TestPurgedAtTheEnd(t *testing.T) {
	ctx := t.Context()
	o := Options{Dir: "d", FS: vfs.NewMem()}
	o.Master.Purge = -1
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("m")})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "z"} {
		set := []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: []byte("v")}}
		if err := s.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: set}); err != nil {
			t.Fatal(err)
		}
	}
	_, version, err := catalog.ReadName(ctx, s.Lock(), table)
	if err == nil {
		_, err = catalog.WriteName(ctx, s.Lock(), table, nil, version)
	}
	if err != nil {
		t.Fatal(err)
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Close(now); err != nil {
		t.Fatal(err)
	}
	o.Master.Purge, o.Master.Interval = 10*time.Millisecond, 10*time.Millisecond
	if s, err = Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(ctx))
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		err := s.Metadata().ScanTable(ctx, made.ID, func(*metadata.Row) error { left++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d rows of a purged table stay", left)
		}
	}
}
