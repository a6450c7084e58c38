package filter

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// classPrefix is the Java package of HBase's filters and comparators.
const classPrefix = "org.apache.hadoop.hbase.filter."

// doNotRetry is the exception that HBase throws for a filter that it cannot
// read: asking again would not help.
const doNotRetry = "org.apache.hadoop.hbase.DoNotRetryIOException"

// An Error is an exception that HBase throws in the same place.
type Error struct {
	Class string // of Java
	Msg   string
}

func (e *Error) Error() string { return e.Msg }

func invalid(format string, args ...any) error {
	return &Error{doNotRetry, "org.apache.hadoop.hbase.exceptions.DeserializationException: " + fmt.Sprintf(format, args...)}
}

func unknown(class string) error {
	return &Error{doNotRetry, "java.lang.ClassNotFoundException: " + class}
}

// maxDepth is how deep filters may be nested.
const maxDepth = 64

// filter returns the filter of a message, or an *Error.
func (d *decoder) filter(m *pb.Filter, depth int) (node, error) {
	name, ok := strings.CutPrefix(m.GetName(), classPrefix)
	if !ok {
		return nil, unknown(m.GetName())
	}
	if depth > maxDepth {
		return nil, invalid("filters nested more than %d deep", maxDepth)
	}
	b := m.GetSerializedFilter()
	switch name {
	case "FilterList":
		return d.list(b, depth)
	case "SkipFilter":
		p, err := read[pb.SkipFilter](d, b)
		if err != nil {
			return nil, err
		}
		in, err := d.filter(p.GetFilter(), depth+1)
		return &skipFilter{in: in}, err
	case "WhileMatchFilter":
		p, err := read[pb.WhileMatchFilter](d, b)
		if err != nil {
			return nil, err
		}
		in, err := d.filter(p.GetFilter(), depth+1)
		return &whileMatchFilter{in: in}, err
	case "FilterWrapper":
		p, err := read[pb.FilterWrapper](d, b)
		if err != nil {
			return nil, err
		}
		return d.filter(p.GetFilter(), depth+1)

	case "RowFilter":
		p, err := read[pb.RowFilter](d, b)
		c, err := d.compare(p.GetCompareFilter(), err)
		return &rowFilter{compare: c}, err
	case "FamilyFilter":
		p, err := read[pb.FamilyFilter](d, b)
		c, err := d.compare(p.GetCompareFilter(), err)
		return &familyFilter{compare: c}, err
	case "QualifierFilter":
		p, err := read[pb.QualifierFilter](d, b)
		c, err := d.compare(p.GetCompareFilter(), err)
		return &qualifierFilter{compare: c}, err
	case "ValueFilter":
		p, err := read[pb.ValueFilter](d, b)
		c, err := d.compare(p.GetCompareFilter(), err)
		return &valueFilter{compare: c}, err
	case "DependentColumnFilter":
		p, err := read[pb.DependentColumnFilter](d, b)
		f := &dependentColumnFilter{column: column{p.GetColumnFamily(), p.GetColumnQualifier()}, drop: p.GetDropDependentColumn()}
		if err == nil && p.GetCompareFilter().GetComparator() != nil {
			f.compare, err = d.compare(p.GetCompareFilter(), nil)
		}
		return f, err

	case "SingleColumnValueFilter":
		p, err := read[pb.SingleColumnValueFilter](d, b)
		return d.single(p, err, false)
	case "SingleColumnValueExcludeFilter":
		p, err := read[pb.SingleColumnValueExcludeFilter](d, b)
		return d.single(p.GetSingleColumnValueFilter(), err, true)
	case "ColumnValueFilter":
		p, err := read[pb.ColumnValueFilter](d, b)
		f := &columnValueFilter{column: column{p.GetFamily(), p.GetQualifier()}}
		if err == nil {
			f.op = p.GetCompareOp()
			f.comparator, err = d.comparator(p.GetComparator())
		}
		return f, err

	case "ColumnCountGetFilter":
		p, err := read[pb.ColumnCountGetFilter](d, b)
		return &columnCountGetFilter{limit: int64(p.GetLimit())}, negative(err, "limit", int64(p.GetLimit()))
	case "ColumnPaginationFilter":
		p, err := read[pb.ColumnPaginationFilter](d, b)
		f := &columnPaginationFilter{limit: int64(p.GetLimit()), offset: int64(p.GetOffset()), from: p.ColumnOffset}
		err = negative(err, "limit", f.limit)
		if f.from == nil {
			err = negative(err, "offset", f.offset)
		}
		return f, err
	case "ColumnPrefixFilter":
		p, err := read[pb.ColumnPrefixFilter](d, b)
		return &columnPrefixFilter{prefix: p.GetPrefix()}, err
	case "MultipleColumnPrefixFilter":
		p, err := readList[pb.MultipleColumnPrefixFilter](d, b, bytesBytes, perByte)
		f := &multipleColumnPrefixFilter{prefixes: sorted(p.GetSortedPrefixes())}
		if err == nil && len(f.prefixes) < len(p.GetSortedPrefixes()) {
			err = invalid("prefixes must be distinct")
		}
		return f, err
	case "ColumnRangeFilter":
		p, err := read[pb.ColumnRangeFilter](d, b)
		return &columnRangeFilter{low: p.MinColumn, high: p.MaxColumn, lowShut: p.GetMinColumnInclusive(), highShut: p.GetMaxColumnInclusive()}, err
	case "FirstKeyOnlyFilter":
		_, err := read[pb.FirstKeyOnlyFilter](d, b)
		return &firstKeyOnlyFilter{}, err
	case "FirstKeyValueMatchingQualifiersFilter":
		p, err := readList[pb.FirstKeyValueMatchingQualifiersFilter](d, b, bytesBytes, perByte)
		return &firstKeyOnlyFilter{matching: true, qualifiers: sorted(p.GetQualifiers())}, err
	case "KeyOnlyFilter":
		p, err := read[pb.KeyOnlyFilter](d, b)
		return &keyOnlyFilter{length: p.GetLenAsVal()}, err
	case "TimestampsFilter":
		p, err := readList[pb.TimestampsFilter](d, b, bytesBytes, timestampBytes)
		f := &timestampsFilter{stamps: slices.Clone(p.GetTimestamps()), hints: p.GetCanHint()}
		slices.Sort(f.stamps)
		f.stamps = slices.Compact(f.stamps)
		if len(f.stamps) > 0 {
			err = negative(err, "timestamp", f.stamps[0])
		}
		return f, err

	case "PrefixFilter":
		p, err := read[pb.PrefixFilter](d, b)
		return newPrefixFilter(p.Prefix), err
	case "InclusiveStopFilter":
		p, err := read[pb.InclusiveStopFilter](d, b)
		return &inclusiveStopFilter{stop: p.GetStopRowKey()}, err
	case "PageFilter":
		p, err := read[pb.PageFilter](d, b)
		return &pageFilter{size: p.GetPageSize()}, negative(err, "page size", p.GetPageSize())
	case "RandomRowFilter":
		p, err := read[pb.RandomRowFilter](d, b)
		return &randomRowFilter{chance: p.GetChance()}, err
	case "FuzzyRowFilter":
		p, err := readList[pb.FuzzyRowFilter](d, b, messageBytes, perByte)
		if err != nil {
			return nil, err
		}
		return newFuzzyRowFilter(p)
	case "MultiRowRangeFilter":
		p, err := readList[pb.MultiRowRangeFilter](d, b, messageBytes, perByte)
		if err != nil {
			return nil, err
		}
		return newMultiRowRangeFilter(p)
	}
	return nil, unknown(m.GetName())
}

func negative(err error, what string, n int64) error {
	if err == nil && n < 0 {
		err = invalid("%s %d is negative", what, n)
	}
	return err
}

// sorted returns a sorted copy without duplicates.
func sorted(list [][]byte) [][]byte {
	list = slices.Clone(list)
	slices.SortFunc(list, bytes.Compare)
	return slices.CompactFunc(list, bytes.Equal)
}

func (d *decoder) compare(p *pb.CompareFilter, err error) (compare, error) {
	c := compare{op: p.GetCompareOp()}
	if err != nil || c.op == pb.CompareType_NO_OP && p.GetComparator() == nil {
		return c, err
	}
	if p.GetComparator() == nil {
		return c, invalid("a comparison without a comparator")
	}
	c.comparator, err = d.comparator(p.GetComparator())
	return c, err
}

func (d *decoder) single(p *pb.SingleColumnValueFilter, err error, exclude bool) (node, error) {
	f := &singleColumnValueFilter{column: column{p.GetColumnFamily(), p.GetColumnQualifier()}, exclude: exclude,
		ifMissing: p.GetFilterIfMissing(), latestOnly: p.GetLatestVersionOnly()}
	if err != nil {
		return nil, err
	}
	if f.op = p.GetCompareOp(); f.op == pb.CompareType_NO_OP {
		return nil, invalid("Unknown Compare op NO_OP")
	}
	f.comparator, err = d.comparator(p.GetComparator())
	return f, err
}

func (d *decoder) list(b []byte, depth int) (node, error) {
	p, err := readList[pb.FilterList](d, b, messageBytes, perByte)
	if err != nil {
		return nil, err
	}
	members := make([]node, 0, len(p.GetFilters()))
	for _, m := range p.GetFilters() {
		n, err := d.filter(m, depth+1)
		if err != nil {
			return nil, err
		}
		members = append(members, n)
	}
	if p.GetOperator() == pb.FilterList_MUST_PASS_ALL {
		return &all{list: list{members: members}}, nil
	}
	return newOne(members), nil
}

func newMultiRowRangeFilter(p *pb.MultiRowRangeFilter) (node, error) {
	if len(p.GetRowRangeList()) == 0 {
		return nil, invalid("No ranges found.")
	}
	ranges := make([]rowRange, 0, len(p.GetRowRangeList()))
	for _, r := range p.GetRowRangeList() {
		rr := rowRange{start: r.GetStartRow(), stop: r.GetStopRow(), startOpen: !r.GetStartRowInclusive(), stopShuts: r.GetStopRowInclusive()}
		if n := bytes.Compare(rr.start, rr.stop); len(rr.start) > 0 && len(rr.stop) > 0 && (n > 0 || n == 0 && !rr.stopShuts) {
			return nil, invalid("Invalid range: start row => %q, stop row => %q", rr.start, rr.stop)
		}
		ranges = append(ranges, rr)
	}
	return &multiRowRangeFilter{ranges: union(ranges)}, nil
}

// union sorts ranges and joins those that overlap or touch.
func union(ranges []rowRange) []rowRange {
	slices.SortFunc(ranges, func(a, b rowRange) int {
		if n := bytes.Compare(a.start, b.start); n != 0 || a.startOpen == b.startOpen {
			return n
		}
		if a.startOpen {
			return 1
		}
		return -1
	})
	var out []rowRange
	for _, r := range ranges {
		if len(out) == 0 {
			out = append(out, r)
			continue
		}
		last := &out[len(out)-1]
		if len(last.stop) == 0 {
			break
		}
		n := bytes.Compare(last.stop, r.start)
		if n < 0 || n == 0 && !last.stopShuts && r.startOpen {
			out = append(out, r)
			continue
		}
		switch n := bytes.Compare(last.stop, r.stop); {
		case len(r.stop) == 0 || n < 0:
			last.stop, last.stopShuts = r.stop, r.stopShuts
		case n == 0:
			last.stopShuts = last.stopShuts || r.stopShuts
		}
	}
	return out
}
