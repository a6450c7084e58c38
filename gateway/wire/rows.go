package wire

import (
	"bytes"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// RowSet converts the rows of a read: sorted, disjoint ranges. A set without
// keys and ranges is the whole table; one that no key can be in gives no range.
func RowSet(p *bigtablepb.RowSet) ([]row.Range, error) {
	keys, ranges := p.GetRowKeys(), p.GetRowRanges()
	if len(keys) == 0 && len(ranges) == 0 {
		return []row.Range{row.All}, nil
	}
	size := 0
	for i, k := range keys {
		if err := checkKey("", k); err != nil {
			return nil, within(within(err, "row_keys", i), "rows", -1)
		}
		size += len(k) + 1
	}
	out := make([]row.Range, 0, len(keys)+len(ranges))
	ends := make([]byte, 0, size) // a key's successor is the key and a NUL: both from here
	for _, k := range keys {
		from := len(ends)
		ends = append(append(ends, k...), 0)
		end := ends[from:len(ends):len(ends)]
		out = append(out, row.Range{Start: end[:len(k):len(k)], End: end})
	}
	for i, p := range ranges {
		r, err := rowRange(p)
		if err != nil {
			return nil, within(within(err, "row_ranges", i), "rows", -1)
		}
		out = append(out, r)
	}
	return row.Union(out), nil
}

// RowRange converts the range of a SampleRowKeysRequest; nil is the whole table.
func RowRange(p *bigtablepb.RowRange) (row.Range, error) {
	r, err := rowRange(p)
	if err != nil {
		return r, within(err, "row_range", -1)
	}
	return r, nil
}

func rowRange(p *bigtablepb.RowRange) (r row.Range, err *fault.Error) {
	var start, end []byte // as given, to tell whether they are in order
	startName, endName := "start_key_closed", "end_key_open"
	switch k := p.GetStartKey().(type) {
	case *bigtablepb.RowRange_StartKeyClosed:
		start, r.Start = k.StartKeyClosed, k.StartKeyClosed
	case *bigtablepb.RowRange_StartKeyOpen:
		startName = "start_key_open"
		start, r.Start = k.StartKeyOpen, row.Successor(k.StartKeyOpen)
	}
	switch k := p.GetEndKey().(type) {
	case *bigtablepb.RowRange_EndKeyOpen:
		end, r.End = k.EndKeyOpen, k.EndKeyOpen
	case *bigtablepb.RowRange_EndKeyClosed:
		endName = "end_key_closed"
		// Clients write an empty end, open or closed, for no end.
		if end = k.EndKeyClosed; len(end) > 0 {
			r.End = row.Successor(end)
		}
	}
	if len(end) > 0 && bytes.Compare(start, end) > 0 {
		return r, fault.InvalidField("", "%s must be less than %s", startName, endName)
	}
	return r, nil
}

// Rules converts the rules of a ReadModifyWriteRow.
func Rules(ps []*bigtablepb.ReadModifyWriteRule) ([]row.Rule, error) {
	if len(ps) == 0 {
		return nil, fault.InvalidField("rules", "No rules provided")
	}
	if len(ps) > schema.MaxMutations {
		return nil, fault.InvalidField("rules", "Too many rules: %d provided; limit %d", len(ps), schema.MaxMutations)
	}
	out := make([]row.Rule, len(ps))
	for i, p := range ps {
		if err := rule(p, &out[i]); err != nil {
			return nil, within(err, "rules", i)
		}
	}
	return out, nil
}

func rule(p *bigtablepb.ReadModifyWriteRule, out *row.Rule) *fault.Error {
	if err := checkColumn(p.GetFamilyName(), p.GetColumnQualifier()); err != nil {
		return err
	}
	out.Family, out.Qualifier = p.GetFamilyName(), p.GetColumnQualifier()
	switch r := p.GetRule().(type) {
	case *bigtablepb.ReadModifyWriteRule_AppendValue:
		if len(r.AppendValue) > schema.MaxValue {
			return inField("append_value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(r.AppendValue))
		}
		out.IsAppend, out.Append = true, r.AppendValue
		if out.Append == nil {
			out.Append = []byte{}
		}
	case *bigtablepb.ReadModifyWriteRule_IncrementAmount:
		out.Increment = r.IncrementAmount
	default:
		return fault.InvalidField("", "No rule is set")
	}
	return nil
}

// Row builds the row of a ReadModifyWriteRow's answer from cells in read order.
func Row(key []byte, cells []row.Cell) *bigtablepb.Row {
	r := &bigtablepb.Row{Key: key}
	var f *bigtablepb.Family
	var c *bigtablepb.Column
	for i := range cells {
		in := &cells[i]
		if f == nil || f.Name != in.Family {
			f, c = &bigtablepb.Family{Name: in.Family}, nil
			r.Families = append(r.Families, f)
		}
		if c == nil || !bytes.Equal(c.Qualifier, in.Qualifier) {
			c = &bigtablepb.Column{Qualifier: in.Qualifier}
			f.Columns = append(f.Columns, c)
		}
		c.Cells = append(c.Cells, &bigtablepb.Cell{TimestampMicros: in.Timestamp, Value: in.Value, Labels: in.Labels})
	}
	return r
}
