package filter

import (
	"math"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
)

// nodeOf reads any Node from b, valid or not, and returns what is left.
func nodeOf(b []byte, depth int) (*Node, []byte) {
	next := func() byte {
		if len(b) == 0 {
			return 0
		}
		c := b[0]
		b = b[1:]
		return c
	}
	some := func() []byte {
		n := min(int(next()%16), len(b))
		s := b[:n]
		b = b[n:]
		return s
	}
	n := &Node{Op: Op(next() % 24)}
	if n.Op == 0 {
		return nil, b
	}
	switch n.Op {
	case Chain, Interleave, Condition:
		for range next() % 5 {
			var k *Node
			if depth < 40 {
				k, b = nodeOf(b, depth+1)
			}
			n.Children = append(n.Children, k)
		}
	case RowSample:
		n.P = float64(next()) / 128
	case ColumnRange, ValueRange:
		flags := next()
		n.Start = Bound{Key: some(), Set: flags&1 != 0, Open: flags&2 != 0}
		n.End = Bound{Key: some(), Set: flags&4 != 0, Open: flags&8 != 0}
		n.Family = string(some())
	case TimestampRange:
		n.Times = cell.TimeRange{Start: int64(next()), End: int64(next())}
		if n.Times.End == 255 {
			n.Times.End = math.MaxInt64
		}
	case ApplyLabel:
		n.Label = string(some())
	default:
		n.N = int32(int8(next()))
		n.Pattern = some()
	}
	return n, b
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte{3, 2, 9, 0, 1, 'a', 18, 1})
	f.Add([]byte{4, 3, 5, 3, 13, 0, 1, 'x', 0, 1, 6, 18, 1, 20, 1, 'l'})
	f.Add([]byte{5, 3, 0, 3, 2, 4, 2, 1, 1, 4, 2, 1, 1, 0})
	cells := parseCells("a:p@9=x a:q@5=v1 a:q@3=v2 b:q@4=v2 b:q@2= c:z@7=x")
	f.Fuzz(func(t *testing.T, b []byte) {
		n, _ := nodeOf(b, 0)
		n.LiteralFamilies()
		p, err := Compile(n)
		if (err == nil) != (n.Validate() == nil) {
			t.Fatal("Compile and Validate disagree")
		}
		if err != nil {
			return
		}
		var want string
		for i, how := range readers {
			var out collector
			pl := p.Pipeline(&out, func() float64 { return 0.5 })
			got := canonical(read(pl, p.Hints(), &out, how, []byte("k"), cells))
			if i == 0 {
				want = got
			} else if got != want {
				t.Fatalf("%s reader of %v got\n%swant\n%s", how.name, n, got, want)
			}
		}
	})
}
