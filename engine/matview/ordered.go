package matview

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/schema"
)

// appendOrdered appends a value such that the bytes of values sort as they do, or, with
// down, the other way round: what MIN, or MAX, is looking for comes first. That is NaN
// before all other numbers.
func appendOrdered(dst []byte, t schema.ViewType, down bool, a *Arg) []byte {
	at := len(dst)
	switch t {
	case schema.ViewInt, schema.ViewTimestamp:
		dst = binary.BigEndian.AppendUint64(dst, uint64(a.Int)^1<<63)
	case schema.ViewFloat:
		if math.IsNaN(a.Float) {
			return append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
		}
		dst = binary.BigEndian.AppendUint64(dst, flip64(math.Float64bits(a.Float)))
	case schema.ViewFloat32:
		if math.IsNaN(a.Float) {
			return append(dst, 0, 0, 0, 0)
		}
		dst = binary.BigEndian.AppendUint32(dst, flip32(math.Float32bits(float32(a.Float))))
	case schema.ViewBool:
		dst = append(dst, byte(a.Int))
	default:
		if !down {
			return append(dst, a.Text...)
		}
		// The longer of two values of which one begins with the other comes first.
		dst = append(escape(dst, a.Text), 0, 1)
	}
	if down {
		invert(dst[at:])
	}
	return dst
}

// appendFromOrdered appends the value of the cell that an ordered one is. ok is false if
// it is none.
func appendFromOrdered(dst []byte, t schema.ViewType, down bool, b []byte) (out []byte, ok bool) {
	var room [8]byte
	fixed := 0
	switch t {
	case schema.ViewInt, schema.ViewTimestamp, schema.ViewFloat:
		fixed = 8
	case schema.ViewFloat32:
		fixed = 4
	case schema.ViewBool:
		fixed = 1
	}
	if fixed > 0 {
		if len(b) != fixed {
			return dst, false
		}
		v := room[:fixed]
		copy(v, b)
		zero := bytes.Equal(v, make([]byte, fixed))
		switch {
		case t == schema.ViewFloat && zero:
			return binary.BigEndian.AppendUint64(dst, math.Float64bits(math.NaN())), true
		case t == schema.ViewFloat32 && zero:
			return binary.BigEndian.AppendUint32(dst, math.Float32bits(float32(math.NaN()))), true
		}
		if down {
			invert(v)
		}
		switch t {
		case schema.ViewInt, schema.ViewTimestamp:
			v[0] ^= 0x80
		case schema.ViewFloat, schema.ViewFloat32:
			if v[0]&0x80 != 0 {
				v[0] ^= 0x80
			} else {
				invert(v)
			}
		case schema.ViewBool:
			if v[0] > 1 {
				return dst, false
			}
		}
		return append(dst, v...), true
	}
	if !down {
		return append(dst, b...), true
	}
	for i := 0; i < len(b); i++ {
		c := ^b[i]
		if c != 0 {
			dst = append(dst, c)
			continue
		}
		if i++; i == len(b) {
			return dst, false
		}
		switch ^b[i] {
		case 0xFF:
			dst = append(dst, 0)
		case 1:
			return dst, i == len(b)-1
		default:
			return dst, false
		}
	}
	return dst, false
}

// escape appends s with 00 FF in place of 00, so that 00 01 can end it.
func escape(dst []byte, s string) []byte {
	for i := range len(s) {
		if dst = append(dst, s[i]); s[i] == 0 {
			dst = append(dst, 0xFF)
		}
	}
	return dst
}

func invert(b []byte) {
	for i := range b {
		b[i] = ^b[i]
	}
}

func flip64(bits uint64) uint64 {
	if bits>>63 != 0 {
		return ^bits
	}
	return bits | 1<<63
}

func flip32(bits uint32) uint32 {
	if bits>>31 != 0 {
		return ^bits
	}
	return bits | 1<<31
}
