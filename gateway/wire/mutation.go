package wire

import (
	"math"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/date"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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
	// The operands of AddToCell and MergeToCell, both in the shape of the first.
	add bigtablepb.Mutation_AddToCell
}

// become makes the oneof be op. The same member again is merged into, another
// one starts afresh, as everywhere in protobuf.
func (m *mutation) become(op row.Op) {
	if m.op == op {
		return
	}
	if m.op == row.AddToCell || m.op == row.MergeToCell {
		m.add.Reset()
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
		if f.num == 5 || f.num == 6 {
			// MergeToCell has the same fields as AddToCell. The message is merged
			// into a fresh one that shares nothing with the buffer: these are small.
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(f.bytes, &m.add)
		} else {
			err = m.decodeMember(f.bytes, names)
		}
		if err != nil {
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

// from makes m the decoded message p.
func (m *mutation) from(p *bigtablepb.Mutation) {
	m.reset()
	m.origin = p.GetTimestampOrigin()
	switch o := p.GetMutation().(type) {
	case *bigtablepb.Mutation_SetCell_:
		m.op = row.SetCell
		m.family, m.qualifier = o.SetCell.GetFamilyName(), o.SetCell.GetColumnQualifier()
		m.timestamp, m.value = o.SetCell.GetTimestampMicros(), o.SetCell.GetValue()
	case *bigtablepb.Mutation_DeleteFromColumn_:
		m.op = row.DeleteColumn
		m.family, m.qualifier = o.DeleteFromColumn.GetFamilyName(), o.DeleteFromColumn.GetColumnQualifier()
		m.start = o.DeleteFromColumn.GetTimeRange().GetStartTimestampMicros()
		m.end = o.DeleteFromColumn.GetTimeRange().GetEndTimestampMicros()
	case *bigtablepb.Mutation_DeleteFromFamily_:
		m.op, m.family = row.DeleteFamily, o.DeleteFromFamily.GetFamilyName()
	case *bigtablepb.Mutation_DeleteFromRow_:
		m.op = row.DeleteRow
	case *bigtablepb.Mutation_AddToCell_:
		m.op = row.AddToCell
		a := o.AddToCell
		m.add.FamilyName, m.add.ColumnQualifier = a.GetFamilyName(), a.GetColumnQualifier()
		m.add.Timestamp, m.add.Input = a.GetTimestamp(), a.GetInput()
	case *bigtablepb.Mutation_MergeToCell_:
		m.op = row.MergeToCell
		a := o.MergeToCell
		m.add.FamilyName, m.add.ColumnQualifier = a.GetFamilyName(), a.GetColumnQualifier()
		m.add.Timestamp, m.add.Input = a.GetTimestamp(), a.GetInput()
	}
}

// finish checks m and writes it to out. What depends on the table (family,
// granularity, kind of aggregate) is left to the backend.
func (m *mutation) finish(out *row.Mutation) *fault.Error {
	switch m.op {
	case row.SetCell:
		if err := checkColumn(m.family, m.qualifier); err != nil {
			return within(err, "set_cell", -1)
		}
		if m.timestamp < row.ServerTime {
			return within(badTimestamp("timestamp_micros", m.timestamp), "set_cell", -1)
		}
		if len(m.value) > schema.MaxValue {
			return within(inField("value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(m.value)), "set_cell", -1)
		}
		if m.origin < 0 || m.origin > bigtablepb.Mutation_CLIENT_AUTO_GENERATED {
			return inField("timestamp_origin", "Unknown timestamp origin %d", m.origin)
		}
		*out = row.Mutation{Op: row.SetCell, Family: m.family, Qualifier: m.qualifier, Timestamp: m.timestamp,
			Truncate: m.origin == bigtablepb.Mutation_CLIENT_AUTO_GENERATED, Value: m.value}
	case row.DeleteColumn:
		if err := checkColumn(m.family, m.qualifier); err != nil {
			return within(err, "delete_from_column", -1)
		}
		t, err := timeRange(m.start, m.end, true)
		if err != nil {
			return within(within(err, "time_range", -1), "delete_from_column", -1)
		}
		*out = row.Mutation{Op: row.DeleteColumn, Family: m.family, Qualifier: m.qualifier, Times: t}
	case row.DeleteFamily:
		if m.family == "" {
			return within(noFamily(), "delete_from_family", -1)
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
			return within(err, name, -1)
		}
	default:
		return &fault.Error{Kind: fault.Invalid, Msg: "No mutation is set"}
	}
	return nil
}

func (m *mutation) finishAggregate(out *row.Mutation) *fault.Error {
	q, ok := m.add.GetColumnQualifier().GetKind().(*bigtablepb.Value_RawValue)
	if !ok {
		return inField("column_qualifier", "The qualifier must be given as raw_value")
	}
	t, ok := m.add.GetTimestamp().GetKind().(*bigtablepb.Value_RawTimestampMicros)
	if !ok {
		return inField("timestamp", "The timestamp must be given as raw_timestamp_micros")
	}
	for _, v := range []struct {
		name string
		v    *bigtablepb.Value
	}{{"column_qualifier", m.add.GetColumnQualifier()}, {"timestamp", m.add.GetTimestamp()}, {"input", m.add.GetInput()}} {
		if v.v.GetType() != nil {
			return inField(v.name, "A value that is written must not carry a type")
		}
	}
	if err := checkColumn(m.add.GetFamilyName(), q.RawValue); err != nil {
		return err
	}
	if t.RawTimestampMicros < 0 {
		return inField("timestamp", "Timestamps of aggregate cells must be >= 0, but got %d", t.RawTimestampMicros)
	}
	in, err := input(m.add.GetInput())
	if err != nil {
		return within(err, "input", -1)
	}
	if m.op == row.MergeToCell && in.Kind != row.RawInput && in.Kind != row.BytesInput && in.Kind != row.NullInput {
		return inField("input", "The state to merge must be given as raw_value or bytes_value")
	}
	if m.op == row.AddToCell && in.Kind == row.NullInput {
		return inField("input", "A value to add must be given")
	}
	*out = row.Mutation{Op: m.op, Family: m.add.GetFamilyName(), Qualifier: q.RawValue, Timestamp: t.RawTimestampMicros, Input: in}
	return nil
}

// The years that google.protobuf.Timestamp can name.
const (
	minTimestampSeconds = -62135596800
	maxTimestampSeconds = 253402300799
)

// input converts the operand of an aggregate.
func input(v *bigtablepb.Value) (row.Input, *fault.Error) {
	switch k := v.GetKind().(type) {
	case nil:
		return row.Input{Kind: row.NullInput}, nil
	case *bigtablepb.Value_RawValue:
		if len(k.RawValue) > schema.MaxValue {
			return row.Input{}, inField("raw_value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(k.RawValue))
		}
		return row.Input{Kind: row.RawInput, Bytes: k.RawValue}, nil
	case *bigtablepb.Value_BytesValue:
		if len(k.BytesValue) > schema.MaxValue {
			return row.Input{}, inField("bytes_value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(k.BytesValue))
		}
		return row.Input{Kind: row.BytesInput, Bytes: k.BytesValue}, nil
	case *bigtablepb.Value_StringValue:
		return row.Input{Kind: row.StringInput, Bytes: []byte(k.StringValue)}, nil
	case *bigtablepb.Value_IntValue:
		return row.Input{Kind: row.IntInput, Int: k.IntValue}, nil
	case *bigtablepb.Value_BoolValue:
		in := row.Input{Kind: row.BoolInput}
		if k.BoolValue {
			in.Int = 1
		}
		return in, nil
	case *bigtablepb.Value_FloatValue:
		if math.IsNaN(k.FloatValue) || math.IsInf(k.FloatValue, 0) {
			return row.Input{}, inField("float_value", "A float must be finite")
		}
		return row.Input{Kind: row.FloatInput, Float: k.FloatValue}, nil
	case *bigtablepb.Value_TimestampValue:
		s, n := k.TimestampValue.GetSeconds(), k.TimestampValue.GetNanos()
		if s < minTimestampSeconds || s > maxTimestampSeconds || n < 0 || n > 999_999_999 {
			return row.Input{}, inField("timestamp_value", "The timestamp is out of range")
		}
		return row.Input{Kind: row.TimestampInput, Int: s*1_000_000 + int64(n)/1000}, nil
	case *bigtablepb.Value_DateValue:
		days, ok := days(k.DateValue)
		if !ok {
			return row.Input{}, inField("date_value", "No such day")
		}
		return row.Input{Kind: row.DateInput, Int: days}, nil
	default:
		return row.Input{}, fault.InvalidField("", "The kind of value is not supported as input")
	}
}

// days returns the number of the day since 1970-01-01.
func days(d *date.Date) (int64, bool) {
	y, m, day := int(d.GetYear()), time.Month(d.GetMonth()), int(d.GetDay())
	t := time.Date(y, m, day, 0, 0, 0, 0, time.UTC)
	if y < 1 || y > 9999 || t.Year() != y || t.Month() != m || t.Day() != day {
		return 0, false
	}
	return t.Unix() / 86400, true
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
	return within(fault.InvalidField("", format, args...), name, -1)
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

// Mutations converts the mutations of the named field.
func Mutations(field string, ps []*bigtablepb.Mutation) ([]row.Mutation, error) {
	if err := checkCount(field, len(ps), false); err != nil {
		return nil, err
	}
	out := make([]row.Mutation, len(ps))
	var m mutation
	for i, p := range ps {
		m.from(p)
		if err := m.finish(&out[i]); err != nil {
			return nil, within(err, field, i)
		}
	}
	return out, nil
}

// Key checks a row key.
func Key(key []byte) error {
	if err := checkKey("row_key", key); err != nil {
		return err
	}
	return nil
}
