package bench

import (
	"math/bits"
	"time"
)

// A Histogram counts durations in buckets whose width is below 1/128 of their
// value, as HdrHistogram does. The zero value is empty.
type Histogram struct {
	counts [histBuckets]uint64
	n      uint64
	sum    time.Duration
	max    time.Duration
}

const (
	histBits = 7
	// Durations from histMax on, which is 18 minutes, share the last bucket.
	histMax     = 1 << 40
	histBuckets = (40-histBits)<<histBits + 1<<histBits + 1
)

func histIndex(v uint64) int {
	if v >= histMax {
		return histBuckets - 1
	}
	shift := max(0, bits.Len64(v)-histBits-1)
	return shift<<histBits + int(v>>shift)
}

// histUpper returns the largest value of bucket i.
func histUpper(i int) uint64 {
	shift := max(0, i>>histBits-1)
	return (uint64(i-shift<<histBits)+1)<<shift - 1
}

// Record adds d; a negative d counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[histIndex(uint64(d))]++
	h.n++
	h.sum += d
	h.max = max(h.max, d)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.n }

// Mean returns the exact mean, 0 if nothing was recorded.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return h.sum / time.Duration(h.n)
}

// Max returns the exact maximum.
func (h *Histogram) Max() time.Duration { return h.max }

// Quantile returns the smallest bucket bound that at least the fraction q of
// the durations does not exceed.
func (h *Histogram) Quantile(q float64) time.Duration {
	want := uint64(q * float64(h.n))
	if float64(want) < q*float64(h.n) || want == 0 {
		want++
	}
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= want && i < histBuckets-1 {
			return min(time.Duration(histUpper(i)), h.max)
		}
	}
	return h.max
}
