package matview

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/varint"
)

// TestExact adds floats of all exponents in any order, takes some away, and compares
// with rational arithmetic.
func TestExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(drawSeed(t), 1))
	draw := func() float64 {
		for {
			f := math.Float64frombits(rnd.Uint64())
			switch rnd.IntN(4) {
			case 0:
				f = math.Float64frombits(rnd.Uint64() >> rnd.IntN(64)) // small and subnormal
			case 1:
				f = math.Ldexp(float64(rnd.Int64N(1<<20)-1<<19), rnd.IntN(120)-60)
			}
			if f-f == 0 {
				return f
			}
		}
	}
	for range 3000 {
		var e exact
		want := new(big.Rat)
		var in []float64
		for range rnd.IntN(6) + 1 {
			x := draw()
			e.add(x, false)
			want.Add(want, new(big.Rat).SetFloat64(x))
			in = append(in, x)
		}
		if rnd.IntN(3) == 0 { // a tie, or nearly one
			x := math.Nextafter(in[0], 2*in[0])
			half := (x - in[0]) / 2
			for _, y := range []float64{in[0], half} {
				if y-y == 0 {
					e.add(y, false)
					want.Add(want, new(big.Rat).SetFloat64(y))
					in = append(in, y)
				}
			}
		}
		f, _ := want.Float64()
		if got := e.round(); got != f && !(math.IsInf(got, 0) && math.IsInf(f, 0)) {
			t.Fatalf("%v add up to %v, want %v", in, got, f)
		}
		r := varint.Of(e.append(nil))
		var back exact
		if back.read(&r); back != e || r.Bad() || r.Len() > 0 {
			t.Fatalf("%v: read back %x, want %x", in, back, e)
		}
		if want.Mul(want, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), 1074))); e.big().Cmp(want.Num()) != 0 {
			t.Fatalf("%v: %v units, want %v", in, e.big(), want)
		}
		rnd.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		for _, x := range in {
			e.add(x, true)
		}
		if !e.isZero() {
			t.Fatalf("%v leave %x", in, e)
		}
	}
}
