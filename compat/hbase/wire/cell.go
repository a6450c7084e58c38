package wire

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
)

// The types of a Cell.
const (
	TypePut                 = 4
	TypeDelete              = 8 // one version
	TypeDeleteFamilyVersion = 10
	TypeDeleteColumn        = 12
	TypeDeleteFamily        = 14
)

// A Cell is a KeyValue:
//
//	kvLen i32  keyLen i32  valLen i32
//	rowLen i16, row  famLen i8, family  qualifier  timestamp i64  type u8
//	value  [tagsLen u16, tags]
type Cell struct {
	Row, Family, Qualifier []byte
	Timestamp              int64
	Type                   byte
	Value                  []byte
	Tags                   []byte
}

const cellOverhead = 2 + 1 + 8 + 1 // of a key

// CellSize returns the length of AppendCell's bytes for a cell without tags.
func CellSize(row, family, qualifier, value int) int {
	return 12 + cellOverhead + row + family + qualifier + value
}

// AppendCell appends a cell without tags to a cell block.
func AppendCell[F ~string | ~[]byte](dst, row []byte, family F, qualifier []byte, timestamp int64, typ byte, value []byte) []byte {
	keyLen := cellOverhead + len(row) + len(family) + len(qualifier)
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+keyLen+len(value)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(keyLen))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(row)))
	dst = append(dst, row...)
	dst = append(dst, byte(len(family)))
	dst = append(dst, family...)
	dst = append(dst, qualifier...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(timestamp))
	dst = append(dst, typ)
	return append(dst, value...)
}

// Cells reads the cells of a cell block one by one.
type Cells struct{ b []byte }

// NewCells returns the cells of a block. Cells alias it.
func NewCells(block []byte) Cells { return Cells{block} }

// Len returns how many bytes are left.
func (s *Cells) Len() int { return len(s.b) }

func malformed(what string) error {
	return fault.New(fault.Invalid, "malformed cell block: %s", what)
}

// Next reads the next cell into c.
func (s *Cells) Next(c *Cell) error {
	if len(s.b) < 12 {
		return malformed("it ends before its last cell")
	}
	kv := binary.BigEndian.Uint32(s.b)
	keyLen, valLen := uint64(binary.BigEndian.Uint32(s.b[4:])), uint64(binary.BigEndian.Uint32(s.b[8:]))
	if kv > math.MaxInt32 || uint64(kv) > uint64(len(s.b)-4) || 8+keyLen+valLen > uint64(kv) || keyLen < cellOverhead {
		return malformed("a cell is longer than what holds it")
	}
	cell := s.b[12 : 4+kv]
	s.b = s.b[4+kv:]
	key, rest := cell[:keyLen], cell[keyLen:]
	c.Value = rest[:valLen:valLen]
	switch tags := rest[valLen:]; {
	case len(tags) == 0:
		c.Tags = nil
	case len(tags) < 2 || len(tags) != 2+int(binary.BigEndian.Uint16(tags)):
		return malformed("tags of another length")
	default:
		c.Tags = tags[2:]
	}
	row := int(binary.BigEndian.Uint16(key))
	if row > math.MaxInt16 || row+cellOverhead > len(key) {
		return malformed("a row that is longer than its cell")
	}
	c.Row = key[2 : 2+row : 2+row]
	family := int(key[2+row])
	if row+family+cellOverhead > len(key) {
		return malformed("a family that is longer than its cell")
	}
	c.Family = key[3+row : 3+row+family]
	c.Qualifier = key[3+row+family : len(key)-9]
	c.Timestamp = int64(binary.BigEndian.Uint64(key[len(key)-9:]))
	c.Type = key[len(key)-1]
	return nil
}

// TagTTL is the type of the tag that says how long a cell lives.
const TagTTL = 8 // i64 ms, relative to the cell's timestamp

// Tag returns the data of the first tag of a type in a cell's tags, each of
// which is a length u16 of what follows, a type u8, and data.
func Tag(tags []byte, typ byte) (data []byte, ok bool) {
	for len(tags) >= 3 {
		n := int(binary.BigEndian.Uint16(tags))
		if n < 1 || n > len(tags)-2 {
			return nil, false
		}
		if tags[2] == typ {
			return tags[3 : 2+n], true
		}
		tags = tags[2+n:]
	}
	return nil, false
}
