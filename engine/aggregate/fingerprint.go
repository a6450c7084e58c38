package aggregate

import (
	"encoding/binary"
	"math/bits"
)

// Constants of Fingerprint2011, a hash in the line of CityHash that Google's
// libraries use where a hash is stored.
const (
	fp0 = 0xa5b85c5e198ed849
	fp1 = 0x8d58ac26afe12e47
	fp2 = 0xc47b6e9e3a970ed3
	fp3 = 0xc6a4a7935bd1e995
)

// fingerprint returns the Fingerprint2011 of b.
func fingerprint(b []byte) uint64 {
	n := len(b)
	var h uint64
	switch {
	case n <= 32:
		h = fpShort(b)
	case n <= 64:
		h = fpMedium(b)
	default:
		h = fpLong(b)
	}
	first, last := uint64(fp0), uint64(fp0)
	if n >= 8 {
		first = le64(b)
	}
	if n >= 9 {
		last = le64(b[n-8:])
	}
	h = fpMix(h+last, first)
	if h <= 1 {
		h -= 2 // 0 and 1 are left free for other uses
	}
	return h
}

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func fold(x uint64) uint64 { return x ^ x>>47 }

func ror(x uint64, k int) uint64 { return bits.RotateLeft64(x, -k) }

func fpMix(hi, lo uint64) uint64 {
	return fold((hi^fold((lo^hi)*fp3))*fp3) * fp3
}

// fpShort is MurmurHash64A with a fixed seed.
func fpShort(b []byte) uint64 {
	h := uint64(fp0^fp1^fp2) ^ uint64(len(b))*fp3
	for ; len(b) >= 8; b = b[8:] {
		h = (h ^ fold(le64(b)*fp3)*fp3) * fp3
	}
	if len(b) > 0 {
		var rest [8]byte
		copy(rest[:], b)
		h = (h ^ le64(rest[:])) * fp3
	}
	return fold(fold(h) * fp3)
}

// fpHalf digests 32 bytes from which the start of the first sum and the whole
// of the second depend on carry.
func fpHalf(b0, b1, b2, b3, carry uint64) (sum, mix uint64) {
	a := b0 + carry
	x := ror(a+b3, 52)
	y := ror(a, 37)
	a += b1
	y += ror(a, 7)
	a += b2
	return a + b3, x + ror(a, 31) + y
}

func fpMedium(b []byte) uint64 {
	n := len(b)
	s1, m1 := fpHalf(le64(b), le64(b[8:]), le64(b[16:]), le64(b[24:]), (uint64(n)+le64(b[n-16:]))*fp0)
	s2, m2 := fpHalf(le64(b[n-32:]), le64(b[n-24:]), le64(b[n-16:]), le64(b[n-8:]), le64(b[16:]))
	return fold(fold((s1+m2)*fp2+(s2+m1)*fp0)*fp0+m1) * fp2
}

// fpBlock digests 32 bytes under two seeds.
func fpBlock(b []byte, s, t uint64) (uint64, uint64) {
	b0, b1, b2, b3 := le64(b), le64(b[8:]), le64(b[16:]), le64(b[24:])
	s += b0
	t = ror(t+s+b3, 51)
	start := s
	s += b1 + b2
	t += ror(s, 23)
	return s + b3, t + start
}

func fpLong(b []byte) uint64 {
	n := len(b)
	x := le64(b)
	y := le64(b[n-16:]) ^ fp1
	z := le64(b[n-56:]) ^ fp0
	v0, v1 := fpBlock(b[n-64:], uint64(n), y)
	w0, w1 := fpBlock(b[n-32:], uint64(n)*fp1, fp0)
	z += fold(v1) * fp1
	x = ror(z+x, 39) * fp1
	y = ror(y, 33) * fp1
	// The last block, whole or not, was digested above.
	for ; len(b) > 64; b = b[64:] {
		x = ror(x+y+v0+le64(b[16:]), 37)*fp1 ^ w1
		y = ror(y+v1+le64(b[48:]), 42)*fp1 ^ v0
		z = ror(z^w0, 33)
		v0, v1 = fpBlock(b, v1*fp1, x+w0)
		w0, w1 = fpBlock(b[32:], z+w1, y)
		z, x = x, z
	}
	return fpMix(fpMix(v0, w0)+fold(y)*fp1+z, fpMix(v1, w1)+x)
}
