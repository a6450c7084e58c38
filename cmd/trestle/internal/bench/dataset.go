package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
)

// A dataset is a table of one server, and what that server has acknowledged.
//
// Row n has columns 0 to columns-1. Version v of a cell has the timestamp
// 1000*(v+1) µs and the value of appendValue.
type dataset struct {
	name      string // full resource name
	rows      uint64 // numbers of rows that can be written
	loaded    uint64 // rows below this one are there from the start,
	versions  int    // with so many versions
	columns   int
	valueSize int
	keepAll   bool // every version is kept, not just the newest
	scattered bool // numbers are spread over the key space, not in its order
	counters  bool // cells are 64-bit counters
	mutable   bool // rows are written while they are read
	changes   bool // the table has a change stream

	qualifiers [][]byte
	// acked is the newest acknowledged version plus one, 0 if there is none, of
	// column c of row n at n*columns+c. For counters it is the sum.
	acked []atomic.Uint64
	// attempted is the sum of all increments of row n that were sent.
	attempted []atomic.Uint64
	version   atomic.Uint64 // the next one
}

// init fills what follows from the rest.
func (d *dataset) init() *dataset {
	d.columns = max(d.columns, 1)
	d.versions = max(d.versions, 1)
	for c := range d.columns {
		d.qualifiers = append(d.qualifiers, fmt.Appendf(nil, "c%05d", c))
	}
	d.acked = make([]atomic.Uint64, d.rows*uint64(d.columns))
	if d.counters {
		d.attempted = make([]atomic.Uint64, d.rows)
	}
	d.version.Store(uint64(d.versions))
	return d
}

// like tells whether o's table, when it is loaded, has what d's has.
func (d *dataset) like(o *dataset) bool {
	return d.rows == o.rows && d.loaded == o.loaded && d.versions == max(o.versions, 1) && d.columns == max(o.columns, 1) &&
		d.valueSize == o.valueSize && d.keepAll == o.keepAll && d.scattered == o.scattered && d.counters == o.counters && d.changes == o.changes
}

// scatter and gather are inverse: multiplication by an odd number modulo 2^64.
const (
	scatter = 0x9e3779b97f4a7c15
	gather  = 0xf1de83e19937733d
)

// appendKey appends the key of row n.
func (d *dataset) appendKey(b []byte, n uint64) []byte {
	if d.scattered {
		return appendPadded(append(b, "user"...), n*scatter, 20)
	}
	return appendPadded(append(b, "row"...), n, 10)
}

func appendPadded(b []byte, n uint64, width int) []byte {
	for i := 0; i < width; i++ {
		b = append(b, '0')
	}
	for p := len(b) - 1; n > 0; p-- {
		b[p] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// number is the inverse of appendKey.
func (d *dataset) number(key []byte) (n uint64, ok bool) {
	prefix, width := []byte("row"), 10
	if d.scattered {
		prefix, width = []byte("user"), 20
	}
	digits, found := bytes.CutPrefix(key, prefix)
	if !found || len(digits) != width {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0, false
	}
	if d.scattered {
		n = n * gather
	}
	return n, n < d.rows
}

func micros(version uint64) int64 { return int64(version+1) * 1000 }

// setOf returns the mutation that writes a version of a column of the row.
func (d *dataset) setOf(key []byte, column int, version uint64) set {
	return set{qualifier: d.qualifiers[column], micros: micros(version), column: hashKey(key, column), version: version, size: d.valueSize}
}

// ack notes that the server has acknowledged a version.
func (d *dataset) ack(n uint64, column int, version uint64) {
	p := &d.acked[n*uint64(d.columns)+uint64(column)]
	for {
		old := p.Load()
		if version+1 <= old || p.CompareAndSwap(old, version+1) {
			return
		}
	}
}

// known tells whether the server has acknowledged row n.
func (d *dataset) known(n uint64) bool { return d.acked[n*uint64(d.columns)].Load() > 0 }

// errWrong marks an answer that cannot be right.
var errWrong = errors.New("wrong answer")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errWrong, fmt.Sprintf(format, args...))
}

// A check is what the rows of an answer must be. Without one of the three
// orders any row of the table may come, in ascending order.
type check struct {
	d          *dataset
	single     bool // just row n
	sequential bool // rows n, n+1, …
	n          uint64
	column     int  // only this one; -1: all of them
	latest     bool // only the newest version of each column
	minimum    []uint64
	final      bool // nobody writes: what was acknowledged must be there
	sawRow     func(n uint64)

	// the state
	rows    uint64
	current uint64
	col     int
	left    int // versions of the column still to come
	prev    uint64
	fresh   bool
	lastKey []byte
}

// begin resets the state for a new answer.
func (k *check) begin() {
	k.rows, k.fresh = 0, true
	k.lastKey = k.lastKey[:0]
}

// cell checks one cell.
func (k *check) cell(c *cell) error {
	d := k.d
	perColumn := d.versions
	if k.latest || !d.keepAll {
		perColumn = 1
	}
	if k.fresh {
		n, ok := d.number(c.row)
		switch {
		case !ok:
			return wrong("row %q was never written", c.row)
		case k.single && (n != k.n || k.rows > 0), k.sequential && n != k.n+k.rows:
			return wrong("row %q where row %q was expected", c.row, d.appendKey(nil, k.n+k.rows))
		case bytes.Compare(c.row, k.lastKey) <= 0:
			return wrong("row %q after row %q", c.row, k.lastKey)
		}
		k.lastKey = append(k.lastKey[:0], c.row...)
		k.current, k.fresh, k.left = n, false, perColumn
		k.col = max(k.column, 0)
	}
	if k.col >= d.columns || k.left == 0 || !bytes.Equal(c.qualifier, d.qualifiers[k.col]) {
		return wrong("row %q has a cell of column %q, unexpected here", c.row, c.qualifier)
	}
	version, err := checkValue(c.value, hashKey(c.row, k.col), d.valueSize)
	switch {
	case err != nil:
		return wrong("row %q, column %q: %v", c.row, c.qualifier, err)
	case c.micros != micros(version):
		return wrong("row %q, column %q: the value of version %d has the timestamp %d", c.row, c.qualifier, version, c.micros)
	case version >= d.version.Load():
		return wrong("row %q, column %q: version %d was never written", c.row, c.qualifier, version)
	case k.left < perColumn && version >= k.prev:
		return wrong("row %q, column %q: version %d comes after version %d", c.row, c.qualifier, version, k.prev)
	}
	if k.left == perColumn {
		acked := uint64(0)
		switch {
		case k.final:
			acked = d.acked[k.current*uint64(d.columns)+uint64(k.col)].Load()
		case k.minimum != nil:
			acked = k.minimum[k.col]
		}
		if version+1 < acked {
			return wrong("row %q, column %q: version %d although version %d was acknowledged before", c.row, c.qualifier, version, acked-1)
		}
	}
	k.prev = version
	if k.left--; k.left == 0 && k.column < 0 && k.col+1 < d.columns {
		k.col++
		k.left = perColumn
	}
	if c.last {
		if k.left != 0 {
			return wrong("row %q ends in column %q, with cells missing", c.row, c.qualifier)
		}
		k.rows++
		k.fresh = true
		if k.sawRow != nil {
			k.sawRow(k.current)
		}
	}
	return nil
}

// load writes the rows that are there from the start.
func (d *dataset) load(ctx context.Context, t *target) error {
	if d.loaded == 0 {
		return nil
	}
	perRow := d.columns * d.versions
	batch := uint64(max(1, min(1000, (1<<20)/(perRow*(d.valueSize+32)))))
	var next atomic.Uint64
	loader := func(ctx context.Context, w *worker) error {
		for {
			first := next.Add(batch) - batch
			if first >= d.loaded {
				return nil
			}
			if err := w.writeBatch(ctx, d, first, min(first+batch, d.loaded), func(uint64) uint64 { return 0 }); err != nil {
				return err
			}
		}
	}
	return t.each(ctx, 8, loader)
}

// writeBatch writes rows first to end-1, all columns, with MutateRows. Rows of
// a table that keeps all versions get all of them, others the given one.
func (w *worker) writeBatch(ctx context.Context, d *dataset, first, end uint64, version func(n uint64) uint64) error {
	w.req = appendBytes(w.req[:0], 1, []byte(d.name))
	w.batch = w.batch[:0]
	for n := first; n < end; n++ {
		w.key = d.appendKey(w.key[:0], n%d.rows)
		w.sets = w.sets[:0]
		v := version(n)
		w.batch = append(w.batch, v)
		for c := range d.columns {
			if d.keepAll {
				for v := range d.versions {
					w.sets = append(w.sets, d.setOf(w.key, c, uint64(v)))
				}
				continue
			}
			w.sets = append(w.sets, d.setOf(w.key, c, v))
		}
		w.req = appendEntry(w.req, w.key, w.sets)
	}
	seen := uint64(0)
	var failed error
	err := w.stream(ctx, methodBulk, func(b []byte) error {
		return eachEntry(b, func(i int, code codes.Code) {
			n := first + uint64(i)
			switch {
			case n >= end:
				failed = wrong("an answer for entry %d of %d", i, end-first)
			case code != codes.OK:
				failed = fmt.Errorf("entry %d: %v", i, code)
			default:
				seen++
				v := w.batch[i]
				if d.keepAll {
					v = uint64(d.versions - 1)
				}
				for c := range d.columns {
					d.ack(n%d.rows, c, v)
				}
			}
		})
	})
	if err == nil {
		err = failed
	}
	if err == nil && seen != end-first {
		err = wrong("answers for %d entries of %d", seen, end-first)
	}
	return err
}

// verify reads everything back: what was acknowledged must be there, and
// nothing that was never written.
func (d *dataset) verify(ctx context.Context, t *target) error {
	if d.counters {
		return d.verifyCounters(ctx, t)
	}
	var mu sync.Mutex
	seen := make([]bool, d.rows)
	// Each worker scans a share of the key space.
	const shares = 4
	var share atomic.Uint64
	err := t.each(ctx, shares, func(ctx context.Context, w *worker) error {
		i := share.Add(1) - 1
		start, end := d.boundary(i, shares), d.boundary(i+1, shares)
		if bytes.Equal(start, end) { // a table of fewer rows than shares
			return nil
		}
		w.check = check{d: d, column: -1, latest: true, final: true, sawRow: func(n uint64) {
			mu.Lock()
			seen[n] = true
			mu.Unlock()
		}}
		w.req = (&read{start: start, end: end, latest: true}).append(w.req[:0], d.name)
		return w.readAll(ctx)
	})
	if err != nil {
		return err
	}
	for n := range seen {
		if !seen[n] && d.known(uint64(n)) {
			return wrong("row %q was acknowledged and is gone", d.appendKey(nil, uint64(n)))
		}
	}
	return nil
}

// boundary returns the key that begins share i of n of the key space.
func (d *dataset) boundary(i, n uint64) []byte {
	if i == n {
		return nil
	}
	if d.scattered {
		return appendPadded([]byte("user"), (^uint64(0))/n*i, 20)
	}
	return appendPadded([]byte("row"), d.rows/n*i, 10)
}

// verifyCounters checks that each counter is the sum of what was acknowledged,
// give or take what had no answer.
func (d *dataset) verifyCounters(ctx context.Context, t *target) error {
	var next atomic.Uint64
	return t.each(ctx, 4, func(ctx context.Context, w *worker) error {
		for {
			n := next.Add(1) - 1
			if n >= d.rows {
				return nil
			}
			acked, attempted := d.acked[n].Load(), d.attempted[n].Load()
			if attempted == 0 {
				continue
			}
			w.key = d.appendKey(w.key[:0], n)
			w.req = appendIncrement(w.req[:0], d.name, w.key, d.qualifiers[0], 0)
			err := w.unary(ctx, methodRMW, func(b []byte) error {
				got, err := counter(b)
				if err == nil && (uint64(got) < acked || uint64(got) > attempted) {
					err = wrong("counter %q is %d; %d acknowledged, %d sent", w.key, got, acked, attempted)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	})
}
