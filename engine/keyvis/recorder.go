package keyvis

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Tablet is what is recorded: a *tablet.Tablet.
type Tablet interface {
	Bounds() row.Range
	TakeWindows(now time.Time, all bool) []tablet.Window
	State() (tablet.State, bool)
	Cuts(ctx context.Context) ([][]byte, error)
	LargeRow(ctx context.Context, most int) (largest *tablet.LargeRow, read int, err error)
}

// Options are what a Recorder works with. Log and Now may be left out.
type Options struct {
	// Process tells the process apart from all others, earlier ones included. It can be
	// part of the name of an object.
	Process string
	// Tablets calls each with the tablets that are served now, and what tells their tables
	// apart from all others, deleted ones included.
	Tablets func(each func(t Tablet, table string))
	Log     *slog.Logger
	Now     func() time.Time
}

// Bounds of what a Recorder holds.
const (
	maxPoints    = 32 << 10 // keys of all tablets together
	leastPoints  = 16       // of a tablet
	mostPoints   = 256
	maxPointKey  = 256      // of a longer key that many bytes are known
	maxAllBucket = 16 << 10 // in a column
	maxCut       = 16       // tablets whose rows are looked for, the busiest
	maxIndexes   = 16       // SSTables in which large rows are looked for, in a column
)

// A point is a key with the rows that were read and written there or near it.
type point struct {
	key           []byte
	read, written float32
}

func (p *point) weight() float32 { return p.read + p.written }

// recorded is what was seen of a tablet since the column began.
type recorded struct {
	table  string
	bounds row.Range
	counts tablet.Counts
	points []point
	bytes  int64
	large  *tablet.LargeRow
	cuts   [][]byte
	cutAt  time.Time
}

// A named column has the name that it is stored by.
type named struct {
	*column
	name string
}

// A Recorder makes the columns of a process. Its methods are for one goroutine.
type Recorder struct {
	h       *History
	o       Options
	seen    map[Tablet]*recorded
	gone    []*recorded // tablets that were split, merged or given up since the column began
	start   time.Time   // of the column
	ended   int         // columns, each of which has a name of its own: a clock may be set back
	pending []named     // could not be stored yet
	tidied  time.Time
	failing bool
}

// NewRecorder returns a Recorder that stores in h.
func NewRecorder(h *History, o Options) *Recorder {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{h: h, o: o, seen: map[Tablet]*recorded{}}
}

// Run records until ctx ends, and stores what it has then.
func (r *Recorder) Run(ctx context.Context) {
	t := time.NewTicker(r.h.levels[0].step / 4)
	defer t.Stop()
	r.poll(ctx)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			r.finish(last)
			return
		case <-t.C:
			r.poll(ctx)
		}
	}
}

// poll takes what the tablets have counted, and ends the column if it is time.
func (r *Recorder) poll(ctx context.Context) {
	now := r.o.Now()
	// Windows that ended up to a quarter of a column ago are of the column before.
	start := now.Add(-r.h.levels[0].step / 8).Truncate(r.h.levels[0].step)
	r.take(now, false)
	switch {
	case r.start.IsZero():
		r.start = start
	case !start.Equal(r.start): // a clock that was set back begins a column too
		r.end(ctx)
		r.start = start
	}
	if every := r.h.levels[1].step / 2; now.Sub(r.tidied) >= every || now.Before(r.tidied) {
		r.tidied = now
		r.note(r.h.tidy(ctx))
	}
}

// finish stores all there is.
func (r *Recorder) finish(ctx context.Context) {
	r.take(r.o.Now(), true)
	if !r.start.IsZero() {
		r.end(ctx)
	}
}

// take adds what tablets have counted since the last call.
func (r *Recorder) take(now time.Time, all bool) {
	serving := map[Tablet]string{}
	r.o.Tablets(func(t Tablet, table string) { serving[t] = table })
	most := min(max(maxPoints/max(len(serving), 1), leastPoints), mostPoints)
	for t, table := range serving {
		x := r.seen[t]
		if x == nil {
			x = &recorded{table: table, bounds: t.Bounds()}
			r.seen[t] = x
		}
		x.add(t.TakeWindows(now, all), most)
	}
	for t, x := range r.seen {
		if _, ok := serving[t]; !ok {
			x.add(t.TakeWindows(now, true), most)
			x.bytes, x.large = 0, nil // others have it
			r.gone = append(r.gone, x)
			delete(r.seen, t)
		}
	}
}

func (x *recorded) add(ws []tablet.Window, most int) {
	for _, w := range ws {
		x.counts.Add(w.Counts)
		var reads, writes float32
		for _, s := range w.Sample {
			if s.Written {
				writes++
			} else {
				reads++
			}
		}
		for _, s := range w.Sample {
			p := point{key: s.Key}
			if len(p.key) > maxPointKey {
				p.key = bytes.Clone(p.key[:maxPointKey])
			}
			if s.Written {
				p.written = float32(w.RowsWritten) / writes
			} else {
				p.read = float32(w.RowsRead) / reads
			}
			x.points = append(x.points, p)
		}
		if len(x.points) > most {
			x.points = thinned(x.points, most)
		}
	}
}

// thinned joins points of one key, and then neighbours with little weight.
func thinned(ps []point, most int) []point {
	slices.SortFunc(ps, func(a, b point) int { return bytes.Compare(a.key, b.key) })
	out := ps[:0]
	var total float32
	for _, p := range ps {
		total += p.weight()
		if n := len(out); n > 0 && bytes.Equal(out[n-1].key, p.key) {
			out[n-1].read += p.read
			out[n-1].written += p.written
		} else {
			out = append(out, p)
		}
	}
	if len(out) <= most {
		return slices.Clip(out)
	}
	each := 2 * total / float32(most)
	joined := make([]point, 0, most)
	for _, p := range out {
		if n := len(joined); n > 0 && joined[n-1].weight()+p.weight() <= each {
			joined[n-1].read += p.read
			joined[n-1].written += p.written
		} else {
			joined = append(joined, p)
		}
	}
	return joined
}

// end stores the column.
func (r *Recorder) end(ctx context.Context) {
	c := r.column(ctx)
	if len(c.tables) > 0 {
		r.ended++
		r.pending = append(r.pending, named{c, fmt.Sprintf("%s-%s-%d", nameAt(r.h.levels[0], c.start), r.o.Process, r.ended)})
	}
	for len(r.pending) > 0 {
		err := r.h.keep(ctx, r.pending[0].column, r.pending[0].name)
		r.note(err)
		if err != nil {
			if len(r.pending) > 3 { // the store is away
				r.pending = slices.Delete(r.pending, 0, 1)
			}
			return
		}
		r.pending = slices.Delete(r.pending, 0, 1)
	}
}

// note logs the first failure in a row.
func (r *Recorder) note(err error) {
	if err != nil && !r.failing {
		r.o.Log.Warn("the key visualizer cannot store what it recorded", "error", err)
	}
	r.failing = err != nil
}

// column returns what was seen since r.start, and begins anew.
func (r *Recorder) column(ctx context.Context) *column {
	now := r.o.Now()
	all := r.gone
	r.gone = nil
	type busy struct {
		t Tablet
		x *recorded
	}
	var busiest []busy
	load := map[string]float64{}
	indexes := maxIndexes
	for t, x := range r.seen {
		if s, ok := t.State(); ok {
			x.bytes = s.Bytes
		}
		large, read, err := t.LargeRow(ctx, indexes)
		if indexes -= read; err == nil { // else the last one is as good
			x.large = large
		}
		if x.counts != (tablet.Counts{}) {
			busiest = append(busiest, busy{t, x})
		}
		all = append(all, x)
	}
	slices.SortFunc(busiest, func(a, b busy) int { return -compareFloat(a.x.counts.Busy(), b.x.counts.Busy()) })
	for i, b := range busiest {
		if i < maxCut && now.Sub(b.x.cutAt) >= r.h.levels[1].step {
			b.x.cutAt = now
			b.x.cuts, _ = b.t.Cuts(ctx) // without them its bytes are taken to be spread evenly
		}
	}
	var sum float64
	for _, x := range all {
		load[x.table] += x.counts.Busy()
		sum += x.counts.Busy()
	}
	lists := map[string][][]Bucket{}
	for _, x := range all {
		// A table gets MaxBuckets, unless that is too many for all of them together.
		most := MaxBuckets
		if sum > 0 {
			most = max(8, min(MaxBuckets, int(maxAllBucket*load[x.table]/sum)))
		}
		if l := load[x.table]; l > 0 {
			most = max(4, int(float64(most)*x.counts.Busy()/l))
		}
		lists[x.table] = append(lists[x.table], x.buckets(most), x.stored(), x.largeRow())
		x.counts, x.points = tablet.Counts{}, nil
	}
	c := &column{start: r.start, step: r.h.levels[0].step}
	for table, l := range lists {
		if m := merged(MaxBuckets, l...); len(m) > 0 {
			c.tables = append(c.tables, tableColumn{table, m})
		}
	}
	return c
}

func compareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// stored returns where the bytes of a tablet are.
func (x *recorded) stored() []Bucket {
	if x.bytes == 0 {
		return nil
	}
	n := int64(len(x.cuts) + 1)
	out := make([]Bucket, n)
	all := x.bytes
	for _, b := range x.largeRow() {
		all -= b.Values[Stored]
	}
	start := x.bounds.Start
	for i := range out {
		end := x.bounds.End
		if i < len(x.cuts) {
			end = x.cuts[i]
		}
		out[i] = Bucket{Start: start, End: end}
		out[i].Values[Stored] = share(all, int64(i)+1, n) - share(all, int64(i), n)
		start = end
	}
	return out
}

// largeRow returns the bucket of the tablet's large row, if it has one.
func (x *recorded) largeRow() []Bucket {
	if x.large == nil {
		return nil
	}
	b := Bucket{Start: x.large.Key, End: append(bytes.Clone(x.large.Key), 0), Large: true}
	b.Values[Stored] = min(x.large.Bytes, x.bytes)
	return []Bucket{b}
}

// buckets divides the load of a tablet into at most most ranges of about equal load; a
// row with much of it is one of its own.
func (x *recorded) buckets(most int) []Bucket {
	whole := Bucket{Start: x.bounds.Start, End: x.bounds.End, Tablet: true}
	ps := thinned(x.points, mostPoints)
	if x.counts == (tablet.Counts{}) && x.bytes == 0 {
		return nil
	}
	var cuts [][]byte // where ranges begin
	var total float32
	for i := range ps {
		total += ps[i].weight()
	}
	if len(ps) > 0 && most > 3 {
		cuts = append(cuts, ps[0].key)
		each := total / float32(most-3)
		var sum float32
		for i := range ps {
			w := ps[i].weight()
			next := append(bytes.Clone(ps[i].key), 0)
			if w >= total/16 {
				cuts = append(cuts, ps[i].key, next)
				sum = 0
				continue
			}
			if sum+w > each && i > 0 {
				cuts = append(cuts, ps[i].key)
				sum = 0
			}
			sum += w
			if i == len(ps)-1 {
				cuts = append(cuts, next)
			}
		}
	}
	out := []Bucket{whole}
	for _, c := range cuts {
		last := &out[len(out)-1]
		if bytes.Compare(c, last.Start) > 0 && (len(x.bounds.End) == 0 || bytes.Compare(c, x.bounds.End) < 0) {
			last.End = c
			out = append(out, Bucket{Start: c, End: x.bounds.End})
		}
	}
	reads, writes := make([]float64, len(out)), make([]float64, len(out))
	k := 0
	for i := range ps {
		for k+1 < len(out) && bytes.Compare(out[k+1].Start, ps[i].key) <= 0 {
			k++
		}
		reads[k] += float64(ps[i].read)
		writes[k] += float64(ps[i].written)
	}
	c := &x.counts
	// Calls that read cost by the call, what they read by the row.
	onlyReads := tablet.Counts{Reads: c.Reads, RowsRead: c.RowsRead, BytesRead: c.BytesRead}
	onlyWrites := tablet.Counts{RowsWritten: c.RowsWritten, BytesWritten: c.BytesWritten}
	for _, d := range []struct {
		m       Metric
		n       int64
		weights []float64
	}{{Reads, c.Reads, reads}, {RowsRead, c.RowsRead, reads}, {BytesRead, c.BytesRead, reads}, {CPU, int64(1e6 * onlyReads.Busy()), reads},
		{RowsWritten, c.RowsWritten, writes}, {BytesWritten, c.BytesWritten, writes}, {CPU, int64(1e6 * onlyWrites.Busy()), writes}} {
		divide(out, d.m, d.n, d.weights)
	}
	return out
}

// divide adds n to a metric of buckets, by their weights; evenly if they have none.
func divide(l []Bucket, m Metric, n int64, weights []float64) {
	var total, sum float64
	for _, w := range weights {
		total += w
	}
	var given int64
	for i := range l {
		if sum += weights[i]; total == 0 {
			sum++
		}
		upTo := n
		if i < len(l)-1 {
			of := total
			if total == 0 {
				of = float64(len(l))
			}
			upTo = min(n, int64(float64(n)*(sum/of)))
		}
		l[i].Values[m] += upTo - given
		given = upTo
	}
}
