package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

// The METADATA logs of three incarnations.
var logA, logB, logC = MetadataLog(1), MetadataLog(2), MetadataLog(3)

// written is a change of a row of METADATA, in a segment of its own.
type written struct {
	log    commitlog.ID
	tablet uint64
	key    string
	seq    uint64
}

// storeOf returns a store with commit logs.
func storeOf(t *testing.T, all []written) objectstore.Store {
	t.Helper()
	t.Helper()
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	alone := &eachAlone{store}
	writers := map[commitlog.ID]*commitlog.SegmentWriter{}
	for _, r := range all {
		w := writers[r.log]
		if w == nil {
			if w, err = commitlog.CreateSegments(ctx, alone, r.log, commitlog.SegmentOptions{}); err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			writers[r.log] = w
		}
		b := tablet.NewBatch([]byte(r.key))
		b.Set(0, []byte("r"), 0, []byte("row"))
		room, err := w.Reserve(ctx, b.Size())
		if err == nil {
			err = w.Wait(ctx, w.Append(room, r.tablet, r.seq, b, sink{}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return store
}

type sink struct{}

func (sink) Durable(uint64) {}

// eachAlone hides what would let segments share a file.
type eachAlone struct{ objectstore.Store }

// TestAmend: a copy of the lock service is refused if METADATA went on after it
// where nobody would look who begins with the copy, whenever the copy arrived in
// the store, and is taken if not.
func TestAmend(t *testing.T) {
	// What the copy has: [, m) is tablet 10, in log A, of which 100 changes were
	// flushed; [m, ) is tablet 20, in log B, of which 50 were.
	const a, b = 10, 20
	first := func(id commitlog.ID) string { return fmt.Sprintf("%v/%015d", id, 1) }
	for _, c := range []struct {
		what    string
		written []written
		sealed  commitlog.ID
		deleted []string
		second  bool
		refused string
	}{
		{what: "nothing"},
		{what: "went on where they were", written: []written{{logA, a, "c", 101}, {logB, b, "x", 51}}},
		{what: "moved", written: []written{{logC, a, "c", 101}}, refused: "tablet a was written to"},
		{what: "moved there and back", written: []written{{logA, a, "c", 101}, {logC, a, "c", 102}, {logA, a, "c", 103}}, refused: "tablet a was written to"},
		{what: "changed places", written: []written{{logB, a, "c", 101}, {logA, b, "x", 51}}, refused: "was written to"},
		{what: "was somewhere else before", written: []written{{logC, a, "c", 100}, {logB, a, "c", 99}}},
		{what: "was split", written: []written{{logA, 11, "c", 101}}, refused: "tablet b was written to"},
		{what: "was merged", written: []written{{logB, 30, "x", 101}}, refused: "tablet 1e was written to"},
		{what: "was something else before", written: []written{{logA, 11, "c", 100}, {logB, 30, "x", 50}, {logC, 31, "x", 49}}},
		{what: "one went on more slowly than the other", written: []written{{logC, 30, "x", 60}}, refused: "tablet 1e was written to"},
		{what: "was flushed, and its log trimmed", written: []written{{logA, a, "c", 101}, {logA, a, "c", 102}, {logA, a, "c", 103}}, deleted: []string{first(logA)},
			refused: "METADATA was flushed after it"},
		{what: "was flushed, and its log deleted", written: []written{{logA, a, "c", 101}}, sealed: logA, deleted: []string{first(logA)}, refused: "METADATA was flushed after it"},
		{what: "another log was deleted", written: []written{{logC, a, "c", 101}}, sealed: logC, deleted: []string{first(logC)}},
		{what: "another log was deleted, and the newest copy is damaged", written: []written{{logC, a, "c", 101}}, sealed: logC, deleted: []string{first(logC)}, second: true,
			refused: "a newer copy is damaged"},
		{what: "a log that nobody wrote to was sealed", sealed: logC, second: true},
	} {
		t.Run(strings.ReplaceAll(c.what, " ", "_"), func(t *testing.T) {
			store := storeOf(t, c.written)
			if c.sealed != 0 {
				if _, err := commitlog.Seal(t.Context(), store, c.sealed, commitlog.Pos{}, nil); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range c.deleted {
				if err := store.Delete(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			cp := &Copy{Number: 3, Revision: 9, Items: map[string][]byte{}, newerDamaged: c.second}
			set := func(key string, v any) {
				b, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				cp.Items[key] = b
			}
			set(IncarnationKey, 3)
			for _, id := range []commitlog.ID{logA, logB, logC} {
				set(LogKey(id), LogState{})
			}
			root := func(key, start, end string, id metadata.TabletID, log commitlog.ID, flushed uint64) {
				r := &metadata.Row{Table: 1, Tablet: id, Version: 4, Start: []byte(start), End: []byte(end), FlushedSeq: cell.Seq(flushed), MaxSeq: cell.Seq(flushed),
					Assignment: &metadata.Assignment{State: metadata.Open, Log: uint64(log)}}
				cp.Items["root/"+key] = r.Marshal()
			}
			root("1", "", "m", a, logA, 100)
			root("2", "m", "", b, logB, 50)
			empty, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = cp.Amend(t.Context(), empty, store)
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refused != "" && (!errors.Is(err, fault.FailedPrecondition) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("%v, not %q", err, c.refused)
			}
		})
	}
}
