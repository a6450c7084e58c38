package wire

import (
	"math"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A mutation is a google.bigtable.v2.Mutation on its way to a row.Mutation:
// what the message said, before it is checked.
type mutation struct {
	op        row.Op // 0 if the oneof is unset
	origin    bigtablepb.Mutation_TimestampOrigin
	family    string
	qualifier []byte
	timestamp int64 // SetCell
	value     []byte
	start     int64 // DeleteColumn
	end       int64
	// The operands of AddToCell and MergeToCell.
	column, at, input value
}

// become makes the oneof be op. The same member again is merged into, another
// one starts afresh, as everywhere in protobuf.
func (m *mutation) become(op row.Op) {
	if m.op == op {
		return
	}
	if m.op == row.AddToCell || m.op == row.MergeToCell {
		m.column, m.at, m.input = value{}, value{}, value{}
	}
	m.op, m.family, m.qualifier, m.value = op, "", nil, nil
	m.timestamp, m.start, m.end = 0, 0, 0
}

// reset makes m as new.
func (m *mutation) reset() {
	m.become(0)
	m.origin = 0
}

// decode merges the encoded message b into m.
func (m *mutation) decode(b []byte, names *names) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 7 && f.typ == protowire.VarintType:
			m.origin = bigtablepb.Mutation_TimestampOrigin(int32(f.varint))
			continue
		case f.typ != protowire.BytesType:
			continue
		}
		switch f.num {
		case 1:
			m.become(row.SetCell)
		case 2:
			m.become(row.DeleteColumn)
		case 3:
			m.become(row.DeleteFamily)
		case 4:
			m.become(row.DeleteRow)
		case 5:
			m.become(row.AddToCell)
		case 6:
			m.become(row.MergeToCell)
		default:
			continue
		}
		if err := m.decodeMember(f.bytes, names); err != nil {
			return err
		}
	}
	return nil
}

// decodeMember merges the encoded member b of the oneof into m.
func (m *mutation) decodeMember(b []byte, names *names) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch m.op {
		case row.SetCell:
			switch {
			case f.num == 1 && f.typ == protowire.BytesType:
				m.family, err = names.get(f.bytes)
			case f.num == 2 && f.typ == protowire.BytesType:
				m.qualifier = f.bytes
			case f.num == 3 && f.typ == protowire.VarintType:
				m.timestamp = int64(f.varint)
			case f.num == 4 && f.typ == protowire.BytesType:
				m.value = f.bytes
			}
		case row.DeleteColumn:
			switch {
			case f.num == 1 && f.typ == protowire.BytesType:
				m.family, err = names.get(f.bytes)
			case f.num == 2 && f.typ == protowire.BytesType:
				m.qualifier = f.bytes
			case f.num == 3 && f.typ == protowire.BytesType:
				err = m.decodeRange(f.bytes)
			}
		case row.DeleteFamily:
			if f.num == 1 && f.typ == protowire.BytesType {
				m.family, err = names.get(f.bytes)
			}
		case row.AddToCell, row.MergeToCell: // they have the same fields
			if f.typ != protowire.BytesType {
				break
			}
			switch f.num {
			case 1:
				m.family, err = names.get(f.bytes)
			case 2:
				err = m.column.decode(f.bytes)
			case 3:
				err = m.at.decode(f.bytes)
			case 4:
				err = m.input.decode(f.bytes)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *mutation) decodeRange(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ == protowire.VarintType {
			switch f.num {
			case 1:
				m.start = int64(f.varint)
			case 2:
				m.end = int64(f.varint)
			}
		}
	}
	return nil
}

// finish checks m and writes it to out. What depends on the table (family,
// granularity, kind of aggregate) is left to the backend.
func (m *mutation) finish(out *row.Mutation) *fault.Error {
	switch m.op {
	case row.SetCell:
		if err := checkColumn(m.family, m.qualifier); err != nil {
			return err.In("set_cell", -1)
		}
		if m.timestamp < row.ServerTime {
			return badTimestamp("timestamp_micros", m.timestamp).In("set_cell", -1)
		}
		if len(m.value) > schema.MaxValue {
			return inField("value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(m.value)).In("set_cell", -1)
		}
		if m.origin < 0 || m.origin > bigtablepb.Mutation_CLIENT_AUTO_GENERATED {
			return inField("timestamp_origin", "Unknown timestamp origin %d", m.origin)
		}
		*out = row.Mutation{Op: row.SetCell, Family: m.family, Qualifier: m.qualifier, Timestamp: m.timestamp,
			Truncate: m.origin == bigtablepb.Mutation_CLIENT_AUTO_GENERATED, Value: m.value}
	case row.DeleteColumn:
		if err := checkColumn(m.family, m.qualifier); err != nil {
			return err.In("delete_from_column", -1)
		}
		t, err := timeRange(m.start, m.end, true)
		if err != nil {
			return err.In("time_range", -1).In("delete_from_column", -1)
		}
		*out = row.Mutation{Op: row.DeleteColumn, Family: m.family, Qualifier: m.qualifier, Times: t}
	case row.DeleteFamily:
		if m.family == "" {
			return noFamily().In("delete_from_family", -1)
		}
		*out = row.Mutation{Op: row.DeleteFamily, Family: m.family}
	case row.DeleteRow:
		*out = row.Mutation{Op: row.DeleteRow}
	case row.AddToCell, row.MergeToCell:
		if err := m.finishAggregate(out); err != nil {
			name := "add_to_cell"
			if m.op == row.MergeToCell {
				name = "merge_to_cell"
			}
			return err.In(name, -1)
		}
	default:
		return &fault.Error{Kind: fault.Invalid, Msg: "No mutation is set"}
	}
	return nil
}

func (m *mutation) finishAggregate(out *row.Mutation) *fault.Error {
	if m.column.kind != rawValue {
		return inField("column_qualifier", "The qualifier must be given as raw_value")
	}
	if m.at.kind != rawTimestamp {
		return inField("timestamp", "The timestamp must be given as raw_timestamp_micros")
	}
	for _, v := range [...]struct {
		name  string
		typed bool
	}{{"column_qualifier", m.column.typed}, {"timestamp", m.at.typed}, {"input", m.input.typed}} {
		if v.typed {
			return inField(v.name, "A value that is written must not carry a type")
		}
	}
	if err := checkColumn(m.family, m.column.bytes); err != nil {
		return err
	}
	if m.at.int < 0 {
		return inField("timestamp", "Timestamps of aggregate cells must be >= 0, but got %d", m.at.int)
	}
	if m.op == row.MergeToCell && !m.input.given {
		// NULL merges nothing, but it is a Value without a kind, not a missing one.
		return inField("input", "The state to merge must be given")
	}
	in, err := m.input.operand()
	if err != nil {
		return err.In("input", -1)
	}
	if m.op == row.MergeToCell && in.Kind != row.RawInput && in.Kind != row.BytesInput && in.Kind != row.NullInput {
		return inField("input", "The state to merge must be given as raw_value or bytes_value")
	}
	if m.op == row.AddToCell && in.Kind == row.NullInput {
		return inField("input", "A value to add must be given")
	}
	*out = row.Mutation{Op: m.op, Family: m.family, Qualifier: m.column.bytes, Timestamp: m.at.int, Input: in}
	return nil
}

// timeRange converts the ends of a TimestampRange: an end of 0 is none. strict
// refuses a range without any timestamp in it as well as an inverted one.
func timeRange(start, end int64, strict bool) (cell.TimeRange, *fault.Error) {
	if end != 0 && (start > end || strict && start == end) {
		return cell.TimeRange{}, inField("end_timestamp_micros", "inverted or invalid timestamp range [%d, %d]", start, end)
	}
	if end == 0 {
		end = math.MaxInt64
	}
	return cell.TimeRange{Start: start, End: end}, nil
}

// inField is a refusal of one field, whose text names the field.
func inField(name, format string, args ...any) *fault.Error {
	return fault.InvalidField("", format, args...).In(name, -1)
}

func badTimestamp(name string, ts int64) *fault.Error {
	return inField(name, "Timestamps must be >= -1, but got %d", ts)
}

func noFamily() *fault.Error {
	return inField("family_name", "The family name must not be empty")
}

func checkColumn(family string, qualifier []byte) *fault.Error {
	if family == "" {
		return noFamily()
	}
	if len(qualifier) > schema.MaxQualifier {
		return inField("column_qualifier", "Column qualifiers must be at most %d bytes, but got %d", schema.MaxQualifier, len(qualifier))
	}
	return nil
}

// checkKey checks the key of a row that is named by itself.
func checkKey(name string, key []byte) *fault.Error {
	if len(key) == 0 {
		return fault.InvalidField(name, "Row keys must be non-empty")
	}
	if len(key) > schema.MaxRowKey {
		return fault.InvalidField(name, "Row keys must be at most %d bytes, but got %d", schema.MaxRowKey, len(key))
	}
	return nil
}

// checkCount checks the number of mutations of one row. required says that
// there must be one.
func checkCount(field string, n int, required bool) *fault.Error {
	if n == 0 && required {
		return fault.InvalidField(field, "No mutations provided")
	}
	if n > schema.MaxMutations {
		return fault.InvalidField(field, "Too many mutations: %d provided; limit %d", n, schema.MaxMutations)
	}
	return nil
}
