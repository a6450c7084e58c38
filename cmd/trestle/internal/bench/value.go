package bench

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
)

// minValue is the least size of a value that can be checked.
const minValue = 16

// mix is a 64-bit hash step (wyhash): quick, and every bit of the result
// depends on every bit of both arguments.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}

// hashKey identifies the column of a row. Columns of a row are told apart by a
// number.
func hashKey(key []byte, column int) uint64 {
	h := uint64(len(key))
	for len(key) >= 8 {
		h = mix(h, binary.LittleEndian.Uint64(key))
		key = key[8:]
	}
	var tail [8]byte
	copy(tail[:], key)
	return mix(mix(h, binary.LittleEndian.Uint64(tail[:])), uint64(column)+1)
}

// appendValue appends the size bytes that version of a column holds: the
// version, then noise that depends on both and that nothing can compress.
func appendValue(dst []byte, column uint64, version uint64, size int) []byte {
	n := len(dst)
	dst = slices.Grow(dst, size+8)[:n+size+8] // a word more, so that the loop needs no last case
	v := dst[n:]
	binary.LittleEndian.PutUint64(v, version)
	s := mix(column, version)
	for i := 8; i < size; i += 8 {
		s += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(v[i:], mix(s, column))
	}
	return dst[:n+size]
}

var errValue = errors.New("the value is not one that was written there")

// checkValue returns the version of a value of a column.
func checkValue(v []byte, column uint64, size int) (version uint64, err error) {
	if len(v) != size {
		return 0, errValue
	}
	version = binary.LittleEndian.Uint64(v)
	s := mix(column, version)
	for v = v[8:]; len(v) > 0; {
		s += 0x9e3779b97f4a7c15
		want := mix(s, column)
		if len(v) < 8 {
			var tail [8]byte
			binary.LittleEndian.PutUint64(tail[:], want)
			if string(tail[:len(v)]) != string(v) {
				return 0, errValue
			}
			break
		}
		if binary.LittleEndian.Uint64(v) != want {
			return 0, errValue
		}
		v = v[8:]
	}
	return version, nil
}
