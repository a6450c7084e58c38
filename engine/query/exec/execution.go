package exec

import (
	"context"
	"sync"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A Source reads and writes the rows of stored tables: see query.Source.
type Source interface {
	ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
	MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error
	SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error
	TabletCuts(ctx context.Context, table string, within row.Range) ([][]byte, error)
}

// A Config is what a statement runs with.
type Config struct {
	Source Source
	Pool   *Pool
	Params algebra.Params
	// Parallel is how many tablets, or parts of them, are read at a time.
	Parallel int
	// As returns the context of a read with the rights of a view's definer; nil leaves the
	// caller's.
	As func(ctx context.Context, definer string) (context.Context, error)
	// Resume is where a scan that can be resumed goes on: what its position gave.
	Resume []byte
	// Measure has Stats say how long operators took. To look at the clock costs a point
	// read some 5 %.
	Measure bool
}

// execution is one run of a statement.
type execution struct {
	Config
	// ctx ends with the run. Calls of functions and scans see it.
	ctx context.Context
	// now is Params.Now in microseconds.
	now     int64
	account account
	defs    map[string]*definition
	stats   map[algebra.Rel]*algebra.Stats
	// files are the spills that have one. A run of a sort may be written beside.
	filesMu sync.Mutex
	files   map[*spill]struct{}
	stream  *stream // nil if the rows do not come in the order of a scan
	depth   int
	calls   int // that were compiled
	// leaves are operators that stand for relations: see buildFragment. local is set while
	// nothing is built that may run elsewhere.
	leaves map[algebra.Rel]Operator
	local  bool
	// generation changes whenever what a Ref reads does, so that results that were
	// remembered are not used again.
	generation int
}

func (x *execution) statsOf(r algebra.Rel) *algebra.Stats {
	s := x.stats[r]
	if s == nil {
		s = &algebra.Stats{}
		x.stats[r] = s
	}
	return s
}

func (x *execution) share(name string) *share { return &share{account: &x.account, name: name} }

// The first freeCalls calls of functions of a statement are not charged for the
// vectors of their results, callBytes each.
const (
	freeCalls = 128
	callBytes = 8 * types.BatchRows
)

// charge takes the memory of one more call.
func (x *execution) charge() error {
	if x.calls++; x.calls <= freeCalls || x.account.take(callBytes, true) {
		return nil
	}
	return fault.New(fault.Exhausted, "Too many calls of functions in one statement: the query may take %d bytes of memory. Use IN, or shorter expressions", x.Pool.limits.Query)
}

// refund gives back the memory of a call that shares its results with another.
func (x *execution) refund() {
	if x.calls--; x.calls >= freeCalls {
		x.account.release(callBytes)
	}
}
