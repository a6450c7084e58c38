package history

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
)

// Bank moves money between accounts that are columns, in several families, of
// one row. Every move is one ReadModifyWriteRow, so every read must find the
// same sum. It returns the number of moves and of reads.
func Bank(ctx context.Context, addr, table string, clients int, d time.Duration, seed uint64) (moves, reads int64, err error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return 0, 0, err
	}
	defer c.close()
	families := []string{"a", "b", "c"}
	t, err := c.table(ctx, table, families...)
	if err != nil {
		return 0, 0, err
	}
	const accounts = 4 // in each family
	var moved, looked atomic.Int64
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	deadline := time.Now().Add(d)
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(id)))
			account := func() (string, string) {
				return families[r.IntN(len(families))], fmt.Sprint(r.IntN(accounts))
			}
			for time.Now().Before(deadline) && ctx.Err() == nil {
				if r.IntN(3) > 0 {
					m := bigtable.NewReadModifyWrite()
					n := r.Int64N(100)
					f1, q1 := account()
					f2, q2 := account()
					m.Increment(f1, q1, -n)
					m.Increment(f2, q2, n)
					if _, err := t.ApplyReadModifyWrite(ctx, "bank", m); err != nil {
						stop(fmt.Errorf("move: %w", err))
						return
					}
					moved.Add(1)
					continue
				}
				row, err := t.ReadRow(ctx, "bank", bigtable.RowFilter(bigtable.LatestNFilter(1)))
				if err != nil {
					stop(fmt.Errorf("read: %w", err))
					return
				}
				var sum int64
				for _, items := range row {
					for _, it := range items {
						sum += int64(binary.BigEndian.Uint64(it.Value))
					}
				}
				if sum != 0 {
					stop(fmt.Errorf("the accounts sum to %d: %v", sum, row))
					return
				}
				looked.Add(1)
			}
		})
	}
	wg.Wait()
	return moved.Load(), looked.Load(), context.Cause(ctx)
}

// A RingReport is what Ring found. Undefined nodes are pointed to and not
// there: writes that were acknowledged and lost.
type RingReport struct {
	Nodes, Undefined, Unreferenced int
}

// Ring writes a linked list: in rounds, each client writes a batch of nodes
// that point to the nodes of its batch before, which have been acknowledged.
// The last round is pointed to by nobody. Then it scans the table.
func Ring(ctx context.Context, addr, table string, clients, rounds, batch int, seed uint64) (*RingReport, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.close()
	t, err := c.table(ctx, table, "f")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(id)))
			last := make([]string, batch)
			for range rounds {
				keys, muts := make([]string, batch), make([]*bigtable.Mutation, batch)
				for i := range keys {
					keys[i] = fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64())
					muts[i] = bigtable.NewMutation()
					muts[i].Set("f", "prev", 0, []byte(last[i]))
				}
				errs, err := t.ApplyBulk(ctx, keys, muts)
				if err == nil && len(errs) > 0 {
					err = fmt.Errorf("%d entries failed, such as: %w", len(errs), errs[0])
				}
				if err != nil {
					stop(fmt.Errorf("write: %w", err))
					return
				}
				last = keys
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	defined, referenced := map[string]bool{}, map[string]bool{}
	err = t.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		if defined[r.Key()] {
			stop(fmt.Errorf("the scan returned row %s twice", r.Key()))
			return false
		}
		defined[r.Key()] = true
		for _, it := range r["f"] {
			if len(it.Value) > 0 {
				referenced[string(it.Value)] = true
			}
		}
		return true
	})
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	out := &RingReport{Nodes: len(defined)}
	for k := range referenced {
		if !defined[k] {
			out.Undefined++
		}
	}
	for k := range defined {
		if !referenced[k] {
			out.Unreferenced++
		}
	}
	return out, nil
}
