package aggregate

import "math"

// Estimate returns about how many distinct inputs the state of an HLL cell has
// seen; 0 for nil. A malformed state is fault.Invalid.
//
// The result is the same as ZetaSketch's for a sparse state. It also is for a
// dense one of m registers, up to the cardinality where linear counting ends
// (about 0.6 m at the usual precisions) and beyond 5 m. Between these
// ZetaSketch corrects the bias by an empirical table, where Estimate uses
// Ertl's improved raw estimator ("New cardinality estimation algorithms for
// HyperLogLog sketches", 2017), which needs none. Both have the standard error
// of 1.04/sqrt(m), 0.6 % at precision 15, and differ by a fraction of that.
func Estimate(state []byte) (int64, error) {
	if state == nil {
		return 0, nil
	}
	s, err := decode(state)
	if err != nil {
		return 0, err
	}
	return s.estimate(), nil
}

func (s *sketch) estimate() int64 {
	if s.isSparse() {
		m := float64(int(1) << s.sp)
		return round(linearCount(m, m-float64(len(s.sparse))))
	}
	if s.dense == nil {
		return 0
	}
	var count [66]int // of registers by what they hold
	for _, r := range s.dense {
		count[r]++
	}
	m := float64(s.registers())
	if count[0] > 0 {
		if n := linearCount(m, float64(count[0])); n <= linearLimit(s.p) {
			return round(n)
		}
	}
	sum := 0.0
	for r := len(count) - 1; r >= 0; r-- {
		sum += math.Ldexp(float64(count[r]), -r)
	}
	if raw := alpha(s.p) * m * m / sum; raw > 5*m {
		return round(raw)
	}
	return round(ertl(count[:66-s.p], m))
}

// linearCount estimates how many balls leave that many of m bins empty.
func linearCount(m, empty float64) float64 {
	if empty <= 0 {
		empty = 1 // one more value and it would be full; only tiny sketches get here
	}
	return m * math.Log(m/empty)
}

func round(f float64) int64 { return int64(math.Round(f)) }

// alpha is the constant of the raw estimate, from the HyperLogLog paper.
func alpha(p int) float64 {
	switch p {
	case 4:
		return 0.673
	case 5:
		return 0.697
	case 6:
		return 0.709
	}
	return 0.7213 / (1 + 1.079/float64(int(1)<<p))
}

// linearLimit is up to where linear counting is the better estimate, from the
// HyperLogLog++ paper.
func linearLimit(p int) float64 {
	limits := [...]float64{4: 10, 5: 20, 6: 40, 7: 80, 8: 220, 9: 400, 10: 900, 11: 1800, 12: 3100,
		13: 6500, 14: 11_500, 15: 20_000, 16: 50_000, 17: 120_000, 18: 350_000}
	if p < len(limits) {
		return limits[p]
	}
	return 2.5 * float64(int(1)<<p)
}

// ertl is the improved raw estimator. count[r] is how many of m registers hold
// r; the last of them is full.
func ertl(count []int, m float64) float64 {
	q := len(count) - 2
	z := m * tau(1-float64(count[q+1])/m)
	for r := q; r >= 1; r-- {
		z = (z + float64(count[r])) / 2
	}
	z += m * sigma(float64(count[0])/m)
	return m * m / (2 * math.Ln2 * z)
}

// sigma is x + sum of x^(2^k) 2^(k-1) over k >= 1: what empty registers say.
func sigma(x float64) float64 {
	if x == 1 {
		return math.Inf(1)
	}
	z, y := x, 1.0
	for {
		x *= x
		before := z
		z += x * y
		y += y
		if z == before {
			return z
		}
	}
}

// tau is (1 - x - sum of (1 - x^(2^-k))^2 2^-k over k >= 1) / 3: what full
// registers say.
func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	z, y := 1-x, 1.0
	for {
		x = math.Sqrt(x)
		before := z
		y /= 2
		z -= (1 - x) * (1 - x) * y
		if z == before {
			return z / 3
		}
	}
}
