package tablet

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// noRoom stores no METADATA row.
type noRoom struct{}

func (noRoom) CAS(context.Context, *metadata.Row) error { return metadata.ErrNotApplied }

// TestStampOfNothing: the stamp of a DropRange that failed is in no row and no log, so
// another owner may give it out. Readers must not be told that they are past it.
func TestStampOfNothing(t *testing.T) {
	s := newStreamed(t)
	b := NewBatch([]byte("r"))
	b.Set(1, []byte("q"), 1000, []byte("v"))
	pos, err := s.ApplyAsync(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context(), pos); err != nil {
		t.Fatal(err)
	}
	before := s.visible.Load()
	s.env.Meta = noRoom{}
	if err := s.DropRange(t.Context(), row.Range{}); !errors.Is(err, metadata.ErrNotApplied) {
		t.Fatal(err)
	}
	if now := s.visible.Load(); now != before {
		t.Errorf("readers are told of %d, which nothing has; the last change is %d", now, before)
	}
	s.env.Meta = s.meta
	if err := s.DropRange(t.Context(), row.Range{}); err != nil {
		t.Fatal(err)
	}
	if now := s.visible.Load(); now != uint64(s.Row().MaxSeq) {
		t.Errorf("readers are told of %d, the deletion is %d", now, s.Row().MaxSeq)
	}
}

// TestStampsAboveSince: a tablet is opened on a server whose clock is behind that of the
// gateway that enabled the stream. Its changes are behind Since all the same.
func TestStampsAboveSince(t *testing.T) {
	s := newStreamed(t)
	since := stamp.At(time.Now().Add(30 * time.Minute))
	r := &metadata.Row{Table: 5, Tablet: 9, Stream: &metadata.StreamState{Life: 1, Since: since}}
	other := Open(s.env, r, func() *schema.Table { return s.sch.Load() })
	defer other.Close()
	other.Start()
	b := NewBatch([]byte("r"))
	b.Set(1, []byte("q"), 1000, []byte("v"))
	pos, err := other.ApplyAsync(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(t.Context(), pos); err != nil {
		t.Fatal(err)
	}
	if last := cell.Seq(other.visible.Load()); last <= since {
		t.Errorf("a change at %v, the stream is kept since %v", stamp.Time(last), stamp.Time(since))
	}
}
