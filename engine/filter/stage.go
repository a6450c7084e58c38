package filter

import (
	"bytes"
	"sort"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// A stage is one step of a Pipeline. It passes on what it lets through to the
// stage after it.
//
// Per row it is started; if it wants the row, it gets cells and is ended, or
// is left when nothing of the row matters any more. Starting and ending a
// stage starts and ends those behind it. A stage with several inputs is
// started and ended by the stage that splits the stream, which gives each input a tap.
type stage interface {
	// start forgets the row before and tells whether the stage or one behind it
	// may have output for the row of that key.
	start(key []byte) (want bool)
	// cell must give the right result even if the feeder skips nothing.
	cell(c *row.Cell) Next
	end()
}

// A builder makes the stages of one pipeline, back to front.
type builder struct {
	held  *store
	rng   func() float64
	final stage // behind the Sinks
	// memory is what each machine may use, in bytes; effort what all of them may.
	memory int
	effort *effort
}

func (b *builder) build(n *node, next stage) stage {
	if n == nil {
		return next
	}
	t := to{next: next}
	switch n.Op {
	case Chain:
		for i := len(n.children) - 1; i >= 0; i-- {
			next = b.build(n.children[i], next)
		}
		return next
	case Interleave:
		return b.interleave(n, next)
	case Condition:
		return b.condition(n, next)
	case Columns:
		return &columnSet{to: to{next: b.build(n.children[0], next)}, families: n.Columns}
	case BlockAll:
		return block{}
	case Sink:
		return b.final
	case RowKeyRegex:
		return &rowKey{to: t, m: newMachine(n.pattern, b.memory, b.effort)}
	case RowSample:
		return &rowSample{to: t, p: n.P, rng: b.rng}
	case FamilyRegex:
		if n.pattern.tail == tailNone {
			return &familyIs{to: t, name: string(n.pattern.prefix)}
		}
		return &familyRegex{to: t, m: newMachine(n.pattern, b.memory, b.effort)}
	case QualifierRegex:
		if n.pattern.tail == tailNone {
			return &qualifierIs{to: t, name: n.pattern.prefix}
		}
		return &qualifierRegex{to: t, m: newMachine(n.pattern, b.memory, b.effort), prefix: n.pattern.prefix}
	case ColumnRange:
		return &columnRange{to: t, family: n.Family, from: n.Start, until: n.End}
	case TimestampRange:
		return &timestampRange{to: t, times: n.Times}
	case ValueRegex:
		return &valueRegex{to: t, m: newMachine(n.pattern, b.memory, b.effort)}
	case ValueRange:
		return &valueRange{to: t, from: n.Start, until: n.End}
	case ValueBitmask:
		return &valueBitmask{to: t, mask: n.Pattern}
	case CellsPerRowOffset:
		return &rowOffset{to: t, n: int(n.N)}
	case CellsPerRowLimit:
		return &rowLimit{to: t, n: int(n.N)}
	case CellsPerColumnLimit:
		return &columnLimit{to: t, n: int(n.N)}
	case StripValue:
		return &stripValue{to: t}
	case ApplyLabel:
		return &applyLabel{to: t, labels: []string{n.Label}}
	}
	panic("filter: unchecked node") // check knows no other
}

func (b *builder) interleave(n *node, next stage) stage {
	if !n.late {
		s := &interleave{to: to{next: next}, tap: &tap{to: to{next: next}}}
		for _, k := range n.children {
			s.children = append(s.children, child{stage: b.build(k, s.tap)})
		}
		return s
	}
	sorter := &sorter{to: to{next: next}, held: held{store: b.held}}
	s := &lateInterleave{interleave: interleave{to: to{next: sorter}, tap: new(tap)}, sorter: sorter}
	for _, k := range n.children {
		l := &lane{tap: s.tap, held: held{store: b.held}}
		s.lanes = append(s.lanes, l)
		s.children = append(s.children, child{stage: b.build(k, l)})
	}
	return s
}

func (b *builder) condition(n *node, next stage) stage {
	branch := func(i int) branch {
		tail := &holdBack{to: to{next: next}, held: held{store: b.held}}
		if n.Node.Children[i] == nil {
			return branch{stage: block{}, tail: tail}
		}
		return branch{stage: b.build(n.children[i], tail), tail: tail}
	}
	s := &condition{to: to{next: next}, found: new(finder), then: branch(1), otherwise: branch(2)}
	s.predicate = b.build(n.children[0], s.found)
	return s
}

// to is the part of a stage that leads to the next one. Most stages are small and written to
// for each cell. Without the room before them, two scans whose stages lie side by side would
// share a cache line, and take 1.4 times the processor time.
type to struct {
	_    [64]byte
	next stage
}

func (t *to) start(key []byte) bool { return t.next.start(key) }
func (t *to) end()                  { t.next.end() }

// output is the end of every pipeline.
type output struct{ out Writer }

func (s *output) start([]byte) bool     { return true }
func (s *output) cell(c *row.Cell) Next { s.out.Cell(c); return NextCell }
func (s *output) end()                  {}

// block lets nothing through.
type block struct{}

func (block) start([]byte) bool   { return false }
func (block) cell(*row.Cell) Next { return NextRow }
func (block) end()                {}

// A tap is one of several inputs of a stage that its owner starts and ends.
type tap struct {
	to
	open bool // the stage wants the row
}

func (s *tap) start([]byte) bool { return s.open }
func (s *tap) end()              {}
func (s *tap) cell(c *row.Cell) Next {
	if !s.open {
		return NextRow
	}
	return s.next.cell(c)
}

// sorter passes cells on in order, at the end of the row.
type sorter struct {
	to
	held
}

func (s *sorter) start(key []byte) bool { s.held.reset(); return s.next.start(key) }
func (s *sorter) cell(c *row.Cell) Next { return s.held.add(c) }
func (s *sorter) end() {
	s.held.sort()
	s.store.replay(s.indexes, s.next)
	s.next.end()
}

// interleave gives each cell to every child. Children that do not hold back
// cells answer at once, so their output is in order as it comes.
type interleave struct {
	to
	tap      *tap
	children []child
}

type child struct {
	stage
	want bool // the row
	more bool // cells of it
}

func (s *interleave) start(key []byte) bool {
	s.tap.open = s.next.start(key)
	want := false
	for i := range s.children {
		k := &s.children[i]
		k.want = k.stage.start(key)
		k.more = k.want
		want = want || k.want
	}
	return want
}

func (s *interleave) cell(c *row.Cell) Next {
	skip := NextRow
	for i := range s.children {
		if k := &s.children[i]; k.more {
			n := k.stage.cell(c)
			k.more = n != NextRow
			skip = min(skip, n)
		}
	}
	return skip
}

func (s *interleave) end() {
	for i := range s.children {
		if k := &s.children[i]; k.want {
			k.stage.end()
		}
	}
	if s.tap.open {
		s.next.end()
	}
}

// lateInterleave is an interleave of which some children push at the end of the
// row only. It holds back what each child lets through, and sorts it with
// copies in the order of the children, as an interleave would have them.
type lateInterleave struct {
	interleave
	sorter *sorter
	lanes  []*lane
}

func (s *lateInterleave) start(key []byte) bool {
	for _, l := range s.lanes {
		l.held.reset()
	}
	return s.interleave.start(key)
}

func (s *lateInterleave) end() {
	for i := range s.children {
		if k := &s.children[i]; k.want {
			k.stage.end()
		}
		s.sorter.indexes = append(s.sorter.indexes, s.lanes[i].indexes...)
	}
	if s.tap.open {
		s.sorter.end()
	}
}

// A lane is the end of a child of a lateInterleave.
type lane struct {
	*tap
	held
}

func (s *lane) cell(c *row.Cell) Next {
	if !s.tap.open {
		return NextRow
	}
	return s.held.add(c)
}

// condition runs its branches along with the predicate and holds back what they
// let through until the verdict. That comes with the earliest of the
// predicate's first cell, the predicate's loss of interest, and the end of the
// row.
type condition struct {
	to
	predicate       stage
	found           *finder
	then, otherwise branch
	chosen          *branch // nil before the verdict
}

type branch struct {
	stage
	tail *holdBack
	want bool // the row
	more bool // cells of it
}

func (b *branch) begin(key []byte) bool {
	b.tail.open = false
	b.tail.held.reset()
	b.want = b.stage.start(key)
	b.more = b.want
	return b.want
}

func (b *branch) feed(c *row.Cell) Next {
	if !b.more {
		return NextRow
	}
	n := b.stage.cell(c)
	b.more = n != NextRow
	return n
}

func (s *condition) start(key []byte) bool {
	s.chosen = nil
	if !s.next.start(key) {
		return false
	}
	then, otherwise := s.then.begin(key), s.otherwise.begin(key)
	if !then && !otherwise {
		return false
	}
	s.found.found = false
	if !s.predicate.start(key) {
		s.choose()
		return s.chosen.want
	}
	return true
}

func (s *condition) cell(c *row.Cell) Next {
	if s.chosen != nil {
		return s.chosen.feed(c)
	}
	skip := s.predicate.cell(c)
	switch {
	case s.found.found:
		s.choose()
		return s.chosen.feed(c)
	case skip == NextRow:
		s.predicate.end()
		s.choose()
		return s.chosen.feed(c)
	}
	return min(skip, s.then.feed(c), s.otherwise.feed(c))
}

func (s *condition) end() {
	if s.chosen == nil {
		s.predicate.end()
		s.choose()
	}
	if s.chosen.want {
		s.chosen.stage.end()
	}
	s.next.end()
}

// choose takes the predicate's verdict as it stands and lets the branch go on.
func (s *condition) choose() {
	s.chosen = &s.otherwise
	if s.found.found {
		s.chosen = &s.then
	}
	s.chosen.tail.release()
}

// finder is the end of a predicate.
type finder struct{ found bool }

func (s *finder) start([]byte) bool   { return true }
func (s *finder) cell(*row.Cell) Next { s.found = true; return NextRow }
func (s *finder) end()                {}

// holdBack is the end of a branch: closed at first, and when it is opened a tap
// of the stage behind the condition.
type holdBack struct {
	to
	held
	open bool
}

func (s *holdBack) start([]byte) bool { return true }
func (s *holdBack) end()              {}
func (s *holdBack) cell(c *row.Cell) Next {
	if s.open {
		return s.next.cell(c)
	}
	return s.held.add(c)
}

func (s *holdBack) release() {
	s.open = true
	s.store.replay(s.indexes, s.next)
}

// The filters of whole rows.

type rowKey struct {
	to
	m *machine
}

func (s *rowKey) start(key []byte) bool { return s.m.match(key) && s.next.start(key) }
func (s *rowKey) cell(c *row.Cell) Next { return s.next.cell(c) }

type rowSample struct {
	to
	p   float64
	rng func() float64
}

func (s *rowSample) start(key []byte) bool { return s.rng() < s.p && s.next.start(key) }
func (s *rowSample) cell(c *row.Cell) Next { return s.next.cell(c) }

// The filters of single cells. One that lets only one family or column through
// turns the disinterest of later stages in that one into disinterest in what
// follows.

type familyIs struct {
	to
	name string
}

func (s *familyIs) cell(c *row.Cell) Next {
	if c.Family != s.name {
		if c.Family > s.name {
			return NextRow
		}
		return NextFamily
	}
	if n := s.next.cell(c); n < NextFamily {
		return n
	}
	return NextRow
}

type familyRegex struct {
	to
	m *machine
	// name is the family that was matched last.
	name    string
	known   bool
	matches bool
}

func (s *familyRegex) cell(c *row.Cell) Next {
	if !s.known || c.Family != s.name {
		s.name, s.known = c.Family, true
		s.matches = s.m.match([]byte(c.Family))
	}
	if !s.matches {
		return NextFamily
	}
	return s.next.cell(c)
}

type qualifierIs struct {
	to
	name []byte
}

func (s *qualifierIs) cell(c *row.Cell) Next {
	switch bytes.Compare(c.Qualifier, s.name) {
	case -1:
		return NextColumn
	case 1:
		return NextFamily
	}
	if n := s.next.cell(c); n != NextColumn {
		return n
	}
	return NextFamily
}

type qualifierRegex struct {
	to
	m      *machine
	prefix []byte
	// name is the qualifier that was matched last, maybe in another row.
	name    []byte
	known   bool
	matches bool
}

func (s *qualifierRegex) cell(c *row.Cell) Next {
	if !s.known || !bytes.Equal(c.Qualifier, s.name) {
		s.name, s.known = append(s.name[:0], c.Qualifier...), true
		s.matches = s.m.match(c.Qualifier)
	}
	if !s.matches {
		if n := min(len(s.prefix), len(c.Qualifier)); bytes.Compare(c.Qualifier[:n], s.prefix[:n]) > 0 {
			return NextFamily
		}
		return NextColumn
	}
	return s.next.cell(c)
}

type columnRange struct {
	to
	family      string
	from, until Bound
}

func (s *columnRange) cell(c *row.Cell) Next {
	switch {
	case c.Family < s.family:
		return NextFamily
	case c.Family > s.family || s.until.before(c.Qualifier):
		return NextRow
	case s.from.after(c.Qualifier):
		return NextColumn
	}
	if n := s.next.cell(c); n < NextFamily {
		return n
	}
	return NextRow
}

type columnSet struct {
	to
	families map[string][]row.Range
	// name is the family that was looked up last.
	name   string
	known  bool
	ranges []row.Range
}

func (s *columnSet) cell(c *row.Cell) Next {
	if !s.known || c.Family != s.name {
		s.name, s.known = c.Family, true
		s.ranges = s.families[c.Family]
	}
	i := sort.Search(len(s.ranges), func(i int) bool {
		end := s.ranges[i].End
		return len(end) == 0 || bytes.Compare(c.Qualifier, end) < 0
	})
	switch {
	case i == len(s.ranges):
		return NextFamily
	case bytes.Compare(c.Qualifier, s.ranges[i].Start) < 0:
		return NextColumn
	}
	return s.next.cell(c)
}

type timestampRange struct {
	to
	times cell.TimeRange
}

func (s *timestampRange) cell(c *row.Cell) Next {
	if !s.times.Contains(c.Timestamp) {
		if c.Timestamp < s.times.Start {
			return NextColumn
		}
		return NextCell
	}
	return s.next.cell(c)
}

type valueRegex struct {
	to
	m *machine
}

func (s *valueRegex) cell(c *row.Cell) Next {
	if !s.m.match(c.Value) {
		return NextCell
	}
	return s.next.cell(c)
}

type valueRange struct {
	to
	from, until Bound
}

func (s *valueRange) cell(c *row.Cell) Next {
	if s.from.after(c.Value) || s.until.before(c.Value) {
		return NextCell
	}
	return s.next.cell(c)
}

type valueBitmask struct {
	to
	mask []byte
}

func (s *valueBitmask) cell(c *row.Cell) Next {
	if len(c.Value) != len(s.mask) {
		return NextCell
	}
	for i, m := range s.mask {
		if c.Value[i]&m != m {
			return NextCell
		}
	}
	return s.next.cell(c)
}

// after tells whether the start bound b lies after s.
func (b *Bound) after(s []byte) bool {
	if !b.Set {
		return false
	}
	c := bytes.Compare(s, b.Key)
	return c < 0 || c == 0 && b.Open
}

// before tells whether the end bound b lies before s.
func (b *Bound) before(s []byte) bool {
	if !b.Set {
		return false
	}
	c := bytes.Compare(s, b.Key)
	return c > 0 || c == 0 && b.Open
}

// The filters that count. A cell that the feeder skips is not counted, so they
// only pass on those answers of later stages that leave their count right.

type rowOffset struct {
	to
	n    int
	seen int
}

func (s *rowOffset) start(key []byte) bool { s.seen = 0; return s.next.start(key) }

func (s *rowOffset) cell(c *row.Cell) Next {
	if s.seen < s.n {
		s.seen++
		return NextCell
	}
	return s.next.cell(c)
}

type rowLimit struct {
	to
	n    int
	seen int
}

func (s *rowLimit) start(key []byte) bool { s.seen = 0; return s.next.start(key) }

func (s *rowLimit) cell(c *row.Cell) Next {
	if s.seen == s.n {
		return NextRow
	}
	s.seen++
	if s.next.cell(c) == NextRow || s.seen == s.n {
		return NextRow
	}
	return NextCell
}

type columnLimit struct {
	to
	n         int
	seen      int // in the column
	family    string
	qualifier []byte
}

func (s *columnLimit) start(key []byte) bool {
	s.seen, s.family, s.qualifier = 0, "", s.qualifier[:0]
	return s.next.start(key)
}

func (s *columnLimit) cell(c *row.Cell) Next {
	if c.Family != s.family || !bytes.Equal(c.Qualifier, s.qualifier) {
		s.seen = 0
		s.family = c.Family
		s.qualifier = append(s.qualifier[:0], c.Qualifier...)
	}
	if s.seen == s.n {
		return NextColumn
	}
	s.seen++
	n := s.next.cell(c)
	if s.seen == s.n {
		n = max(n, NextColumn)
	}
	return n
}

// The transformers. A stage behind them may keep bytes and labels of the cell
// that it gets, but not the cell.

type stripValue struct {
	to
	c row.Cell
}

func (s *stripValue) cell(c *row.Cell) Next {
	s.c = *c
	s.c.Value = nil
	return s.next.cell(&s.c)
}

type applyLabel struct {
	to
	labels []string
	c      row.Cell
}

func (s *applyLabel) cell(c *row.Cell) Next {
	s.c = *c
	s.c.Labels = s.labels
	return s.next.cell(&s.c)
}
