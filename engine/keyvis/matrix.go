package keyvis

import (
	"bytes"
	"context"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// A Query asks for the heat map of a table.
type Query struct {
	Table  string // as Options.Tablets has it
	Metric Metric
	// From and To bound the start of the columns; To is not included. If To is zero it is
	// now, if From is zero it is as long before as minutes are kept.
	From, To time.Time
	// SplitRate is the number of rows per second from which on a hot tablet is split, 0
	// or less if none is. It is for the findings.
	SplitRate float64
}

// A Matrix is a heat map.
type Matrix struct {
	Table  string
	Metric Metric
	// Times are the starts of the columns, Step their length.
	Times []time.Time
	Step  time.Duration
	// Keys are the borders of the buckets: the first and the last are empty, for the
	// beginning and the end of the table.
	Keys [][]byte
	// Values has a value of each bucket for each of Times; none at a time at which
	// nothing was recorded.
	Values [][]int64
	// Findings say what is to be seen, the most important first.
	Findings []Finding
}

// maxColumns bounds the columns of a Matrix.
const maxColumns = 600

// Read returns a heat map, with the finest columns that reach back to q.From. It is
// fault.Invalid if q.To is before q.From.
func (h *History) Read(ctx context.Context, q Query) (*Matrix, error) {
	now := h.now()
	if q.To.IsZero() {
		q.To = now
	}
	if q.From.IsZero() {
		q.From = q.To.Add(-h.levels[0].keep)
	}
	if !q.From.Before(q.To) {
		return nil, fault.New(fault.Invalid, "from (%s) is not before to (%s)", q.From.Format(time.RFC3339), q.To.Format(time.RFC3339))
	}
	last := h.levels[len(h.levels)-1]
	if oldest := now.Add(-last.keep); q.From.Before(oldest) {
		q.From = oldest
	}
	if q.To.After(now) {
		q.To = now
	}
	i := 0
	for i < len(h.levels)-1 && (now.Sub(q.From) > h.levels[i].keep+h.levels[i].step || q.To.Sub(q.From) > maxColumns*h.levels[i].step) {
		i++
	}
	select {
	case h.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-h.reading }()
	m := &Matrix{Table: q.Table, Metric: q.Metric, Step: h.levels[i].step}
	cs, err := h.columns(ctx, i, q.From, q.To, func(table string) bool { return table == q.Table }, func(time.Time) bool { return false })
	if err != nil || len(cs) == 0 {
		m.Keys = [][]byte{nil, nil}
		return m, err
	}
	m.fill(cs)
	m.Findings = findings(cs, q.Table, q.SplitRate)
	return m, nil
}

// bucketsOf returns those of a table.
func (c *column) bucketsOf(table string) []Bucket {
	for i := range c.tables {
		if c.tables[i].table == table {
			return c.tables[i].buckets
		}
	}
	return nil
}

// fill makes the matrix of columns, oldest first.
func (m *Matrix) fill(cs []*column) {
	var all []Bucket
	weight := func(v *Values) float64 { return float64(v[m.Metric]) }
	for _, c := range cs {
		// Many at first, so that ranges which were loaded at different times stay apart.
		at := merged(1<<20, all, c.bucketsOf(m.Table))
		all = coalesced(at, 8*MaxBuckets, weight)
	}
	all = coalesced(all, MaxBuckets, weight)
	at := borders(nil)
	for i := range all {
		if n := len(at); bytes.Compare(at[n-1], all[i].Start) < 0 {
			at = append(at, all[i].Start)
		}
	}
	m.Keys = append(at[:len(at):len(at)], nil)
	next := cs[0].start
	for _, c := range cs {
		for ; next.Before(c.start); next = next.Add(m.Step) {
			m.Times, m.Values = append(m.Times, next), append(m.Values, nil)
		}
		values := make([]int64, len(at))
		l := c.bucketsOf(m.Table)
		for i := range l {
			spread(at, &l[i], func(k int, v *Values) { values[k] += v[m.Metric] })
		}
		m.Times, m.Values = append(m.Times, c.start), append(m.Values, values)
		next = c.start.Add(m.Step)
	}
}
