package bench

import (
	"context"
	"sync/atomic"
	"time"
)

// A workload is one operation, repeated.
type workload struct {
	name, group, help string
	// data makes the table that it works on.
	data func(o *Options) *dataset
	// op makes one operation.
	op func(ctx context.Context, w *worker, s *state) error
	// writes tells that the table is to be read back at the end.
	writes bool
	// follow tells that the operation waits for its changes, see state.deliveries.
	follow bool
}

// A state is what the workers of one workload on one server share.
type state struct {
	d        *dataset
	o        *Options
	next     atomic.Uint64 // of sequential workloads
	prepared prepared      // of a workload of SQL
	begun    time.Time     // before the table was made
	// deliveries are the changes of the table, if workers wait for them.
	deliveries *deliveries
	zipf       *zipf

	round uint64 // slices so far; only the runner touches it
}

// close ends what goes on beside the workers.
func (s *state) close() {
	if s.deliveries != nil {
		s.deliveries.close()
	}
}

var workloads = []workload{
	{"sequential-write", "paper", "write rows in the order of their keys", empty, sequentialWrite, true, false},
	{"random-write", "paper", "write rows in random order", empty, randomWrite, true, false},
	{"random-read", "paper", "read random rows", full, randomRead, false, false},
	{"random-read-mem", "paper", "read random rows of a part of the table that fits in memory", full, randomReadMem, false, false},
	{"sequential-read", "paper", "read rows one by one in the order of their keys", full, sequentialRead, false, false},
	{"scan", "paper", "read ranges of rows", full, scan, false, false},
	{"bulk-load", "bulk", "write rows in batches (MutateRows)", empty, bulkLoad, true, false},
	{"overwrite", "bulk", "write random rows of a full table, one by one", full, randomWrite, true, false},
	{"ycsb-a", "ycsb", "half reads, half updates, Zipf", records, ycsb(mixture{read: 50, update: 50}), true, false},
	{"ycsb-b", "ycsb", "95 % reads, 5 % updates, Zipf", records, ycsb(mixture{read: 95, update: 5}), true, false},
	{"ycsb-c", "ycsb", "reads, Zipf", records, ycsb(mixture{read: 100}), false, false},
	{"ycsb-d", "ycsb", "95 % reads of the latest, 5 % inserts", records, ycsb(mixture{readLatest: 95, insert: 5}), true, false},
	{"ycsb-e", "ycsb", "95 % scans of 1 to 100 rows, 5 % inserts", records, ycsb(mixture{scan: 95, insert: 5}), true, false},
	{"ycsb-f", "ycsb", "half reads, half read-modify-writes by the client, Zipf", records, ycsb(mixture{read: 50, modify: 50}), true, false},
	{"counters", "atomic", "increment random counters (ReadModifyWriteRow)", counters, increment, true, false},
	{"hot-counter", "atomic", "increment one counter from all workers", oneCounter, increment, true, false},
	{"check-and-mutate", "atomic", "write a row depending on what is there (CheckAndMutateRow)", empty, checkAndMutate, true, false},
	{"wide-row", "shape", "read a row of 1,000 columns", wide, wideRow, false, false},
	{"wide-row-column", "shape", "read one column of a row of 1,000", wide, wideRowColumn, false, false},
	{"many-versions", "shape", "read the newest of 1,000 versions", versions, manyVersions, false, false},
	{"wide-write", "shape", "write a row of 100 columns", hundredColumns, randomWrite, true, false},
	{"version-write", "shape", "add a version to a cell of 1,000 or more", versions, randomWrite, true, false},
	{"rows-limit-1", "shape", "read the first row from a random key on (rows_limit 1)", full, rowsLimitOne, false, false},
	{"sql-point", "sql", "SELECT a column of a random row, prepared", full, sqlPoint, false, false},
	{"sql-scan", "sql", "SELECT keys and a column of ranges of rows", full, sqlScan, false, false},
	{"sql-count", "sql", "COUNT the rows of the table", full, sqlWhole(countQuery, firstCount), false, false},
	{"sql-group", "sql", "COUNT and SUM in ten groups of the table", full, sqlWhole(groupQuery, secondCount), false, false},
	{"sql-sort", "sql", "all keys ORDERed BY a column", full, sqlWhole(sortQuery, oneRow), false, false},
	{"sql-join", "sql", "COUNT the matches of the table JOINed with itself", full, sqlWhole(joinQuery, firstCount), false, false},
	{"change-stream", "stream", "write random rows, each until its change is delivered", changing(empty), followedWrite, true, true},
	{"change-stream-bulk", "stream", "write batches of rows of five columns, each until its changes are delivered", changing(fiveColumns), followedBatch, true, true},
	{"change-stream-catch-up", "stream", "read all changes of the table", changing(full), catchUp, false, false},
}

// The tables.

func empty(o *Options) *dataset { return &dataset{rows: o.Rows, valueSize: o.ValueBytes} }
func full(o *Options) *dataset {
	return &dataset{rows: o.Rows, loaded: o.Rows, valueSize: o.ValueBytes}
}

// changing gives a table a change stream.
func changing(data func(*Options) *dataset) func(*Options) *dataset {
	return func(o *Options) *dataset {
		d := data(o)
		d.changes = true
		return d
	}
}

// records are YCSB's: ten columns, keys in hashed order, room for inserts.
func records(o *Options) *dataset {
	return &dataset{rows: 2 * o.Rows, loaded: o.Rows, columns: 10, valueSize: max(minValue, o.ValueBytes/10), scattered: true}
}
func counters(o *Options) *dataset   { return &dataset{rows: min(o.Rows, 1000), counters: true} }
func oneCounter(o *Options) *dataset { return &dataset{rows: 1, counters: true} }

// wide and versions have a few rows, as every one is large.
func wide(o *Options) *dataset {
	return &dataset{rows: 64, loaded: 64, columns: 1000, valueSize: max(minValue, o.ValueBytes/10)}
}
func hundredColumns(o *Options) *dataset {
	return &dataset{rows: min(o.Rows, 1000), columns: 100, valueSize: max(minValue, o.ValueBytes/10)}
}
func versions(o *Options) *dataset {
	return &dataset{rows: 64, loaded: 64, versions: 1000, keepAll: true, valueSize: max(minValue, o.ValueBytes/10)}
}

// The operations.

// sequence returns the next number of a sequential workload. A worker takes
// spans of numbers, as the paper's clients take ranges of rows.
func (w *worker) sequence(s *state, span uint64) uint64 {
	if w.cursor == w.cursorEnd {
		w.cursorEnd = s.next.Add(span)
		w.cursor = w.cursorEnd - span
	}
	w.cursor++
	return w.cursor - 1
}

const span = 100

func sequentialWrite(ctx context.Context, w *worker, s *state) error {
	return w.writeRow(ctx, s.d, w.sequence(s, span)%s.d.rows)
}

func randomWrite(ctx context.Context, w *worker, s *state) error {
	return w.writeRow(ctx, s.d, w.rng.Uint64N(s.d.rows))
}

func randomRead(ctx context.Context, w *worker, s *state) error {
	return w.readRow(ctx, s.d, w.rng.Uint64N(s.d.rows))
}

// memBytes is how much of a table the workload in memory reads.
const memBytes = 16 << 20

func randomReadMem(ctx context.Context, w *worker, s *state) error {
	return w.readRow(ctx, s.d, w.rng.Uint64N(min(s.d.rows, 1+memBytes/uint64(s.d.valueSize))))
}

func sequentialRead(ctx context.Context, w *worker, s *state) error {
	return w.readRow(ctx, s.d, w.sequence(s, span)%s.d.rows)
}

func scan(ctx context.Context, w *worker, s *state) error {
	d := s.d
	chunks := max(1, d.rows/s.o.ScanRows)
	first := (s.next.Add(1) - 1) % chunks * s.o.ScanRows
	end := min(first+s.o.ScanRows, d.rows)
	w.check = check{d: d, sequential: true, n: first, column: -1, lastKey: w.check.lastKey}
	w.key = d.appendKey(w.key[:0], first)
	w.key2 = d.appendKey(w.key2[:0], end)
	w.req = (&read{start: w.key, end: w.key2}).append(w.req[:0], d.name)
	if err := w.readAll(ctx); err != nil {
		return err
	}
	if w.check.rows != end-first {
		return wrong("%d rows from %q before %q, want %d", w.check.rows, w.key, w.key2, end-first)
	}
	return nil
}

func bulkLoad(ctx context.Context, w *worker, s *state) error {
	batch := uint64(s.o.Batch)
	first := s.next.Add(batch) - batch
	err := w.writeBatch(ctx, s.d, first, first+batch, func(uint64) uint64 { return s.d.version.Add(1) - 1 })
	if err == nil {
		w.rows += batch
	}
	return err
}

func increment(ctx context.Context, w *worker, s *state) error {
	d := s.d
	n := w.rng.Uint64N(d.rows)
	delta := 1 + w.rng.Uint64N(9)
	before := d.acked[n].Load()
	d.attempted[n].Add(delta)
	w.key = d.appendKey(w.key[:0], n)
	w.req = appendIncrement(w.req[:0], d.name, w.key, d.qualifiers[0], int64(delta))
	err := w.unary(ctx, methodRMW, func(b []byte) error {
		got, err := counter(b)
		if err == nil && (uint64(got) < before+delta || uint64(got) > d.attempted[n].Load()) {
			err = wrong("counter %q is %d after +%d; %d were acknowledged before, %d sent", w.key, got, delta, before, d.attempted[n].Load())
		}
		return err
	})
	if err == nil {
		d.acked[n].Add(delta)
		w.rows++
	}
	return err
}

func checkAndMutate(ctx context.Context, w *worker, s *state) error {
	d := s.d
	n := w.rng.Uint64N(d.rows)
	v := d.version.Add(1) - 1
	known := d.known(n)
	w.key = d.appendKey(w.key[:0], n)
	set := d.setOf(w.key, 0, v)
	w.req = appendCheck(w.req[:0], d.name, w.key, &set)
	err := w.unary(ctx, methodCheck, func(b []byte) error {
		matched := false
		for len(b) > 0 {
			field, _, x, rest, err := next(b)
			if err != nil {
				return err
			}
			b = rest
			if field == 1 {
				matched = x != 0
			}
		}
		if known && !matched {
			return wrong("row %q does not match although a write of it was acknowledged", w.key)
		}
		return nil
	})
	if err == nil {
		d.ack(n, 0, v)
		w.rows++
	}
	return err
}

func wideRow(ctx context.Context, w *worker, s *state) error {
	return w.readRow(ctx, s.d, w.rng.Uint64N(s.d.rows))
}

func wideRowColumn(ctx context.Context, w *worker, s *state) error {
	d := s.d
	n := w.rng.Uint64N(d.rows)
	c := int(w.rng.Uint64N(uint64(d.columns)))
	w.check = check{d: d, single: true, n: n, column: c, lastKey: w.check.lastKey}
	w.key = d.appendKey(w.key[:0], n)
	w.req = (&read{key: w.key, qualifier: d.qualifiers[c]}).append(w.req[:0], d.name)
	return w.readOne(ctx)
}

func manyVersions(ctx context.Context, w *worker, s *state) error {
	d := s.d
	n := w.rng.Uint64N(d.rows)
	w.minimum = append(w.minimum[:0], uint64(d.versions))
	w.check = check{d: d, single: true, n: n, column: -1, latest: true, minimum: w.minimum, lastKey: w.check.lastKey}
	w.key = d.appendKey(w.key[:0], n)
	w.req = (&read{key: w.key, latest: true}).append(w.req[:0], d.name)
	return w.readOne(ctx)
}

func rowsLimitOne(ctx context.Context, w *worker, s *state) error {
	d := s.d
	n := w.rng.Uint64N(d.rows)
	w.check = check{d: d, single: true, n: n, column: -1, lastKey: w.check.lastKey}
	w.key = d.appendKey(w.key[:0], n)
	w.req = (&read{start: w.key, limit: 1}).append(w.req[:0], d.name)
	return w.readOne(ctx)
}

// A mixture is the share of each operation in percent.
type mixture struct{ read, update, readLatest, insert, scan, modify uint64 }

func ycsb(m mixture) func(ctx context.Context, w *worker, s *state) error {
	return func(ctx context.Context, w *worker, s *state) error {
		d := s.d
		// Keys are in hashed order, so that frequent rows are spread over the
		// table although their numbers are not.
		n := s.zipf.at(w.rng.Float64())
		p := w.rng.Uint64N(100)
		take := func(share uint64) bool {
			if p < share {
				return true
			}
			p -= share
			return false
		}
		switch {
		case take(m.read):
			return w.readRow(ctx, d, n)
		case take(m.update):
			return w.writeColumn(ctx, d, n, int(w.rng.Uint64N(uint64(d.columns))))
		case take(m.readLatest):
			// From the last insert downwards; one without an answer yet may or may
			// not be there.
			newest := min(d.rows, d.loaded+s.next.Load())
			n = newest - 1 - min(n, newest-1)
			for !d.known(n) {
				n--
			}
			return w.readRow(ctx, d, n)
		case take(m.insert):
			inserts := d.rows - d.loaded
			return w.writeRow(ctx, d, d.loaded+(s.next.Add(1)-1)%inserts)
		case take(m.scan):
			w.check = check{d: d, column: -1, latest: true, lastKey: w.check.lastKey}
			w.key = d.appendKey(w.key[:0], n)
			limit := 1 + int64(w.rng.Uint64N(100))
			w.req = (&read{start: w.key, limit: limit, latest: true}).append(w.req[:0], d.name)
			if err := w.readAll(ctx); err != nil {
				return err
			}
			if w.check.rows < 1 || w.check.rows > uint64(limit) {
				return wrong("%d rows of at most %d from %q on", w.check.rows, limit, w.key)
			}
			return nil
		default: // modify
			if err := w.readRow(ctx, d, n); err != nil {
				return err
			}
			return w.writeColumn(ctx, d, n, int(w.rng.Uint64N(uint64(d.columns))))
		}
	}
}
