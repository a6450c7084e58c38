package functions

import (
	"context"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// A Function is one entry of the table. Operators have names that begin with $:
// $add, $equal, $like, $cast.
type Function struct {
	// Name is in upper case, with the dot of HLL_COUNT.INIT. Operators' are in lower
	// case.
	Name string
	// SQL is what messages call it: "+" for $add, "COUNT(*)". Empty means Name.
	SQL string
	// Category groups functions in docs/sql.md, such as "String".
	Category string
	// Doc says in one sentence what it returns, for docs/sql.md.
	Doc string
	// Kind says how it is used.
	Kind Kind
	// Signatures are tried in order.
	Signatures []*Signature
	// Volatile is set if equal arguments may give another result, in another
	// statement or row: it is not computed before the query runs. Stable is set if
	// that may happen in another statement only (CURRENT_TIMESTAMP).
	Volatile, Stable bool
	// Aliases are other names of the same function.
	Aliases []string
	// NoOver refuses OVER, NoDistinct DISTINCT, of an aggregate. Ordered allows ORDER
	// BY and Limited LIMIT within its parentheses; Nulls allows IGNORE and RESPECT
	// NULLS.
	NoOver, NoDistinct, Ordered, Limited, Nulls bool
	// IgnoreNulls is set of an aggregate that does not see NULLs unless RESPECT NULLS is
	// written: a row of which an argument is NULL, other than a constant one (Arg.Const), is not
	// added.
	IgnoreNulls bool
	// NeedsOrder is set of a window function that demands ORDER BY in its window;
	// NoOrder of one that allows none, and NoFrame of one that allows no frame.
	NeedsOrder, NoOrder, NoFrame bool
	// Refuse, if it is set, is asked before the signatures are tried: what it says of the
	// arguments' types is the whole message, "" for nothing. A type is nil if the argument is
	// a lambda or has none.
	Refuse func(args []*types.Type) string
}

// A Kind is how a function is used.
type Kind uint8

// The kinds.
const (
	Scalar Kind = iota
	// Lazy functions evaluate only the arguments that they need, row by row. Package exec
	// has their code, by Name: $and, $or, IF, $case_no_value, $case_with_value, COALESCE,
	// IFNULL, NULLIF, IFERROR, ISERROR, NULLIFERROR. Signature.Eval is nil.
	Lazy
	Aggregate
	// Window functions exist with OVER only: RANK, LAG, FIRST_VALUE.
	Window
)

// A Signature is one way to call a Function.
type Signature struct {
	Args []Arg
	// Result is the type of the result. Its names (Any) are those that Args bind.
	Result Template
	// ResultOf, if it is set, gives the result's type from those of the arguments, after
	// coercion.
	ResultOf func(args []*types.Type) *types.Type
	// Check, if it is set, refuses arguments that fit Args: it returns what a message
	// says of them, or "". The signature does not match then.
	Check func(args []*types.Type) string
	// Part, if it is set, refuses a date part that the function does not take: it returns
	// the message, without a position, or "". The signature matches nevertheless.
	Part func(part string) string
	// Pattern, if it is set, refuses a first argument that is a literal for the types of
	// the other ones: it returns the message, without a position, or "".
	Pattern func(text string, args []*types.Type) string
	// Nulls is set if Eval is to see NULL arguments. Otherwise the result is NULL if one
	// of them is, and Eval is not called.
	Nulls bool
	// Eval computes a Scalar function. It must not keep args. Errors are made by
	// Errorf. Optional arguments that were left out are missing at the end of args; one
	// before an argument that is there is NULL, and nil in Call.Types: it does not make the
	// result NULL. A lambda is NULL in args, which does not count either.
	Eval func(c *Call, args []types.Value) (types.Value, error)
	// Kernel, if it is set, does the same for a batch: it fills out, which has room for n
	// rows, at the rows of sel (at all n rows if it is nil). It handles NULLs and
	// constant vectors itself. When it returns an error, exec calls Eval row by row to
	// find the row to blame, so that both agree.
	Kernel func(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error
	// New makes the state of an Aggregate function, also with OVER. GROUPING has none:
	// algebra.GroupingColumn stands for it.
	New func(c *Call) Accumulator
	// Grouped, if it is set, makes the states of many groups, which take whole vectors
	// without an allocation or a call per row. It computes what New computes, and the
	// states of both can be merged with each other. Package exec uses it where rows of a group
	// may be added one by one in any order: without DISTINCT, ORDER BY, LIMIT and HAVING in
	// the call.
	Grouped func(c *Call) Grouped
	// Window computes a Window function for a whole partition: out[i] is set to the
	// result of row i, for all p.Rows() rows.
	Window func(c *Call, p Partition, out []types.Value) error
	// Internal hides the signature from messages and documents.
	Internal bool
}

// An Arg is a parameter of a Signature.
type Arg struct {
	// Name is what name => refers to; empty if it cannot be named.
	Name string
	Type Template
	// Optional arguments may be left out; Repeated ones may come any number of times,
	// 0 included. Several Repeated in a row repeat together.
	Optional, Repeated bool
	// Const demands a literal or a parameter; NotNull one that is not NULL.
	Const, NotNull bool
	// Range, if it is set, is the smallest value that a literal may have and, if there are
	// two, the largest.
	Range []int64
	// NamedOnly arguments come with their name.
	NamedOnly bool
}

// A Template stands for the types that an argument takes. Exactly one of its parts
// is set.
type Template struct {
	// Type is the one type.
	Type *types.Type
	// Any is the name of a type that is bound by the arguments: the same wherever the name
	// stands, after coercion to a common supertype.
	Any string
	// Kind is Array (of Elem), Map (of Key and Elem), or Struct, Proto, Enum: any such.
	Kind      types.Kind
	Elem, Key *Template
	// Lambda is a lambda's parameters, and Result what it returns.
	Lambda []Template
	Result *Template
	// Part is a date part, written as an identifier: DAY, WEEK(MONDAY). It comes as a
	// STRING in upper case. Interval is INTERVAL n part, which comes as two arguments: an INT64
	// and a STRING.
	Part, Interval bool
	// Arbitrary is any type, of each argument its own: what FORMAT takes.
	Arbitrary bool
}

// T returns the Template of one type.
func T(t *types.Type) Template { return Template{Type: t} }

// AnyT returns the Template of any type, called name.
func AnyT(name string) Template { return Template{Any: name} }

// ArrayT returns the Template of an array.
func ArrayT(elem Template) Template { return Template{Kind: types.Array, Elem: &elem} }

// MapT returns the Template of a map.
func MapT(key, elem Template) Template {
	return Template{Kind: types.Map, Key: &key, Elem: &elem}
}

// LambdaT returns the Template of a lambda.
func LambdaT(result Template, params ...Template) Template {
	return Template{Lambda: params, Result: &result}
}

// A Call is one place of a query where a function is called, while it is evaluated
// by one goroutine.
type Call struct {
	// Ctx ends long work: a function that may loop for more than a millisecond looks at
	// it.
	Ctx context.Context
	// Types are those of the arguments, Result that of the result. Of an optional argument that
	// was left out there is none, or nil.
	Types  []*types.Type
	Result *types.Type
	// Now is the time of the statement, in microseconds since the epoch.
	Now int64
	// Lambdas has the lambda of each argument that is one: nil for others.
	Lambdas []func(args []types.Value) (types.Value, error)
	// Grow asks for memory that a result needs beyond a few KiB. Its error is returned as it
	// is.
	Grow func(bytes int64) error
	// State is what the function keeps between calls, such as a compiled pattern. It is
	// nil at first.
	State any
	// IgnoreNulls, of a window function, is IGNORE NULLS, written or, if
	// Function.IgnoreNulls is set, without RESPECT NULLS.
	IgnoreNulls bool
}

// An Accumulator is the state of an aggregate function for one group. Its methods
// are called by one goroutine.
type Accumulator interface {
	// Add takes the arguments of one row; those that the accumulator keeps it clones. It
	// is not called for NULLs that the function ignores.
	Add(args []types.Value) error
	// Result returns the value for the rows so far.
	Result() (types.Value, error)
	// AppendState appends the state to dst, in a form of which any prefix of bytes that a
	// peer sends is either refused by MergeState or read safely.
	AppendState(dst []byte) []byte
	// MergeState adds the rows that state, of AppendState, stands for.
	MergeState(state []byte) error
	// Size is the memory that the state takes, in bytes, roughly.
	Size() int
}

// A Remover is an Accumulator that can take rows away again, so that an aggregate
// over a sliding frame costs as much for a frame of a thousand rows as for one of two.
type Remover interface {
	Accumulator
	// Remove takes away the row with args: of those that Add took and that are still there
	// the first.
	Remove(args []types.Value) error
}

// A Grouped is the states of one aggregate function for many groups, which are
// numbered from 0. Its methods are called by one goroutine.
type Grouped interface {
	// Resize gives it room for groups groups. Those that are new have seen no rows. It is
	// called before a group is first named; to call it for each batch is cheap.
	Resize(groups int)
	// AddBatch adds rows of a batch of n: those of sel, or all n if sel is nil. groups[k] is
	// the group of the k'th of these rows: of row sel[k], or of row k. If groups is nil, all
	// rows are of group 0. Unlike Add, it sees all rows, and itself leaves out those with
	// NULLs that the function ignores. After an error the states are of no use.
	AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error
	// Results sets out[0:n] to the values of the groups from first on. out has the
	// result's type and room for n.
	Results(first int, out *types.Vector, n int) error
	// AppendState and MergeState are those of an Accumulator, for one group.
	AppendState(group int, dst []byte) []byte
	MergeState(group int, state []byte) error
	// Size is the memory that all states take, in bytes, roughly.
	Size() int
}

// A Partition is the rows of one partition of a window, in its order, numbered
// from 0.
type Partition interface {
	// Rows returns how many rows there are.
	Rows() int
	// Arg returns argument arg of row row.
	Arg(row, arg int) types.Value
	// Peers returns the rows [start, end) that the order does not tell from row. All rows
	// are peers if the window has no order.
	Peers(row int) (start, end int)
	// Frame returns the rows [start, end) of the frame of row; start is at least end if there
	// are none.
	Frame(row int) (start, end int)
}

// Errorf returns a run-time error, which the API reports as OUT_OF_RANGE. SAFE.
// and IFERROR take it for NULL; all other kinds of errors end the query.
func Errorf(format string, args ...any) error { return fault.New(fault.OutOfRange, format, args...) }

var table = map[string]*Function{}

// register puts functions into the table, in an init function of the file that
// defines them.
func register(list ...*Function) {
	for _, f := range list {
		for _, name := range append([]string{f.Name}, f.Aliases...) {
			key := strings.ToUpper(name)
			if table[key] != nil {
				panic("functions: " + name + " stands twice in the table")
			}
			table[key] = f
		}
	}
}

// Lookup returns the function called name, in any case, or nil.
func Lookup(name string) *Function { return table[strings.ToUpper(name)] }

// All calls yield for each name and its function, in no order; an alias is a name.
func All(yield func(name string, f *Function) bool) {
	for name, f := range table {
		if !yield(name, f) {
			return
		}
	}
}
