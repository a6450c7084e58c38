//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A history is what several clients did to rows that they share.
type history struct {
	mu  sync.Mutex
	ops []porcupine.Operation
	// noReads leaves out what has only read.
	noReads bool
}

type rowOp struct{ kind, key, arg string }

// unknownResult is the output of an operation of which nobody knows whether it
// was carried out: it may take effect at any later time, or never.
const unknownResult = "?"

func (h *history) work(ctx context.Context, t *testing.T, c *client.Client, id int, rng *rand.Rand, stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(50+rng.IntN(500)) * time.Millisecond):
		}
		o := rowOp{[]string{"read", "append", "append", "check"}[rng.IntN(4)], []string{"k1z", "k4z", "k7z"}[rng.IntN(3)], fmt.Sprintf("%c%d.", 'a'+id, i)}
		one, cancel := context.WithTimeout(ctx, 20*time.Second)
		call := time.Now().UnixNano()
		got, err := o.do(one, c)
		end := time.Now().UnixNano()
		if err != nil && one.Err() == nil && !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Exhausted) {
			t.Errorf("%v: %v", o, err)
		}
		cancel()
		if err != nil {
			if o.kind == "read" {
				continue
			}
			got, end = unknownResult, math.MaxInt64
		}
		if h.noReads && (o.kind == "read" || got == "false") {
			continue
		}
		h.mu.Lock()
		h.ops = append(h.ops, porcupine.Operation{ClientId: id, Input: o, Call: call, Output: got, Return: end})
		h.mu.Unlock()
		if err != nil {
			id += 10 // its last operation has not ended
		}
	}
}

func (o rowOp) do(ctx context.Context, c *client.Client) (string, error) {
	key := []byte(o.key)
	switch o.kind {
	case "append":
		cells, err := c.ReadModifyWriteRow(ctx, tableName, key, []row.Rule{{Family: "a", Qualifier: []byte("q"), IsAppend: true, Append: []byte(o.arg)}})
		if err != nil {
			return "", err
		}
		return string(cells[0].Value), nil
	case "check":
		// Begins anew, if there is anything.
		matched, err := c.CheckAndMutateRow(ctx, tableName, key, nil, []row.Mutation{{Op: row.DeleteRow}, {Op: row.SetCell, Family: "a", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(o.arg)}}, nil)
		return fmt.Sprint(matched), err
	}
	w := new(collector)
	_, err := c.ReadRows(ctx, &scan.Request{Table: tableName, Ranges: []row.Range{row.Single(key)}}, w)
	if err != nil || len(w.values) == 0 {
		return "", err
	}
	return w.values[0], nil
}

// check checks invariant I4: the operations on each row are linearizable. It
// runs in real time.
func (h *history) check(t *testing.T) {
	t.Helper()
	m := porcupine.Model{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, o := range h {
				k := o.Input.(rowOp).key
				by[k] = append(by[k], o)
			}
			var out [][]porcupine.Operation
			for _, p := range by {
				out = append(out, p)
			}
			return out
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			old, o, got := state.(string), input.(rowOp), output.(string)
			switch o.kind {
			case "append":
				return got == unknownResult || got == old+o.arg, old + o.arg
			case "check":
				next := o.arg
				if old == "" {
					next = ""
				}
				return got == unknownResult || got == fmt.Sprint(old != ""), next
			}
			return got == old, old
		},
	}
	switch porcupine.CheckOperationsTimeout(m, h.ops, 5*time.Second) {
	case porcupine.Illegal:
		t.Errorf("I4: %d operations of rows are not linearizable", len(h.ops))
	case porcupine.Unknown:
		t.Logf("%d operations: too many to tell whether they are linearizable", len(h.ops))
	}
}
