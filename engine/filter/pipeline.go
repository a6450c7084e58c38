package filter

import (
	"math/rand/v2"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// Next tells the feeder of a Pipeline the most it may skip: none of the cells
// in between can reach the output nor change what does. Skipping less, or
// nothing, gives the same output.
type Next uint8

// The distances, from the shortest.
const (
	NextCell   Next = iota // go on with the next cell
	NextColumn             // no other cell of this column matters
	NextFamily             // no other cell of this family matters
	NextRow                // no other cell of this row matters
)

// A Writer takes the cells that passed, ordered by family, qualifier and
// descending timestamp; copies of one cell may follow each other. c and all it
// points to are valid during the call only.
type Writer interface{ Cell(c *row.Cell) }

// A Pipeline runs a Program over one row after the other. It serves one
// goroutine. Its buffers stay for the next row.
type Pipeline struct {
	root stage
	// sorter is between root and the output if Sinks and late cells meet there,
	// else nil.
	sorter *sorter
	finder *finder // of a Predicate, else nil
	store  store
	effort effort
	want   bool // the row
	_      [64]byte
}

// HoldBy makes the Pipeline ask h for the memory of what it holds back of a row, beyond
// 256 KiB. An error of h is that of EndRow. What is held is given back then, or by Release.
func (pl *Pipeline) HoldBy(h Holder) { pl.store.holder = h }

// Release drops what is held of a row that was begun and is not ended.
func (pl *Pipeline) Release() { pl.store.release() }

// Pipeline returns a pipeline that pushes to out. rng returns numbers in
// [0, 1), on which RowSample decides; nil means math/rand.
func (p *Program) Pipeline(out Writer, rng func() float64) *Pipeline {
	pl := new(Pipeline)
	var final stage = &output{out: out}
	if p.root != nil && p.root.sink && p.root.late {
		pl.sorter = &sorter{to: to{next: final}, held: held{store: &pl.store}}
		final = &tap{to: to{next: pl.sorter}, open: true}
	}
	pl.build(p, final, rng)
	return pl
}

// Predicate returns a pipeline that pushes nothing and only finds out whether a
// row has output: see Found. It answers NextRow as soon as that is certain.
func (p *Program) Predicate(rng func() float64) *Pipeline {
	pl := &Pipeline{finder: new(finder)}
	pl.build(p, pl.finder, rng)
	return pl
}

func (pl *Pipeline) build(p *Program, final stage, rng func() float64) {
	if rng == nil {
		rng = rand.Float64
	}
	pl.store.limit = MaxRowBuffer
	pl.effort.limit = MaxRowEffort
	b := builder{held: &pl.store, rng: rng, final: final, memory: p.memory, effort: &pl.effort}
	pl.root = b.build(p.root, final)
}

// StartRow begins a row. When it returns false no cell of the row can pass, and
// neither Cell nor EndRow need be called.
func (pl *Pipeline) StartRow(key []byte) (want bool) {
	pl.store.reset()
	pl.effort.left = pl.effort.limit
	if pl.finder != nil {
		pl.finder.found = false
	}
	if pl.sorter != nil {
		pl.sorter.start(key)
	}
	// A row whose key was too much for a pattern has to fail, in EndRow.
	pl.want = pl.root.start(key) || pl.effort.spent()
	return pl.want
}

// Cell passes on a cell of the row. Cells come ordered by family, qualifier and
// descending timestamp, none twice. c and all it points to need be valid during
// the call only.
func (pl *Pipeline) Cell(c *row.Cell) Next {
	if !pl.want || pl.err() != nil || pl.Found() {
		return NextRow
	}
	pl.store.enter(c)
	next := pl.root.cell(c)
	if pl.Found() {
		return NextRow
	}
	return next
}

// EndRow ends the row and pushes what was held back. It fails only when the filter
// would have held back more than MaxRowBuffer, or its patterns would have taken more
// than MaxRowEffort, both with a fault.FailedPrecondition, or when there was no memory
// to hold it back. The output of the row is then not to be used.
func (pl *Pipeline) EndRow() error {
	if !pl.want {
		return nil
	}
	pl.want = false
	if err := pl.err(); err != nil {
		return err
	}
	pl.root.end()
	if pl.sorter != nil {
		pl.sorter.end()
	}
	pl.store.release()
	return pl.err()
}

func (pl *Pipeline) err() error {
	if pl.effort.spent() {
		return fault.New(fault.FailedPrecondition,
			"The regular expressions of the row filter take too long on one row; make them simpler or narrow their input")
	}
	return pl.store.err
}

// Found tells whether any cell passed since StartRow. It is known for certain
// after EndRow, and for a Pipeline made by Predicate only; others return false.
func (pl *Pipeline) Found() bool { return pl.finder != nil && pl.finder.found }
