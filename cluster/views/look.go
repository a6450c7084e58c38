package views

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sort"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
)

// A look is a look at all rows, in turns: between two of them changes are followed, so that
// the position does not grow old however long the look takes.
type look struct {
	// at is where it is: rows before were looked at, and what they contribute is durable.
	// rest are the others, a range or more for each tablet of the source.
	at   []byte
	rest []row.Range
	// ends says that the ends of the cells of rest[0] are stored.
	ends  bool
	since cell.Seq // when it began
}

// newLook returns a look at the rows of tablets of the source that are not before at.
func newLook(within row.Range, at []byte, tablets []Begin, since cell.Seq) *look {
	l := &look{at: at, since: since}
	within.Start = at
	for i := range tablets {
		if rows := tablets[i].Rows.Intersect(within); !rows.Empty() {
			l.rest = append(l.rest, rows)
		}
	}
	return l
}

// looked returns those of keys, which ascend, that the look has passed. It will see the others
// as they are then.
func (l *look) looked(keys [][]byte) [][]byte {
	if l == nil {
		return keys
	}
	return keys[:sort.Search(len(keys), func(i int) bool { return bytes.Compare(keys[i], l.at) >= 0 })]
}

// errTurn says that a turn is over.
var errTurn = errors.New("the turn is over")

// reconcile takes the position from where on changes are to be followed, and has the first turn
// of a look at all rows.
func (r *run) reconcile(ctx context.Context) ([]Begin, error) {
	r.note(func(p *rpc.ViewProgress) { p.Through = 0 })
	// First of all: the wait may be longer than changes are kept.
	release, err := hold(ctx, r.o.Memory.scans)
	if err != nil {
		return nil, err
	}
	defer release()
	from, err := r.o.Cluster.ChangesBegin(ctx, r.source.Name, r.t.Bounds())
	if err != nil {
		return nil, err
	}
	if err := r.step("position taken"); err != nil {
		return nil, err
	}
	r.look = newLook(r.t.Bounds(), r.t.Bounds().Start, from, least(from))
	if err := r.lookOn(ctx); err != nil {
		return nil, err
	}
	if r.o.Mistake == PositionAfterScan {
		return r.o.Cluster.ChangesBegin(ctx, r.source.Name, r.t.Bounds())
	}
	return from, nil
}

// resume makes look what was left of one when its Worker ended. at is where it was.
func (r *run) resume(ctx context.Context, at []byte) error {
	within := r.t.Bounds()
	within.Start = at
	tablets, err := r.o.Cluster.ChangesBegin(ctx, r.source.Name, within)
	if err == nil {
		r.look = newLook(within, at, tablets, least(tablets))
	}
	return err
}

// turnWaits is for how long the memory of a turn waits for a Worker that is busy.
const turnWaits = time.Second

// waitTurn gives turn what gives back the memory of a turn, once there is some, and room in
// the outbox. A Worker that waits for something else has none.
func (r *run) waitTurn(ctx context.Context, turn chan<- func()) {
	for ctx.Err() == nil {
		if r.out.admit(ctx) != nil {
			return
		}
		release, err := hold(ctx, r.o.Memory.scans)
		if err != nil {
			return // ctx has ended
		}
		select {
		case turn <- release:
			return
		case <-time.After(turnWaits):
		case <-ctx.Done():
		}
		release()
	}
}

// lookOn is a turn of the look: until it has taken Options.Turn, or the outbox is full. look
// is nil when there is nothing left. The caller has the memory.
func (r *run) lookOn(ctx context.Context) error {
	l := r.look
	p := &pass{run: r, oldest: l.since, until: time.Now().Add(r.o.Turn)}
	for len(l.rest) > 0 && !r.out.full() {
		if !l.ends {
			first := &l.rest[0]
			end, err := r.storeEndsOf(ctx, *first, p.until)
			if err != nil {
				return err
			}
			if !bytes.Equal(end, first.End) {
				rest := row.Range{Start: end, End: first.End}
				first.End = end
				l.rest = slices.Insert(l.rest, 1, rest)
			}
			l.ends = true
		}
		if err := p.look(ctx, l); err != nil {
			return err
		}
		if time.Now().After(p.until) {
			break
		}
	}
	if err := p.end(ctx); err != nil {
		return err
	}
	if len(l.rest) > 0 {
		l.at = l.rest[0].Start
		return nil
	}
	r.look = nil
	return r.step("scanned")
}

// look evaluates rows of the first range of what is left of a look, and takes them from it.
func (p *pass) look(ctx context.Context, l *look) error {
	within := &l.rest[0]
	p.within, p.rest, p.over = within, []row.Range{*within}, false
	p.looked, p.since = 0, time.Now()
	err := p.eval.Range(ctx, *within, func(x *matview.Row) error {
		// One without a contribution tells of all before it that have none.
		if p.looked++; p.looked >= evaluateTogether || len(x.Contribution) == 0 && x.Err == nil {
			if err := p.giveWay(ctx); err != nil {
				return err
			}
		}
		if err := p.row(ctx, x); err != nil {
			return err
		}
		if p.over {
			within.Start = row.Successor(x.Key)
			return errTurn
		}
		return nil
	})
	if err == nil {
		err = p.upTo(ctx, nil)
	}
	if errors.Is(err, errTurn) {
		p.stored, p.rest = nil, nil // of rows that are still to come
		return nil
	}
	if err != nil {
		return err
	}
	l.rest, l.ends = l.rest[1:], false
	return nil
}
