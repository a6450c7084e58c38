package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// Views is what Check needs of a server, or a cluster, that serves materialized views.
type Views struct {
	// Read reads rows of a table.
	Read func(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
	// Wait returns once a view shows what its source has had when it was called.
	Wait       func(ctx context.Context, view string) error
	Evaluators matview.Evaluators
	// Memory is what the expected rows of a view may take at a time, in bytes. A view with more
	// is evaluated several times, for a part of its keys each time. Default 64 MiB.
	Memory int64
	// Attempts is how often a row must differ to count: a source that is written to meanwhile
	// is not what it was. Default 3. Pause is how long to wait before another. Default 0.
	Attempts int
	Pause    time.Duration
}

// A ViewSummary says how many views were checked, how many rows they should have, and how many
// rows are not as they should be.
type ViewSummary struct{ Views, Rows, Differ int }

// CheckAll is Check of several views. It passes over those that are deleted meanwhile.
func (v Views) CheckAll(ctx context.Context, all []*schema.Table, report func(Finding)) (sum ViewSummary, err error) {
	for _, t := range all {
		rows, err := v.Check(ctx, t, func(f Finding) {
			sum.Differ++
			report(f)
		})
		if fault.KindOf(err) == fault.NotFound {
			continue
		}
		if err != nil {
			return sum, fmt.Errorf("materialized view %s: %w", t.Name, err)
		}
		sum.Views, sum.Rows = sum.Views+1, sum.Rows+rows
	}
	return sum, nil
}

// Check evaluates the query of a view, whose rows' table is t, anew and compares. It
// reports each row that differs, and returns how many rows the view should have.
func (v Views) Check(ctx context.Context, t *schema.Table, report func(Finding)) (rows int, err error) {
	if t.View == nil || t.View.State {
		return 0, fmt.Errorf("%s is no materialized view", t.Name)
	}
	if v.Memory == 0 {
		v.Memory = 64 << 20
	}
	if v.Attempts == 0 {
		v.Attempts = 3
	}
	var differ map[string]string
	for attempt := range v.Attempts {
		if attempt > 0 {
			select {
			case <-time.After(v.Pause):
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		if err := v.Wait(ctx, t.Name); err != nil {
			return 0, err
		}
		var now map[string]string
		if rows, now, err = v.compare(ctx, t); err != nil {
			return 0, err
		}
		for key := range differ {
			if now[key] == "" {
				delete(differ, key)
			}
		}
		if attempt == 0 {
			differ = now
		}
		if len(differ) == 0 {
			return rows, nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(differ)) {
		report(Finding{Where: fmt.Sprintf("materialized view %s, row %s", t.Name, row.Escape([]byte(key))), What: differ[key], Do: "delete the view and create it again"})
	}
	return rows, nil
}

// errMemory says that the expected rows of a part of the keys have no room.
var errMemory = errors.New("too many rows at a time")

// compare returns how many rows a view should have, and how those that differ do, by key.
func (v Views) compare(ctx context.Context, t *schema.Table) (rows int, differ map[string]string, err error) {
	seed := maphash.MakeSeed()
	for parts := uint64(1); ; parts *= 2 {
		rows, differ = 0, map[string]string{}
		for part := uint64(0); part < parts && err == nil; part++ {
			var n int
			mine := func(key []byte) bool { return maphash.Bytes(seed, key)%parts == part }
			n, err = v.comparePart(ctx, t, mine, differ)
			rows += n
		}
		if !errors.Is(err, errMemory) {
			return rows, differ, err
		}
		err = nil
	}
}

// comparePart is compare of the keys that are mine.
func (v Views) comparePart(ctx context.Context, t *schema.Table, mine func([]byte) bool, differ map[string]string) (rows int, err error) {
	want, err := v.expect(ctx, t.View, mine)
	if err != nil {
		return 0, err
	}
	rows = len(want)
	_, err = v.Read(ctx, &scan.Request{Table: t.Name, Ranges: []row.Range{row.All}}, &visibleCells{each: func(key []byte, cells string) {
		if !mine(key) {
			return
		}
		if should := want[string(key)]; should != cells {
			switch {
			case should == "":
				differ[string(key)] = "is in the view, and not in its query's result"
			case cells == "":
				differ[string(key)] = "is in the result of the view's query, and not in the view"
			default:
				differ[string(key)] = "is not what the view's query makes it"
			}
		}
		delete(want, string(key))
	}})
	for key, cells := range want {
		if cells != "" {
			differ[key] = "is in the result of the view's query, and not in the view"
		}
	}
	return rows, err
}

// expect evaluates a view's query and returns its rows: their cells, by key.
func (v Views) expect(ctx context.Context, view *schema.View, mine func([]byte) bool) (map[string]string, error) {
	e, err := v.Evaluators.Evaluator(ctx, view)
	if err != nil {
		return nil, err
	}
	updates := map[string][]matview.Update{}
	deltas, seq, size := matview.NewDeltas(view), uint64(0), int64(0)
	take := func() error {
		seq++
		defer deltas.Reset()
		return deltas.Each(func(key, payload []byte) error {
			if !mine(key) {
				return nil
			}
			if size += int64(len(key) + len(payload) + 128); size > v.Memory {
				return errMemory
			}
			updates[string(key)] = append(updates[string(key)], matview.Update{Shard: 1, Seq: seq, Payload: bytes.Clone(payload)})
			return nil
		})
	}
	err = e.Range(ctx, row.All, func(r *matview.Row) error {
		if r.Err != nil {
			return nil
		}
		if err := deltas.Change(r.Key, nil, r.Contribution); err != nil {
			return err
		}
		if int64(deltas.Size()) > v.Memory/4 {
			return take()
		}
		return nil
	})
	if err == nil {
		err = take()
	}
	if err != nil {
		return nil, err
	}
	out, target := make(map[string]string, len(updates)), matview.NewTarget(view)
	for key, us := range updates {
		muts, err := target.Apply(noCells{}, us, time.Now())
		if err != nil {
			return nil, err
		}
		var cells []string
		for i := range muts {
			if m := &muts[i]; m.Op == row.SetCell && !matview.Hidden(m.Family) {
				cells = append(cells, describeCell(m.Family, m.Qualifier, m.Timestamp, m.Value))
			}
		}
		slices.Sort(cells)
		if len(cells) > 0 {
			out[key] = strings.Join(cells, "\n")
		}
		delete(updates, key)
	}
	return out, nil
}

func describeCell(family string, qualifier []byte, ts int64, value []byte) string {
	return fmt.Sprintf("%s:%x@%d=%x", family, qualifier, ts, value)
}

// noCells is the matview.Reader of a row that is not there.
type noCells struct{}

func (noCells) Cell(string, []byte) ([]byte, error)              { return nil, nil }
func (noCells) Cells([]byte, func(_, _ []byte) bool) (err error) { return nil }

// visibleCells gives what clients see of rows, those without a cell too.
type visibleCells struct {
	each  func(key []byte, cells string)
	key   []byte
	cells []string
}

func (r *visibleCells) StartRow(key []byte) { r.key, r.cells = append(r.key[:0], key...), r.cells[:0] }

func (r *visibleCells) Cell(c *row.Cell) {
	if !matview.Hidden(c.Family) {
		r.cells = append(r.cells, describeCell(c.Family, c.Qualifier, c.Timestamp, c.Value))
	}
}

func (r *visibleCells) EndRow() (bool, error) {
	slices.Sort(r.cells)
	r.each(r.key, strings.Join(r.cells, "\n"))
	return false, nil
}

func (*visibleCells) Scanned([]byte) {}
func (*visibleCells) Flush() error   { return nil }
