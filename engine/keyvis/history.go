package keyvis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A level is columns of one length. Those of the next are made of them.
type level struct {
	name string
	step time.Duration
	keep time.Duration
}

var levels = []level{{"minute", time.Minute, 6 * time.Hour}, {"ten", 10 * time.Minute, 4 * 24 * time.Hour}, {"hour", time.Hour, 14 * 24 * time.Hour}}

// A History is what the processes that share a store have recorded. Columns are objects
// of the store that never change. A column of the first level has the name
// LEVEL/START-PROCESS-NUMBER, where START is the time in hexadecimal Unix seconds and
// NUMBER counts the columns of the process. One of the others is LEVEL/START, made by
// whoever comes first of all processes' columns.
type History struct {
	store  objectstore.Store
	levels []level
	now    func() time.Time
	// Reads are not many at a time: each takes some memory.
	reading chan struct{}
	mu      sync.Mutex // of tidy
}

// OpenHistory returns the history in a store, or a part of one, of its own. now is a
// clock, time.Now if it is nil.
func OpenHistory(store objectstore.Store, now func() time.Time) *History {
	if now == nil {
		now = time.Now
	}
	return &History{store: store, levels: levels, now: now, reading: make(chan struct{}, 2)}
}

func nameAt(l level, at time.Time) string { return fmt.Sprintf("%s/%010x", l.name, at.Unix()) }

// startOf returns the start of the column of a name, and false if it is none.
func startOf(name string) (time.Time, bool) {
	_, rest, _ := strings.Cut(name, "/")
	if len(rest) < 10 || len(rest) > 10 && rest[10] != '-' {
		return time.Time{}, false
	}
	s, err := strconv.ParseInt(rest[:10], 16, 64)
	return time.Unix(s, 0).UTC(), err == nil
}

// keep stores a column, unless an earlier attempt has.
func (h *History) keep(ctx context.Context, c *column, name string) error {
	b, err := c.encode()
	if err == nil {
		err = h.store.PutIfAbsent(ctx, name, b)
	}
	if errors.Is(err, fault.AlreadyExists) {
		err = nil
	}
	return err
}

// list returns the names of columns of a level that start in [from, to), by start.
func (h *History) list(ctx context.Context, l level, from, to time.Time) (map[time.Time][]string, error) {
	infos, err := h.store.List(ctx, l.name+"/", nameAt(l, from.Add(-time.Second))+"~", 0)
	out := map[time.Time][]string{}
	for _, i := range infos {
		if at, ok := startOf(i.Name); ok && !at.Before(from) && at.Before(to) {
			out[at] = append(out[at], i.Name)
		}
	}
	return out, err
}

// get returns the columns of names, of the tables that want returns true for. Those that
// are gone by now, or damaged, are left out: a heat map is no data.
func (h *History) get(ctx context.Context, names []string, want func(string) bool) ([]*column, error) {
	out := make([]*column, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, name := range names {
		g.Go(func() error {
			b, err := h.store.Get(ctx, name)
			if err == nil {
				out[i], err = decodeColumn(b, want)
			}
			if k := fault.KindOf(err); err != nil && (k == fault.NotFound || k == fault.Corruption) {
				out[i], err = nil, nil
			}
			return err
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(out, func(c *column) bool { return c == nil }), err
}

// together returns one column of several: of processes at one time, or of times one
// behind the other, of which there are times.
func together(start time.Time, step time.Duration, times int64, cs []*column) *column {
	byTable := map[string][][]Bucket{}
	var order []string
	for _, c := range cs {
		for _, t := range c.tables {
			if byTable[t.table] == nil {
				order = append(order, t.table)
			}
			byTable[t.table] = append(byTable[t.table], t.buckets)
		}
	}
	slices.Sort(order)
	out := &column{start: start, step: step}
	for _, table := range order {
		l := merged(MaxBuckets, byTable[table]...)
		for i := range l {
			l[i].Values[Stored] /= max(times, 1)
		}
		out.tables = append(out.tables, tableColumn{table, l})
	}
	return out
}

// columns returns what level i has from from to to, oldest first, without those whose
// start skip returns true for. What was not made yet of finer columns is made of them here.
func (h *History) columns(ctx context.Context, i int, from, to time.Time, want func(table string) bool, skip func(time.Time) bool) ([]*column, error) {
	l := h.levels[i]
	from = from.Truncate(l.step)
	names, err := h.list(ctx, l, from, to)
	if err != nil {
		return nil, err
	}
	var all []string
	for at, n := range names {
		if !skip(at) {
			all = append(all, n...)
		}
	}
	slices.Sort(all)
	got, err := h.get(ctx, all, want)
	if err != nil {
		return nil, err
	}
	byTime := map[time.Time][]*column{}
	for _, c := range got {
		byTime[c.start] = append(byTime[c.start], c)
	}
	times := map[time.Time]int64{}
	for at := range byTime {
		times[at] = 1
	}
	if i > 0 {
		finer, err := h.columns(ctx, i-1, from, to, want, func(at time.Time) bool {
			at = at.Truncate(l.step)
			return names[at] != nil || skip(at)
		})
		if err != nil {
			return nil, err
		}
		for _, c := range finer {
			at := c.start.Truncate(l.step)
			byTime[at] = append(byTime[at], c)
			times[at]++
		}
	}
	var out []*column
	for at, cs := range byTime {
		out = append(out, together(at, l.step, times[at], cs))
	}
	slices.SortFunc(out, func(a, b *column) int { return a.start.Compare(b.start) })
	return out, nil
}

// maxRolls is how many columns tidy makes in one go.
const maxRolls = 16

// tidy makes the columns that are due, and deletes those that are too old.
func (h *History) tidy(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for i := 1; i < len(h.levels); i++ {
		l, fine := h.levels[i], h.levels[i-1]
		oldest := now.Add(-fine.keep).Truncate(l.step)
		made, err := h.list(ctx, l, oldest, now)
		if err != nil {
			return err
		}
		parts, err := h.list(ctx, fine, oldest, now)
		if err != nil {
			return err
		}
		due := map[time.Time]bool{}
		for at := range parts {
			// Others' last columns have arrived by then.
			if w := at.Truncate(l.step); made[w] == nil && !w.Add(l.step+2*h.levels[0].step).After(now) {
				due[w] = true
			}
		}
		n := 0
		for w := range due {
			if n++; n > maxRolls {
				break
			}
			cs, err := h.columns(ctx, i-1, w, w.Add(l.step), func(string) bool { return true }, func(time.Time) bool { return false })
			if err != nil {
				return err
			}
			if err := h.keep(ctx, together(w, l.step, int64(len(cs)), cs), nameAt(l, w)); err != nil {
				return err
			}
		}
	}
	for _, l := range h.levels {
		old, err := h.list(ctx, l, time.Unix(1, 0), now.Add(-l.keep-l.step))
		if err != nil {
			return err
		}
		for _, names := range old {
			for _, name := range names {
				if err := h.store.Delete(ctx, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
