package stamp

import (
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/cell"
)

const (
	// Least is the smallest stamp, that of 2000-01-01. Smaller numbers are counters.
	Least cell.Seq = 1 << 50
	// Stride is how far the stamps of consecutive operations are apart: a
	// microsecond.
	Stride = 1 << siteBits
	// Most is above every stamp, with room for the operations of a record behind it.
	Most = cell.MaxSeq - 1<<40

	siteBits = 5
)

// epoch is 2000-01-01 in microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// At returns the stamp of a time; of one before 2000-01-01 that of this day, and of
// one after 2069 the last.
func At(t time.Time) cell.Seq {
	us := min(max(0, t.UnixMicro()-epoch), int64((Most-Least)>>siteBits)-1)
	return Least + cell.Seq(us)<<siteBits
}

// Time returns the time of a stamp, to the microsecond. A counter has the time of
// Least.
func Time(s cell.Seq) time.Time {
	if s < Least {
		s = Least
	}
	return time.UnixMicro(epoch + int64((s-Least)>>siteBits)).UTC()
}

// Next returns the number of the first operation that follows last, at the time now.
func Next(last cell.Seq, now time.Time) cell.Seq { return max(last+Stride, At(now)) }

// Step is how far the numbers of a record's operations are apart whose first is
// first.
func Step(first cell.Seq) cell.Seq {
	if first < Least {
		return 1
	}
	return Stride
}

// Last returns the number of the last of n operations; if there are none that of
// the place before the first.
func Last(first cell.Seq, n int) cell.Seq { return first + cell.Seq(n)*Step(first) - Step(first) }

// Fits tells whether n operations from first on have numbers.
func Fits(first cell.Seq, n int) bool {
	return n >= 0 && first <= cell.MaxSeq && uint64(n) <= uint64((cell.MaxSeq-first)/Step(first))
}

// jumpLimit is how far the clock may be set forward while the process runs. All
// later stamps stay ahead with it, so a mistake of years would not be repaired by
// setting it back.
const jumpLimit = time.Hour

// watchEvery is how long a reading of the clock is compared with: a clock that is
// corrected by less than jumpLimit meanwhile is followed.
const watchEvery = 10 * time.Second

// A Clock guards stamps against a clock that is set forward. Its zero value is
// ready, and it is safe for concurrent use.
type Clock struct {
	ref atomic.Pointer[reading]
}

// A reading is what the clock said when, by the time that has passed in the process.
type reading struct {
	wall   time.Time
	passed time.Duration
}

// started is where the monotonic readings that time.Now adds are counted from.
var started = time.Now()

// Read returns the time to make a stamp of when the clock says now. ahead is not 0
// while the clock is ahead, by more than an hour, of the time that has passed in this
// process since it was last believed. Then Read counts on from that time. It needs
// the monotonic reading that time.Now adds. A nil Clock believes everything.
func (c *Clock) Read(now time.Time) (t time.Time, ahead time.Duration) {
	if c == nil {
		return now, 0
	}
	return c.read(now.Round(0), now.Sub(started))
}

func (c *Clock) read(wall time.Time, passed time.Duration) (t time.Time, ahead time.Duration) {
	ref := c.ref.Load()
	if ref == nil {
		c.ref.CompareAndSwap(nil, &reading{wall, passed})
		return wall, 0
	}
	since := passed - ref.passed
	if set := wall.Sub(ref.wall) - since; set > jumpLimit {
		return ref.wall.Add(since), set
	}
	if since > watchEvery {
		c.ref.CompareAndSwap(ref, &reading{wall, passed})
	}
	return wall, 0
}
