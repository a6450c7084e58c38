package wire

import (
	"math"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/schema"
)

// Filter converts and checks the filter in the named field; nil gives nil.
func Filter(field string, p *bigtablepb.RowFilter) (*filter.Node, error) {
	if p == nil {
		return nil, nil
	}
	if n := proto.Size(p); n > schema.MaxFilter {
		return nil, tooLargeFilter(field)
	}
	n, err := node(p, 1)
	if err != nil {
		return nil, err.In(field, -1)
	}
	if err := n.ValidateAs(field); err != nil {
		return nil, err
	}
	return n, nil
}

func tooLargeFilter(field string) *fault.Error {
	return fault.InvalidField(field, "Row filter exceeds maximum size of %d bytes", schema.MaxFilter)
}

func mustBeTrue(set bool, field string, op filter.Op) (*filter.Node, *fault.Error) {
	if !set {
		return nil, fault.InvalidField(field, "%s must be true if set", field)
	}
	return &filter.Node{Op: op}, nil
}

// node converts p, which is nested depth levels deep.
func node(p *bigtablepb.RowFilter, depth int) (*filter.Node, *fault.Error) {
	if depth > schema.MaxFilterDepth {
		return nil, fault.InvalidField("", "Row filter exceeds maximum nesting depth of %d", schema.MaxFilterDepth)
	}
	switch f := p.GetFilter().(type) {
	case nil:
		return &filter.Node{Op: filter.PassAll}, nil
	case *bigtablepb.RowFilter_Chain_:
		return nodes(filter.Chain, "chain", f.Chain.GetFilters(), depth)
	case *bigtablepb.RowFilter_Interleave_:
		return nodes(filter.Interleave, "interleave", f.Interleave.GetFilters(), depth)
	case *bigtablepb.RowFilter_Condition_:
		n := &filter.Node{Op: filter.Condition, Children: make([]*filter.Node, 3)}
		for i, c := range []struct {
			name string
			p    *bigtablepb.RowFilter
		}{
			{"predicate_filter", f.Condition.GetPredicateFilter()},
			{"true_filter", f.Condition.GetTrueFilter()},
			{"false_filter", f.Condition.GetFalseFilter()},
		} {
			if c.p == nil {
				continue
			}
			child, err := node(c.p, depth+1)
			if err != nil {
				return nil, err.In(c.name, -1).In("condition", -1)
			}
			n.Children[i] = child
		}
		return n, nil
	case *bigtablepb.RowFilter_Sink:
		return mustBeTrue(f.Sink, "sink", filter.Sink)
	case *bigtablepb.RowFilter_PassAllFilter:
		return mustBeTrue(f.PassAllFilter, "pass_all_filter", filter.PassAll)
	case *bigtablepb.RowFilter_BlockAllFilter:
		return mustBeTrue(f.BlockAllFilter, "block_all_filter", filter.BlockAll)
	case *bigtablepb.RowFilter_StripValueTransformer:
		return mustBeTrue(f.StripValueTransformer, "strip_value_transformer", filter.StripValue)
	case *bigtablepb.RowFilter_RowKeyRegexFilter:
		return &filter.Node{Op: filter.RowKeyRegex, Pattern: f.RowKeyRegexFilter}, nil
	case *bigtablepb.RowFilter_RowSampleFilter:
		return &filter.Node{Op: filter.RowSample, P: f.RowSampleFilter}, nil
	case *bigtablepb.RowFilter_FamilyNameRegexFilter:
		return &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(f.FamilyNameRegexFilter)}, nil
	case *bigtablepb.RowFilter_ColumnQualifierRegexFilter:
		return &filter.Node{Op: filter.QualifierRegex, Pattern: f.ColumnQualifierRegexFilter}, nil
	case *bigtablepb.RowFilter_ColumnRangeFilter:
		n := &filter.Node{Op: filter.ColumnRange, Family: f.ColumnRangeFilter.GetFamilyName()}
		switch b := f.ColumnRangeFilter.GetStartQualifier().(type) {
		case *bigtablepb.ColumnRange_StartQualifierClosed:
			n.Start = filter.Bound{Key: b.StartQualifierClosed, Set: true}
		case *bigtablepb.ColumnRange_StartQualifierOpen:
			n.Start = filter.Bound{Key: b.StartQualifierOpen, Set: true, Open: true}
		}
		switch b := f.ColumnRangeFilter.GetEndQualifier().(type) {
		case *bigtablepb.ColumnRange_EndQualifierClosed:
			n.End = filter.Bound{Key: b.EndQualifierClosed, Set: true}
		case *bigtablepb.ColumnRange_EndQualifierOpen:
			n.End = filter.Bound{Key: b.EndQualifierOpen, Set: true, Open: true}
		}
		return n, nil
	case *bigtablepb.RowFilter_TimestampRangeFilter:
		r := f.TimestampRangeFilter
		t := cell.TimeRange{Start: r.GetStartTimestampMicros(), End: r.GetEndTimestampMicros()}
		if t.End == 0 {
			t.End = math.MaxInt64
		}
		return &filter.Node{Op: filter.TimestampRange, Times: t}, nil
	case *bigtablepb.RowFilter_ValueRegexFilter:
		return &filter.Node{Op: filter.ValueRegex, Pattern: f.ValueRegexFilter}, nil
	case *bigtablepb.RowFilter_ValueRangeFilter:
		n := &filter.Node{Op: filter.ValueRange}
		switch b := f.ValueRangeFilter.GetStartValue().(type) {
		case *bigtablepb.ValueRange_StartValueClosed:
			n.Start = filter.Bound{Key: b.StartValueClosed, Set: true}
		case *bigtablepb.ValueRange_StartValueOpen:
			n.Start = filter.Bound{Key: b.StartValueOpen, Set: true, Open: true}
		}
		switch b := f.ValueRangeFilter.GetEndValue().(type) {
		case *bigtablepb.ValueRange_EndValueClosed:
			n.End = filter.Bound{Key: b.EndValueClosed, Set: true}
		case *bigtablepb.ValueRange_EndValueOpen:
			n.End = filter.Bound{Key: b.EndValueOpen, Set: true, Open: true}
		}
		return n, nil
	case *bigtablepb.RowFilter_ValueBitmaskFilter:
		return &filter.Node{Op: filter.ValueBitmask, Pattern: f.ValueBitmaskFilter.GetMask()}, nil
	case *bigtablepb.RowFilter_CellsPerRowOffsetFilter:
		return &filter.Node{Op: filter.CellsPerRowOffset, N: f.CellsPerRowOffsetFilter}, nil
	case *bigtablepb.RowFilter_CellsPerRowLimitFilter:
		return &filter.Node{Op: filter.CellsPerRowLimit, N: f.CellsPerRowLimitFilter}, nil
	case *bigtablepb.RowFilter_CellsPerColumnLimitFilter:
		return &filter.Node{Op: filter.CellsPerColumnLimit, N: f.CellsPerColumnLimitFilter}, nil
	case *bigtablepb.RowFilter_ApplyLabelTransformer:
		return &filter.Node{Op: filter.ApplyLabel, Label: f.ApplyLabelTransformer}, nil
	default:
		return nil, &fault.Error{Kind: fault.Unimplemented, Msg: "The kind of row filter is not supported"}
	}
}

func nodes(op filter.Op, name string, ps []*bigtablepb.RowFilter, depth int) (*filter.Node, *fault.Error) {
	n := &filter.Node{Op: op, Children: make([]*filter.Node, len(ps))}
	for i, p := range ps {
		c, err := node(p, depth+1)
		if err != nil {
			return nil, err.In("filters", i).In(name, -1)
		}
		n.Children[i] = c
	}
	return n, nil
}
