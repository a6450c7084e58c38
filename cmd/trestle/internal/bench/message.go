package bench

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
)

// The methods that are measured.
const (
	methodRead   = "/google.bigtable.v2.Bigtable/ReadRows"
	methodMutate = "/google.bigtable.v2.Bigtable/MutateRow"
	methodBulk   = "/google.bigtable.v2.Bigtable/MutateRows"
	methodRMW    = "/google.bigtable.v2.Bigtable/ReadModifyWriteRow"
	methodCheck  = "/google.bigtable.v2.Bigtable/CheckAndMutateRow"
)

// family is the one column family of every table.
const family = "f"

// The messages below are written by hand; message_test.go compares them with
// what the generated code makes of them. Lengths of nested messages are
// computed first, so that everything is appended once.

func sizeBytes(n int) int { return 1 + protowire.SizeBytes(n) } // field numbers below 16

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, v)
}

func appendLen(b []byte, field protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// A set is one SetCell mutation.
type set struct {
	qualifier []byte
	micros    int64
	column    uint64 // for appendValue
	version   uint64
	size      int
}

func (s *set) cellSize() int {
	return sizeBytes(len(family)) + sizeBytes(len(s.qualifier)) + 1 + protowire.SizeVarint(uint64(s.micros)) + sizeBytes(s.size)
}

// appendMutation appends a Mutation as the field of that number.
func (s *set) appendMutation(b []byte, field protowire.Number) []byte {
	n := s.cellSize()
	b = appendLen(b, field, sizeBytes(n))
	b = appendLen(b, 1, n) // Mutation.set_cell
	b = appendBytes(b, 1, []byte(family))
	b = appendBytes(b, 2, s.qualifier)
	b = appendVarint(b, 3, uint64(s.micros))
	b = appendLen(b, 4, s.size)
	return appendValue(b, s.column, s.version, s.size)
}

// appendMutateRow appends a MutateRowRequest.
func appendMutateRow(b []byte, table string, key []byte, sets []set) []byte {
	b = appendBytes(b, 1, []byte(table))
	b = appendBytes(b, 2, key)
	for i := range sets {
		b = sets[i].appendMutation(b, 3)
	}
	return b
}

// appendEntry appends an entry of a MutateRowsRequest, which begins with field
// 1, the table's name.
func appendEntry(b []byte, key []byte, sets []set) []byte {
	n := sizeBytes(len(key))
	for i := range sets {
		n += sizeBytes(sizeBytes(sets[i].cellSize()))
	}
	b = appendLen(b, 2, n)
	b = appendBytes(b, 1, key)
	for i := range sets {
		b = sets[i].appendMutation(b, 2)
	}
	return b
}

// A read is a ReadRowsRequest.
type read struct {
	key        []byte // one row, or
	start, end []byte // rows from start, before end if that is not nil
	limit      int64
	latest     bool   // only the newest cell of each column
	qualifier  []byte // only this column; without regular expression characters
}

func (r *read) append(b []byte, table string) []byte {
	b = appendBytes(b, 1, []byte(table))
	switch {
	case r.key != nil:
		b = appendLen(b, 2, sizeBytes(len(r.key)))
		b = appendBytes(b, 1, r.key)
	default:
		n := sizeBytes(len(r.start))
		if r.end != nil {
			n += sizeBytes(len(r.end))
		}
		b = appendLen(b, 2, sizeBytes(n))
		b = appendLen(b, 2, n)
		b = appendBytes(b, 1, r.start)
		if r.end != nil {
			b = appendBytes(b, 3, r.end)
		}
	}
	var filters [2][]byte
	n := 0
	if r.qualifier != nil {
		filters[n] = appendBytes(nil, 6, r.qualifier)
		n++
	}
	if r.latest {
		filters[n] = latestFilter
		n++
	}
	switch n {
	case 1:
		b = appendBytes(b, 3, filters[0])
	case 2: // RowFilter.chain of two
		chain := sizeBytes(len(filters[0])) + sizeBytes(len(filters[1]))
		b = appendLen(b, 3, sizeBytes(chain))
		b = appendLen(b, 1, chain)
		b = appendBytes(b, 1, filters[0])
		b = appendBytes(b, 1, filters[1])
	}
	if r.limit > 0 {
		b = appendVarint(b, 4, uint64(r.limit))
	}
	return b
}

// latestFilter is a RowFilter with cells_per_column_limit_filter 1.
var latestFilter = appendVarint(nil, 12, 1)

// appendIncrement appends a ReadModifyWriteRowRequest with one rule.
func appendIncrement(b []byte, table string, key, qualifier []byte, delta int64) []byte {
	b = appendBytes(b, 1, []byte(table))
	b = appendBytes(b, 2, key)
	b = appendLen(b, 3, sizeBytes(len(family))+sizeBytes(len(qualifier))+1+protowire.SizeVarint(uint64(delta)))
	b = appendBytes(b, 1, []byte(family))
	b = appendBytes(b, 2, qualifier)
	return appendVarint(b, 4, uint64(delta))
}

// appendCheck appends a CheckAndMutateRowRequest that sets s if the row has a
// cell, and also if it has none.
func appendCheck(b []byte, table string, key []byte, s *set) []byte {
	b = appendBytes(b, 1, []byte(table))
	b = appendBytes(b, 2, key)
	b = s.appendMutation(b, 4)
	b = s.appendMutation(b, 5)
	return appendBytes(b, 6, latestFilter)
}

var errMessage = errors.New("a response cannot be parsed")

// next returns the next field of a message: n is the varint, or v the bytes.
func next(b []byte) (field protowire.Number, v []byte, n uint64, rest []byte, err error) {
	field, typ, l := protowire.ConsumeTag(b)
	if l < 0 {
		return 0, nil, 0, nil, errMessage
	}
	b = b[l:]
	switch typ {
	case protowire.BytesType:
		if v, l = protowire.ConsumeBytes(b); l < 0 {
			return 0, nil, 0, nil, errMessage
		}
	case protowire.VarintType:
		if n, l = protowire.ConsumeVarint(b); l < 0 {
			return 0, nil, 0, nil, errMessage
		}
	default:
		if l = protowire.ConsumeFieldValue(field, typ, b); l < 0 {
			return 0, nil, 0, nil, errMessage
		}
	}
	return field, v, n, b[l:], nil
}

// A cell of a row that was read. Its slices are valid until the next one.
type cell struct {
	row, qualifier, value []byte
	micros                int64
	last                  bool // the row is complete
}

// A rowReader turns ReadRowsResponse messages into cells.
type rowReader struct {
	// emit gets each cell. A row without cells does not come.
	emit func(c *cell) error

	c       cell
	row     []byte // copies: a row goes over several messages
	qual    []byte
	partial []byte // the value so far of a cell in several chunks
	open    bool   // a row has begun
	split   bool
}

func (r *rowReader) reset() {
	r.c = cell{}
	r.open, r.split = false, false
	r.partial = r.partial[:0]
}

// message takes one ReadRowsResponse.
func (r *rowReader) message(b []byte) error {
	for len(b) > 0 {
		field, v, _, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if field == 1 {
			if err := r.chunk(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rowReader) chunk(b []byte) error {
	var value []byte
	var valueSize uint64
	var reset, commit bool
	if !r.split { // else the first chunk of the cell has told the timestamp
		r.c.micros = 0
	}
	for len(b) > 0 {
		field, v, n, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		switch field {
		case 1:
			r.row = append(r.row[:0], v...)
			r.open = true
		case 3: // google.protobuf.BytesValue
			r.qual = r.qual[:0]
			for len(v) > 0 {
				f, inner, _, rest, err := next(v)
				if err != nil {
					return err
				}
				v = rest
				if f == 1 {
					r.qual = append(r.qual, inner...)
				}
			}
		case 4:
			r.c.micros = int64(n)
		case 6:
			value = v
		case 7:
			valueSize = n
		case 8:
			reset = n != 0
		case 9:
			commit = n != 0
		}
	}
	if reset {
		return fmt.Errorf("%w: reset_row is not expected", errMessage)
	}
	if !r.open {
		return fmt.Errorf("%w: a chunk without a row", errMessage)
	}
	if valueSize > 0 {
		r.partial = append(r.partial, value...)
		r.split = true
		return nil
	}
	if r.split {
		r.partial = append(r.partial, value...)
		value, r.split = r.partial, false
	}
	r.c.row, r.c.qualifier, r.c.value, r.c.last = r.row, r.qual, value, commit
	if commit {
		r.open = false
	}
	err := r.emit(&r.c)
	r.partial = r.partial[:0]
	return err
}

// end checks that the stream did not end inside of a row.
func (r *rowReader) end() error {
	if r.open || r.split {
		return fmt.Errorf("%w: the stream ended inside of a row", errMessage)
	}
	return nil
}

// eachEntry calls fn for each entry of a MutateRowsResponse.
func eachEntry(b []byte, fn func(index int, code codes.Code)) error {
	for len(b) > 0 {
		field, v, _, rest, err := next(b)
		if err != nil {
			return err
		}
		b = rest
		if field != 1 {
			continue
		}
		index, code := 0, codes.OK
		for len(v) > 0 {
			f, inner, n, rest, err := next(v)
			if err != nil {
				return err
			}
			v = rest
			if f == 1 {
				index = int(n)
			}
			for f == 2 && len(inner) > 0 { // google.rpc.Status
				sf, _, n, rest, err := next(inner)
				if err != nil {
					return err
				}
				inner = rest
				if sf == 1 {
					code = codes.Code(n)
				}
			}
		}
		fn(index, code)
	}
	return nil
}

// counter returns the 64-bit integer in the one cell of a
// ReadModifyWriteRowResponse.
func counter(b []byte) (int64, error) {
	// row 1, families 2, columns 2, cells 2, value 2
	for _, want := range []protowire.Number{1, 2, 2, 2, 2} {
		var found []byte
		ok := false
		for len(b) > 0 {
			field, v, _, rest, err := next(b)
			if err != nil {
				return 0, err
			}
			b = rest
			if field == want {
				found, ok = v, true
			}
		}
		if !ok {
			return 0, errMessage
		}
		b = found
	}
	if len(b) != 8 {
		return 0, errMessage
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}
