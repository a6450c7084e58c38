package algebra

import (
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// A ColumnID is the number of a column, unique in a statement, from 1.
type ColumnID int32

// A Column is a column of a relation.
type Column struct {
	ID   ColumnID
	Name string // for EXPLAIN
	Type *types.Type
}

// An Expr is a typed expression.
type Expr interface{ Type() *types.Type }

// The expressions.
type (
	// Literal is a constant.
	Literal struct {
		Value types.Value
		T     *types.Type
	}
	// Param is a query parameter, by name in lower case.
	Param struct {
		Name string
		T    *types.Type
	}
	// ColumnRef is the value of a column of the row: of the relation, of a lambda's
	// parameters, or of the query around a subquery.
	ColumnRef struct{ Column }
	// Call calls a function that is no aggregate. An argument that is a lambda is a
	// *Lambda; optional arguments that were left out are nil.
	Call struct {
		Function  *functions.Function
		Signature *functions.Signature
		Args      []Expr
		Safe      bool // SAFE.F: an error of the function itself, not of its arguments, is NULL
		T         *types.Type
	}
	// Lambda is an argument of a Call.
	Lambda struct {
		Params []Column
		Body   Expr
	}
	// Cast converts X to T. Format and Zone may be nil.
	Cast struct {
		X            Expr
		T            *types.Type
		Format, Zone Expr
		Safe         bool
	}
	// GetField is a field of a STRUCT.
	GetField struct {
		X     Expr
		Index int
		T     *types.Type
	}
	// GetProtoField is a field of a PROTO, or whether it is there.
	GetProtoField struct {
		X     Expr
		Field *types.ProtoField
		Has   bool
		T     *types.Type
	}
	// MakeStruct is a STRUCT of its fields.
	MakeStruct struct {
		Fields []Expr
		T      *types.Type
	}
	// MakeArray is an array of elements that are all of its element type.
	MakeArray struct {
		Elems []Expr
		T     *types.Type
	}
	// Subquery is the value of a query. Its Query may refer to columns of the row around
	// it: Outer lists them.
	Subquery struct {
		Kind  SubqueryKind
		Query Rel
		// Column is the query's one column; unset for Exists.
		Column ColumnID
		Outer  []ColumnID
		// X is the left side of In, Any and All, and Compare the call that compares: its
		// arguments are X and the query's Column.
		X       Expr
		Compare Expr
		// Ordered says that the order of the elements of an ArrayOf was asked for.
		Ordered bool
		T       *types.Type
	}
	// Let is WITH(a AS x, …, body): Vars are computed once, in order, and Body may use
	// them.
	Let struct {
		Vars []Computed
		Body Expr
	}
	// ViewParameters is VIEW_PARAMETERS().
	ViewParameters struct{ T *types.Type }
)

// Type implements Expr.
func (e *Literal) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *Param) Type() *types.Type { return e.T }

// Type implements Expr: it is that of the column.
func (e *ColumnRef) Type() *types.Type { return e.Column.Type }

// Type implements Expr: it is that of the result.
func (e *Call) Type() *types.Type { return e.T }

// Type implements Expr: it is that of Body.
func (e *Lambda) Type() *types.Type { return e.Body.Type() }

// Type implements Expr: it is what X becomes.
func (e *Cast) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *GetField) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *GetProtoField) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *MakeStruct) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *MakeArray) Type() *types.Type { return e.T }

// Type implements Expr.
func (e *Subquery) Type() *types.Type { return e.T }

// Type implements Expr: it is that of Body.
func (e *Let) Type() *types.Type { return e.Body.Type() }

// Type implements Expr.
func (e *ViewParameters) Type() *types.Type { return e.T }

// A SubqueryKind is what a Subquery returns.
type SubqueryKind uint8

// The kinds.
const (
	ScalarQuery SubqueryKind = iota // its one value, NULL of no row; more than one row is an error
	ArrayQuery                      // ARRAY(…)
	ExistsQuery                     // whether it has a row
	InQuery                         // X IN (…): whether Compare holds for some row (three-valued)
	AnyQuery                        // X op ANY (…)
	AllQuery                        // X op ALL (…)
)

// A Computed is a column and the expression that computes it.
type Computed struct {
	Column
	Expr Expr
}

// An AggregateCall is one aggregate of an Aggregate, or of a Window.
type AggregateCall struct {
	Column   // of the result
	Function *functions.Function
	// Signature's New makes the state.
	Signature *functions.Signature
	Args      []Expr
	Distinct  bool
	// IgnoreNulls drops rows of which the first argument is NULL. Of other rows,
	// functions with Function.IgnoreNulls see those without any NULL argument.
	IgnoreNulls bool
	Where       Expr // rows that count, nil for all
	// HavingMax and HavingMin keep only the rows with the largest or smallest value.
	HavingMax, HavingMin Expr
	OrderBy              []SortKey
	Limit                Expr
	Safe                 bool
	// Deferred errors of rows do not end the query: Column has functions.DeferredType, and
	// $deferred raises the error where the value is needed, as in a branch of IF that is
	// taken.
	Deferred bool
	// Inner is that of a multi-level aggregation, whose Input is nil: Args are evaluated
	// over the groups of the group's rows, of those for which Having holds if it is set.
	// Where is about the rows. Nil for none.
	Inner  *Aggregate
	Having Expr
}

// A SortKey is one key of an order.
type SortKey struct {
	Expr       Expr
	Descending bool
	NullsLast  bool // resolved: the default is first ascending, last descending
}

// Walk calls f for e and, if f returns true, for the expressions directly in it. It
// does not go into the Query of a Subquery.
func Walk(e Expr, f func(Expr) bool) {
	if e == nil || !f(e) {
		return
	}
	switch e := e.(type) {
	case *Call:
		for _, a := range e.Args {
			Walk(a, f)
		}
	case *Lambda:
		Walk(e.Body, f)
	case *Cast:
		Walk(e.X, f)
		Walk(e.Format, f)
		Walk(e.Zone, f)
	case *GetField:
		Walk(e.X, f)
	case *GetProtoField:
		Walk(e.X, f)
	case *MakeStruct:
		for _, a := range e.Fields {
			Walk(a, f)
		}
	case *MakeArray:
		for _, a := range e.Elems {
			Walk(a, f)
		}
	case *Subquery:
		Walk(e.X, f)
		Walk(e.Compare, f)
	case *Let:
		for _, v := range e.Vars {
			Walk(v.Expr, f)
		}
		Walk(e.Body, f)
	}
}
