package tablet

import (
	"bytes"
	"context"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/metadata"
)

// Follow notes up to where a tablet of a materialized view has seen changes, nil if there
// is no row that it has seen. What it made of them is durable. The note is in the METADATA
// row once that is changed for another reason, or SaveFollowed is called: what comes after a
// crash may begin earlier.
func (t *Tablet) Follow(f *metadata.Followed) { t.followed.Store(&f) }

// Followed returns what Follow noted, or what is in the METADATA row.
func (t *Tablet) Followed() *metadata.Followed {
	if f := t.followed.Load(); f != nil {
		return *f
	}
	return t.Row().Follows()
}

// placeFollowed makes next say what Follow noted, and sees to it that the log does not lose
// what that, and the files of next, rest on: with durability async a power cut takes the end
// of the log, and would leave tablets that contradict one another.
func (t *Tablet) placeFollowed(ctx context.Context, next *metadata.Row) error {
	if f := t.followed.Load(); f != nil {
		next.SetFollows(*f)
	}
	return t.env.Commit.WaitSynced(ctx)
}

// SaveFollowed stores what Follow noted, if the METADATA row does not say it.
func (t *Tablet) SaveFollowed(ctx context.Context) error {
	f, was := t.Followed(), t.Row().Follows()
	if f == was || f != nil && was != nil && f.Life == was.Life && f.Through == was.Through && bytes.Equal(f.Before, was.Before) {
		return nil
	}
	return t.Change(ctx, func(*metadata.Row) {})
}

// Visible returns the sequence number up to which everything is durable, and read by those
// that begin now.
func (t *Tablet) Visible() cell.Seq { return cell.Seq(t.visible.Load()) }

// ChangesBegin returns a stamp from which on ReadChanges gives all that a read which
// begins now does not see. Everything that was acknowledged is below. It is 0 if there is none
// at this moment, or the table has no stream: something is on its way to the log that was
// written before its stream, or what was collected is on its way to files.
func (t *Tablet) ChangesBegin() cell.Seq {
	if t.schema().Stream == nil {
		return 0
	}
	t.write.Lock()
	defer t.write.Unlock()
	if t.write.closed || t.write.gate != 0 {
		return 0
	}
	t.recordLocked()
	s := t.streamOf(t.Row())
	if s == nil {
		return 0
	}
	// Of a tablet that is written to all the time, something is always on its way. Reads do not
	// see that yet, and ReadChanges gives it when it is durable.
	visible := cell.Seq(t.visible.Load())
	begin := max(visible, s.Since, s.Lost)
	if begin > visible && visible < t.write.logged {
		return 0
	}
	return begin
}

// Latest returns the state of a row with every change that was applied, durable or not.
// The caller sees to it that nobody changes the row until it has applied its own.
func (t *Tablet) Latest(ctx context.Context, key []byte) *View {
	return &View{t: t, ctx: ctx, key: key, seq: cell.MaxSeq}
}
