package filter

// list is what both operators of FilterList have in common.
type list struct {
	base
	members []node
}

func (l *list) setReversed(r bool) {
	l.reversed = r
	for _, m := range l.members {
		m.setReversed(r)
	}
}

func (l *list) rowCells(cells []Cell) []Cell {
	for _, m := range l.members {
		cells = m.rowCells(cells)
	}
	return cells
}

func (l *list) hasRow() bool {
	for _, m := range l.members {
		if m.hasRow() {
			return true
		}
	}
	return false
}

func (l *list) essential(family []byte) bool {
	for _, m := range l.members {
		if m.essential(family) {
			return true
		}
	}
	return len(l.members) == 0
}

// further tells whether a is further along the scan than b.
func (l *list) further(a, b hint) bool {
	n := compareHints(a, b)
	if l.reversed {
		n = -n
	}
	return n > 0
}

// all is a FilterList with MUST_PASS_ALL.
type all struct {
	list
	seekers []node // the members that answered seek to the last cell
}

func (l *all) reset() {
	for _, m := range l.members {
		m.reset()
	}
	l.seekers = l.seekers[:0]
}

func (l *all) allRemaining() bool {
	for _, m := range l.members {
		if m.allRemaining() {
			return true
		}
	}
	return false
}

func (l *all) rowKey(row []byte) bool {
	out, hinted := false, false
	for _, m := range l.members {
		if m.allRemaining() {
			return true
		}
		// All are asked: some keep what they learn of the row.
		if m.rowKey(row) {
			out = true
		} else if m.hinting() {
			hinted = true
		}
	}
	return out && !hinted
}

// The order of codes by how far they go; a list takes the longest step.
var step = [...]uint8{include: 0, skip: 1, includeNextColumn: 2, nextColumn: 3, includeNextRow: 4, nextRow: 5, seek: 6}

// mergeAll returns the longer of two steps, which includes only if both do.
func mergeAll(a, b code) code {
	longer := a
	if step[b] > step[a] {
		longer = b
	}
	if a.includes() && b.includes() || !longer.includes() {
		return longer
	}
	if longer == includeNextColumn {
		return nextColumn
	}
	return nextRow
}

func (l *all) cell(c *Cell) code {
	answer := include
	l.seekers = l.seekers[:0]
	i := 0
	for ; i < len(l.members); i++ {
		m := l.members[i]
		if m.allRemaining() {
			answer = nextRow
			break
		}
		a := m.cell(c)
		if a == seek {
			l.seekers = append(l.seekers, m)
		}
		// A member that counts must not see what others have refused.
		if answer = mergeAll(answer, a); !answer.includes() {
			break
		}
	}
	for i++; i < len(l.members); i++ {
		if m := l.members[i]; m.hinting() && m.cell(c) == seek {
			l.seekers = append(l.seekers, m)
		}
	}
	if len(l.seekers) > 0 {
		return seek
	}
	return answer
}

func (l *all) hint(c *Cell) (far hint, ok bool) {
	for _, m := range l.seekers {
		if m.allRemaining() {
			continue
		}
		if h, given := m.hint(c); given && (!ok || l.further(h, far)) {
			far, ok = h, true
		}
	}
	return far, ok
}

func (l *all) transform(c *Cell) {
	for _, m := range l.members {
		m.transform(c)
	}
}

func (l *all) row() bool {
	for _, m := range l.members {
		if m.row() {
			return true
		}
	}
	return false
}

// one is a FilterList with MUST_PASS_ONE.
type one struct {
	list
	last []lastAnswer // by member
}

// A lastAnswer is what a member said of an earlier cell of the row. It is not
// asked about cells that the answer covers: the scan did not go as far as it
// would have gone for this member alone.
type lastAnswer struct {
	given    bool
	answer   code
	cell     Cell
	included bool // the latest cell
}

func newOne(members []node) *one {
	return &one{list: list{members: members}, last: make([]lastAnswer, len(members))}
}

func (l *one) reset() {
	for i, m := range l.members {
		m.reset()
		l.last[i] = lastAnswer{}
	}
}

func (l *one) allRemaining() bool {
	for _, m := range l.members {
		if !m.allRemaining() {
			return false
		}
	}
	return len(l.members) > 0
}

func (l *one) rowKey(row []byte) bool {
	out := len(l.members) > 0
	for _, m := range l.members {
		if !m.allRemaining() && !m.rowKey(row) {
			out = false
		}
	}
	return out
}

// covered returns what a member would say of c, if that follows from what it
// has said before.
func (l *one) covered(m node, last *lastAnswer, c *Cell) (code, bool) {
	if !last.given {
		return 0, false
	}
	switch last.answer {
	case seek:
		h, ok := m.hint(&last.cell)
		if !ok {
			return 0, false
		}
		return seek, l.short(c, h)
	case nextColumn, includeNextColumn:
		return nextColumn, column{last.cell.Family, last.cell.Qualifier}.has(c)
	case nextRow, includeNextRow:
		return nextRow, string(last.cell.Family) == string(c.Family)
	}
	return 0, false
}

// short tells whether c does not reach h in the direction that the order of a
// list gives to all parts of a key.
func (l *one) short(c *Cell, h hint) bool {
	return h.before(c) != l.reversed
}

// mergeOne is the shorter of two steps; a seek counts as a skip beside
// anything else, since it is not known how far it goes.
func mergeOne(a, b code) code {
	if a == seek && b == seek {
		return seek
	}
	if a == seek {
		a = skip
	}
	if b == seek {
		b = skip
	}
	shorter := a
	if reach[b] < reach[a] {
		shorter = b
	}
	if !a.includes() && !b.includes() {
		return shorter
	}
	switch shorter {
	case skip:
		return include
	case nextColumn:
		return includeNextColumn
	case nextRow:
		return includeNextRow
	}
	return shorter
}

// reach is the order of codes by where they go on.
var reach = [...]uint8{include: 0, skip: 0, includeNextColumn: 1, nextColumn: 1, includeNextRow: 2, nextRow: 2}

func (l *one) cell(c *Cell) code {
	if len(l.members) == 0 {
		return include
	}
	asked := false
	var answer code
	for i, m := range l.members {
		last := &l.last[i]
		last.included = false
		if m.allRemaining() {
			continue
		}
		a, ok := l.covered(m, last, c)
		if !ok {
			a = m.cell(c)
		}
		last.answer, last.given = a, a != include && a != skip
		if last.given {
			last.cell = *c
		}
		last.included = a.includes()
		if !asked {
			asked, answer = true, a
		} else {
			answer = mergeOne(answer, a)
		}
	}
	if !asked {
		return skip
	}
	return answer
}

func (l *one) hint(c *Cell) (near hint, ok bool) {
	for _, m := range l.members {
		if m.allRemaining() {
			continue
		}
		h, given := m.hint(c)
		if !given {
			return hint{}, false
		}
		if !ok || l.further(near, h) {
			near, ok = h, true
		}
	}
	return near, ok
}

func (l *one) transform(c *Cell) {
	for i, m := range l.members {
		if l.last[i].included {
			m.transform(c)
		}
	}
}

func (l *one) row() bool {
	for _, m := range l.members {
		if !m.row() {
			return false
		}
	}
	return len(l.members) > 0
}
