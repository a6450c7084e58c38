package tabletserver_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

type cellValues struct{ got []string }

func (v *cellValues) StartRow([]byte)       {}
func (v *cellValues) Cell(c *row.Cell)      { v.got = append(v.got, string(c.Value)) }
func (v *cellValues) EndRow() (bool, error) { return false, nil }
func (v *cellValues) Scanned([]byte)        {}
func (v *cellValues) Flush() error          { return nil }

// While the log does not sync, an overwrite is not visible; and a flush must
// not yet drop what it overwrites, or a read would see neither.
func TestFlushWaitsForTheLog(t *testing.T) {
	ctx := context.Background()
	var held atomic.Bool
	release := make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if held.Load() && strings.Contains(op.Path, "ulog") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			<-release
		}
		return nil
	}))
	s := open(t, Options{FS: fs, Dir: "data", NoBackground: true})
	if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, nil); err != nil {
		t.Fatal(err)
	}
	set := func(v string) error {
		return s.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(v)}}})
	}
	want := func(v string) {
		t.Helper()
		var got cellValues
		if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.got) != 1 || got.got[0] != v {
			t.Errorf("read %q, want %q", got.got, v)
		}
	}
	if err := set("old"); err != nil {
		t.Fatal(err)
	}
	held.Store(true)
	done := make(chan error, 2)
	go func() { done <- set("new") }()
	time.Sleep(50 * time.Millisecond) // the write is in the memtable, and waits
	go func() { done <- s.Flush(ctx) }()
	time.Sleep(50 * time.Millisecond)
	want("old")
	select {
	case err := <-done:
		t.Errorf("acknowledged, or flushed, without a sync: %v", err)
		done <- nil
	default:
	}
	held.Store(false)
	close(release)
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	want("new")
}
