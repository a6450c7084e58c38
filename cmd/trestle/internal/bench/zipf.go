package bench

import "math"

// A zipf draws numbers below n, small ones most often, with YCSB's skew.
type zipf struct {
	n                        uint64
	zetan, alpha, eta, half2 float64
}

const zipfTheta = 0.99

func newZipf(n uint64) *zipf {
	z := &zipf{n: n, alpha: 1 / (1 - zipfTheta), half2: 1 + math.Pow(0.5, zipfTheta)}
	for i := uint64(1); i <= n; i++ {
		z.zetan += 1 / math.Pow(float64(i), zipfTheta)
	}
	z.eta = (1 - math.Pow(2/float64(n), 1-zipfTheta)) / (1 - z.half2/z.zetan)
	return z
}

// at turns a uniform u in [0, 1) into a number (Gray et al., "Quickly
// generating billion-record synthetic databases").
func (z *zipf) at(u float64) uint64 {
	uz := u * z.zetan
	switch {
	case uz < 1 || z.n == 1:
		return 0
	case uz < z.half2:
		return 1
	}
	return min(z.n-1, uint64(float64(z.n)*math.Pow(z.eta*u-z.eta+1, z.alpha)))
}
