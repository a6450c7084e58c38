package views

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// Nothing is written when a cell comes to an end of its own, so no change tells of it.
// The tablet has, of each row with such a cell, when the first one ends. The row is
// evaluated then. What the tablet says may be too early, and never too late: ends are
// read before the row is evaluated.

// endedEvery is how often rows with ended cells are looked for, at most; also at
// most a part endedShare of the time goes into that.
const (
	endedEvery = 100 * time.Millisecond
	endedShare = 20
)

// maxEnds is how many rows are looked at before changes have their turn.
const maxEnds = 4000

// never is the end of a row whose cells have none.
const never = math.MaxInt64

// A sweeper looks for rows whose cells have ended.
type sweeper struct {
	from []byte // of the pass that runs: the next row
	busy bool   // a pass runs
	// first is the least end that the pass has seen so far, next the least of the last
	// pass, and what was stored since.
	first, next int64
	began       time.Time
	pause       time.Time // no pass begins before
	any         bool      // there may be rows with ends
}

func newSweeper() sweeper { return sweeper{any: true} }

// stored notes an end that was stored.
func (s *sweeper) stored(end int64) {
	s.any, s.next, s.first = true, min(s.next, end), min(s.first, end)
}

// due returns how long it is until there is something to look for.
func (s *sweeper) due(now time.Time) time.Duration {
	switch {
	case s.busy:
		return 0
	case s.next == never:
		return time.Hour
	}
	return max(0, s.pause.Sub(now), min(time.UnixMicro(s.next).Sub(now), time.Hour))
}

// sweep evaluates rows whose cells have ended: those among the next maxEnds rows. It does
// nothing if it is too early.
func (r *run) sweep(ctx context.Context) error {
	s, now := &r.ended, r.o.Now()
	if s.due(now) > 0 {
		return nil
	}
	within := r.t.Bounds()
	if !s.busy {
		s.busy, s.from, s.first, s.began = true, within.Start, never, now
	}
	within.Start = s.from
	n := 0
	var keys [][]byte
	err := r.store.scan(ctx, r.store.expiries, []row.Range{within}, maxEnds, func(key []byte, c *row.Cell) error {
		end, err := parseEnd(c.Value)
		if err != nil {
			return err
		}
		n++
		s.from = row.Successor(key)
		if end <= now.UnixMicro() {
			keys = append(keys, bytes.Clone(key))
		} else {
			s.first = min(s.first, end)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		// The longer the pass takes, the more rows have come to an end meanwhile.
		if err := r.evaluate(ctx, keys, 0, s.began); err != nil {
			return err
		}
	}
	if n == maxEnds {
		return nil // the pass goes on
	}
	s.busy, s.next, s.any = false, s.first, s.first != never
	now = r.o.Now()
	s.pause = now.Add(max(endedEvery, endedShare*now.Sub(s.began)))
	return nil
}

func parseEnd(value []byte) (int64, error) {
	if len(value) != 8 {
		return 0, fault.New(fault.Corruption, "the end of a row's cells has %d bytes", len(value))
	}
	return int64(binary.BigEndian.Uint64(value)), nil
}

// readEnds calls each with rows of ranges that have cells which come to an end of their
// own, ascending, and when the first one does. A source without such cells costs a call.
func (r *run) readEnds(ctx context.Context, ranges []row.Range, each func(key []byte, end int64) error) error {
	return r.readEndsIn(ctx, ranges, &endReader{each: each})
}

func (r *run) readEndsIn(ctx context.Context, ranges []row.Range, w *endReader) error {
	_, err := r.o.Cluster.ReadRows(ctx, &scan.Request{Table: r.source.Name, Ranges: ranges, Filter: endsFilter}, w)
	return err
}

var endsFilter = &filter.Node{Op: filter.Ends, Kept: true}

// An endReader gives the ends of rows to each. It calls store, if it is set, while the read
// holds nothing: after each together rows, and once over says that it is time.
type endReader struct {
	each  func(key []byte, end int64) error
	store func() error
	over  func() bool
	n     int    // rows since store was called
	at    []byte // the last row that was read

	key []byte
	end int64
	err error
}

func (r *endReader) StartRow(key []byte) { r.key, r.end = append(r.key[:0], key...), never }

func (r *endReader) Cell(c *row.Cell) {
	end, err := parseEnd(c.Value)
	if err != nil && r.err == nil {
		r.err = err
	}
	r.end = min(r.end, end)
}

func (r *endReader) EndRow() (bool, error) {
	if r.err != nil {
		return false, r.err
	}
	r.n++
	r.at = append(r.at[:0], r.key...)
	return r.store != nil && r.n >= together, r.each(r.key, r.end)
}

func (r *endReader) Scanned(key []byte) { r.at = append(r.at[:0], key...) }

func (r *endReader) Flush() error {
	if r.store == nil || r.n < together && !r.over() {
		return nil
	}
	r.n = 0
	return r.store()
}

// ends reads of the rows of a pass when their cells end, and returns what is to be stored of
// that: never for a row that has an end stored, and has none. later are the rows, ascending, of
// which a stored end goes, as what there is ends later.
func (p *pass) ends(ctx context.Context, ranges []row.Range) (changed map[string]int64, later []row.Range, err error) {
	changed = map[string]int64{}
	if p.o.Mistake == ForgetsEnds {
		return changed, nil, nil
	}
	err = p.patiently(ctx, func() error {
		return p.readEnds(ctx, ranges, func(key []byte, end int64) error {
			changed[string(key)] = end
			return nil
		})
	})
	if err != nil || !p.ended.any {
		return changed, nil, err
	}
	return changed, later, p.store.scan(ctx, p.store.expiries, ranges, 0, func(key []byte, c *row.Cell) error {
		stored, err := parseEnd(c.Value)
		if err != nil {
			return err
		}
		end, ok := changed[string(key)]
		if !ok {
			end = never
			changed[string(key)] = never
		}
		switch {
		case end == stored:
			delete(changed, string(key))
			p.ended.stored(end) // the pass that looks for it may have left it out
		case end > stored:
			later = append(later, row.Single(bytes.Clone(key)))
		}
		return nil
	})
}

// endsAgain reads once more, of rows that were evaluated meanwhile, when their cells end, and
// puts what is earlier into ends. A cell that had ended by the clock of one server may be there
// for the evaluation, by that of another or by one that was set back.
func (r *run) endsAgain(ctx context.Context, rows []row.Range, ends map[string]int64) error {
	if len(rows) == 0 {
		return nil
	}
	return r.patiently(ctx, func() error {
		return r.readEnds(ctx, rows, func(key []byte, end int64) error {
			ends[string(key)] = min(ends[string(key)], end)
			return nil
		})
	})
}

// patience is how often a read that finds no room is made again, a second apart at most, before
// the attempt of a Worker ends, which has other rows to evaluate again too.
const patience = 10

// patiently calls read until it finds room.
func (r *run) patiently(ctx context.Context, read func() error) error {
	for attempt := range patience {
		err := read()
		if k := fault.KindOf(err); k != fault.Exhausted && k != fault.Unavailable {
			return err
		}
		r.failed(err)
		if err := rpc.Backoff(ctx, nil, attempt+3, time.Second); err != nil {
			return err
		}
	}
	return read()
}

// storeEnds stores when the cells of rows end.
func (r *run) storeEnds(ctx context.Context, ends map[string]int64) error {
	if len(ends) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(ends))
	b := tablet.NewBatch([]byte(keys[0]))
	defer b.Free()
	for i, k := range keys {
		if i > 0 {
			b.Row([]byte(k))
		}
		if end := ends[k]; end != never {
			b.Set(r.store.expiry, nil, 0, binary.BigEndian.AppendUint64(nil, uint64(end)))
			r.ended.stored(end)
		} else {
			b.DeleteColumn(r.store.expiry, nil, cell.AllTime)
		}
	}
	if err := r.apply(ctx, b); err != nil {
		return err
	}
	return r.step("ends stored")
}

// endsAhead stores when the cells of rows end that have changed and that a look is still to
// see: it stores those of the rows that it finds, once for each. They are stored before the
// position is.
func (r *run) endsAhead(ctx context.Context, keys [][]byte) error {
	if r.o.Mistake == ForgetsEnds {
		return nil
	}
	for part := range slices.Chunk(keys, evaluateTogether) {
		ranges := make([]row.Range, 0, len(part))
		for _, k := range part {
			ranges = append(ranges, row.Single(k))
		}
		ends := map[string]int64{}
		err := r.patiently(ctx, func() error {
			return r.readEnds(ctx, ranges, func(key []byte, end int64) error {
				ends[string(key)] = end
				return nil
			})
		})
		if err != nil {
			return err
		}
		if err := r.storeEnds(ctx, ends); err != nil {
			return err
		}
	}
	return nil
}

// storeEndsOf stores when the cells of the rows of a range end, until some time, and returns
// the end of those that it has seen to.
func (r *run) storeEndsOf(ctx context.Context, rows row.Range, until time.Time) (end []byte, err error) {
	if r.o.Mistake == ForgetsEnds {
		return rows.End, nil
	}
	ends := map[string]int64{}
	w := &endReader{each: func(key []byte, end int64) error {
		ends[string(key)] = end
		return nil
	}}
	w.over = func() bool { return len(w.at) > 0 && time.Now().After(until) }
	w.store = func() error {
		err := r.storeEnds(ctx, ends)
		clear(ends)
		if err == nil && w.over() {
			err = errTurn
		}
		return err
	}
	err = r.patiently(ctx, func() error { return r.readEndsIn(ctx, []row.Range{rows}, w) })
	if errors.Is(err, errTurn) {
		return row.Successor(w.at), nil
	}
	if err != nil {
		return nil, err
	}
	return rows.End, r.storeEnds(ctx, ends)
}
