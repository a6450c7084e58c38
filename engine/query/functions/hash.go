package functions

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"math/bits"

	"github.com/trestledb/trestle/engine/query/types"
)

// farmFingerprint is Fingerprint64 of FarmHash, which its authors promise never to
// change.
func farmFingerprint(s string) uint64 {
	b := []byte(s)
	switch n := len(b); {
	case n <= 16:
		return farmTo16(b)
	case n <= 32:
		return farmTo32(b)
	case n <= 64:
		return farmTo64(b)
	}
	return farmLong(b)
}

// Constants of FarmHash: primes.
const (
	farmK0 = 0xc3a5c85c97cb3127
	farmK1 = 0xb492b66fbe98f273
	farmK2 = 0x9ae16a3b2f90404f
)

func farmWord(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }
func farmShift(x uint64) uint64      { return x ^ x>>47 }
func farmRor(x uint64, k int) uint64 { return bits.RotateLeft64(x, -k) }

func farmMix(u, v, mul uint64) uint64 {
	a := farmShift((u ^ v) * mul)
	return farmShift((v^a)*mul) * mul
}

func farmTo16(b []byte) uint64 {
	n := len(b)
	mul := farmK2 + 2*uint64(n)
	switch {
	case n >= 8:
		x, y := farmWord(b)+farmK2, farmWord(b[n-8:])
		return farmMix(farmRor(y, 37)*mul+x, (farmRor(x, 25)+y)*mul, mul)
	case n >= 4:
		x, y := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[n-4:]))
		return farmMix(uint64(n)+x<<3, y, mul)
	case n > 0:
		y := uint64(uint32(b[0]) + uint32(b[n>>1])<<8)
		z := uint64(uint32(n) + uint32(b[n-1])<<2)
		return farmShift(y*farmK2^z*farmK0) * farmK2
	}
	return farmK2
}

func farmTo32(b []byte) uint64 {
	n := len(b)
	mul := farmK2 + 2*uint64(n)
	x, y := farmWord(b)*farmK1, farmWord(b[8:])
	z, t := farmWord(b[n-8:])*mul, farmWord(b[n-16:])*farmK2
	return farmMix(farmRor(x+y, 43)+farmRor(z, 30)+t, x+farmRor(y+farmK2, 18)+z, mul)
}

func farmTo64(b []byte) uint64 {
	n := len(b)
	mul := farmK2 + 2*uint64(n)
	x, y := farmWord(b)*farmK2, farmWord(b[8:])
	z, t := farmWord(b[n-8:])*mul, farmWord(b[n-16:])*farmK2
	u := farmRor(x+y, 43) + farmRor(z, 30) + t
	v := farmMix(u, x+farmRor(y+farmK2, 18)+z, mul)
	e, f := farmWord(b[16:])*mul, farmWord(b[24:])
	g, h := (u+farmWord(b[n-32:]))*mul, (v+farmWord(b[n-24:]))*mul
	return farmMix(farmRor(e+f, 43)+farmRor(g, 30)+h, e+farmRor(f+x, 18)+g, mul)
}

// farmWeak digests 32 bytes under two seeds.
func farmWeak(b []byte, s, t uint64) (uint64, uint64) {
	w, x, y, z := farmWord(b), farmWord(b[8:]), farmWord(b[16:]), farmWord(b[24:])
	s += w
	t = farmRor(t+s+z, 21)
	start := s
	s += x + y
	t += farmRor(s, 44)
	return s + z, t + start
}

func farmLong(b []byte) uint64 {
	n := len(b)
	const seed = 81
	x := uint64(seed)
	y := x*farmK1 + 113
	z := farmShift(y*farmK2+113) * farmK2
	var v0, v1, w0, w1 uint64
	x = x*farmK2 + farmWord(b)
	last := b[n-64:]
	rest := uint64(n-1) & 63
	for ; len(b) > 64; b = b[64:] {
		x = farmRor(x+y+v0+farmWord(b[8:]), 37) * farmK1
		y = farmRor(y+v1+farmWord(b[48:]), 42) * farmK1
		x ^= w1
		y += v0 + farmWord(b[40:])
		z = farmRor(z+w0, 33) * farmK1
		v0, v1 = farmWeak(b, v1*farmK1, x+w0)
		w0, w1 = farmWeak(b[32:], z+w1, y+farmWord(b[16:]))
		z, x = x, z
	}
	// The last 64 bytes are digested again, in part.
	mul := farmK1 + (z&0xff)<<1
	w0 += rest
	v0 += w0
	w0 += v0
	x = farmRor(x+y+v0+farmWord(last[8:]), 37) * mul
	y = farmRor(y+v1+farmWord(last[48:]), 42) * mul
	x ^= w1 * 9
	y += v0*9 + farmWord(last[40:])
	z = farmRor(z+w0, 33) * mul
	v0, v1 = farmWeak(last, v1*mul, x+w0)
	w0, w1 = farmWeak(last[32:], z+w1, y+farmWord(last[16:]))
	z, x = x, z
	return farmMix(farmMix(v0, w0, mul)+farmShift(y)*farmK0+z, farmMix(v1, w1, mul)+x, mul)
}

// digest returns the Eval of a hash function.
func digest(sum func(b []byte) string) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		return types.NewString(sum([]byte(args[0].Str))), nil
	}
}

func init() {
	hash := func(name, doc string, result Template, eval evalFunc) *Function {
		return &Function{Name: name, Category: "Hash", Doc: doc, Signatures: []*Signature{
			signature(result, eval, nil, tString), signature(result, eval, nil, tBytes),
		}}
	}
	register(
		hash("FARM_FINGERPRINT", "Returns FarmHash's Fingerprint64, which never changes.", tInt64,
			intResult(func(s string) int64 { return int64(farmFingerprint(s)) })),
		hash("MD5", "Returns the MD5 hash, 16 bytes. It is not secure.", tBytes, digest(func(b []byte) string { s := md5.Sum(b); return string(s[:]) })),
		hash("SHA1", "Returns the SHA-1 hash, 20 bytes. It is not secure.", tBytes, digest(func(b []byte) string { s := sha1.Sum(b); return string(s[:]) })),
		hash("SHA256", "Returns the SHA-256 hash, 32 bytes.", tBytes, digest(func(b []byte) string { s := sha256.Sum256(b); return string(s[:]) })),
		hash("SHA512", "Returns the SHA-512 hash, 64 bytes.", tBytes, digest(func(b []byte) string { s := sha512.Sum512(b); return string(s[:]) })),
	)
}
