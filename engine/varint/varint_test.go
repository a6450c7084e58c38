package varint

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// all is an encoding with a part of each kind.
func all() []byte {
	b := binary.AppendUvarint(nil, math.MaxUint64)
	b = binary.AppendUvarint(b, 127)
	b = binary.AppendVarint(b, math.MinInt64)
	b = binary.AppendVarint(b, -1)
	b = append(b, 7, 1)
	b = binary.LittleEndian.AppendUint64(b, 1<<63|5)
	b = binary.BigEndian.AppendUint64(b, 1<<63|6)
	b = append(binary.AppendUvarint(b, 300), make([]byte, 300)...)
	b = append(b, 0) // no bytes
	b = append(b, 'x', 'y')
	return append(b, 2, 'p', 'q')
}

// takeAll takes what all has, and tells whether it was that.
func takeAll(d *Decoder) bool {
	return d.Uvarint() == math.MaxUint64 && d.UvarintMax(127) == 127 && d.Varint() == math.MinInt64 && d.Varint() == -1 &&
		d.Byte() == 7 && d.Bool() && d.Uint64LE() == 1<<63|5 && d.Uint64BE() == 1<<63|6 &&
		len(d.Bytes()) == 300 && isEmpty(d.Bytes()) && string(d.Take(2)) == "xy" && d.Count() == 2 && string(d.Rest()) == "pq" && string(d.Take(2)) == "pq"
}

func isEmpty(b []byte) bool { return b != nil && len(b) == 0 }

func TestParts(t *testing.T) {
	d := Of(all())
	if !takeAll(&d) || d.Bad() || d.Len() > 0 {
		t.Errorf("bad %v, %d bytes left", d.Bad(), d.Len())
	}
}

// A decoder of any prefix is bad where the prefix ends, and stays so.
func TestPrefixes(t *testing.T) {
	b := all()
	for n := range b {
		d := Of(b[:n:n])
		if takeAll(&d) {
			t.Errorf("the first %d of %d bytes hold everything", n, len(b))
		}
		d.Take(d.Len() + 1)
		if !d.Bad() || d.Len() > 0 || d.Rest() != nil {
			t.Errorf("%d bytes: a decoder without the next part is not bad", n)
		}
		if d.Uvarint() != 0 || d.UvarintMax(9) != 0 || d.Varint() != 0 || d.Byte() != 0 || d.Bool() || d.Count() != 0 || d.Uint64LE() != 0 || d.Uint64BE() != 0 ||
			d.Bytes() != nil || d.Take(0) != nil || d.Take(1) != nil {
			t.Errorf("%d bytes: a bad decoder returns something", n)
		}
	}
}

func TestMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		take func(*Decoder)
	}{
		"a varint of 11 bytes":        {bytes.Repeat([]byte{0x80}, 11), func(d *Decoder) { d.Uvarint() }},
		"a varint of 65 bits":         {append(bytes.Repeat([]byte{0xff}, 9), 2), func(d *Decoder) { d.Uvarint() }},
		"a signed varint of 65 bits":  {append(bytes.Repeat([]byte{0xff}, 9), 2), func(d *Decoder) { d.Varint() }},
		"a number above its limit":    {[]byte{8, 0, 0, 0}, func(d *Decoder) { d.UvarintMax(7) }},
		"a count above what is left":  {[]byte{3, 0, 0}, func(d *Decoder) { d.Count() }},
		"a length above what is left": {[]byte{3, 0, 0}, func(d *Decoder) { d.Bytes() }},
		"a length of 64 bits":         {binary.AppendUvarint(nil, math.MaxUint64), func(d *Decoder) { d.Bytes() }},
		"a truth that is 2":           {[]byte{2, 0}, func(d *Decoder) { d.Bool() }},
		"a negative length":           {[]byte{1, 2}, func(d *Decoder) { d.Take(-1) }},
		"what its caller refuses":     {[]byte{1, 2}, (*Decoder).Fail},
	} {
		d := Of(c.in)
		if c.take(&d); !d.Bad() || d.Len() > 0 {
			t.Errorf("%s: bad %v, %d bytes left", name, d.Bad(), d.Len())
		}
	}
}

// What is appended to a part does not reach the parts behind it.
func TestPartsHaveNoRoom(t *testing.T) {
	d := Of([]byte{1, 'a', 'b', 'c'})
	_, _ = append(d.Bytes(), 'x'), append(d.Take(1), 'y')
	if got := string(d.Rest()); got != "c" {
		t.Errorf("%q is left", got)
	}
}

// FuzzDecoder has a program of parts taken from bytes: it does not read behind them,
// and takes what encoding/binary appends.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, all())
	f.Add([]byte{0, 0, 1, 1, 3, 4, 6, 7, 8, 8, 9, 5}, all())
	f.Add([]byte{8}, []byte{0x80})
	f.Fuzz(func(t *testing.T, program, in []byte) {
		// More lies behind the bytes that the decoder may read.
		behind := append(bytes.Clone(in), bytes.Repeat([]byte{0}, 16)...)
		d := Of(behind[:len(in)])
		again := []byte{}
		for _, op := range program {
			at := len(in) - d.Len()
			var canonical []byte // what was taken, if it says its length in the shortest way
			var most int         // by how much it may be longer
			switch op % 10 {
			case 0:
				v := d.Uvarint()
				canonical, most = binary.AppendUvarint(nil, v), binary.MaxVarintLen64
			case 1:
				v := d.UvarintMax(1 << 20)
				if v > 1<<20 {
					t.Fatalf("%d is above the limit", v)
				}
				canonical, most = binary.AppendUvarint(nil, v), binary.MaxVarintLen64
			case 2:
				canonical, most = binary.AppendVarint(nil, d.Varint()), binary.MaxVarintLen64
			case 3:
				canonical = []byte{d.Byte()}
			case 4:
				canonical = []byte{0}
				if d.Bool() {
					canonical[0] = 1
				}
			case 5:
				n := d.Count()
				if n > d.Len() {
					t.Fatalf("%d things in %d bytes", n, d.Len())
				}
				canonical, most = binary.AppendUvarint(nil, uint64(n)), binary.MaxVarintLen64
			case 6:
				canonical = bytes.Clone(d.Take(int(op) / 10))
			case 7:
				canonical = binary.LittleEndian.AppendUint64(nil, d.Uint64LE())
			case 8:
				canonical = binary.BigEndian.AppendUint64(nil, d.Uint64BE())
			case 9:
				v := d.Bytes()
				canonical, most = append(binary.AppendUvarint(nil, uint64(len(v))), v...), binary.MaxVarintLen64
			}
			if d.Bad() {
				if d.Len() > 0 {
					t.Fatal("a bad decoder has bytes left")
				}
				break
			}
			taken := in[at : len(in)-d.Len()]
			if len(taken) > len(canonical)+most || most == 0 && !bytes.Equal(taken, canonical) {
				t.Fatalf("operation %d took %x, which is %x", op%10, taken, canonical)
			}
			if len(taken) == len(canonical) && !bytes.Equal(taken, canonical) {
				t.Fatalf("operation %d took %x, which is %x", op%10, taken, canonical)
			}
			again = append(again, taken...)
		}
		if !d.Bad() && !bytes.Equal(append(again, d.Rest()...), in) {
			t.Fatal("what was taken, and what is left, is not all")
		}
	})
}

func TestAllocatesNothing(t *testing.T) {
	b := all()
	if n := testing.AllocsPerRun(100, func() {
		if d := Of(b); !takeAll(&d) {
			t.Fatal("not what was encoded")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDecoder takes cells as a message between servers has them.
func BenchmarkDecoder(b *testing.B) {
	var in []byte
	for range 1000 {
		in = append(binary.AppendUvarint(append(in, 3), 12), "qualifier 12"...)
		in = binary.AppendVarint(in, 1_800_000_000_000_000)
		in = append(binary.AppendUvarint(in, 100), make([]byte, 100)...)
	}
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		d := Of(in)
		for d.Len() > 0 {
			_, _, _, _ = d.Byte(), d.Bytes(), d.Varint(), d.Bytes()
		}
		if d.Bad() {
			b.Fatal("malformed")
		}
	}
}
