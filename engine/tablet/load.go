package tablet

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// LoadWindow is how far back a Load looks: what was LoadWindow ago counts for
// 1/e of what is now.
const LoadWindow = 15 * time.Second

// A Load is what a tablet is asked for, per second.
type Load struct {
	Reads       float64 // calls that read
	RowsRead    float64 // rows they looked at
	RowsWritten float64
	Bytes       float64 // of the values read and of the changes written
}

// Rows returns rows read or written per second.
func (l Load) Rows() float64 { return l.RowsRead + l.RowsWritten }

// sampleSize is how many keys are kept of the rows read or written in a
// LoadWindow.
const sampleSize = 64

// load counts what a tablet is asked for. Counting a call takes two or three atomic additions
// and, for sampleSize rows of a window's many, a lock.
type load struct {
	reads, rowsRead, rowsWritten, bytesRead, bytesWritten atomic.Int64
	// sampled is the number of rows of this window.
	sampled atomic.Int64

	mu struct {
		sync.Mutex
		start time.Time // of watching
		at    time.Time // of rates
		last  Counts    // at that time
		rates Load      // as if there had been no load before start
		// Every row of the window is in sample with the same probability
		// (reservoir sampling); before has that of the window before.
		window         time.Time
		sample, before []Sampled
		// ended are the windows that no recorder has taken yet; nil if there is none.
		recorded bool
		ended    []Window
		taken    Counts // what earlier windows have
	}
}

// Counts is what a tablet was asked for since it was opened, or in a window.
type Counts struct {
	Reads       int64 // calls that read
	RowsRead    int64 // rows they looked at
	BytesRead   int64 // of values
	RowsWritten int64
	// BytesWritten are those of changes.
	BytesWritten int64
}

// Busy estimates the time in seconds that processors spend on what is counted.
func (c Counts) Busy() float64 {
	return Load{Reads: float64(c.Reads), RowsRead: float64(c.RowsRead), RowsWritten: float64(c.RowsWritten), Bytes: float64(c.BytesRead + c.BytesWritten)}.Busy()
}

// Add adds what another count has.
func (c *Counts) Add(o Counts) {
	c.Reads += o.Reads
	c.RowsRead += o.RowsRead
	c.BytesRead += o.BytesRead
	c.RowsWritten += o.RowsWritten
	c.BytesWritten += o.BytesWritten
}

func (c Counts) minus(o Counts) Counts {
	return Counts{c.Reads - o.Reads, c.RowsRead - o.RowsRead, c.BytesRead - o.BytesRead, c.RowsWritten - o.RowsWritten, c.BytesWritten - o.BytesWritten}
}

// A Sampled is the key of a row that was read or written.
type Sampled struct {
	Key     []byte
	Written bool
}

// A Window is what a tablet was asked for in a LoadWindow, and keys of the rows. Each
// row that was read or written was as likely to be among them.
type Window struct {
	Counts
	Sample []Sampled
}

// maxEnded is how many windows wait for the recorder. More become one.
const maxEnded = 4

func (l *load) counts() Counts {
	return Counts{l.reads.Load(), l.rowsRead.Load(), l.bytesRead.Load(), l.rowsWritten.Load(), l.bytesWritten.Load()}
}

// endWindowLocked begins a new window at now.
func (l *load) endWindowLocked(now time.Time, counts Counts) {
	if l.mu.recorded {
		if w := (Window{counts.minus(l.mu.taken), l.mu.sample}); len(l.mu.ended) < maxEnded {
			l.mu.ended = append(l.mu.ended, w)
		} else {
			last := &l.mu.ended[maxEnded-1]
			last.Add(w.Counts)
			last.Sample = w.Sample
		}
		l.mu.taken = counts
	}
	l.mu.before, l.mu.sample, l.mu.window = l.mu.sample, nil, now
	l.sampled.Store(0)
}

// TakeWindows returns the windows that have ended since the last call; with all, also
// the one that has not. The first call begins the first window that is returned. There
// is one caller. It does not change what it gets.
func (t *Tablet) TakeWindows(now time.Time, all bool) []Window {
	t.load.observe(now)
	l := &t.load
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.recorded = true
	if all {
		l.endWindowLocked(now, l.counts())
	}
	out := l.mu.ended
	l.mu.ended = nil
	return out
}

// read counts a call that looked at rows, the last of which is key.
func (l *load) read(rows, bytes int64, key []byte) {
	l.reads.Add(1)
	if rows > 0 {
		l.rowsRead.Add(rows)
		l.bytesRead.Add(bytes)
		l.note(rows, key, false)
	}
}

// rowBytes returns how long rows were that were read, with their keys, 0 if there were
// none.
func (l *load) rowBytes() int64 {
	if n := l.rowsRead.Load(); n > 0 {
		return l.bytesRead.Load()/n + keysOfRow
	}
	return 0
}

// keysOfRow is about how long the keys of a row are that has few cells.
const keysOfRow = 64

// wrote counts the changes of a batch.
func (l *load) wrote(b *Batch) {
	n := len(b.rows)
	l.rowsWritten.Add(int64(n))
	l.bytesWritten.Add(int64(b.size))
	of := 0
	if n > 1 {
		of = rand.IntN(n)
	}
	l.note(int64(n), b.rows[of].key, true)
}

// Requests returns how many calls to read and changes of rows there were.
func (t *Tablet) Requests() int64 { return t.load.reads.Load() + t.load.rowsWritten.Load() }

// RowsWritten returns how many changes of rows there were.
func (t *Tablet) RowsWritten() int64 { return t.load.rowsWritten.Load() }

// note puts key into the sample as often as rows of a window's rows should be.
func (l *load) note(rows int64, key []byte, written bool) {
	n := l.sampled.Add(rows)
	if n > sampleSize*rows && rand.Int64N(n) >= sampleSize*rows {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.sample) < sampleSize {
		l.mu.sample = append(l.mu.sample, Sampled{bytes.Clone(key), written})
		return
	}
	s := &l.mu.sample[rand.IntN(sampleSize)]
	s.Key, s.Written = append(s.Key[:0], key...), written
}

// observe returns the rates as of now. Between two calls the load is taken to
// have been even. So the result does not depend on how often it is called, if
// that is more often than the load changes.
func (l *load) observe(now time.Time) Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := l.counts()
	if l.mu.at.IsZero() {
		l.mu.start, l.mu.at, l.mu.window, l.mu.last = now, now, now, counts
		return l.mu.rates
	}
	dt := now.Sub(l.mu.at).Seconds()
	if dt < 0.5 {
		return l.sinceStartLocked() // too short to tell, or the clock was set back
	}
	weight := 1 - math.Exp(-dt/LoadWindow.Seconds())
	since := counts.minus(l.mu.last)
	for _, r := range []struct {
		rate *float64
		n    int64
	}{{&l.mu.rates.Reads, since.Reads}, {&l.mu.rates.RowsRead, since.RowsRead}, {&l.mu.rates.RowsWritten, since.RowsWritten},
		{&l.mu.rates.Bytes, since.BytesRead + since.BytesWritten}} {
		*r.rate += weight * (float64(r.n)/dt - *r.rate)
	}
	l.mu.at, l.mu.last = now, counts
	if now.Sub(l.mu.window) >= LoadWindow {
		l.endWindowLocked(now, counts)
	}
	return l.sinceStartLocked()
}

// sinceStartLocked returns the rates without the part that the time before start
// has in them.
func (l *load) sinceStartLocked() Load {
	part := 1 - math.Exp(-l.mu.at.Sub(l.mu.start).Seconds()/LoadWindow.Seconds())
	if part <= 0 {
		return Load{}
	}
	r := l.mu.rates
	return Load{r.Reads / part, r.RowsRead / part, r.RowsWritten / part, r.Bytes / part}
}

// Load returns what the tablet was asked for lately. The first call begins to
// watch and returns zero.
func (t *Tablet) Load(now time.Time) Load { return t.load.observe(now) }

// HotKey returns a row that parts the tablet's load of the last seconds into
// two, each with a quarter of it at least. It returns false if there is no such
// row: most of the load is on one row, or there is hardly any.
func (t *Tablet) HotKey() ([]byte, bool) {
	t.load.mu.Lock()
	var keys [][]byte
	for _, s := range slices.Concat(t.load.mu.before, t.load.mu.sample) {
		keys = append(keys, bytes.Clone(s.Key)) // the sample overwrites them
	}
	t.load.mu.Unlock()
	if len(keys) < sampleSize/2 {
		return nil, false
	}
	slices.SortFunc(keys, bytes.Compare)
	best, off := -1, len(keys)
	for i := len(keys) / 4; i <= len(keys)-len(keys)/4; i++ {
		if i == 0 || i == len(keys) || bytes.Equal(keys[i-1], keys[i]) || !t.splits(keys[i]) {
			continue
		}
		if d := max(2*i-len(keys), len(keys)-2*i); d < off {
			best, off = i, d
		}
	}
	if best < 0 {
		return nil, false
	}
	return keys[best], true
}

// AppendHot appends a tablet of a table that now keeps part of its server's
// processors busy, unless that is too little to be told.
func AppendHot(list []scan.HotTablet, table string, rows row.Range, part float64, now time.Time) []scan.HotTablet {
	if part < 1e-6 {
		return list
	}
	return append(list, scan.HotTablet{Table: table, Rows: rows, CPUFraction: min(part, 1), From: now.Add(-LoadWindow), To: now})
}
