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

// aheadBytes is how much of a row is kept at most before the rows are taken.
const aheadBytes = 256 << 10

// An ahead is a read of the next tablet: it finds the tablet and reads the
// first row, and goes on when that is taken. What comes of another server until
// then waits in the connection.
type ahead struct {
	cancel  context.CancelFunc
	located chan struct{} // closed when ranges is set
	ranges  []row.Range   // what is read; nil if the tablet was not found
	taken   chan struct{} // closed when to is set
	to      *tracker
	done    chan struct{} // closed when all is over
	rest    []row.Range
	stats   scan.Stats
	err     error
	// panicked is the panic of the read, and where; "" if there was none.
	panicked string
}

// readAhead begins to read what of ranges is in the first tablet of them.
func (c *Client) readAhead(ctx context.Context, t *catalog.Table, ranges []row.Range, f *scan.Request, w scan.Writer) *ahead {
	var encoding uint64
	if e := scan.Encoded(w); e != nil {
		encoding = e.Encoding()
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &ahead{cancel: cancel, located: make(chan struct{}), taken: make(chan struct{}), done: make(chan struct{})}
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
		w := &heldRows{a: a, ctx: ctx, encoding: encoding}
		at := rpc.Target{Tablet: l.tablet, Schema: sch.Version}
		// A server in this process changes the ranges that it is given as it reads.
		a.rest, a.stats, a.err = c.o.Dialer.Dial(l.addr).ReadRows(ctx, at, &rpc.Read{Ranges: slices.Clone(a.ranges), Filter: f.Filter}, w)
		if err := w.release(); a.err == nil {
			a.err = err
		}
		c.learnFrom(a.err, sch.ID, l)
	}()
	return a
}

// is tells whether a reads the first of ranges, which is what is left to read. It
// waits until the tablet is found.
func (a *ahead) is(ranges []row.Range) bool {
	<-a.located
	n := len(a.ranges)
	return n > 0 && n <= len(ranges) && slices.EqualFunc(a.ranges, ranges[:n], func(a, b row.Range) bool {
		return string(a.Start) == string(b.Start) && string(a.End) == string(b.End)
	})
}

// isNot tells whether it is certain that a does not read the first of ranges.
func (a *ahead) isNot(ranges []row.Range) bool {
	select {
	case <-a.located:
		return !a.is(ranges)
	default:
		return false
	}
}

// take gives the rows to w, until the end of the read.
func (a *ahead) take(w *tracker) {
	a.to = w
	close(a.taken)
	<-a.done
	if a.panicked != "" {
		panic(a.panicked) // the call's, which fails alone
	}
}

// stop gives the read up.
func (a *ahead) stop() {
	a.cancel()
	<-a.done
}

// heldRows keeps the first row until it is taken, as far as it is not larger
// than aheadBytes. What comes then waits for that, and goes through.
type heldRows struct {
	a        *ahead
	ctx      context.Context
	encoding uint64 // of who will take them
	events   []rowEvent
	bytes    int
	through  bool
	err      error
}

var _ scan.EncodedWriter = (*heldRows)(nil)

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

// release waits until the rows are taken and gives those that are held.
func (w *heldRows) release() error {
	if w.through || w.err != nil {
		return w.err
	}
	select {
	case <-w.a.taken:
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

func (w *heldRows) hold(e rowEvent, bytes int) {
	w.events = append(w.events, e)
	w.bytes += bytes
}

// StartRow implements scan.Writer.
func (w *heldRows) StartRow(key []byte) {
	if w.through {
		w.a.to.StartRow(key)
		return
	}
	w.hold(rowEvent{kind: startRow, key: slices.Clone(key)}, len(key))
}

// Cell implements scan.Writer.
func (w *heldRows) Cell(c *row.Cell) {
	if !w.through && w.bytes >= aheadBytes && w.release() != nil {
		return // EndRow says so
	}
	if w.through {
		w.a.to.Cell(c)
		return
	}
	w.hold(rowEvent{kind: addCell, cell: c.Clone()}, len(c.Qualifier)+len(c.Value)+64)
}

// EndRow implements scan.Writer.
func (w *heldRows) EndRow() (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	if w.through {
		return w.a.to.EndRow()
	}
	w.hold(rowEvent{kind: endRow}, 0)
	return true, nil
}

// Scanned implements scan.Writer.
func (w *heldRows) Scanned(key []byte) {
	if w.through {
		w.a.to.Scanned(key)
		return
	}
	w.hold(rowEvent{kind: scanned, key: slices.Clone(key)}, len(key))
}

// Flush implements scan.Writer.
func (w *heldRows) Flush() error {
	if w.through {
		return w.a.to.Flush()
	}
	return w.release()
}

// Encoding implements scan.EncodedWriter.
func (w *heldRows) Encoding() uint64 { return w.encoding }

// Room implements scan.EncodedWriter.
func (w *heldRows) Room(n int) ([]byte, error) {
	if err := w.release(); err != nil {
		return nil, err
	}
	return w.a.to.Room(n)
}

// Encoded implements scan.EncodedWriter.
func (w *heldRows) Encoded(p *scan.Piece) (bool, error) { return w.a.to.Encoded(p) }
