package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/s3"
	"github.com/trestledb/trestle/engine/objectstore/s3/s3test"
	"github.com/trestledb/trestle/engine/row"
)

func sharedOptions(t *testing.T, fs vfs.FS) Options {
	return onObjects(t, Options{FS: fs, Dir: "parent/d", NoBackground: true, Log: slog.New(slog.DiscardHandler)})
}

// TestSharedStoreMixedUp: a data directory and an object store that do not
// belong together are refused, and nothing of either is changed.
func TestSharedStoreMixedUp(t *testing.T) {
	fs := vfs.NewMem()
	o := sharedOptions(t, fs)
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	mustPut(t, s, table, "r", setCell("f", "q", 1000, "v"))
	mustClose(t, s)

	refuse := func(what string, o Options, kind fault.Kind) {
		t.Helper()
		s, err := Open(ctx, o)
		if err == nil {
			mustClose(t, s)
		}
		if fault.KindOf(err) != kind {
			t.Errorf("%s: %v, want kind %v", what, err, kind)
		}
	}
	without := o
	without.Objects = nil
	refuse("without the object store", without, fault.FailedPrecondition)
	other := o
	other.Objects = objectstore.Sub(o.Objects, "other")
	refuse("with another object store", other, fault.FailedPrecondition)
	second := o
	second.Dir = "parent/e"
	refuse("a second data directory", second, fault.Corruption)
	files := Options{FS: fs, Dir: "parent/files", Log: o.Log}
	mustClose(t, mustOpen(t, files))
	files.Objects = other.Objects
	refuse("files, then an object store", files, fault.FailedPrecondition)

	s = mustOpen(t, o)
	if got, want := content(s, table, row.All), "\"r\" f:\"q\"@1000=\"v\"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	mustClose(t, s)

	// The directory goes back to an older state: its incarnation was there.
	root := readFile(t, fs, "parent/d/ROOT")
	s = mustOpen(t, o)
	mustPut(t, s, table, "r", setCell("f", "q", 2000, "w"))
	mustClose(t, s)
	writeFile(t, fs, "parent/d/ROOT", root)
	refuse("an old copy of the directory", o, fault.FailedPrecondition)
}

func readFile(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeFile(t *testing.T, fs vfs.FS, name, content string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write([]byte(content))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestSharedStoreLosesSegments: a segment of the log that a tablet needs is
// missed at the next start.
func TestSharedStoreLosesSegments(t *testing.T) {
	for _, log := range []string{"log", "ulog"} {
		fs := vfs.NewMem()
		o := sharedOptions(t, fs)
		o.Objects = struct{ objectstore.Store }{o.Objects} // each segment a file, which is deleted by itself
		s := mustOpen(t, o)
		table := mustCreate(t, s, newSchema("t", 1000, "f"))
		tt := s.catalog.byName[table].list()[0]
		for i := range 6 {
			mustPut(t, s, table, "r", setCell("f", "q", int64(i)*1000, "v"))
			if i == 1 {
				// What is written meanwhile gives the row a redo point.
				tt.Rotate()
				s.meta.Rotate()
			}
			if i == 3 {
				if _, err := tt.Flush(ctx); err != nil {
					t.Fatal(err)
				}
				if _, err := s.meta.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		redo := s.root.Row().Redo
		if log == "ulog" {
			redo = tt.Row().Redo
		}
		mustClose(t, s)
		part := objectstore.Sub(o.Objects, log)
		infos, err := part.List(ctx, redo.Log.String()+"/", "", 0)
		i := slices.IndexFunc(infos, func(i objectstore.Info) bool { return strings.HasSuffix(i.Name, fmt.Sprintf("%09d", redo.Segment)) })
		if err != nil || i < 0 {
			t.Fatalf("segment %d of %d, redo point %v, %v", i, len(infos), redo, err)
		}
		if err := part.Delete(ctx, infos[i].Name); err != nil {
			t.Fatal(err)
		}
		s, err = Open(ctx, o)
		if err == nil {
			mustClose(t, s)
		}
		if fault.KindOf(err) != fault.Corruption {
			t.Errorf("%s without %s: %v", log, infos[i].Name, err)
		}
	}
}

// TestSharedStoreTakenOver: when another server seals the log, this one ends
// before it acknowledges anything more.
func TestSharedStoreTakenOver(t *testing.T) {
	o := sharedOptions(t, vfs.NewMem())
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	mustPut(t, s, table, "r", setCell("f", "q", 1000, "v"))
	if _, err := commitlog.Seal(ctx, objectstore.Sub(o.Objects, "ulog"), 1, commitlog.Pos{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.MutateRow(ctx, table, entry("r", setCell("f", "q", 2000, "w"))); err == nil {
		t.Error("a write is acknowledged after the log was sealed")
	}
	<-s.Failed()
	if err := s.Err(); !errors.Is(err, fault.Fenced) || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("the store failed with %v", err)
	}
	if err := s.Close(ctx); err == nil {
		t.Error("the store closes as if nothing had happened")
	}
}

// TestSharedStoreS3: rows in memtables, SSTables and logs of several
// incarnations are found again in a bucket.
func TestSharedStoreS3(t *testing.T) {
	bucket, err := s3.Open(ctx, s3test.Fake(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, Objects: bucket, CommitInterval: time.Millisecond}
	table, want := "", ""
	for i := range 5 {
		s := mustOpen(t, o)
		if i == 0 {
			table = mustCreate(t, s, newSchema("t", 1000, "f"))
		}
		if got := content(s, table, row.All); got != want {
			t.Errorf("incarnation %d finds %q, want %q", i+1, got, want)
		}
		for j := range 20 {
			mustPut(t, s, table, fmt.Sprintf("r%d", j), setCell("f", "q", int64(i)*1000, fmt.Sprint(i, j)))
		}
		if i%2 == 1 {
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		want = content(s, table, row.All)
		mustClose(t, s)
	}
}
