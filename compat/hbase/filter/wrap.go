package filter

// skipFilter is SkipFilter: a row of which a cell does not pass is dropped. As
// in HBase, the filter inside is not asked about row keys, and does not learn
// that the scan is reversed.
type skipFilter struct {
	base
	in  node
	out bool
}

func (f *skipFilter) reset() {
	f.in.reset()
	f.out = false
}

func (f *skipFilter) cell(c *Cell) code {
	answer := f.in.cell(c)
	f.out = f.out || answer != include
	return answer
}

func (f *skipFilter) transform(c *Cell)            { f.in.transform(c) }
func (f *skipFilter) row() bool                    { return f.out }
func (f *skipFilter) hasRow() bool                 { return true }
func (f *skipFilter) essential(family []byte) bool { return f.in.essential(family) }

// whileMatchFilter is WhileMatchFilter: the first refusal of the filter inside
// ends the scan. That filter does not learn that the scan is reversed.
type whileMatchFilter struct {
	base
	in   node
	done bool
}

func (f *whileMatchFilter) reset()             { f.in.reset() }
func (f *whileMatchFilter) allRemaining() bool { return f.done || f.in.allRemaining() }

func (f *whileMatchFilter) rowKey(row []byte) bool {
	if f.allRemaining() {
		return true
	}
	out := f.in.rowKey(row)
	f.done = f.done || out
	return out
}

func (f *whileMatchFilter) cell(c *Cell) code {
	answer := f.in.cell(c)
	f.done = f.done || answer != include
	return answer
}

func (f *whileMatchFilter) row() bool {
	out := f.in.row()
	f.done = f.done || out
	return out
}

func (f *whileMatchFilter) transform(c *Cell)            { f.in.transform(c) }
func (f *whileMatchFilter) hasRow() bool                 { return true }
func (f *whileMatchFilter) essential(family []byte) bool { return f.in.essential(family) }
