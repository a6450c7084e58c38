package keyvis

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/varint"
)

// A column is what was recorded of all tables of a process, or of all processes, from
// start for step. Its encoding:
//
//	magic, start in Unix seconds, step in seconds, number of tables
//	for each table: length and bytes of its name, length of its buckets, their
//	                length when they are compressed, and they, compressed (DEFLATE)
//	CRC-32C of all before
//
// Numbers are uvarints, but for the checksum, which is big endian. Buckets are their
// number, then for each: flags; the start, as how many bytes it shares with the key
// before and the others; the end likewise, unless a flag says what it is; the values.
type column struct {
	start  time.Time
	step   time.Duration
	tables []tableColumn
}

type tableColumn struct {
	table   string
	buckets []Bucket
}

const columnMagic = "trestle keyvis 1\n"

// Flags of an encoded bucket.
const (
	beginsTablet = 1 << iota
	endsAtNext   // where the next bucket starts
	endsAtEnd    // of the table
	isOneRow
	isLarge // a row of tablet.LargeRowBytes or more
)

const (
	maxNameBytes  = 1 << 16 // of a table
	maxKeyBytes   = 1 << 16
	maxTableBytes = 16 << 20 // of a table's buckets
	maxTables     = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the encoding of a column.
func (c *column) encode() ([]byte, error) {
	b := []byte(columnMagic)
	b = binary.AppendUvarint(b, uint64(c.start.Unix()))
	b = binary.AppendUvarint(b, uint64(c.step/time.Second))
	b = binary.AppendUvarint(b, uint64(len(c.tables)))
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	var raw []byte
	for i := range c.tables {
		t := &c.tables[i]
		raw = appendBuckets(raw[:0], t.buckets)
		packed.Reset()
		z.Reset(&packed)
		if _, err := z.Write(raw); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
		b = binary.AppendUvarint(b, uint64(len(t.table)))
		b = append(b, t.table...)
		b = binary.AppendUvarint(b, uint64(len(raw)))
		b = binary.AppendUvarint(b, uint64(packed.Len()))
		b = append(b, packed.Bytes()...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

func appendBuckets(b []byte, l []Bucket) []byte {
	b = binary.AppendUvarint(b, uint64(len(l)))
	var before []byte
	key := func(k []byte) {
		n := 0
		for n < len(k) && n < len(before) && k[n] == before[n] {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n))
		b = binary.AppendUvarint(b, uint64(len(k)-n))
		b = append(b, k[n:]...)
		before = k
	}
	for i := range l {
		x := &l[i]
		flags := byte(0)
		if x.Tablet {
			flags |= beginsTablet
		}
		if x.Large {
			flags |= isLarge
		}
		switch {
		case len(x.End) == 0:
			flags |= endsAtEnd
		case i+1 < len(l) && bytes.Equal(x.End, l[i+1].Start):
			flags |= endsAtNext
		case isRow(x.Start, x.End):
			flags |= isOneRow
		}
		b = append(b, flags)
		key(x.Start)
		if flags&^(beginsTablet|isLarge) == 0 {
			key(x.End)
		}
		for _, v := range x.Values {
			b = binary.AppendUvarint(b, uint64(max(v, 0)))
		}
	}
	return b
}

var errColumn = fault.New(fault.Corruption, "a column of the key visualizer is not what was written")

// decodeColumn decodes a column, of all tables that want returns true for; fault.Corruption if
// it is not one.
func decodeColumn(b []byte, want func(table string) bool) (*column, error) {
	if len(b) < len(columnMagic)+4 || string(b[:len(columnMagic)]) != columnMagic ||
		crc32.Checksum(b[:len(b)-4], castagnoli) != binary.BigEndian.Uint32(b[len(b)-4:]) {
		return nil, errColumn
	}
	d := varint.Of(b[len(columnMagic) : len(b)-4])
	c := &column{start: time.Unix(int64(d.UvarintMax(1<<40)), 0).UTC(), step: time.Duration(d.UvarintMax(1<<20)) * time.Second}
	for n := d.UvarintMax(maxTables); n > 0 && !d.Bad(); n-- {
		name := string(d.Take(int(d.UvarintMax(maxNameBytes))))
		size := int64(d.UvarintMax(maxTableBytes))
		packed := d.Take(int(d.UvarintMax(math.MaxInt32)))
		if d.Bad() || !want(name) {
			continue
		}
		raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), size+1))
		if err != nil || int64(len(raw)) != size {
			return nil, errColumn
		}
		l, err := decodeBuckets(raw)
		if err != nil {
			return nil, err
		}
		c.tables = append(c.tables, tableColumn{name, l})
	}
	if d.Bad() || d.Len() > 0 || c.step <= 0 {
		return nil, errColumn
	}
	return c, nil
}

func decodeBuckets(raw []byte) ([]Bucket, error) {
	d := varint.Of(raw)
	n := d.UvarintMax(MaxBuckets)
	var before []byte
	key := func() []byte {
		shared := d.UvarintMax(maxKeyBytes)
		rest := d.Take(int(d.UvarintMax(maxKeyBytes)))
		if shared > uint64(len(before)) {
			d.Fail()
			return nil
		}
		k := append(bytes.Clone(before[:shared]), rest...)
		before = k
		return k
	}
	out := make([]Bucket, 0, n)
	for i := range n {
		flags := d.Byte()
		if d.Bad() {
			break
		}
		x := Bucket{Tablet: flags&beginsTablet != 0, Large: flags&isLarge != 0, Start: key()}
		if i > 0 && out[i-1].End == nil {
			out[i-1].End = x.Start
		}
		switch flags &^ (beginsTablet | isLarge) {
		case endsAtEnd:
			x.End = []byte{}
		case endsAtNext: // nil until then
		case isOneRow:
			x.End = append(bytes.Clone(x.Start), 0)
		case 0:
			x.End = key()
		default:
			d.Fail()
		}
		for m := range x.Values {
			x.Values[m] = int64(d.UvarintMax(math.MaxInt64 >> 20))
		}
		// In order, without overlap.
		if i > 0 && (len(out[i-1].End) == 0 || bytes.Compare(x.Start, out[i-1].End) < 0 || bytes.Compare(out[i-1].Start, x.Start) >= 0) ||
			len(x.End) > 0 && bytes.Compare(x.End, x.Start) <= 0 {
			d.Fail()
		}
		out = append(out, x)
	}
	if d.Bad() || d.Len() > 0 || n > 0 && out[n-1].End == nil {
		return nil, errColumn
	}
	return out, nil
}
