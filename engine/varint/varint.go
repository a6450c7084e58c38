package varint

import "encoding/binary"

// A Decoder takes parts from the front of bytes. Once a part is missing or malformed, it
// is bad: it returns zeros and nil from then on, and nothing is left. So a caller may
// take all parts of a thing, and ask once whether they were there.
type Decoder struct {
	b   []byte
	bad bool
}

// Of returns a decoder of b. What it returns aliases b.
func Of(b []byte) Decoder { return Decoder{b: b} }

// Fail makes the decoder bad. It is for a caller that found a part to be wrong.
func (d *Decoder) Fail() { d.b, d.bad = nil, true }

// Bad tells whether a part was missing or malformed, or the caller said so by Fail.
func (d *Decoder) Bad() bool { return d.bad }

// Len returns how many bytes are left.
func (d *Decoder) Len() int { return len(d.b) }

// Rest returns the bytes that are left, and leaves them.
func (d *Decoder) Rest() []byte { return d.b }

// Byte takes a byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.Fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// Bool takes a byte that is 0 or 1.
func (d *Decoder) Bool() bool {
	v := d.Byte()
	if v > 1 {
		d.Fail()
	}
	return v == 1
}

// Uvarint takes an unsigned varint of at most 64 bits.
func (d *Decoder) Uvarint() uint64 {
	// Most are lengths of less than 128.
	if len(d.b) > 0 && d.b[0] < 0x80 {
		v := d.b[0]
		d.b = d.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.Fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// UvarintMax takes an unsigned varint of at most limit.
func (d *Decoder) UvarintMax(limit uint64) uint64 {
	v := d.Uvarint()
	if v > limit {
		d.Fail()
		return 0
	}
	return v
}

// Varint takes a signed varint.
func (d *Decoder) Varint() int64 {
	u := d.Uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// Count takes an unsigned varint that is the number of things behind it. Each of them
// takes a byte at least, so a number above Len is malformed.
func (d *Decoder) Count() int {
	n := d.Uvarint()
	if n > uint64(len(d.b)) {
		d.Fail()
		return 0
	}
	return int(n)
}

// Take takes n bytes. The slice has no capacity beyond them.
func (d *Decoder) Take(n int) []byte {
	if uint(n) > uint(len(d.b)) {
		d.Fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// Bytes takes a length, which is an unsigned varint, and as many bytes as Take does.
// Where the length is 0 the slice is empty, but not nil.
func (d *Decoder) Bytes() []byte {
	n := d.Uvarint()
	if n > uint64(len(d.b)) {
		d.Fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// Uint64LE takes eight bytes, the least significant first.
func (d *Decoder) Uint64LE() uint64 {
	if len(d.b) < 8 {
		d.Fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

// Uint64BE takes eight bytes, the most significant first.
func (d *Decoder) Uint64BE() uint64 {
	if len(d.b) < 8 {
		d.Fail()
		return 0
	}
	v := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}
