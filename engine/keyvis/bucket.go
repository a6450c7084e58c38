package keyvis

import (
	"bytes"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
)

// A Metric is what a heat map shows.
type Metric int

// The metrics. All but Stored are sums over a column.
const (
	Reads Metric = iota // calls that read
	RowsRead
	BytesRead
	RowsWritten
	BytesWritten
	// CPU is the estimated time of processors, in microseconds.
	CPU
	// Stored is the size of SSTables and memtables, in bytes: the mean of a column.
	Stored
	metrics
)

var metricNames = [metrics]string{"reads", "rows_read", "bytes_read", "rows_written", "bytes_written", "cpu", "bytes"}

// String returns the name that ParseMetric takes.
func (m Metric) String() string { return metricNames[m] }

// ParseMetric returns the metric of a name, or fault.Invalid.
func ParseMetric(name string) (Metric, error) {
	if i := slices.Index(metricNames[:], name); i >= 0 {
		return Metric(i), nil
	}
	return 0, fault.New(fault.Invalid, "metric %q is not known: give one of %q", name, metricNames[:])
}

// Values has a value of each metric.
type Values [metrics]int64

func (v *Values) add(o *Values) {
	for i := range v {
		v[i] += o[i]
	}
}

// A Bucket is what a column has of the rows from Start to End. End is not included, and
// an empty one is the end of the table.
type Bucket struct {
	Start, End []byte
	// Tablet says that a tablet began at Start.
	Tablet bool
	// Large says that the bucket is a single row, of tablet.LargeRowBytes or more.
	Large  bool
	Values Values
}

// MaxBuckets bounds the buckets of a table in a column.
const MaxBuckets = 1000

// isRow tells whether a range is that of a single row.
func isRow(start, end []byte) bool {
	return len(end) == len(start)+1 && end[len(start)] == 0 && bytes.HasPrefix(end, start)
}

// compareEnds compares ends of ranges.
func compareEnds(a, b []byte) int {
	if len(a) == 0 || len(b) == 0 {
		return len(b) - len(a) // if both are empty, 0
	}
	return bytes.Compare(a, b)
}

// borders returns the starts of the ranges into which all ends of buckets cut the table.
// The first is empty.
func borders(lists ...[]Bucket) [][]byte {
	out := [][]byte{nil}
	for _, l := range lists {
		for i := range l {
			out = append(out, l[i].Start)
			if len(l[i].End) > 0 {
				out = append(out, l[i].End)
			}
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal)
}

// endOf returns where the range that begins at border i ends.
func endOf(borders [][]byte, i int) []byte {
	if i+1 < len(borders) {
		return borders[i+1]
	}
	return nil
}

// spread adds the values of a bucket to those of the ranges that it covers, in equal
// parts. A single row gets part of it only if it is the bucket. The sum stays the same.
func spread(borders [][]byte, b *Bucket, add func(i int, v *Values)) {
	first, found := slices.BinarySearchFunc(borders, b.Start, bytes.Compare)
	if !found {
		first = max(first-1, 0)
	}
	last := first
	for last+1 < len(borders) && compareEnds(borders[last+1], b.End) < 0 {
		last++
	}
	parts := int64(0)
	takes := func(i int) bool { return first == last || !isRow(borders[i], endOf(borders, i)) }
	for i := first; i <= last; i++ {
		if takes(i) {
			parts++
		}
	}
	if parts == 0 {
		add(first, &b.Values)
		return
	}
	n := int64(0)
	for i := first; i <= last; i++ {
		if !takes(i) {
			continue
		}
		var v Values
		for m := range v {
			v[m] = share(b.Values[m], n+1, parts) - share(b.Values[m], n, parts)
		}
		n++
		add(i, &v)
	}
}

// share returns n/of of a value.
func share(value, n, of int64) int64 { return value/of*n + value%of*n/of }

// merged returns the sum of lists of buckets, at most most of them. Each list has its
// buckets in order and without overlap. With more ranges than that, neighbours with
// little load become one.
func merged(most int, lists ...[]Bucket) []Bucket {
	at := borders(lists...)
	all := make([]Bucket, len(at))
	covered := make([]bool, len(at))
	for i := range all {
		all[i].Start, all[i].End = at[i], endOf(at, i)
	}
	for _, l := range lists {
		for i := range l {
			spread(at, &l[i], func(k int, v *Values) {
				all[k].Values.add(v)
				covered[k] = true
			})
			if k, found := slices.BinarySearchFunc(at, l[i].Start, bytes.Compare); found {
				all[k].Tablet = all[k].Tablet || l[i].Tablet
				all[k].Large = all[k].Large || l[i].Large
			}
		}
	}
	out := all[:0]
	for i := range all {
		if covered[i] || all[i].Tablet {
			out = append(out, all[i])
		}
	}
	return coalesced(out, most, func(v *Values) float64 { return float64(v[CPU]) })
}

// coalesced joins neighbours with little weight until at most most are left.
func coalesced(l []Bucket, most int, weight func(*Values) float64) []Bucket {
	if len(l) <= most {
		return l
	}
	var total float64
	for i := range l {
		total += weight(&l[i].Values)
	}
	// Each of most/2 parts of the weight ends at most one range, and each range of a part
	// or more one before it. Without weight ranges are joined by their number.
	each := total / float64(most/2)
	run := (len(l) + most/2 - 1) / (most / 2)
	var out []Bucket
	var sum float64
	joined := 0
	for i := range l {
		w := weight(&l[i].Values)
		switch {
		case len(out) == 0, l[i].Large, out[len(out)-1].Large, w >= each && each > 0, sum+w > each && each > 0, each == 0 && joined == run:
			out = append(out, l[i])
			sum, joined = w, 1
			if w >= each && each > 0 {
				sum = each // nothing more with weight goes to it
			}
		default:
			last := &out[len(out)-1]
			last.End = l[i].End
			last.Values.add(&l[i].Values)
			sum += w
			joined++
		}
	}
	for len(out) > most { // rounding
		last := &out[len(out)-2]
		last.Large = false
		last.End = out[len(out)-1].End
		last.Values.add(&out[len(out)-1].Values)
		out = out[:len(out)-1]
	}
	return out
}
