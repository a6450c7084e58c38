package wire

import (
	"errors"
	"strings"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// mutateRowOf and mutateRowsOf are the decoders above written against the
// generated code. Tests hold the two against each other.

func mutateRowOf(p *bigtablepb.MutateRowRequest) (Target, row.Entry, *fault.Error) {
	t := Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	e, err := entryOf(p.GetRowKey(), p.GetMutations(), p.GetIdempotency())
	return t, e, err
}

func mutateRowsOf(p *bigtablepb.MutateRowsRequest) (Target, []row.Entry, *fault.Error) {
	t := Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	if len(p.GetEntries()) == 0 {
		return t, nil, fault.InvalidField("entries", "No mutations provided")
	}
	total := 0
	for _, e := range p.GetEntries() {
		total += len(e.GetMutations())
	}
	if total > schema.MaxMutations {
		return t, nil, fault.InvalidField("entries", "Too many mutations: %d provided; limit %d", total, schema.MaxMutations)
	}
	var out []row.Entry
	for i, e := range p.GetEntries() {
		r, err := entryOf(e.GetRowKey(), e.GetMutations(), e.GetIdempotency())
		if err != nil {
			return t, nil, err.In("entries", i)
		}
		out = append(out, r)
	}
	return t, out, nil
}

func entryOf(key []byte, muts []*bigtablepb.Mutation, idem *bigtablepb.Idempotency) (row.Entry, *fault.Error) {
	e := row.Entry{Key: key}
	if err := checkKey("row_key", key); err != nil {
		return e, err
	}
	if err := checkCount("mutations", len(muts), true); err != nil {
		return e, err
	}
	var m mutation
	for i, p := range muts {
		m.from(p)
		var r row.Mutation
		if err := m.finish(&r); err != nil {
			return e, err.In("mutations", i)
		}
		e.Mutations = append(e.Mutations, r)
	}
	if idem != nil {
		st := idem.GetStartTime()
		tok, err := token(idem.GetToken(), st != nil, st.GetSeconds(), st.GetNanos())
		if err != nil {
			return e, err.In("idempotency", -1)
		}
		e.Token = tok
	}
	return e, nil
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
		m.op, m.family = row.AddToCell, o.AddToCell.GetFamilyName()
		m.column, m.at, m.input = valueOf(o.AddToCell.GetColumnQualifier()), valueOf(o.AddToCell.GetTimestamp()), valueOf(o.AddToCell.GetInput())
	case *bigtablepb.Mutation_MergeToCell_:
		m.op, m.family = row.MergeToCell, o.MergeToCell.GetFamilyName()
		m.column, m.at, m.input = valueOf(o.MergeToCell.GetColumnQualifier()), valueOf(o.MergeToCell.GetTimestamp()), valueOf(o.MergeToCell.GetInput())
	}
}

func valueOf(p *bigtablepb.Value) (v value) {
	v.given, v.typed = p != nil, p.GetType() != nil
	switch k := p.GetKind().(type) {
	case *bigtablepb.Value_RawValue:
		v.kind, v.bytes = rawValue, k.RawValue
	case *bigtablepb.Value_RawTimestampMicros:
		v.kind, v.int = rawTimestamp, k.RawTimestampMicros
	case *bigtablepb.Value_BytesValue:
		v.kind, v.bytes = bytesValue, k.BytesValue
	case *bigtablepb.Value_StringValue:
		v.kind, v.bytes = stringValue, []byte(k.StringValue)
	case *bigtablepb.Value_IntValue:
		v.kind, v.int = intValue, k.IntValue
	case *bigtablepb.Value_BoolValue:
		v.kind = boolValue
		if k.BoolValue {
			v.int = 1
		}
	case *bigtablepb.Value_FloatValue:
		v.kind, v.float = floatValue, k.FloatValue
	case *bigtablepb.Value_TimestampValue:
		v.kind, v.int, v.nanos = timestampValue, k.TimestampValue.GetSeconds(), k.TimestampValue.GetNanos()
	case *bigtablepb.Value_DateValue:
		v.kind, v.date = dateValue, [3]int32{k.DateValue.GetYear(), k.DateValue.GetMonth(), k.DateValue.GetDay()}
	case *bigtablepb.Value_ArrayValue:
		v.kind = arrayValue
	}
	return v
}

func camOf(p *bigtablepb.CheckAndMutateRowRequest) (out CheckAndMutateRowRequest) {
	out.Target = Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	out.Key = p.GetRowKey()
	out.refuse(checkKey("row_key", p.GetRowKey()))
	if len(p.GetTrueMutations()) == 0 && len(p.GetFalseMutations()) == 0 {
		out.refuse(fault.InvalidField("true_mutations", "No mutations provided"))
	}
	convert := func(field string, ps []*bigtablepb.Mutation) (ms []row.Mutation) {
		out.refuse(checkCount(field, len(ps), false))
		var m mutation
		for i, p := range ps {
			m.from(p)
			var r row.Mutation
			if err := m.finish(&r); err != nil {
				out.refuse(err.In(field, i))
				break
			}
			ms = append(ms, r)
		}
		return ms
	}
	out.Then = convert("true_mutations", p.GetTrueMutations())
	out.Otherwise = convert("false_mutations", p.GetFalseMutations())
	n, err := Filter("predicate_filter", p.GetPredicateFilter())
	if out.Predicate = n; out.err == nil {
		out.err = err
	}
	return out
}

func rmwOf(p *bigtablepb.ReadModifyWriteRowRequest) (out ReadModifyWriteRowRequest) {
	out.Target = Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	out.Key = p.GetRowKey()
	out.refuse(checkKey("row_key", p.GetRowKey()))
	if len(p.GetRules()) == 0 {
		out.refuse(fault.InvalidField("rules", "No rules provided"))
	}
	for i, p := range p.GetRules() {
		r := row.Rule{Family: p.GetFamilyName(), Qualifier: p.GetColumnQualifier()}
		err := checkColumn(r.Family, r.Qualifier)
		switch k := p.GetRule().(type) {
		case *bigtablepb.ReadModifyWriteRule_AppendValue:
			r.IsAppend, r.Append = true, k.AppendValue
		case *bigtablepb.ReadModifyWriteRule_IncrementAmount:
			r.Increment = k.IncrementAmount
		default:
			if err == nil {
				err = fault.InvalidField("", "No rule is set")
			}
		}
		if err != nil {
			out.refuse(err.In("rules", i))
			break
		}
		out.Rules = append(out.Rules, r)
	}
	return out
}

func readOf(p *bigtablepb.ReadRowsRequest) (out ReadRowsRequest) {
	out.Target = Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	out.Materialized, out.Limit, out.Reversed = p.GetMaterializedViewName(), p.GetRowsLimit(), p.GetReversed()
	out.FullStats = p.GetRequestStatsView() == bigtablepb.ReadRowsRequest_REQUEST_STATS_FULL
	if out.Limit < 0 {
		out.refuse(fault.InvalidField("rows_limit", "rows_limit must be >= 0, but got %d", out.Limit))
	}
	ranges, err := plainRowSet(p.GetRows())
	if out.Ranges = ranges; out.err == nil {
		out.err = err
	}
	n, err := Filter("filter", p.GetFilter())
	if out.Filter = n; out.err == nil {
		out.err = err
	}
	return out
}

// RowSet is what ReadRowsRequest does with its rows.
func RowSet(p *bigtablepb.RowSet) ([]row.Range, error) {
	b, err := proto.Marshal(&bigtablepb.ReadRowsRequest{Rows: p})
	if err != nil {
		return nil, err
	}
	if p == nil {
		b = nil
	}
	r := new(ReadRowsRequest)
	if err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil); err != nil {
		return nil, err
	}
	return r.Ranges, r.Check()
}

// plainRowSet is that written against the generated code.
func plainRowSet(p *bigtablepb.RowSet) ([]row.Range, error) {
	if len(p.GetRowKeys()) == 0 && len(p.GetRowRanges()) == 0 {
		return []row.Range{row.All}, nil
	}
	var out []row.Range
	for i, k := range p.GetRowKeys() {
		if err := checkKey("", k); err != nil {
			return nil, err.In("row_keys", i).In("rows", -1)
		}
		out = append(out, row.Single(k))
	}
	for i, r := range p.GetRowRanges() {
		rr, err := RowRange(r)
		var f *fault.Error
		if errors.As(err, &f) {
			plain := fault.InvalidField("", "%s", f.Msg[strings.LastIndex(f.Msg, " : ")+3:])
			return nil, plain.In("row_ranges", i).In("rows", -1)
		}
		out = append(out, rr)
	}
	return row.Union(out), nil
}
