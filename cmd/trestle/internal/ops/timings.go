package ops

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// nativeSchema is that of native histograms: the bucket i ends at 2^(i/4) seconds. It is
	// the finest of which a table's counts take less than a kilobyte.
	nativeSchema = 2
	// firstNative ends at 15 µs, lastNative at 256 s.
	firstNative, lastNative = -64, 32
	// timeSlots is how many parts the time line has: see slotEnds.
	timeSlots = 113
)

// slotEnds are the ends of both classic and native buckets, in nanoseconds. One count for each
// part between them gives the counts of either kind exactly. The last part has no end.
var slotEnds = func() (ends [timeSlots - 1]int64) {
	var all []int64
	for i := firstNative; i <= lastNative; i++ {
		all = append(all, nativeEnd(i))
	}
	for _, s := range requestBuckets {
		all = append(all, classicEnd(s))
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != len(ends) {
		panic(fmt.Sprintf("timeSlots is not %d", len(all)+1))
	}
	copy(ends[:], all)
	return ends
}()

func nativeEnd(i int) int64        { return int64(math.Exp2(float64(i)/4) * 1e9) }
func classicEnd(s float64) int64   { return int64(math.Round(s * 1e9)) }
func slotFrom(nanos int64) (i int) { i, _ = slices.BinarySearch(slotEnds[:], nanos); return i }

// slotsFrom has the first slot of times that take so many bits.
var slotsFrom = func() (from [64]uint8) {
	for b := range from {
		from[b] = uint8(slotFrom(int64(1) << max(b-1, 0)))
	}
	return from
}()

// slotOf returns the slot of a time.
func slotOf(d time.Duration) int {
	n := max(int64(d), 0)
	i := int(slotsFrom[bits.Len64(uint64(n))])
	for i < len(slotEnds) && slotEnds[i] < n {
		i++
	}
	return i
}

// timings counts times.
type timings struct {
	slots [timeSlots]atomic.Int64
	nanos atomic.Int64
}

// observe takes two additions.
func (t *timings) observe(d time.Duration) {
	t.slots[slotOf(d)].Add(1)
	t.nanos.Add(int64(d))
}

// add adds the counts of another, which nobody changes any more.
func (t *timings) add(from *timings) {
	for i := range from.slots {
		if v := from.slots[i].Load(); v != 0 {
			t.slots[i].Add(v)
		}
	}
	t.nanos.Add(from.nanos.Load())
}

// A timingsRead is a reading of timings, or a sum of some.
type timingsRead struct {
	slots [timeSlots]int64
	nanos int64
}

// read adds what t has, and returns how many times that are.
func (s *timingsRead) read(t *timings) (count int64) {
	for i := range t.slots {
		v := t.slots[i].Load()
		s.slots[i] += v
		count += v
	}
	s.nanos += t.nanos.Load()
	return count
}

func (s *timingsRead) add(from *timingsRead) {
	for i, v := range from.slots {
		s.slots[i] += v
	}
	s.nanos += from.nanos
}

// exemplars has the last traced request of each classic bucket.
type exemplars [19]atomic.Pointer[dto.Exemplar]

// note keeps a traced request.
func (e *exemplars) note(d time.Duration, trace string) {
	i, _ := slices.BinarySearchFunc(requestBuckets, int64(max(d, 0)), func(s float64, n int64) int { return int(classicEnd(s) - n) })
	name, value := "trace_id", d.Seconds()
	e[i].Store(&dto.Exemplar{Label: []*dto.LabelPair{{Name: &name, Value: &trace}}, Value: &value, Timestamp: timestamppb.Now()})
}

// send gives a scrape a histogram with native buckets and, if classic, with those too.
func (s *timingsRead) send(out chan<- prometheus.Metric, desc *prometheus.Desc, classic bool, e *exemplars, labels ...string) {
	native := map[int]int64{}
	var count int64
	index := firstNative
	for i, v := range s.slots {
		for index <= lastNative && (i == len(slotEnds) || slotEnds[i] > nativeEnd(index)) {
			index++
		}
		if v > 0 {
			native[index] += v
			count += v
		}
	}
	h, err := prometheus.NewConstNativeHistogram(desc, uint64(count), time.Duration(s.nanos).Seconds(), native, nil, 0, nativeSchema, 0, time.Time{}, labels...)
	switch {
	case err != nil:
		out <- prometheus.NewInvalidMetric(desc, err)
	case classic:
		out <- &classicToo{h, s, e}
	default:
		out <- h
	}
}

// classicToo is a native histogram that has classic buckets too.
type classicToo struct {
	prometheus.Metric
	times *timingsRead
	e     *exemplars // may be nil
}

// Write implements prometheus.Metric.
func (c *classicToo) Write(out *dto.Metric) error {
	if err := c.Metric.Write(out); err != nil {
		return err
	}
	var below uint64
	slot := 0
	ends := append(slices.Clone(requestBuckets), math.Inf(1))
	for i, end := range ends {
		for slot < timeSlots && (i == len(requestBuckets) || slot < len(slotEnds) && slotEnds[slot] <= classicEnd(end)) {
			below += uint64(c.times.slots[slot])
			slot++
		}
		b := &dto.Bucket{UpperBound: &ends[i], CumulativeCount: new(below)}
		if c.e != nil {
			b.Exemplar = c.e[i].Load()
		}
		if i < len(requestBuckets) || b.Exemplar != nil {
			out.Histogram.Bucket = append(out.Histogram.Bucket, b)
		}
		if b.Exemplar != nil {
			out.Histogram.Exemplars = append(out.Histogram.Exemplars, b.Exemplar)
		}
	}
	return nil
}
