package wire

import (
	"bytes"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// maxReadRequest bounds a ReadRowsRequest. Google refuses what is above 512
// KiB. The limit is there because a range of two bytes becomes one of fifty.
const maxReadRequest = 4 << 20

// A filterField is the encoded RowFilter of a request. A filter that is too
// large is refused before it is decoded, since decoding it may take many times
// its size.
type filterField struct {
	set   bool
	parts [][]byte // to be merged: nearly always one
	size  int      // also of what was not kept
}

// add takes an occurrence of the field.
func (f *filterField) add(b []byte) {
	f.set = true
	f.size += len(b)
	if len(b) > 0 && f.size <= schema.MaxFilter {
		f.parts = append(f.parts, b)
	}
}

// decode converts the filter. err tells that the bytes are no filter.
func (f *filterField) decode(name string, c *charge) (n *filter.Node, refused error, err error) {
	if !f.set {
		return nil, nil, nil
	}
	if f.size > schema.MaxFilter {
		return nil, tooLargeFilter(name), nil
	}
	p := new(bigtablepb.RowFilter)
	for _, b := range f.parts {
		if err := c.unmarshal(b, p); err != nil {
			return nil, nil, err
		}
	}
	n, refused = Filter(name, p)
	return n, refused, nil
}

// A refusal is the first reason why a request must be refused.
type refusal struct{ err error }

func (r *refusal) refuse(err *fault.Error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

// Check returns why the request must be refused, nil if it need not be.
func (r *refusal) Check() error { return r.err }

// A CheckAndMutateRowRequest is the message of that name; what it holds aliases
// the receive buffer until Release.
type CheckAndMutateRowRequest struct {
	Target
	Key             []byte
	Predicate       *filter.Node
	Then, Otherwise []row.Mutation

	refusal
	received
	names names
	m     mutation
}

// DecodeWire implements Decoder.
func (r *CheckAndMutateRowRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	var predicate filterField
	var then, otherwise entry // their mutations
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			r.Table, err = r.names.get(f.bytes)
		case 2:
			r.Key = f.bytes
		case 4:
			err = then.add("true_mutations", f.bytes, &r.m, &r.names, &r.charge)
		case 5:
			err = otherwise.add("false_mutations", f.bytes, &r.m, &r.names, &r.charge)
		case 6:
			predicate.add(f.bytes)
		case 7:
			r.Profile, err = r.names.get(f.bytes)
		case 9:
			r.View, err = r.names.get(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	r.Then, r.Otherwise = then.Mutations, otherwise.Mutations
	node, refused, err := predicate.decode("predicate_filter", &r.charge)
	if err != nil {
		return err
	}
	r.Predicate = node
	r.refuse(checkKey("row_key", r.Key))
	r.refuse(checkCount("true_mutations", then.count, otherwise.count == 0))
	r.refuse(then.invalid)
	r.refuse(checkCount("false_mutations", otherwise.count, false))
	r.refuse(otherwise.invalid)
	if r.err == nil {
		r.err = refused
	}
	return nil
}

// Release makes r ready for the next request.
func (r *CheckAndMutateRowRequest) Release() {
	r.received.release()
	*r = CheckAndMutateRowRequest{names: r.names}
}

// A ReadModifyWriteRowRequest is the message of that name; what it holds
// aliases the receive buffer until Release.
type ReadModifyWriteRowRequest struct {
	Target
	Key   []byte
	Rules []row.Rule

	refusal
	received
	names names
}

// DecodeWire implements Decoder.
func (r *ReadModifyWriteRowRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	count := 0
	var invalid *fault.Error
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			r.Table, err = r.names.get(f.bytes)
		case 2:
			r.Key = f.bytes
		case 3:
			var d rule
			if err = d.decode(f.bytes, &r.names); err != nil {
				break
			}
			if invalid == nil && count < schema.MaxMutations {
				if refused := d.check(); refused != nil {
					invalid = refused.In("rules", count)
				} else if err = r.use(ruleBytes); err == nil {
					r.Rules = append(room(r.Rules), d.Rule)
				}
			}
			count++
		case 4:
			r.Profile, err = r.names.get(f.bytes)
		case 6:
			r.View, err = r.names.get(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	r.refuse(checkKey("row_key", r.Key))
	if count == 0 {
		r.refuse(fault.InvalidField("rules", "No rules provided"))
	}
	if count > schema.MaxMutations {
		r.refuse(fault.InvalidField("rules", "Too many rules: %d provided; limit %d", count, schema.MaxMutations))
	}
	r.refuse(invalid)
	return nil
}

// A rule is a google.bigtable.v2.ReadModifyWriteRule. member is the number of
// the oneof's member, 0 if there is none.
type rule struct {
	row.Rule
	member protowire.Number
}

func (r *rule) decode(b []byte, names *names) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			if r.Family, err = names.get(f.bytes); err != nil {
				return err
			}
		case f.num == 2 && f.typ == protowire.BytesType:
			r.Qualifier = f.bytes
		case f.num == 3 && f.typ == protowire.BytesType:
			r.member, r.IsAppend, r.Append, r.Increment = 3, true, f.bytes, 0
		case f.num == 4 && f.typ == protowire.VarintType:
			r.member, r.IsAppend, r.Append, r.Increment = 4, false, nil, int64(f.varint)
		}
	}
	return nil
}

func (r *rule) check() *fault.Error {
	if err := checkColumn(r.Family, r.Qualifier); err != nil {
		return err
	}
	if r.member == 0 {
		return fault.InvalidField("", "No rule is set")
	}
	if len(r.Append) > schema.MaxValue {
		return inField("append_value", "Cell values must be at most %d bytes, but got %d", schema.MaxValue, len(r.Append))
	}
	return nil
}

// Release makes r ready for the next request.
func (r *ReadModifyWriteRowRequest) Release() {
	r.received.release()
	*r = ReadModifyWriteRowRequest{names: r.names}
}

// A ReadRowsRequest is the message of that name; what it holds aliases the
// receive buffer until Release.
type ReadRowsRequest struct {
	Target
	Materialized string
	// Ranges are as row.Union leaves them.
	Ranges    []row.Range
	Filter    *filter.Node
	Limit     int64
	Reversed  bool
	FullStats bool

	refusal
	received
	names names
}

// DecodeWire implements Decoder.
func (r *ReadRowsRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	tooLarge := len(b) > maxReadRequest
	if tooLarge {
		r.refuse(fault.InvalidField("rows", "A ReadRowsRequest must be at most %d bytes, but got %d", maxReadRequest, len(b)))
	}
	var rows rowSet
	var f3 filterField
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch f.typ {
		case protowire.BytesType:
			switch f.num {
			case 1:
				r.Table, err = r.names.get(f.bytes)
			case 2:
				if !tooLarge {
					err = rows.decode(f.bytes, &r.charge)
				}
			case 3:
				f3.add(f.bytes)
			case 5:
				r.Profile, err = r.names.get(f.bytes)
			case 9:
				r.View, err = r.names.get(f.bytes)
			case 11:
				r.Materialized, err = r.names.get(f.bytes)
			}
		case protowire.VarintType:
			switch f.num {
			case 4:
				r.Limit = int64(f.varint)
			case 6:
				r.FullStats = bigtablepb.ReadRowsRequest_RequestStatsView(int32(f.varint)) == bigtablepb.ReadRowsRequest_REQUEST_STATS_FULL
			case 7:
				r.Reversed = f.varint != 0
			}
		}
		if err != nil {
			return err
		}
	}
	node, refused, err := f3.decode("filter", &r.charge)
	if err != nil {
		return err
	}
	r.Filter = node
	if r.Limit < 0 {
		r.refuse(fault.InvalidField("rows_limit", "rows_limit must be >= 0, but got %d", r.Limit))
	}
	ranges, bad := rows.ranges()
	r.Ranges = ranges
	r.refuse(bad)
	if r.err == nil {
		r.err = refused
	}
	return nil
}

// Release makes r ready for the next request.
func (r *ReadRowsRequest) Release() {
	r.received.release()
	*r = ReadRowsRequest{names: r.names}
}

// A rowSet is a google.bigtable.v2.RowSet on its way to ranges.
type rowSet struct {
	keys  [][]byte
	spans []span
}

// decode merges the encoded message b.
func (s *rowSet) decode(b []byte, c *charge) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			if err := c.use(keyBytes + len(f.bytes)); err != nil {
				return err
			}
			s.keys = append(room(s.keys), f.bytes)
		case 2:
			if err := c.use(spanBytes); err != nil {
				return err
			}
			s.spans = append(room(s.spans), span{})
			if err := s.spans[len(s.spans)-1].decode(f.bytes); err != nil {
				return err
			}
		}
	}
	return nil
}

// ranges converts the rows of a read: sorted, disjoint ranges. A set without
// keys and ranges is the whole table; one that no key can be in gives no range.
func (s *rowSet) ranges() ([]row.Range, *fault.Error) {
	if len(s.keys) == 0 && len(s.spans) == 0 {
		return []row.Range{row.All}, nil
	}
	size := 0
	for i, k := range s.keys {
		if err := checkKey("", k); err != nil {
			return nil, err.In("row_keys", i).In("rows", -1)
		}
		size += len(k) + 1
	}
	out := make([]row.Range, 0, len(s.keys)+len(s.spans))
	ends := make([]byte, 0, size) // a key's successor is the key and a NUL: both from here
	for _, k := range s.keys {
		from := len(ends)
		ends = append(append(ends, k...), 0)
		end := ends[from:len(ends):len(ends)]
		out = append(out, row.Range{Start: end[:len(k):len(k)], End: end})
	}
	for i := range s.spans {
		r, err := s.spans[i].rowRange()
		if err != nil {
			return nil, err.In("row_ranges", i).In("rows", -1)
		}
		out = append(out, r)
	}
	return row.Union(out), nil
}

// A span is a google.bigtable.v2.RowRange as given. Unset ends are closed and
// empty, which means the same.
type span struct {
	start, end         []byte
	startOpen, endOpen bool
}

func (s *span) decode(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1, 2:
			s.start, s.startOpen = f.bytes, f.num == 2
		case 3, 4:
			s.end, s.endOpen = f.bytes, f.num == 3
		}
	}
	return nil
}

func (s *span) rowRange() (row.Range, *fault.Error) {
	r := row.Range{Start: s.start, End: s.end}
	if s.startOpen {
		r.Start = row.Successor(s.start)
	}
	// Clients write an empty end, open or closed, for no end.
	if len(s.end) > 0 {
		if bytes.Compare(s.start, s.end) > 0 {
			startName, endName := "start_key_closed", "end_key_closed"
			if s.startOpen {
				startName = "start_key_open"
			}
			if s.endOpen {
				endName = "end_key_open"
			}
			return r, fault.InvalidField("", "%s must be less than %s", startName, endName)
		}
		if !s.endOpen {
			r.End = row.Successor(s.end)
		}
	}
	return r, nil
}

// RowRange converts the range of a SampleRowKeysRequest; nil is the whole table.
func RowRange(p *bigtablepb.RowRange) (row.Range, error) {
	s := span{}
	switch k := p.GetStartKey().(type) {
	case *bigtablepb.RowRange_StartKeyClosed:
		s.start = k.StartKeyClosed
	case *bigtablepb.RowRange_StartKeyOpen:
		s.start, s.startOpen = k.StartKeyOpen, true
	}
	switch k := p.GetEndKey().(type) {
	case *bigtablepb.RowRange_EndKeyOpen:
		s.end, s.endOpen = k.EndKeyOpen, true
	case *bigtablepb.RowRange_EndKeyClosed:
		s.end = k.EndKeyClosed
	}
	r, err := s.rowRange()
	if err != nil {
		return r, err.In("row_range", -1)
	}
	return r, nil
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
