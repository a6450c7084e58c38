package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// maxPrefetchBytes is how much of a row is kept at most before the rows are taken.
const maxPrefetchBytes = 256 << 10

// A prefetchedRead is a read of the next tablet: it finds the tablet and reads the first
// row, and goes on when that is taken. Rows of another server wait in the connection until
// then.
type prefetchedRead struct {
	cancel  context.CancelFunc
	located chan struct{} // closed when ranges is set
	ranges  []row.Range   // the ranges read; nil if the tablet was not found
	claimed chan struct{} // closed when to is set
	to      *progressWriter
	done    chan struct{} // closed when all is over
	rest    []row.Range
	stats   scan.Stats
	err     error
	// panicked is the panic of the read, and where; "" if there was none.
	panicked string
}

// startPrefetch begins to read the part of ranges that is in their first tablet.
func (c *Client) startPrefetch(ctx context.Context, t *catalog.Table, ranges []row.Range, f *scan.Request, w scan.Writer) *prefetchedRead {
	var encoding uint64
	if e := scan.Encoded(w); e != nil {
		encoding = e.Encoding()
	}
	fragment := scan.Fragment(w)
	ctx, cancel := context.WithCancel(ctx)
	a := &prefetchedRead{cancel: cancel, located: make(chan struct{}), claimed: make(chan struct{}), done: make(chan struct{})}
	ranges = slices.Clone(ranges)
	go func() {
		defer close(a.done)
		defer func() {
			if p := recover(); p != nil {
				a.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		sch := t.Schema()
		l, err := c.locate(ctx, sch.ID, ranges[0].Start)
		if err == nil {
			a.ranges, _ = plan.Cut(ranges, l.rows, false)
		}
		close(a.located)
		if len(a.ranges) == 0 {
			return
		}
		w := &bufferedRows{a: a, ctx: ctx, encoding: encoding, fragment: fragment}
		at := rpc.Target{Tablet: l.tablet, Schema: sch.Version}
		// A server in this process changes the ranges that it is given as it reads.
		a.rest, a.stats, a.err = c.o.Dialer.Dial(l.addr).ReadRows(ctx, at, &rpc.Read{Ranges: slices.Clone(a.ranges), Filter: f.Filter}, w)
		if err := w.release(); a.err == nil {
			a.err = err
		}
		c.forgetOnError(a.err, sch.ID, l)
	}()
	return a
}

// covers tells whether a reads the first of ranges, which are left to read. It waits until
// the tablet is found.
func (a *prefetchedRead) covers(ranges []row.Range) bool {
	<-a.located
	n := len(a.ranges)
	return n > 0 && n <= len(ranges) && slices.EqualFunc(a.ranges, ranges[:n], func(a, b row.Range) bool {
		return string(a.Start) == string(b.Start) && string(a.End) == string(b.End)
	})
}

// cannotCover tells whether it is certain that a does not read the first of ranges.
func (a *prefetchedRead) cannotCover(ranges []row.Range) bool {
	select {
	case <-a.located:
		return !a.covers(ranges)
	default:
		return false
	}
}

// drainTo gives the rows to w, until the end of the read.
func (a *prefetchedRead) drainTo(w *progressWriter) {
	a.to = w
	close(a.claimed)
	<-a.done
	if a.panicked != "" {
		panic(a.panicked) // the call's, which fails alone
	}
}

// stop gives the read up.
func (a *prefetchedRead) stop() {
	a.cancel()
	<-a.done
}

// bufferedRows keeps the first row, up to maxPrefetchBytes of it, until the read is
// claimed. Later rows wait for that, and are passed through.
type bufferedRows struct {
	a        *prefetchedRead
	ctx      context.Context
	encoding uint64 // of the writer that will take them
	fragment []byte // likewise
	events   []rowEvent
	bytes    int
	through  bool
	err      error
}

var _ scan.FragmentWriter = (*bufferedRows)(nil)

// A rowEvent is a call of a scan.Writer.
type rowEvent struct {
	kind byte
	key  []byte
	cell row.Cell
}

const (
	startRow = iota
	addCell
	endRow
	scanned
)

// release waits until the read is claimed, and passes on the buffered rows.
func (w *bufferedRows) release() error {
	if w.through || w.err != nil {
		return w.err
	}
	select {
	case <-w.a.claimed:
	case <-w.ctx.Done():
		w.err = context.Cause(w.ctx)
		return w.err
	}
	w.through = true
	to := w.a.to
	for i := range w.events {
		switch e := &w.events[i]; e.kind {
		case startRow:
			to.StartRow(e.key)
		case addCell:
			to.Cell(&e.cell)
		case endRow:
			full, err := to.EndRow()
			if err == nil && full {
				err = to.Flush()
			}
			if err != nil {
				w.err = err
				return err
			}
		case scanned:
			to.Scanned(e.key)
		}
	}
	w.events = nil
	return nil
}

func (w *bufferedRows) buffer(e rowEvent, bytes int) {
	w.events = append(w.events, e)
	w.bytes += bytes
}

// StartRow implements scan.Writer.
func (w *bufferedRows) StartRow(key []byte) {
	if w.through {
		w.a.to.StartRow(key)
		return
	}
	w.buffer(rowEvent{kind: startRow, key: slices.Clone(key)}, len(key))
}

// Cell implements scan.Writer.
func (w *bufferedRows) Cell(c *row.Cell) {
	if !w.through && w.bytes >= maxPrefetchBytes && w.release() != nil {
		return // EndRow says so
	}
	if w.through {
		w.a.to.Cell(c)
		return
	}
	w.buffer(rowEvent{kind: addCell, cell: c.Clone()}, len(c.Qualifier)+len(c.Value)+64)
}

// EndRow implements scan.Writer.
func (w *bufferedRows) EndRow() (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	if w.through {
		return w.a.to.EndRow()
	}
	w.buffer(rowEvent{kind: endRow}, 0)
	return true, nil
}

// Scanned implements scan.Writer.
func (w *bufferedRows) Scanned(key []byte) {
	if w.through {
		w.a.to.Scanned(key)
		return
	}
	w.buffer(rowEvent{kind: scanned, key: slices.Clone(key)}, len(key))
}

// Flush implements scan.Writer.
func (w *bufferedRows) Flush() error {
	if w.through {
		return w.a.to.Flush()
	}
	return w.release()
}

// Encoding implements scan.EncodedWriter.
func (w *bufferedRows) Encoding() uint64 { return w.encoding }

// Fragment implements scan.FragmentWriter.
func (w *bufferedRows) Fragment() []byte { return w.fragment }

// Room implements scan.EncodedWriter.
func (w *bufferedRows) Room(n int) ([]byte, error) {
	if err := w.release(); err != nil {
		return nil, err
	}
	return w.a.to.Room(n)
}

// Encoded implements scan.EncodedWriter.
func (w *bufferedRows) Encoded(p *scan.Piece) (bool, error) { return w.a.to.Encoded(p) }
