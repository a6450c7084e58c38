package functions

import (
	"math"
	"strconv"
)

// freeBytes is how much a result may take without asking Call.Grow.
const freeBytes = 4 << 10

// grow asks for n bytes, if they are many.
func grow(c *Call, n int) error {
	if n <= freeBytes || c == nil || c.Grow == nil {
		return nil
	}
	return c.Grow(int64(n))
}

// growBytes returns n zero bytes, after asking for them.
func growBytes(c *Call, n int) ([]byte, error) {
	if err := grow(c, n); err != nil {
		return nil, err
	}
	return make([]byte, n), nil
}

// unsigned returns f, and 0 for -0: casts to STRING and FORMAT's %f, %e and %g write a 0
// without a sign.
func unsigned(f float64) float64 { return f + 0 }

// appendFloat appends a FLOAT64 (bits 64) with 15 digits, or with 17 if 15 read as another
// number; a FLOAT32 (bits 32) with 6 or 8: 1.1, 1e+20, -inf, nan.
func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	digits := 15
	if bits == 32 {
		digits = 6
	}
	at := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', digits, bits)
	if back, err := strconv.ParseFloat(string(dst[at:]), bits); err != nil || back != f {
		dst = strconv.AppendFloat(dst[:at], f, 'g', digits+2, bits)
	}
	return dst
}
