package changefollow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/backend"
)

// Options say what a Follower reads, and how.
type Options struct {
	Table string
	Life  uint64
	// From is where each partition begins.
	From cell.Seq
	// Every is how often watermarks are asked for.
	Every time.Duration
	// Cut, if not 0, is after how many records a stream is cut. It goes on at the position of
	// the record.
	Cut int
	// Bad is told what no stream may do.
	Bad func(format string, args ...any)
	// Record, if set, is told each record. It is called by one goroutine at a time.
	Record func(*changes.Record)
}

// A Follower reads all partitions of a stream: the children of a partition that has ended
// begin once the tokens of their parents cover them. It complains of
//
//   - a record that comes twice, or before an earlier one of its row;
//   - one at or below a watermark that was told before;
//   - a watermark or position that falls;
//   - partitions that are read at the same time and overlap.
//
// Partitions that never begin, since the tokens of their parents do not fit, are records
// that are missing: Wait and the caller notice.
type Follower struct {
	b      backend.ChangeStreamer
	o      Options
	ctx    context.Context
	end    context.CancelFunc
	active sync.WaitGroup

	mu      sync.Mutex
	tokens  map[string]map[string]part // by child, by the rows of the token
	reading map[string]row.Range
	last    map[string]cell.Seq // stamp, by row
	marks   map[string]cell.Seq // watermark, by partition
	closes  int
	records int
	failed  bool
}

// A part is a token: rows, and how far they have been read.
type part struct {
	rows row.Range
	at   changes.Position
}

func name(r row.Range) string { return fmt.Sprintf("[%q,%q)", r.Start, r.End) }

// Follow begins to read. The caller calls Stop.
func Follow(ctx context.Context, b backend.ChangeStreamer, o Options) (*Follower, error) {
	f := &Follower{b: b, o: o, tokens: map[string]map[string]part{}, reading: map[string]row.Range{}, last: map[string]cell.Seq{}, marks: map[string]cell.Seq{}}
	f.ctx, f.end = context.WithCancel(ctx)
	parts, err := b.StreamPartitions(f.ctx, o.Table)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range parts {
		f.beginLocked(r, []part{{r, changes.Position{Through: o.From}}})
	}
	return f, nil
}

// Stop ends all reads.
func (f *Follower) Stop() {
	f.end()
	f.active.Wait()
}

// Closes returns how many partitions have ended.
func (f *Follower) Closes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closes
}

// State says where it stands, for messages.
func (f *Follower) State() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("%d records, %d closes; reads %v, has tokens for %v", f.records, f.closes, f.reading, f.tokens)
}

// Watermark returns up to where the whole table has been read: 0 while a partition has not
// told.
func (f *Follower) Watermark() cell.Seq {
	f.mu.Lock()
	defer f.mu.Unlock()
	least := cell.MaxSeq
	var rows []row.Range
	for n, r := range f.reading {
		least = min(least, f.marks[n])
		rows = append(rows, r)
	}
	if rows = row.Union(rows); len(rows) != 1 || len(rows[0].Start) > 0 || len(rows[0].End) > 0 {
		return 0 // a partition waits for tokens
	}
	return least
}

func (f *Follower) badLocked(format string, args ...any) {
	f.failed = true
	f.o.Bad(format, args...)
}

// beginLocked reads a partition.
func (f *Follower) beginLocked(r row.Range, parts []part) {
	for n, o := range f.reading {
		if !o.Intersect(r).Empty() {
			f.badLocked("partition %s is read while %s is", name(r), n)
		}
	}
	f.reading[name(r)] = r
	delete(f.marks, name(r))
	f.active.Go(func() {
		if err := f.read(r, parts); err != nil && f.ctx.Err() == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.badLocked("partition %s: %v", name(r), err)
		}
	})
}

// read reads the parts of a partition until they are equally far, then all of it.
func (f *Follower) read(r row.Range, parts []part) error {
	for {
		var goal cell.Seq
		if len(parts) > 1 {
			for _, p := range parts {
				goal = max(goal, p.at.Through, p.at.ChunkEnd)
			}
		}
		for i := range parts {
			if closed, err := f.readPart(r, parts, i, goal); closed || err != nil {
				return err
			}
		}
		var born cell.Seq
		for _, p := range parts {
			born = max(born, p.at.Born)
		}
		parts = []part{{r, changes.Position{Through: goal, Born: born}}}
	}
}

var errCut = errors.New("the stream is cut")

// readPart reads one of the parts up to goal, 0 for ever. closed says that the partition
// has ended.
func (f *Follower) readPart(r row.Range, parts []part, i int, goal cell.Seq) (closed bool, err error) {
	p := &parts[i]
	for {
		w := &takes{f: f, partition: r, whole: len(parts) == 1, of: p, floor: p.at.Through}
		c, err := f.b.ReadChanges(f.ctx, &changes.Request{Table: f.o.Table, Life: f.o.Life, Within: p.rows, Partition: &r, From: p.at, Until: goal, Every: f.o.Every}, w)
		switch {
		case errors.Is(err, errCut):
			continue // it goes on at p.at
		case errors.Is(err, fault.Unavailable) && f.ctx.Err() == nil:
			select {
			case <-time.After(f.o.Every):
				continue
			case <-f.ctx.Done():
				return false, f.ctx.Err()
			}
		case err != nil:
			return false, err
		case c != nil:
			p.at = c.At
			for i := range parts {
				parts[i].at.Born = max(parts[i].at.Born, c.At.Born)
			}
			f.closed(r, parts, c.Partitions)
			return true, nil
		case goal == 0:
			return false, errors.New("the read ends though it has no end")
		}
		p.at = changes.Position{Through: goal, Born: p.at.Born}
		return false, nil
	}
}

// closed notes what a partition has ended with, and begins those whose tokens are all there.
func (f *Follower) closed(r row.Range, parts []part, children []row.Range) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closes++
	delete(f.reading, name(r))
	covered := r.Start
	for n, child := range children {
		if rows := child.Intersect(r); !bytes.Equal(rows.Start, covered) || rows.Empty() || n < len(children)-1 && len(rows.End) == 0 {
			f.badLocked("partition %s ends with %v, which do not tile it", name(r), children)
		} else {
			covered = rows.End
		}
		got := f.tokens[name(child)]
		if got == nil {
			got = map[string]part{}
			f.tokens[name(child)] = got
		}
		for _, p := range parts {
			if rows := p.rows.Intersect(child); !rows.Empty() {
				got[name(rows)] = part{rows, p.at}
			}
		}
		if list, whole := tile(got, child); whole {
			delete(f.tokens, name(child))
			f.beginLocked(child, list)
		}
	}
	if !bytes.Equal(covered, r.End) {
		f.badLocked("partition %s ends with %v, which do not tile it", name(r), children)
	}
}

// tile returns tokens in order, and whether they are those of all rows of a partition.
func tile(tokens map[string]part, of row.Range) ([]part, bool) {
	var list []part
	for _, p := range tokens {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b part) int { return bytes.Compare(a.rows.Start, b.rows.Start) })
	at, open := of.Start, true
	for _, p := range list {
		if !open || !bytes.Equal(p.rows.Start, at) {
			return nil, false
		}
		at, open = p.rows.End, len(p.rows.End) > 0
	}
	return list, bytes.Equal(at, of.End)
}

// takes is the changes.Writer of a part.
type takes struct {
	f         *Follower
	partition row.Range
	whole     bool // it is all of the partition
	of        *part
	floor     cell.Seq // the last watermark
	n         int
}

// note notes that all before at has been read.
func (w *takes) note(at changes.Position) {
	if at.Through < w.of.at.Through {
		w.f.badLocked("partition %s: the position falls from %d to %d", name(w.partition), w.of.at.Through, at.Through)
	}
	at.Row = bytes.Clone(at.Row)
	w.of.at = at
}

// Record implements changes.Writer.
func (w *takes) Record(r *changes.Record, at changes.Position) (bool, error) {
	f := w.f
	f.mu.Lock()
	defer f.mu.Unlock()
	key := string(r.Key)
	switch {
	case r.Stamp == f.last[key]:
		f.badLocked("row %q with stamp %d comes twice", key, r.Stamp)
	case r.Stamp < f.last[key]:
		f.badLocked("row %q with stamp %d comes after one with %d", key, r.Stamp, f.last[key])
	}
	if r.Stamp <= w.floor {
		f.badLocked("row %q with stamp %d comes after the watermark %d of %s", key, r.Stamp, w.floor, name(w.partition))
	}
	if !w.of.rows.Contains(r.Key) {
		f.badLocked("row %q is not one of %s", key, name(w.of.rows))
	}
	f.last[key] = r.Stamp
	f.records++
	if f.o.Record != nil {
		f.o.Record(r)
	}
	w.note(at)
	if w.n++; f.o.Cut > 0 && w.n%f.o.Cut == 0 {
		return false, errCut
	}
	return w.n%50 == 0, nil
}

// Flush implements changes.Writer.
func (w *takes) Flush() error { return nil }

// Watermark implements changes.Writer.
func (w *takes) Watermark(at changes.Position) error {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.note(at)
	w.floor = max(w.floor, at.Through)
	if w.whole {
		w.f.marks[name(w.partition)] = at.Through
	}
	return nil
}
