package model

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// chunk is how many records a reader that is behind gets sorted by row.
const chunk = 8

// A stream is what a table keeps of its changes.
type stream struct {
	log     []*changes.Record // in the order of stamps
	dropped cell.Seq          // all up to it is gone
	whole   bool              // or was never there
	events  []event           // splits and merges, oldest first
	wake    chan struct{}     // closed when there is more
}

// An event says that tablets became others.
type event struct {
	at                cell.Seq
	parents, children []row.Range
}

// streamChanged begins and ends what is kept after the schema of t was set.
func (t *table) streamChanged(old *schema.Table) {
	if s := t.schema.Stream; s == nil || old == nil || old.Stream == nil || old.Stream.Life != s.Life {
		t.stream.log, t.stream.events, t.stream.dropped, t.stream.whole = nil, nil, t.last, true
	}
	t.woken()
}

func (t *table) woken() {
	if t.stream.wake != nil {
		close(t.stream.wake)
		t.stream.wake = nil
	}
}

// log notes what was changed in a row.
func (t *table) log(key []byte, list []changes.Change, now time.Time) {
	if t.schema.Stream == nil || len(list) == 0 {
		return
	}
	first := stamp.Next(t.last, now)
	t.last = stamp.Last(first, len(list))
	t.stream.log = append(t.stream.log, &changes.Record{Stamp: first, Key: bytes.Clone(key), Changes: list})
	t.woken()
}

// changesOf returns mutations, which were applied at now, as a stream tells them.
func (t *table) changesOf(muts []row.Mutation, now time.Time) []changes.Change {
	if t.schema.Stream == nil {
		return nil
	}
	var out []changes.Change
	for i := range muts {
		m := &muts[i]
		c := changes.Change{Family: t.schema.Families[m.Family].ID, Qualifier: bytes.Clone(m.Qualifier), Timestamp: t.timestamp(m, now)}
		switch m.Op {
		case row.SetCell:
			c.Op, c.Value = changes.SetCell, bytes.Clone(m.Value)
		case row.AddToCell, row.MergeToCell:
			if m.Input.Kind == row.NullInput {
				continue
			}
			c.Op, c.Value = changes.AddToCell, changes.AppendInput(nil, m.Input)
			if m.Op == row.MergeToCell {
				c.Op = changes.MergeToCell
			}
		case row.DeleteColumn:
			c.Op, c.Timestamp = changes.DeleteColumn, 0
			if c.Times = m.Times; c.Times.Start == math.MinInt64 {
				c.Times.Start = 0
			}
			if c.Times.End == math.MaxInt64 {
				c.Times.End = 0
			}
		case row.DeleteFamily:
			c.Op, c.Timestamp = changes.DeleteFamily, 0
		case row.DeleteRow:
			c = changes.Change{Op: changes.DeleteRow}
		}
		out = append(out, c)
	}
	return out
}

// tablets returns the ranges between the splits.
func (t *table) tablets() []row.Range {
	var out []row.Range
	var start []byte
	for _, s := range t.splits {
		out = append(out, row.Range{Start: start, End: []byte(s)})
		start = []byte(s)
	}
	return append(out, row.Range{Start: start})
}

// StreamPartitions implements backend.ChangeStreamer.
func (b *Backend) StreamPartitions(ctx context.Context, name string) ([]row.Range, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return t.tablets(), nil
}

// Split cuts the tablet that has the key before it. Nothing is done at the edge of one.
func (b *Backend) Split(ctx context.Context, name string, key []byte) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	i, found := slices.BinarySearch(t.splits, string(key))
	if found || len(key) == 0 {
		return nil
	}
	parents := t.tablets()[i : i+1]
	t.splits = slices.Insert(t.splits, i, string(key))
	t.event(parents, t.tablets()[i:i+2], b.now())
	return nil
}

// Merge joins the two tablets that meet at the key.
func (b *Backend) Merge(ctx context.Context, name string, key []byte) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	i, found := slices.BinarySearch(t.splits, string(key))
	if !found {
		return fault.New(fault.Invalid, "no tablets meet at %q", key)
	}
	parents := t.tablets()[i : i+2]
	t.splits = slices.Delete(t.splits, i, i+1)
	t.event(parents, t.tablets()[i:i+1], b.now())
	return nil
}

func (t *table) event(parents, children []row.Range, now time.Time) {
	t.last = stamp.Next(t.last, now)
	t.stream.events = append(t.stream.events, event{t.last, parents, children})
	t.woken()
}

// Collect deletes a cell as garbage collection does.
func (b *Backend) Collect(ctx context.Context, name string, key []byte, family string, qualifier []byte, ts int64) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	col := column{family: t.schema.Families[family].ID, qualifier: string(qualifier)}
	c := t.rows[string(key)].clone()
	if _, ok := c[col][ts]; !ok {
		return fault.New(fault.NotFound, "no such cell")
	}
	if delete(c[col], ts); len(c[col]) == 0 {
		delete(c, col)
	}
	t.set(string(key), c)
	t.log(key, []changes.Change{{Op: changes.DeleteColumn, Family: col.family, Qualifier: bytes.Clone(qualifier),
		Times: cell.TimeRange{Start: ts, End: ts + t.schema.Granularity}}}, b.now())
	if n := len(t.stream.log); n > 0 {
		t.stream.log[n-1].Collected = true
	}
	return nil
}

// A batch is what a reader gets at once.
type batch struct {
	records []*changes.Record
	end     changes.Position // after them
	at      func(*changes.Record) changes.Position
	close   *changes.Close
	wake    <-chan struct{}
}

// ReadChanges implements backend.ChangeStreamer.
func (b *Backend) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	pos := req.From
	for {
		n, err := b.changes(ctx, req, pos)
		if err != nil {
			return nil, err
		}
		for _, r := range n.records {
			full, err := w.Record(r, n.at(r))
			if err == nil && full {
				err = w.Flush()
			}
			if err != nil {
				return nil, err
			}
		}
		if len(n.records) > 0 {
			if err := w.Flush(); err != nil {
				return nil, err
			}
		}
		pos = n.end
		if err := w.Watermark(pos); err != nil {
			return nil, err
		}
		switch {
		case req.Until > 0 && pos.Through >= req.Until:
			return nil, nil
		case n.close != nil:
			return n.close, nil
		case n.wake != nil:
			timer := time.NewTimer(req.Every)
			select {
			case <-n.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}
}

// changes returns the next batch after pos.
func (b *Backend) changes(ctx context.Context, req *changes.Request, pos changes.Position) (*batch, error) {
	t, unlock, err := b.lockedTable(ctx, req.Table)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s := t.schema.Stream; s == nil || s.Life != req.Life {
		return nil, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s", req.Table)
	}
	now := b.now()
	t.forget(now)
	switch {
	case pos.Through >= t.stream.dropped:
	case t.stream.whole:
		return nil, changes.Begins(req.Table, t.stream.dropped)
	default:
		return nil, changes.Expired(req.Table, t.stream.dropped)
	}
	// What is committed from now on comes later.
	t.last = max(t.last, stamp.At(now))
	partition := req.Within
	if req.Partition != nil {
		partition = *req.Partition
	}
	limit, event := t.last, (*event)(nil)
	for i := range t.stream.events {
		e := &t.stream.events[i]
		if e.at > max(pos.Through, pos.Born) && slices.ContainsFunc(e.parents, func(r row.Range) bool { return same(r, partition) }) {
			limit, event = e.at, e
			break
		}
	}
	if req.Until > 0 {
		limit = min(limit, req.Until)
	}
	log := t.stream.log
	from := sort.Search(len(log), func(i int) bool { return log[i].Stamp > pos.Through })
	end := min(limit, max(pos.ChunkEnd, pos.Through))
	if pos.ChunkEnd == 0 {
		if end = limit; len(log)-from > chunk {
			end = min(limit, log[from+chunk-1].Stamp)
		}
	}
	n := &batch{end: changes.Position{Through: end}}
	for _, r := range log[from:] {
		if r.Stamp > end {
			break
		}
		if req.Within.Contains(r.Key) && !behind(&pos, r) {
			n.records = append(n.records, r)
		}
	}
	slices.SortStableFunc(n.records, func(a, b *changes.Record) int { return bytes.Compare(a.Key, b.Key) })
	chunkEnd := max(end, pos.ChunkEnd)
	n.at = func(r *changes.Record) changes.Position {
		return changes.Position{Through: pos.Through, ChunkEnd: chunkEnd, Row: r.Key, Stamp: r.Stamp}
	}
	if end < limit {
		return n, nil
	}
	switch {
	case event != nil && end >= event.at:
		n.close = &changes.Close{At: n.end, Partitions: event.children}
	case req.Until > 0 && end >= req.Until:
	default:
		var parts []row.Range
		for _, p := range t.tablets() {
			if !p.Intersect(partition).Empty() {
				parts = append(parts, p)
			}
		}
		if len(parts) > 1 {
			n.close = &changes.Close{At: n.end, Partitions: parts}
			break
		}
		if t.stream.wake == nil {
			t.stream.wake = make(chan struct{})
		}
		n.wake = t.stream.wake
	}
	return n, nil
}

func same(a, b row.Range) bool { return bytes.Equal(a.Start, b.Start) && bytes.Equal(a.End, b.End) }

// behind tells whether a reader at p, within a chunk, has had r.
func behind(p *changes.Position, r *changes.Record) bool {
	if p.ChunkEnd == 0 || r.Stamp > p.ChunkEnd {
		return false
	}
	c := bytes.Compare(r.Key, p.Row)
	return c < 0 || c == 0 && r.Stamp <= p.Stamp
}

// forget drops what is older than is to be kept.
func (t *table) forget(now time.Time) {
	old := stamp.At(now.Add(-t.schema.Stream.Retention))
	n := sort.Search(len(t.stream.log), func(i int) bool { return t.stream.log[i].Stamp >= old })
	if n > 0 {
		t.stream.dropped, t.stream.whole = t.stream.log[n-1].Stamp, false
		t.stream.log = slices.Delete(t.stream.log, 0, n)
	}
}

// dropRows deletes the rows with a prefix.
func (t *table) dropRows(prefix string, now time.Time) {
	for _, key := range slices.Clone(t.keys) {
		if strings.HasPrefix(key, prefix) {
			t.set(key, nil)
			t.log([]byte(key), []changes.Change{{Op: changes.DeleteRow}}, now)
		}
	}
}
