package client

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// errRowOpen is wrapped by the error of a read that ended within a row.
var errRowOpen = errors.New("the read ended within a row")

// A tracker passes rows on and knows how far a read has come, so that it can go
// on elsewhere.
type tracker struct {
	scan.Writer
	reversed bool
	open     bool   // within a row
	cells    int64  // of it
	last     []byte // the row that is open, or up to which everything is done
	done     bool   // whether last is done
	stats    scan.Stats
	full     bool
}

func (w *tracker) StartRow(key []byte) {
	w.open, w.done, w.cells, w.last = true, false, 0, append(w.last[:0], key...)
	w.Writer.StartRow(key)
}

func (w *tracker) Cell(c *row.Cell) {
	w.cells++
	w.Writer.Cell(c)
}

func (w *tracker) EndRow() (bool, error) {
	w.open, w.done = false, true
	if w.cells > 0 {
		w.stats.RowsReturned++
		w.stats.CellsReturned += w.cells
	}
	full, err := w.Writer.EndRow()
	w.full = w.full || full
	return full, err
}

func (w *tracker) Scanned(key []byte) {
	w.done, w.last = true, append(w.last[:0], key...)
	w.Writer.Scanned(key)
}

func (w *tracker) Flush() error {
	w.full = false
	return w.Writer.Flush()
}

// rest returns what of ranges comes after the last row that is done.
func (w *tracker) rest(ranges []row.Range) []row.Range {
	if !w.done {
		return ranges
	}
	behind := row.Range{End: row.Successor(w.last)}
	ahead := row.Range{Start: row.Successor(w.last)}
	if w.reversed {
		behind, ahead = row.Range{Start: w.last}, row.Range{End: w.last}
		if len(w.last) == 0 {
			return nil
		}
	}
	var out []row.Range
	for _, r := range ranges {
		if behind.Intersect(r).Empty() {
			out = append(out, r)
		} else if r = r.Intersect(ahead); !r.Empty() {
			out = append(out, r)
		}
	}
	return out
}

// ReadRows implements backend.Data.
func (c *Client) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	var stats scan.Stats
	t, err := c.o.Schemas.Named(req.Table)
	if err != nil {
		return stats, err
	}
	for rest := slices.Clone(req.Ranges); len(rest) > 0; {
		left := req.Limit - stats.RowsReturned
		if req.Limit > 0 && left <= 0 {
			return stats, nil
		}
		key := rest[0].Start
		if req.Reversed {
			key = before(rest[len(rest)-1].End)
		}
		err := c.at(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, l location) error {
			mine, other := plan.Cut(rest, l.rows, req.Reversed)
			if len(mine) == 0 {
				// Reversed, the key is a guess: the tablet that holds it ends there.
				rest = other
				return nil
			}
			track := &tracker{Writer: w, reversed: req.Reversed}
			r := &rpc.Read{Ranges: mine, Reversed: req.Reversed, Filter: req.Filter}
			if req.Limit > 0 {
				r.Limit = req.Limit - stats.RowsReturned
			}
			end, one, err := s.ReadRows(ctx, at, r, track)
			if err != nil {
				// What came is as good as if it had been asked for alone.
				stats.RowsReturned += track.stats.RowsReturned
				stats.CellsReturned += track.stats.CellsReturned
				mine = track.rest(mine)
				if track.open {
					return errors.Join(errRowOpen, err)
				}
			} else {
				stats.RowsSeen += one.RowsSeen
				stats.CellsSeen += one.CellsSeen
				stats.RowsReturned += one.RowsReturned
				stats.CellsReturned += one.CellsReturned
				mine = end
			}
			if req.Reversed {
				rest = append(other, mine...)
			} else {
				rest = append(mine, other...)
			}
			if err == nil && track.full {
				err = w.Flush()
			}
			return err
		})
		if err != nil {
			return stats, err
		}
	}
	return stats, nil
}

// before returns a key that is in the tablet which holds the last rows before
// end: that tablet ends at or after end, so a key just below end will do. No
// key is the last one below end; one with many FF behind is close enough, since
// a tablet that begins between the two would have been found by a longer key,
// which no border of a tablet has.
func before(end []byte) []byte {
	if len(end) == 0 {
		return bytes.Repeat([]byte{0xFF}, maxKey+1)
	}
	k := slices.Clone(end)
	n := len(k) - 1
	if k[n] == 0 {
		return k[:n]
	}
	k[n]--
	return append(k, bytes.Repeat([]byte{0xFF}, maxKey+1-len(k))...)
}

const maxKey = 4 << 10

// MutateRow implements backend.Data.
func (c *Client) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return err
	}
	return c.at(ctx, t, e.Key, func(s rpc.TabletServer, at rpc.Target, _ location) error { return s.MutateRow(ctx, at, e) })
}

// MutateRows implements backend.Data. The entries of one tablet go together;
// tablets are asked in parallel.
func (c *Client) MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return err
	}
	// An entry that can never be applied refuses the others too, wherever they go.
	now := c.o.Now()
	p := plan.New(t.Schema(), now)
	for i := range entries {
		e := &entries[i]
		_, err := p.Check(e.Key, e.Mutations, "mutations")
		if err == nil {
			err = plan.CheckToken(e.Token, now)
		}
		if errors.Is(err, fault.Invalid) {
			return plan.InEntry(err, i)
		}
	}
	todo := make([]int, len(entries))
	for i := range todo {
		todo[i] = i
	}
	end := time.Now().Add(patience)
	var mu sync.Mutex
	tell := func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		done(i, err)
	}
	var since time.Time
	for attempt := 0; len(todo) > 0; attempt++ {
		todo = c.mutateSome(ctx, t, entries, todo, attempt, end, tell)
		if len(todo) > 0 && since.IsZero() {
			since = time.Now()
		}
	}
	c.waited(since)
	return nil
}

// mutateSome asks for the entries of todo once, and returns those that are to be
// asked for again.
func (c *Client) mutateSome(ctx context.Context, t *catalog.Table, entries []row.Entry, todo []int, attempt int, end time.Time, tell func(int, error)) []int {
	type part struct {
		at      location
		entries []int
	}
	var parts []*part
	byTablet := map[metadata.TabletID]*part{}
	var later []int
	var last error
	sch := t.Schema()
	for _, i := range todo {
		l, err := c.locate(ctx, sch.ID, entries[i].Key)
		if err != nil {
			if last = err; !again(err) {
				tell(i, err)
			} else {
				later = append(later, i)
			}
			continue
		}
		p := byTablet[l.tablet]
		if p == nil {
			p = &part{at: l}
			byTablet[l.tablet] = p
			parts = append(parts, p)
		}
		p.entries = append(p.entries, i)
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, p := range parts {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			mine := entries
			if len(p.entries) < len(entries) {
				mine = make([]row.Entry, len(p.entries))
				for k, i := range p.entries {
					mine[k] = entries[i]
				}
			}
			errs, err := c.o.Dialer.Dial(p.at.addr).MutateRows(ctx, rpc.Target{Tablet: p.at.tablet, Schema: sch.Version}, mine)
			forgotten := false
			for k, i := range p.entries {
				one := err
				if err == nil {
					one = errs[k]
				}
				if one != nil && errors.Is(one, fault.Unavailable) && !forgotten {
					c.locationsOf(sch.ID).forget(p.at)
					forgotten = true
				}
				if one == nil || !again(one) {
					tell(i, one)
					continue
				}
				mu.Lock()
				later = append(later, i)
				last = one
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	if len(later) == 0 {
		return nil
	}
	if time.Now().After(end) || pause(ctx, attempt) != nil {
		for _, i := range later {
			tell(i, last)
		}
		return nil
	}
	slices.Sort(later) // entries of one row stay in order
	return later
}

// CheckAndMutateRow implements backend.Data.
func (c *Client) CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error) {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return false, err
	}
	err = c.at(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, _ location) error {
		var err error
		matched, err = s.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		return err
	})
	return matched, err
}

// ReadModifyWriteRow implements backend.Data.
func (c *Client) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) (cells []row.Cell, err error) {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return nil, err
	}
	err = c.at(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, _ location) error {
		var err error
		cells, err = s.ReadModifyWriteRow(ctx, at, key, rules)
		return err
	})
	return cells, err
}

// rows calls each with the METADATA rows of the tablets of a table that overlap
// within, in order.
func (c *Client) rows(ctx context.Context, table uint64, within row.Range, each func(*metadata.Row) error) error {
	for key := within.Start; ; {
		rows, err := c.meta.Lookup(ctx, table, key, 64)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if len(within.End) > 0 && bytes.Compare(r.Start, within.End) >= 0 {
				return nil
			}
			if err := each(r); err != nil {
				return err
			}
			if key = r.End; len(key) == 0 {
				return nil
			}
		}
	}
}

// Tablets calls each with the end of every tablet of a table, in order, and the
// name of the tablet server that has it, empty if none has.
func (c *Client) Tablets(ctx context.Context, table string, each func(end []byte, server string) error) error {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return err
	}
	return c.rows(ctx, t.Schema().ID, row.All, func(r *metadata.Row) error {
		server := ""
		if a := r.Assignment; a != nil {
			server = a.Server
		}
		return each(slices.Clone(r.End), server)
	})
}

// SampleRowKeys implements backend.Data.
func (c *Client) SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error {
	t, err := c.o.Schemas.Named(table)
	if err != nil {
		return err
	}
	var offset int64
	err = c.sizes(ctx, t.Schema().ID, func(r *metadata.Row, size int64) error {
		offset += size
		if len(r.End) == 0 || bytes.Compare(r.End, within.Start) <= 0 {
			return nil
		}
		if len(within.End) > 0 && bytes.Compare(r.End, within.End) >= 0 {
			return errEnough
		}
		return emit(scan.Sample{Key: slices.Clone(r.End), Offset: offset})
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return emit(scan.Sample{Key: within.End, Offset: offset})
}

var errEnough = errors.New("enough")
