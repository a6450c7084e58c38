package model

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"rsc.io/binaryregexp"
)

// Filter returns what f leaves of a row. It evaluates the tree literally, list
// in and list out, sharing nothing with engine/filter but the Node, so that
// the two can be compared.
//
// f has passed Validate. A regular expression that does not compile is Invalid.
func Filter(f *filter.Node, key []byte, in []row.Cell) ([]row.Cell, error) {
	e := evaluation{key: key}
	out := e.eval(f, in)
	if e.err != nil {
		return nil, e.err
	}
	return pool(out, e.sunk), nil
}

type evaluation struct {
	key  []byte
	sunk []row.Cell // went around all later stages
	err  error
}

// pool merges cells in read order. Those of one column and timestamp keep
// their order.
func pool(lists ...[]row.Cell) []row.Cell {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, compareCells)
	return all
}

func (e *evaluation) eval(f *filter.Node, in []row.Cell) []row.Cell {
	if f == nil {
		return in
	}
	keepIf := func(ok bool) []row.Cell {
		if ok {
			return in
		}
		return nil
	}
	keep := func(ok func(*row.Cell) bool) (out []row.Cell) {
		for i := range in {
			if ok(&in[i]) {
				out = append(out, in[i])
			}
		}
		return out
	}
	switch f.Op {
	case filter.PassAll:
		return in
	case filter.RowSample:
		return keepIf(rand.Float64() < f.P)
	case filter.BlockAll:
		return nil
	case filter.Chain:
		for _, c := range f.Children {
			in = e.eval(c, in)
		}
		return in
	case filter.Interleave:
		var outs [][]row.Cell
		for _, c := range f.Children {
			outs = append(outs, e.eval(c, in))
		}
		return pool(outs...)
	case filter.Condition:
		branch := f.Children[1]
		if len(e.eval(f.Children[0], in)) == 0 {
			branch = f.Children[2]
		}
		if branch == nil {
			return nil
		}
		return e.eval(branch, in)
	case filter.Sink:
		e.sunk = append(e.sunk, in...)
		return nil
	case filter.RowKeyRegex:
		return keepIf(e.match(f.Pattern, e.key))
	case filter.FamilyRegex:
		return keep(func(c *row.Cell) bool { return e.match(f.Pattern, []byte(c.Family)) })
	case filter.QualifierRegex:
		return keep(func(c *row.Cell) bool { return e.match(f.Pattern, c.Qualifier) })
	case filter.ValueRegex:
		return keep(func(c *row.Cell) bool { return e.match(f.Pattern, c.Value) })
	case filter.ColumnRange:
		return keep(func(c *row.Cell) bool { return c.Family == f.Family && between(f, c.Qualifier) })
	case filter.Columns:
		return e.eval(f.Children[0], keep(func(c *row.Cell) bool {
			return slices.ContainsFunc(f.Columns[c.Family], func(r row.Range) bool { return r.Contains(c.Qualifier) })
		}))
	case filter.ValueRange:
		return keep(func(c *row.Cell) bool { return between(f, c.Value) })
	case filter.TimestampRange:
		return keep(func(c *row.Cell) bool { return f.Times.Contains(c.Timestamp) })
	case filter.ValueBitmask:
		return keep(func(c *row.Cell) bool {
			ok := len(c.Value) == len(f.Pattern)
			for i := 0; ok && i < len(f.Pattern); i++ {
				ok = c.Value[i]&f.Pattern[i] == f.Pattern[i]
			}
			return ok
		})
	case filter.CellsPerRowOffset:
		return in[min(int(f.N), len(in)):]
	case filter.CellsPerRowLimit:
		return in[:min(int(f.N), len(in))]
	case filter.CellsPerColumnLimit:
		seen := map[string]int32{}
		return keep(func(c *row.Cell) bool {
			col := c.Family + ":" + string(c.Qualifier) // a family has no colon
			seen[col]++
			return seen[col] <= f.N
		})
	case filter.StripValue:
		out := slices.Clone(in)
		for i := range out {
			out[i].Value = nil
		}
		return out
	case filter.ApplyLabel:
		out := slices.Clone(in)
		for i := range out {
			out[i].Labels = append(slices.Clone(out[i].Labels), f.Label)
		}
		return out
	}
	e.err = fault.New(fault.Invalid, "Filter of unknown kind %d", f.Op)
	return nil
}

func between(f *filter.Node, b []byte) bool {
	if f.Start.Set {
		if c := bytes.Compare(b, f.Start.Key); c < 0 || c == 0 && f.Start.Open {
			return false
		}
	}
	if f.End.Set {
		if c := bytes.Compare(b, f.End.Key); c > 0 || c == 0 && f.End.Open {
			return false
		}
	}
	return true
}

// match tells whether all of b matches an RE2 pattern whose bytes stand for
// themselves (Latin-1).
func (e *evaluation) match(pattern, b []byte) bool {
	var p []byte
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case c >= 0x80:
			p = fmt.Appendf(p, `\x%02x`, c)
		case c == '\\' && i+1 < len(pattern) && pattern[i+1] >= 0x80:
			// An escaped byte is that byte: the next round writes it.
		case c == '\\' && i+1 < len(pattern):
			i++
			p = append(p, c, pattern[i])
		default:
			p = append(p, c)
		}
	}
	re, err := binaryregexp.Compile(`\A(?:` + string(p) + `)\z`)
	if err != nil {
		e.err = fault.New(fault.Invalid, "Regular expression %q: %v", pattern, err)
		return false
	}
	return re.Match(b)
}
