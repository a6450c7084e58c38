package algebra

// A Rel is a relation: rows of columns.
type Rel interface {
	// Columns returns the columns of its output, in order.
	Columns() []Column
}

// The operators.
type (
	// OneRow is one row without columns: SELECT without FROM.
	OneRow struct{}
	// Scan reads a Table. Output has a column for each element of Uses.
	Scan struct {
		Table   *Table
		Alias   string
		History *History // nil for the newest cells
		Uses    []ScanColumn
		// Access says how a stored table is read; nil is all rows, in order. Package plan
		// sets it.
		Access *Access
	}
	// Filter passes rows for which Cond is TRUE.
	Filter struct {
		Input Rel
		Cond  Expr
	}
	// Project computes columns. Those of its input stay in its output.
	Project struct {
		Input    Rel
		Computed []Computed
	}
	// Keep ends columns: its output has those listed, in that order.
	Keep struct {
		Input Rel
		Cols  []Column
	}
	// Join joins rows. A Semi join passes rows of Left that have a match, an Anti join
	// those without; their output has the columns of Left.
	Join struct {
		Kind        JoinKind
		Left, Right Rel
		On          Expr // nil for none
		// Lateral says that Right refers to columns of Left: Outer lists them.
		Lateral bool
		Outer   []ColumnID
	}
	// Unnest makes, for each row of Input, a row for each element of its arrays, which are
	// zipped. A Left one makes a row of NULLs if there is none (for which On holds).
	Unnest struct {
		Input  Rel // OneRow if it stands alone
		Arrays []Expr
		Elems  []Column // one for each array
		Offset *Column  // 0, 1, …
		Left   bool
		On     Expr
		// Mode of several arrays: 0 PAD, 1 TRUNCATE, 2 STRICT; an expression of an INT64, nil for
		// PAD.
		Mode Expr
	}
	// Aggregate groups rows. Its output has Keys and Aggs only. Without keys there is
	// one group, also of no rows; the set () beside others has none then.
	Aggregate struct {
		Input Rel
		Keys  []Computed
		Aggs  []AggregateCall
		// Sets are the grouping sets, each a list of indexes of Keys; a key that is not in
		// the set is NULL. Nil means one set of all keys.
		Sets [][]int
		// Grouping are columns of GROUPING(key): 1 in groups of sets without the key.
		Grouping []GroupingColumn
		Distinct bool // made of DISTINCT, for EXPLAIN
	}
	// Sort sorts rows, stably.
	Sort struct {
		Input Rel
		Keys  []SortKey
	}
	// Limit skips Offset rows and passes Count (nil for all). Both are constant.
	Limit struct {
		Input         Rel
		Count, Offset Expr
	}
	// SetOperation combines inputs by position. Cols are its output; Inputs[i] gives
	// InputCols[i], as many, and of the same types. INTERSECT and EXCEPT have two or more inputs, left
	// associative.
	SetOperation struct {
		Op        SetOp
		All       bool
		Inputs    []Rel
		InputCols [][]ColumnID
		Cols      []Column
	}
	// Window computes functions over partitions. Columns of Input stay.
	Window struct {
		Input Rel
		Calls []WindowCall
	}
	// With computes Defs, each once, for Refs in Body and in later Defs.
	With struct {
		Defs []Definition
		Body Rel
	}
	// Ref is the rows of a Definition. Cols are new columns, those of the Definition in
	// order.
	Ref struct {
		Name string
		Cols []Column
	}
)

// A ScanColumn is a column of a table that a Scan gives.
type ScanColumn struct {
	Column
	// Index is that in Table.Columns; TimestampColumn is _timestamp of UNPACK.
	Index int
	// Qualifier, if it is set, makes the column one cell of the family instead of a map:
	// family['q'].
	Qualifier *string
	// Existence is set if only NULL or not NULL of it counts: no value need be read.
	Existence bool
	// WriteTime makes it the timestamp of the newest cell: WRITE_TIMESTAMP(family, 'q').
	WriteTime bool
}

// TimestampColumn is the Index of _timestamp.
const TimestampColumn = -1

// A Definition is a query with a name, unique in the statement.
type Definition struct {
	Name string
	Rel  Rel
	Cols []ColumnID
	// Recursive definitions refer to themselves; Rel is a UNION.
	Recursive bool
}

// A GroupingColumn is GROUPING(Keys[Key]).
type GroupingColumn struct {
	Column
	Key int
}

// A WindowCall is one function with OVER.
type WindowCall struct {
	AggregateCall
	PartitionBy []Expr
	Order       []SortKey
	Frame       Frame
}

// A Frame is which rows of the partition count. The default is resolved.
type Frame struct {
	Rows       bool // else RANGE
	Start, End Bound
}

// A Bound is an end of a Frame.
type Bound struct {
	Kind   BoundKind
	Offset Expr
}

// A BoundKind is the kind of a Bound.
type BoundKind uint8

// The kinds.
const (
	UnboundedPreceding BoundKind = iota
	Preceding
	CurrentRow
	Following
	UnboundedFollowing
)

// A JoinKind is the kind of a Join.
type JoinKind uint8

// The kinds. A Right join is a Left one with its sides exchanged.
const (
	InnerJoin JoinKind = iota
	LeftJoin
	FullJoin
	SemiJoin
	AntiJoin
)

// A SetOp is a set operation.
type SetOp uint8

// The operations.
const (
	Union SetOp = iota
	Intersect
	Except
)

// Columns implements Rel: there are none.
func (*OneRow) Columns() []Column { return nil }

// Columns implements Rel: one for each of Uses.
func (r *Scan) Columns() []Column {
	out := make([]Column, len(r.Uses))
	for i, u := range r.Uses {
		out[i] = u.Column
	}
	return out
}

// Columns implements Rel: those of Input.
func (r *Filter) Columns() []Column { return r.Input.Columns() }

// Columns implements Rel: those of Input, then the computed ones.
func (r *Project) Columns() []Column {
	out := r.Input.Columns()
	out = out[:len(out):len(out)]
	for _, c := range r.Computed {
		out = append(out, c.Column)
	}
	return out
}

// Columns implements Rel: those of Cols.
func (r *Keep) Columns() []Column { return r.Cols }

// Columns implements Rel: those of Left, then those of Right unless Kind is SemiJoin or AntiJoin.
func (r *Join) Columns() []Column {
	left := r.Left.Columns()
	if r.Kind == SemiJoin || r.Kind == AntiJoin {
		return left
	}
	return append(left[:len(left):len(left)], r.Right.Columns()...)
}

// Columns implements Rel: those of Input, then Elems and Offset.
func (r *Unnest) Columns() []Column {
	out := r.Input.Columns()
	out = append(out[:len(out):len(out)], r.Elems...)
	if r.Offset != nil {
		out = append(out, *r.Offset)
	}
	return out
}

// Columns implements Rel: the keys, the aggregates, then those of Grouping.
func (r *Aggregate) Columns() []Column {
	var out []Column
	for _, k := range r.Keys {
		out = append(out, k.Column)
	}
	for i := range r.Aggs {
		out = append(out, r.Aggs[i].Column)
	}
	for _, g := range r.Grouping {
		out = append(out, g.Column)
	}
	return out
}

// Columns implements Rel: those of Input.
func (r *Sort) Columns() []Column { return r.Input.Columns() }

// Columns implements Rel: those of Input.
func (r *Limit) Columns() []Column { return r.Input.Columns() }

// Columns implements Rel: those of Cols.
func (r *SetOperation) Columns() []Column { return r.Cols }

// Columns implements Rel: those of Input, then one for each call.
func (r *Window) Columns() []Column {
	out := r.Input.Columns()
	out = out[:len(out):len(out)]
	for i := range r.Calls {
		out = append(out, r.Calls[i].Column)
	}
	return out
}

// Columns implements Rel: those of Body.
func (r *With) Columns() []Column { return r.Body.Columns() }

// Columns implements Rel: those of Cols.
func (r *Ref) Columns() []Column { return r.Cols }
