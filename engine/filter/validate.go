package filter

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// maxWork limits how many stages one cell of a row may pass through, copies
// counted: an Interleave copies cells, and a Chain of Interleaves multiplies
// the copies.
const maxWork = 10_000

// Validate checks n as a request's field "filter". It returns an *fault.Error of
// kind fault.Invalid that says what is wrong and where.
func (n *Node) Validate() error { return n.ValidateAs("filter") }

// ValidateAs is Validate for a filter in the request field of that name.
func (n *Node) ValidateAs(field string) error {
	_, _, err := compile(n, field)
	return err
}

// LiteralFamilies returns the names of the families that the filter names
// outright: by a family regex that is nothing but a literal, or in a column
// range. Each comes once. What is named inside of Columns counts only if
// Columns has that family. n has been validated.
func (n *Node) LiteralFamilies() []string {
	var names []string
	in := func(string) bool { return true }
	add := func(name string) {
		if in(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var walk func(n *Node, depth int)
	walk = func(n *Node, depth int) {
		if n == nil || depth > schema.MaxFilterDepth {
			return
		}
		switch n.Op {
		case FamilyRegex:
			budget := maxProgram
			if p, err := compilePattern(n.Pattern, &budget); err == nil && p.plain {
				add(string(p.prefix))
			}
		case ColumnRange:
			add(n.Family)
		case Chain, Interleave, Condition:
			for _, c := range n.Children {
				walk(c, depth+1)
			}
		case Columns:
			outer := in
			in = func(name string) bool { return outer(name) && len(n.Columns[name]) > 0 }
			for _, c := range n.Children {
				walk(c, depth)
			}
			in = outer
		}
	}
	walk(n, 1)
	return names
}

// A node is a checked Node with its patterns compiled. Filters that pass
// everything are nil.
type node struct {
	*Node
	children []*node
	pattern  *pattern

	label bool // applies a label somewhere
	sink  bool // has a Sink somewhere
	late  bool // has a Condition somewhere: cells may come out at the end of the row
	// state tells what dropping a cell before this filter could change.
	state state
	// out and work are the most copies and stages that one cell can become.
	out, work int
}

type state uint8

const (
	stateless   state = iota // cells pass or not, each by itself
	columnState              // cells of one column count
	rowState                 // cells of the row count
)

type checker struct {
	budget      int // instructions left
	patterns    int // that need a program
	inCondition bool
	tooDeep     bool // blame the whole filter; the path would be long and say little
}

// compile checks n, the request's field of that name, and compiles its patterns.
// It also returns the number of patterns that are more than a literal.
func compile(n *Node, field string) (root *node, patterns int, err error) {
	c := checker{budget: maxProgram}
	root, bad := c.check(n, 1)
	if bad != nil {
		return nil, 0, bad.in(field)
	}
	return root, c.patterns, nil
}

// A problem is an error whose Field is relative to the filter in question, so
// that paths are only written once there is an error.
type problem fault.Error

func invalid(field, format string, args ...any) *problem {
	return (*problem)(fault.InvalidField(field, format, args...))
}

// in makes p an error of the message that has the filter in its field.
func (p *problem) in(field string) *fault.Error {
	if p.Field != "" {
		field += "." + p.Field
	}
	p.Field = field
	return (*fault.Error)(p)
}

func (c *checker) check(n *Node, depth int) (*node, *problem) {
	if depth > schema.MaxFilterDepth {
		c.tooDeep = true
		return nil, invalid("", "Row filter exceeds maximum nesting depth of %d", schema.MaxFilterDepth)
	}
	if n == nil || n.Op == PassAll {
		return nil, nil
	}
	out := &node{Node: n, out: 1, work: 1}
	var bad *problem
	switch n.Op {
	case BlockAll:
		out.out = 0

	case Chain, Interleave, Condition:
		bad = c.checkChildren(out, depth)

	case Sink:
		if c.inCondition {
			return nil, invalid("sink", "sink cannot be nested in a condition filter")
		}
		out.sink = true
		out.state = rowState // what later filters drop has gone to the output
		out.out = 0

	case RowKeyRegex:
		if len(n.Pattern) == 0 {
			return nil, invalid("row_key_regex_filter", "Error in field 'row_key_regex_filter' : argument must not be empty")
		}
		out.pattern, bad = c.pattern(n.Pattern, "row_key_regex_filter")

	case RowSample:
		if !(n.P > 0 && n.P < 1) { // refuses NaN too
			return nil, invalid("row_sample_filter", "row_sample_filter argument must be between 0.0 and 1.0")
		}

	case FamilyRegex:
		if bytes.IndexByte(n.Pattern, ':') >= 0 {
			return nil, invalid("family_name_regex_filter", "Error in field 'family_name_regex_filter' : argument must not contain ':'")
		}
		out.pattern, bad = c.pattern(n.Pattern, "family_name_regex_filter")

	case QualifierRegex:
		out.pattern, bad = c.pattern(n.Pattern, "column_qualifier_regex_filter")

	case ValueRegex:
		out.pattern, bad = c.pattern(n.Pattern, "value_regex_filter")

	case ColumnRange:
		if n.Family == "" {
			return nil, invalid("column_range_filter.family_name", "Error in field 'column_range_filter' : family_name must not be empty")
		}
		if inverted(n.Start, n.End) {
			return nil, invalid("column_range_filter", "Error in field 'column_range_filter' : start_qualifier must not be greater than end_qualifier")
		}

	case ValueRange:
		if inverted(n.Start, n.End) {
			return nil, invalid("value_range_filter", "Error in field 'value_range_filter' : start_value must not be greater than end_value")
		}

	case TimestampRange:
		if n.Times.Start > n.Times.End {
			return nil, invalid("timestamp_range_filter", "Error in field 'timestamp_range_filter' : start_timestamp_micros must not be greater than end_timestamp_micros")
		}

	case ValueBitmask, StripValue:

	case CellsPerRowOffset:
		if n.N < 0 {
			return nil, invalid("cells_per_row_offset_filter", "Error in field 'cells_per_row_offset_filter' : argument must be >= 0")
		}
		if n.N == 0 {
			return nil, nil
		}
		out.state = rowState

	case CellsPerRowLimit:
		if n.N <= 0 {
			return nil, invalid("cells_per_row_limit_filter", "Error in field 'cells_per_row_limit_filter' : argument must be > 0")
		}
		out.state = rowState

	case CellsPerColumnLimit:
		if n.N <= 0 {
			return nil, invalid("cells_per_column_limit_filter", "Error in field 'cells_per_column_limit_filter' : argument must be > 0")
		}
		out.state = columnState

	case ApplyLabel:
		if !validLabel(n.Label) {
			return nil, invalid("apply_label_transformer", `apply_label_transformer must match RE2([a-z0-9\\-]+), but found %s`, n.Label)
		}
		if len(n.Label) > schema.MaxLabel {
			return nil, invalid("apply_label_transformer", "apply_label_transformer must be at most %d characters long, but found %s", schema.MaxLabel, n.Label)
		}
		out.label = true

	case Columns:
		if len(n.Children) != 1 {
			return nil, invalid("", "filter %d has %d filters instead of 1", n.Op, len(n.Children))
		}
		k, bad := c.check(n.Children[0], depth)
		if bad != nil {
			return nil, bad // the client knows of no filter around its own
		}
		out.children = []*node{k}
		if k != nil {
			out.label, out.sink, out.late, out.state = k.label, k.sink, k.late, k.state
			out.out, out.work = k.out, k.work
		}

	default:
		return nil, invalid("", "unknown filter %d", n.Op)
	}
	if bad != nil {
		return nil, bad
	}
	return out, nil
}

// childField names a child in the request.
func (n *Node) childField(i int) string {
	switch n.Op {
	case Chain:
		return fmt.Sprintf("chain.filters[%d]", i)
	case Interleave:
		return fmt.Sprintf("interleave.filters[%d]", i)
	}
	return "condition." + [...]string{"predicate_filter", "true_filter", "false_filter"}[i]
}

func (c *checker) checkChildren(out *node, depth int) *problem {
	n := out.Node
	switch {
	case n.Op == Chain && len(n.Children) < 2:
		return invalid("chain", "Chain must contain at least two RowFilters")
	case n.Op == Interleave && len(n.Children) < 2:
		return invalid("interleave", "Interleave must contain at least two RowFilters")
	case n.Op == Condition && len(n.Children) != 3:
		return invalid("condition", "condition has %d filters instead of 3", len(n.Children))
	}
	outer := c.inCondition
	if n.Op == Condition {
		c.inCondition = true
	}
	labels := 0
	out.children = make([]*node, 0, len(n.Children))
	for i, child := range n.Children {
		k, bad := c.check(child, depth+1)
		if bad != nil {
			if c.tooDeep {
				return bad
			}
			return (*problem)(bad.in(n.childField(i)))
		}
		out.children = append(out.children, k)
		if k == nil {
			continue
		}
		if k.label {
			out.label = true
			labels++
		}
		out.sink = out.sink || k.sink
		out.late = out.late || k.late
		out.state = max(out.state, k.state)
	}
	c.inCondition = outer
	if n.Op == Chain && labels > 1 {
		return invalid("chain", "Chain must contain at most one RowFilter with an apply_label_transformer")
	}

	out.out, out.work = 0, 1
	if n.Op == Chain {
		out.out = 1
	}
	for _, k := range out.children {
		o, w := 1, 1
		if k != nil {
			o, w = k.out, k.work
		}
		switch n.Op {
		case Chain:
			out.work += out.out * w
			out.out *= o
		case Interleave:
			out.work += w
			out.out += o
		default:
			out.work += w
			out.out = max(out.out, o)
		}
		if out.work > maxWork || out.out > maxWork {
			return invalid("", "Row filter multiplies cells too often: a cell may pass at most %d filters, copies counted", maxWork)
		}
	}
	if n.Op == Condition {
		out.late = true
		out.state = rowState
	}
	if out.sink {
		out.state = rowState
	}
	return nil
}

func (c *checker) pattern(src []byte, field string) (*pattern, *problem) {
	if len(src) > schema.MaxFilter {
		return nil, invalid(field, "Row filter exceeds maximum size of %d bytes", schema.MaxFilter)
	}
	p, err := compilePattern(src, &c.budget)
	if err != nil {
		return nil, invalid(field, "Error in field '%s' : %v", field, err)
	}
	if p.tail == tailProgram {
		c.patterns++
	}
	return p, nil
}

func inverted(start, end Bound) bool {
	return start.Set && end.Set && bytes.Compare(start.Key, end.Key) > 0
}

func validLabel(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-') {
			return false
		}
	}
	return s != ""
}
