package matview

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

var seed = flag.Uint64("seed", 0, "of the random histories; 0 draws one")

func drawSeed(t *testing.T) uint64 {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return s
}

// A fakeRow is the cells of a row, by family and qualifier.
type fakeRow map[string]map[string][]byte

func (f fakeRow) Cell(family string, q []byte) ([]byte, error) { return f[family][string(q)], nil }

func (f fakeRow) Cells(from []byte, visit func(q, v []byte) bool) error {
	for _, q := range slices.Sorted(maps.Keys(f[CountsFamily])) {
		if q >= string(from) && !visit([]byte(q), f[CountsFamily][q]) {
			break
		}
	}
	return nil
}

func (f fakeRow) apply(muts []row.Mutation) {
	for _, m := range muts {
		switch m.Op {
		case row.SetCell:
			if f[m.Family] == nil {
				f[m.Family] = map[string][]byte{}
			}
			v := bytes.Clone(m.Value)
			if v == nil {
				v = []byte{}
			}
			f[m.Family][string(m.Qualifier)] = v
		case row.DeleteColumn:
			delete(f[m.Family], string(m.Qualifier))
		case row.DeleteFamily:
			delete(f, m.Family)
		}
	}
}

// visible returns what clients see, as text.
func (f fakeRow) visible() string {
	var out []string
	for fam, cells := range f {
		if Hidden(fam) {
			continue
		}
		for q, v := range cells {
			out = append(out, fmt.Sprintf("%s:%s=%x", fam, q, v))
		}
	}
	sort.Strings(out)
	return fmt.Sprint(out)
}

// A world is a source, its shards and a view.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	v      *schema.View
	source map[string][]rec // what each row contributes
	stored map[string][]byte
	shard  map[string]uint64
	seq    uint64
	outbox map[uint64][]parcel
	sent   []parcel
	target *Target
	rows   map[string]fakeRow
	deltas *Deltas
}

type rec struct {
	key  string
	args []Arg
}

type parcel struct {
	key string
	u   Update
}

func newWorld(t *testing.T, rnd *rand.Rand, v *schema.View) *world {
	return &world{t: t, rnd: rnd, v: v, source: map[string][]rec{}, stored: map[string][]byte{}, shard: map[string]uint64{}, seq: 1 << 50,
		outbox: map[uint64][]parcel{}, target: NewTarget(v), rows: map[string]fakeRow{}, deltas: NewDeltas(v)}
}

// round changes some rows of one shard, and puts what follows into its outbox.
func (w *world) round(change func() []rec) {
	id := uint64(w.rnd.IntN(4) + 1)
	w.deltas.Reset()
	for range w.rnd.IntN(6) + 1 {
		src := fmt.Sprintf("s%02d\x00", w.rnd.IntN(20))
		if w.rnd.IntN(8) == 0 {
			w.shard[src] = 0 // it is split off, or merged
		}
		switch w.shard[src] {
		case 0:
			w.shard[src] = id
		case id:
		default:
			continue
		}
		recs := change()
		var now []byte
		for _, r := range recs {
			var err error
			if now, err = AppendItem(now, w.v, []byte(r.key), r.args); err != nil {
				w.t.Fatal(err)
			}
		}
		if err := w.deltas.Change([]byte(src), w.stored[src], now); err != nil {
			w.t.Fatal(err)
		}
		w.source[src], w.stored[src] = recs, now
	}
	w.seq += uint64(w.rnd.IntN(100) + 1)
	last := ""
	err := w.deltas.Each(func(key, payload []byte) error {
		if string(key) <= last {
			w.t.Fatalf("%q comes after %q", key, last)
		}
		last = string(key)
		w.outbox[id] = append(w.outbox[id], parcel{string(key), Update{Shard: id, Seq: w.seq, Payload: bytes.Clone(payload)}})
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// ship sends some of the outbox of a shard, and some of what was sent before again.
func (w *world) ship(all bool) {
	ids := slices.Sorted(maps.Keys(w.outbox))
	w.rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	for _, id := range ids {
		box := w.outbox[id]
		n := w.rnd.IntN(len(box) + 1)
		if all {
			n = len(box)
		}
		batch := map[string][]Update{}
		for _, p := range box[:n] {
			batch[p.key] = append(batch[p.key], p.u)
		}
		w.sent = append(w.sent, box[:n]...)
		w.outbox[id] = box[n:]
		for _, key := range slices.Sorted(maps.Keys(batch)) {
			w.apply(key, batch[key])
		}
	}
	// What was sent comes again in order, from some point of a shard on.
	if len(w.sent) > 0 && w.rnd.IntN(2) == 0 {
		for _, p := range w.sent[w.rnd.IntN(len(w.sent)):] {
			w.apply(p.key, []Update{p.u})
		}
	}
}

func (w *world) apply(key string, us []Update) {
	r := w.rows[key]
	if r == nil {
		r = fakeRow{}
		w.rows[key] = r
	}
	muts, err := w.target.Apply(r, us, time.UnixMicro(1))
	if err != nil {
		w.t.Fatalf("row %q: %v", key, err)
	}
	r.apply(muts)
}

// check compares the rows with what expect makes of the items of each.
func (w *world) check(expect func(items []srcItem) fakeRow) {
	w.t.Helper()
	want := map[string][]srcItem{}
	for _, src := range slices.Sorted(maps.Keys(w.source)) {
		for _, r := range w.source[src] {
			want[r.key] = append(want[r.key], srcItem{src, r.args})
		}
	}
	for key, r := range w.rows {
		got, exp := r.visible(), fakeRow{}.visible()
		if items := want[key]; len(items) > 0 {
			exp = expect(items).visible()
		}
		delete(want, key)
		if got != exp {
			w.t.Fatalf("row %q is\n%s\nwant\n%s", key, got, exp)
		}
		if got == "[]" {
			if len(r[StateFamily]) > 0 || len(r[CountsFamily]) > 0 || len(r[GoneFamily]) != 1 {
				w.t.Fatalf("row %q is gone and keeps %v", key, r)
			}
		} else if len(r[GoneFamily]) > 0 || len(r[StateFamily]) != 1 {
			w.t.Fatalf("row %q is there and keeps %v", key, r)
		}
	}
	for key := range want {
		w.t.Fatalf("row %q is missing", key)
	}
}

type srcItem struct {
	src  string
	args []Arg
}

func groupView() *schema.View {
	c := func(name string, f schema.ViewAggregate, arg, typ schema.ViewType) schema.ViewColumn {
		return schema.ViewColumn{Name: name, Family: "default", Qualifier: name, Aggregate: f, Arg: arg, Type: typ}
	}
	v := &schema.View{Name: "projects/p/instances/i/materializedViews/v", Columns: []schema.ViewColumn{
		c("n", schema.ViewCountRows, 0, schema.ViewInt),
		c("count", schema.ViewCount, schema.ViewInt, schema.ViewInt),
		c("sum", schema.ViewSum, schema.ViewInt, schema.ViewInt),
		c("avg", schema.ViewAvg, schema.ViewInt, schema.ViewFloat),
		c("fsum", schema.ViewSum, schema.ViewFloat, schema.ViewFloat),
		c("favg", schema.ViewAvg, schema.ViewFloat, schema.ViewFloat),
		c("min", schema.ViewMin, schema.ViewString, schema.ViewString),
		c("max", schema.ViewMax, schema.ViewString, schema.ViewString),
		c("imin", schema.ViewMin, schema.ViewInt, schema.ViewInt),
		c("fmax", schema.ViewMax, schema.ViewFloat, schema.ViewFloat),
		c("any", schema.ViewAny, schema.ViewBytes, schema.ViewBytes),
		c("and", schema.ViewBitAnd, schema.ViewInt, schema.ViewInt),
		c("or", schema.ViewBitOr, schema.ViewInt, schema.ViewInt),
		c("xor", schema.ViewBitXor, schema.ViewInt, schema.ViewInt),
		c("hll", schema.ViewSketch, schema.ViewInt, schema.ViewBytes),
		c("thll", schema.ViewSketch, schema.ViewString, schema.ViewBytes),
		c("merge", schema.ViewMerge, schema.ViewBytes, schema.ViewInt),
		c("partial", schema.ViewMergeSketch, schema.ViewBytes, schema.ViewBytes),
	}}
	v.Columns[2].Family, v.Columns[2].Qualifier = "result", "sum"
	v.Columns[14].Precision, v.Columns[15].Precision = 10, 15
	return v
}

// drawArgs draws the arguments of a row of a group.
func drawArgs(rnd *rand.Rand, v *schema.View, wide bool) []Arg {
	args := make([]Arg, len(v.Columns))
	for i, c := range v.Columns {
		a := &args[i]
		if rnd.IntN(5) == 0 {
			continue
		}
		a.Valid = true
		ints := []int64{0, 1, -1, 2, 1000, math.MaxInt64, math.MinInt64, 1 << 40, -7}
		a.Int = ints[rnd.IntN(len(ints))]
		floats := []float64{0, 1, -1, 0.1, 1e300, -1e300, 1e-300, math.SmallestNonzeroFloat64, math.MaxFloat64, -math.MaxFloat64}
		if rnd.IntN(20) == 0 {
			floats = []float64{math.NaN(), math.Inf(1), math.Inf(-1)}
		}
		a.Float = floats[rnd.IntN(len(floats))]
		texts := []string{"", "a", "b", "ab", "\x00", "a\x00", "a\x00b", "\xff", "a\xff", "a\x01"}
		a.Text = texts[rnd.IntN(len(texts))]
		if wide {
			a.Int = rnd.Int64N(5000)
			a.Text = fmt.Sprint(rnd.IntN(5000))
		}
		if c.Aggregate == schema.ViewMerge || c.Aggregate == schema.ViewMergeSketch {
			p := []int{15, 15, 15, 12}[rnd.IntN(4)]
			k := aggregate.NewSketch(p)
			for range rnd.IntN(20) {
				_ = k.AddInt(rnd.Int64N(100))
			}
			if rnd.IntN(30) == 0 {
				for i := range int64(4000) {
					_ = k.AddInt(i)
				}
			}
			a.Text = string(k.Encode())
		}
	}
	return args
}

// expectGroup computes the cells of a group as a query does, by arithmetic of its own.
func expectGroup(v *schema.View) func([]srcItem) fakeRow {
	return func(items []srcItem) fakeRow {
		out := fakeRow{"default": {"": {}}, "result": {}}
		for i, c := range v.Columns {
			var vals []Arg
			for _, it := range items {
				if it.args[i].Valid {
					vals = append(vals, it.args[i])
				}
			}
			be := func(u uint64) []byte { return binary.BigEndian.AppendUint64(nil, u) }
			var b []byte
			switch c.Aggregate {
			case schema.ViewCountRows:
				b = be(uint64(len(items)))
			case schema.ViewCount:
				b = be(uint64(len(vals)))
			case schema.ViewMerge:
				b = be(0)
			}
			if len(vals) == 0 {
				if b != nil {
					out[c.Family][c.Qualifier] = b
				}
				continue
			}
			switch c.Aggregate {
			case schema.ViewSum, schema.ViewAvg:
				b = expectSum(vals, c)
			case schema.ViewMin, schema.ViewMax, schema.ViewAny:
				best := vals[0]
				for _, x := range vals[1:] {
					if c.Aggregate == schema.ViewMax && less(c.Arg, best, x) || c.Aggregate != schema.ViewMax && less(c.Arg, x, best) ||
						c.Arg == schema.ViewFloat && math.IsNaN(x.Float) {
						best = x
					}
				}
				b = AppendValue([]byte{}, c.Arg, &best)
			case schema.ViewBitAnd, schema.ViewBitOr, schema.ViewBitXor:
				x := vals[0].Int
				for _, y := range vals[1:] {
					switch c.Aggregate {
					case schema.ViewBitAnd:
						x &= y.Int
					case schema.ViewBitOr:
						x |= y.Int
					default:
						x ^= y.Int
					}
				}
				b = be(uint64(x))
			case schema.ViewSketch:
				k := aggregate.NewSketch(c.Precision)
				for _, x := range vals {
					if c.Arg == schema.ViewInt {
						_ = k.AddInt(x.Int)
					} else {
						_ = k.AddBytes([]byte(x.Text))
					}
				}
				b = k.Encode()
			case schema.ViewMerge, schema.ViewMergeSketch:
				k, _ := aggregate.ParseSketch([]byte(vals[0].Text))
				for _, x := range vals[1:] {
					o, _ := aggregate.ParseSketch([]byte(x.Text))
					if err := k.Merge(o); err != nil {
						panic(err)
					}
				}
				if b = be(uint64(k.Estimate())); c.Aggregate == schema.ViewMergeSketch {
					b = k.Encode()
				}
			}
			if b != nil {
				out[c.Family][c.Qualifier] = b
			}
		}
		return out
	}
}

func less(t schema.ViewType, a, b Arg) bool {
	switch t {
	case schema.ViewInt:
		return a.Int < b.Int
	case schema.ViewFloat:
		return a.Float < b.Float
	}
	return a.Text < b.Text
}

func expectSum(vals []Arg, c schema.ViewColumn) []byte {
	mean := c.Aggregate == schema.ViewAvg
	sum := new(big.Rat)
	var nan, up, down int
	for _, x := range vals {
		switch {
		case c.Arg == schema.ViewInt:
			sum.Add(sum, new(big.Rat).SetInt64(x.Int))
		case math.IsNaN(x.Float):
			nan++
		case math.IsInf(x.Float, 1):
			up++
		case math.IsInf(x.Float, -1):
			down++
		default:
			sum.Add(sum, new(big.Rat).SetFloat64(x.Float))
		}
	}
	n := new(big.Rat).SetInt64(int64(len(vals)))
	var f float64
	switch {
	case nan > 0 || up > 0 && down > 0 || mean && up+down > 0 && len(vals) > 1:
		f = math.NaN()
	case up > 0:
		f = math.Inf(1)
	case down > 0:
		f = math.Inf(-1)
	case c.Arg == schema.ViewInt && !mean:
		if !sum.Num().IsInt64() {
			return nil
		}
		return binary.BigEndian.AppendUint64(nil, uint64(sum.Num().Int64()))
	default:
		f, _ = sum.Float64()
		switch {
		case mean && c.Arg == schema.ViewFloat && math.Abs(f) <= 1e300:
			f = expectMean(sum, float64(len(vals)))
		case mean:
			f, _ = sum.Quo(sum, n).Float64()
		}
		if math.IsInf(f, 0) {
			return nil
		}
	}
	return binary.BigEndian.AppendUint64(nil, math.Float64bits(f))
}

// expectMean is the mean of n numbers whose exact sum is given, rounded as a query's AVG
// does: in a few of a million cases that is not the nearest number, but the one beside it.
func expectMean(sum *big.Rat, n float64) float64 {
	hi, _ := sum.Float64()
	lo, _ := new(big.Rat).Sub(sum, new(big.Rat).SetFloat64(hi)).Float64()
	q := (hi + lo) / n
	return q + (math.FMA(-q, n, hi)+lo)/n
}

// TestGroups lets the rows of a source change, in shards that take rows from each
// other, while their updates come late, twice, and those of different shards in any
// order. Whenever all have come, each group is what a query makes of its rows.
func TestGroups(t *testing.T) {
	s := drawSeed(t)
	runs, rounds := 30, 60
	if testing.Short() {
		runs = 8
	}
	for run := range runs {
		rnd := rand.New(rand.NewPCG(s, uint64(run)))
		v := groupView()
		w := newWorld(t, rnd, v)
		wide := run%4 == 3
		for range rounds {
			w.round(func() (out []rec) {
				for range rnd.IntN(3) {
					out = append(out, rec{fmt.Sprintf("g%d", rnd.IntN(3)), drawArgs(rnd, v, wide)})
				}
				return out
			})
			if rnd.IntN(3) == 0 {
				w.ship(false)
			}
			if rnd.IntN(10) == 0 {
				w.ship(true)
				w.check(expectGroup(v))
			}
		}
		// All of it goes.
		for range 40 {
			w.round(func() []rec { return nil })
			w.ship(false)
		}
		w.ship(true)
		w.check(expectGroup(v))
	}
}

// TestSketchGrowsAndShrinks has so many values counted that a sketch changes its form,
// both ways.
func TestSketchGrowsAndShrinks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(drawSeed(t), 1))
	v := &schema.View{Columns: []schema.ViewColumn{{Name: "hll", Family: "default", Qualifier: "hll", Aggregate: schema.ViewSketch, Arg: schema.ViewInt, Precision: 10}}}
	w := newWorld(t, rnd, v)
	for step := range 60 {
		n := step * 5
		if step >= 30 {
			n = (60 - step) * 5
		}
		for range 4 {
			w.round(func() (out []rec) {
				for range n {
					out = append(out, rec{"g", []Arg{{Valid: true, Int: rnd.Int64N(3000)}}})
				}
				return out
			})
		}
		w.ship(true)
		w.check(expectGroup(v))
	}
}

func indexView() *schema.View {
	return &schema.View{Index: true, Columns: []schema.ViewColumn{
		{Name: "a", Family: "default", Qualifier: "a", Type: schema.ViewString},
		{Name: "f.b", Family: "f", Qualifier: "b", Type: schema.ViewInt},
		{Name: "m", Family: "m", Map: true, Type: schema.ViewBytes},
	}}
}

// TestIndex is TestGroups of an index.
func TestIndex(t *testing.T) {
	s := drawSeed(t)
	v := indexView()
	expect := func(items []srcItem) fakeRow {
		// The cells of the smallest source key, of several the one whose hash comes first.
		var best []byte
		var args []Arg
		for _, it := range items {
			c, err := AppendItem(nil, v, nil, it.args)
			if err != nil {
				t.Fatal(err)
			}
			list, err := parseContribution(nil, c)
			if err != nil {
				t.Fatal(err)
			}
			if n := indexName(nil, []byte(it.src), list[0].args); best == nil || bytes.Compare(n, best) < 0 {
				best, args = n, it.args
			}
		}
		out := fakeRow{"default": {"": {}}, "f": {}, "m": {}}
		for i, c := range v.Columns {
			switch a := args[i]; {
			case c.Map:
				for j := 0; j < len(a.Map); j += 2 {
					out["m"][a.Map[j]] = []byte(a.Map[j+1])
				}
			case a.Valid:
				out[c.Family][c.Qualifier] = AppendValue([]byte{}, c.Type, &a)
			}
		}
		return out
	}
	for run := range 20 {
		rnd := rand.New(rand.NewPCG(s, uint64(run)))
		w := newWorld(t, rnd, v)
		for range 80 {
			w.round(func() (out []rec) {
				for range rnd.IntN(4) {
					a := make([]Arg, 3)
					a[0] = Arg{Valid: rnd.IntN(2) == 0, Text: []string{"", "x", "y"}[rnd.IntN(3)]}
					a[1] = Arg{Valid: rnd.IntN(2) == 0, Int: rnd.Int64N(3)}
					for q := range rnd.IntN(3) {
						a[2].Map = append(a[2].Map, fmt.Sprint(q+rnd.IntN(2)*10), "v")
					}
					out = append(out, rec{fmt.Sprintf("k%d", rnd.IntN(4)), a})
				}
				return out
			})
			w.ship(false)
			if rnd.IntN(8) == 0 {
				w.ship(true)
				w.check(expect)
			}
		}
		for range 40 {
			w.round(func() []rec { return nil })
		}
		w.ship(true)
		w.check(expect)
	}
}
