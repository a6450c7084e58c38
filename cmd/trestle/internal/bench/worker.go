package bench

import (
	"context"
	"math/rand/v2"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// A worker makes one call at a time. It belongs to one goroutine.
type worker struct {
	conn *grpc.ClientConn
	// virtual calls are made in session, which is opened when needed.
	sessions bool
	session  *session
	rng      *rand.Rand

	// scratch space, reused by each operation
	req       []byte
	resp      raw
	key, key2 []byte
	sets      []set
	batch     []uint64
	minimum   []uint64
	reader    rowReader
	check     check
	sqlBatch  []byte
	sqlValues []sqlValue
	samples   *samples // where to gather answers to reads, or nil

	cursor, cursorEnd uint64 // of sequence

	// what was done
	hist                        Histogram
	rows                        uint64
	unaryTraffic, streamTraffic traffic
	errors                      map[codes.Code]uint64
	firstError                  error
}

func newWorker(conn *grpc.ClientConn, seed, id uint64) *worker {
	w := &worker{conn: conn, rng: rand.New(rand.NewPCG(seed, id)), errors: map[codes.Code]uint64{}}
	w.reader.emit = func(c *cell) error { return w.check.cell(c) }
	return w
}

// writeRow writes a new version of every column of row n.
func (w *worker) writeRow(ctx context.Context, d *dataset, n uint64) error {
	v := d.version.Add(1) - 1
	w.key = d.appendKey(w.key[:0], n)
	w.sets = w.sets[:0]
	for c := range d.columns {
		w.sets = append(w.sets, d.setOf(w.key, c, v))
	}
	if err := w.mutate(ctx, d); err != nil {
		return err
	}
	// Column 0 comes last: it stands for the whole row in dataset.known.
	for c := d.columns - 1; c >= 0; c-- {
		d.ack(n, c, v)
	}
	return nil
}

// writeColumn writes a new version of one column of row n.
func (w *worker) writeColumn(ctx context.Context, d *dataset, n uint64, column int) error {
	v := d.version.Add(1) - 1
	w.key = d.appendKey(w.key[:0], n)
	w.sets = append(w.sets[:0], d.setOf(w.key, column, v))
	err := w.mutate(ctx, d)
	if err == nil {
		d.ack(n, column, v)
	}
	return err
}

func (w *worker) mutate(ctx context.Context, d *dataset) error {
	if w.sessions {
		return w.virtualMutate(d)
	}
	w.req = appendMutateRow(w.req[:0], d.name, w.key, w.sets)
	err := w.unary(ctx, methodMutate, func([]byte) error { return nil })
	if err == nil {
		w.rows++
	}
	return err
}

// readRow reads row n, which must be there with each column at least as new as
// what was acknowledged before.
func (w *worker) readRow(ctx context.Context, d *dataset, n uint64) error {
	w.minimum = w.minimum[:0]
	for c := range d.columns {
		w.minimum = append(w.minimum, d.acked[n*uint64(d.columns)+uint64(c)].Load())
	}
	latest := d.mutable // an older version may not have been collected yet
	w.check = check{d: d, single: true, n: n, column: -1, latest: latest, minimum: w.minimum, lastKey: w.check.lastKey}
	w.key = d.appendKey(w.key[:0], n)
	if w.sessions {
		return w.virtualRead(d, latest)
	}
	w.req = (&read{key: w.key, latest: latest}).append(w.req[:0], d.name)
	return w.readOne(ctx)
}

// readOne sends the read in w.req and expects one row.
func (w *worker) readOne(ctx context.Context) error {
	if err := w.readAll(ctx); err != nil {
		return err
	}
	if w.check.rows != 1 {
		return wrong("%d rows for row %q", w.check.rows, w.key)
	}
	return nil
}

// readAll sends the read in w.req and checks every row with w.check.
func (w *worker) readAll(ctx context.Context) error {
	w.check.begin()
	w.reader.reset()
	message, keep := w.reader.message, w.samples != nil && !w.samples.enough()
	if keep {
		w.samples.begin(&w.check)
		message = func(b []byte) error {
			w.samples.message(b)
			return w.reader.message(b)
		}
	}
	if err := w.stream(ctx, methodRead, message); err != nil {
		return err
	}
	w.rows += w.check.rows
	err := w.reader.end()
	if keep && err == nil {
		w.samples.end()
	}
	return err
}
