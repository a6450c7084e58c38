package history

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/anishathalye/porcupine"
)

// A RowsOptions configures Rows.
type RowsOptions struct {
	// Clients that run at once. Zero means 8.
	Clients int
	// Duration of the load. Zero means 5 s.
	Duration time.Duration
	// PerRow is how many operations a row gets before the next row takes its
	// place. Zero means 200. The time to check a row grows fast with the
	// operations whose outcome is unknown.
	PerRow int
	// Hot is the number of rows in use at a time. Zero means 4.
	Hot int
	// Seed makes the operations.
	Seed uint64
	// Timeout of one operation. Zero means 5 s.
	Timeout time.Duration
}

// A RowsReport is the outcome of Rows.
type RowsReport struct {
	Operations, Unknown, Rows int
	// Result is Ok, Illegal (a violation) or Unknown (not decided in time).
	Result porcupine.CheckResult
	// Info visualizes the history.
	Info porcupine.LinearizationInfo
	// Failures are errors that no operation should have met, the first few.
	Failures []string
}

// Rows runs the workload against the server at addr in a new table. An error
// means that it could not run.
func Rows(ctx context.Context, addr, table string, o RowsOptions) (*RowsReport, error) {
	if o.Clients == 0 {
		o.Clients = 8
	}
	if o.Duration == 0 {
		o.Duration = 5 * time.Second
	}
	if o.PerRow == 0 {
		o.PerRow = 200
	}
	if o.Hot == 0 {
		o.Hot = 4
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.table(ctx, table, "f", "g"); err != nil {
		return nil, err
	}
	var (
		count atomic.Int64
		mu    sync.Mutex
		ops   []porcupine.Operation
		out   RowsReport
		wg    sync.WaitGroup
		start = time.Now()
	)
	for id := range o.Clients {
		wg.Go(func() {
			// A connection each, so that requests race in the server.
			c, err := dial(ctx, addr)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				out.Failures = append(out.Failures, err.Error())
				return
			}
			defer c.close()
			w := rowClient{table: c.data.Open(table), rand: rand.New(rand.NewPCG(o.Seed, uint64(id)))}
			for n := 0; time.Since(start) < o.Duration && ctx.Err() == nil; n++ {
				seq := count.Add(1)
				in := w.draw(fmt.Sprintf("%d-%d", seq/int64(o.PerRow*o.Hot), w.rand.IntN(o.Hot)), fmt.Sprintf("%d.%d", id, n))
				octx, cancel := context.WithTimeout(once(ctx), o.Timeout)
				call := time.Since(start).Nanoseconds()
				answer, err := w.do(octx, in)
				op := porcupine.Operation{ClientId: id, Input: in, Call: call, Output: answer, Return: time.Since(start).Nanoseconds()}
				cancel()
				if err != nil {
					mu.Lock()
					if definite(err) {
						if len(out.Failures) < 10 {
							out.Failures = append(out.Failures, fmt.Sprintf("%v: %v", in, err))
						}
					} else if out.Unknown++; in.action != read {
						op.Output, op.Return = output{unknown: true}, math.MaxInt64
						ops = append(ops, op)
					}
					mu.Unlock()
					continue
				}
				mu.Lock()
				ops = append(ops, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	out.Operations, out.Rows = len(ops), len(Model.Partition(ops))
	out.Result, out.Info = porcupine.CheckOperationsVerbose(Model, ops, time.Minute)
	return &out, nil
}

type rowClient struct {
	table *bigtable.Table
	rand  *rand.Rand
	last  string // value of v that was seen last, to make swaps match
}

// draw makes an operation on key; id is unique to it.
func (w *rowClient) draw(key, id string) input {
	in := input{key: key, slot: w.rand.IntN(slots), amount: 1 + w.rand.Int64N(9), value: id}
	switch n := w.rand.IntN(100); {
	case n < 35:
		in.action = read
	case n < 55:
		in.action = setCell
	case n < 60:
		in.action = deleteRange
	case n < 63:
		in.action = deleteColumn
	case n < 66:
		in.action = deleteRow
	case n < 70:
		in.action = deleteAndSet
	case n < 80:
		in.action = increment
	case n < 86:
		in.action, in.value = appendLog, id+","
	default:
		in.action = swap
		if in.expect = w.last; w.rand.IntN(4) == 0 || in.expect == "" {
			in.expect = "nothing"
		}
	}
	return in
}

// micros is the timestamp of a slot.
func micros(slot int) bigtable.Timestamp { return bigtable.Timestamp(slot+1) * 1000 }

func (w *rowClient) do(ctx context.Context, in input) (out output, err error) {
	m := bigtable.NewMutation()
	switch in.action {
	case read:
		r, err := w.table.ReadRow(ctx, in.key, bigtable.RowFilter(bigtable.LatestNFilter(slots)))
		if err != nil {
			return out, err
		}
		out.state, err = stateOf(r)
		if v := out.state.newest(); v != "" {
			w.last = v
		}
		return out, err
	case increment, appendLog:
		rmw := bigtable.NewReadModifyWrite()
		rmw.Increment("f", "n", in.amount)
		if in.action == appendLog {
			rmw.AppendValue("g", "log", []byte(in.value))
		}
		r, err := w.table.ApplyReadModifyWrite(ctx, in.key, rmw)
		if err != nil {
			return out, err
		}
		s, err := stateOf(r)
		out.count, out.log = s.count, s.log
		return out, err
	case setCell:
		m.Set("f", "v", micros(in.slot), []byte(in.value))
	case deleteRange:
		m.DeleteTimestampRange("f", "v", micros(in.slot), 0)
	case deleteColumn:
		m.DeleteCellsInColumn("f", "n")
	case deleteRow:
		m.DeleteRow()
	case deleteAndSet:
		m.DeleteRow()
		m.Set("f", "v", micros(in.slot), []byte(in.value))
	case swap:
		then, otherwise := bigtable.NewMutation(), bigtable.NewMutation()
		then.Set("f", "v", micros(in.slot), []byte(in.value))
		otherwise.DeleteCellsInColumn("f", "n")
		m = bigtable.NewCondMutation(bigtable.ChainFilters(bigtable.ColumnFilter("v"), bigtable.LatestNFilter(1),
			bigtable.ValueFilter(quote(in.expect))), then, otherwise)
		err = w.table.Apply(ctx, in.key, m, bigtable.GetCondMutationResult(&out.matched))
		return out, err
	}
	return out, w.table.Apply(ctx, in.key, m)
}

// quote makes a pattern of an id, whose only special byte is the dot.
func quote(id string) string {
	var b []byte
	for i := range len(id) {
		if id[i] == '.' {
			b = append(b, '\\')
		}
		b = append(b, id[i])
	}
	return string(b)
}

// errShape is wrapped by what stateOf says of a row that cannot be.
var errShape = errors.New("the row is not one that was written")

// stateOf decodes a row. Cells come newest first.
func stateOf(r bigtable.Row) (s rowState, err error) {
	for _, items := range r {
		for _, it := range items {
			switch it.Column {
			case "f:v":
				slot := int(it.Timestamp/1000) - 1
				if slot < 0 || slot >= slots || s.versions[slot] != "" {
					return s, fmt.Errorf("%w: row %s has a cell v@%d, or has it twice", errShape, it.Row, it.Timestamp)
				}
				s.versions[slot] = string(it.Value)
			case "f:n":
				if !s.counted {
					if len(it.Value) != 8 {
						return s, fmt.Errorf("%w: row %s has a counter of %d bytes", errShape, it.Row, len(it.Value))
					}
					s.count, s.counted = int64(binary.BigEndian.Uint64(it.Value)), true
				}
			case "g:log":
				if s.log == "" {
					s.log = string(it.Value)
				}
			default:
				return s, fmt.Errorf("%w: row %s has a column %s", errShape, it.Row, it.Column)
			}
		}
	}
	return s, nil
}
