package syntax

// A Pos is a place in the statement: the offset of a byte, from 0. Location
// turns it into line and column.
type Pos int32

// A Node is a part of the tree that knows where it begins.
type Node interface{ At() Pos }

// At returns p: what embeds a Pos is a Node.
func (p Pos) At() Pos { return p }

// A Statement is Query, Explain, Insert, Update or Delete.
type Statement interface {
	Node
	statement()
}

// An Expr is an expression.
type Expr interface {
	Node
	expr()
}

// An Identifier is a name. Its position is that of the name.
type Identifier struct {
	Pos
	Name   string // without backquotes, escapes resolved
	Quoted bool
}

// A Path is identifiers joined by dots.
type Path struct {
	Pos
	Names []Identifier
}

// Statements.
type (
	// QueryStatement is a query as a statement.
	QueryStatement struct {
		Pos
		Query *Query
		// Hints are those in front of it: @{name=value}.
		Hints []Hint
	}
	// Hint is name=value.
	Hint struct {
		Name  *Path
		Value Expr
	}
	// Explain is EXPLAIN [ANALYZE] statement.
	Explain struct {
		Pos
		Analyze   bool
		Statement Statement
	}
	// Insert is INSERT [OR action] [INTO] table (columns) VALUES (…), … | query. A column may be _key
	// or a family with a subscript: f['q'].
	Insert struct {
		Pos
		Mode    string // "", "IGNORE", "REPLACE", "UPDATE"
		Table   *Path
		Columns []Expr
		Rows    [][]Expr // each an Expr or *DefaultValue
		Query   *Query
	}
	// Update is UPDATE table [AS alias] SET target = value, … WHERE condition.
	Update struct {
		Pos
		Table *Path
		Alias *Identifier
		Items []UpdateItem
		Where Expr
	}
	// UpdateItem is target = value. A value of DEFAULT deletes the column.
	UpdateItem struct {
		Pos
		Target Expr
		Value  Expr
	}
	// Delete is DELETE [FROM] table [AS alias] WHERE condition.
	Delete struct {
		Pos
		Table *Path
		Alias *Identifier
		Where Expr
	}
)

func (*QueryStatement) statement() {}
func (*Explain) statement()        {}
func (*Insert) statement()         {}
func (*Update) statement()         {}
func (*Delete) statement()         {}

// Queries.
type (
	// Query is [WITH …] body [ORDER BY …] [LIMIT …].
	Query struct {
		Pos
		Recursive bool
		With      []CTE
		Body      QueryBody
		OrderBy   []OrderItem
		OrderPos  Pos
		Limit     Expr // nil if there is none, *Null for LIMIT ALL, *Paren of *Null for LIMIT NULL
		Offset    Expr
	}
	// CTE is name AS (query).
	CTE struct {
		Pos
		Name  Identifier
		Query *Query
	}
	// QueryBody is *Select, *SetOperation, or *Query in parentheses.
	QueryBody interface {
		Node
		body()
	}
	// SetOperation is left UNION|INTERSECT|EXCEPT ALL|DISTINCT right …, inputs of one
	// operator that are written beside each other.
	SetOperation struct {
		Pos    // of the first operator
		Op     SetOp
		All    bool
		Inputs []QueryBody
		// ByName, Corresponding, and what stands with them ("", "FULL", "LEFT", "STRICT"; By has the columns of BY NAME ON).
		ByName        bool
		Corresponding bool
		OuterMode     string
		By            []Identifier
	}
	// Select is SELECT … FROM ….
	Select struct {
		Pos
		Distinct bool
		As       string // "STRUCT", "VALUE", or "" ; AS TypeName is AsType
		AsType   *Path
		Items    []SelectItem
		From     TableExpr // nil if there is none
		Where    Expr
		GroupBy  *GroupBy
		Having   Expr
		Qualify  Expr
		Windows  []NamedWindow
	}
	// SelectItem is one element of a select list: Expr [AS Alias], or a star.
	SelectItem struct {
		Pos
		Expr  Expr // nil for a plain star; of expr.*, what stands before
		Alias *Identifier
		Star  *Star // nil unless it is a star
	}
	// Star is what stands behind a star: EXCEPT (…) REPLACE (…).
	Star struct {
		Pos
		Except  []Identifier
		Replace []SelectItem
	}
	// GroupBy is GROUP BY ALL, or items; an item of several sets is a grouping set.
	GroupBy struct {
		Pos
		All   bool
		Items []GroupItem
	}
	// GroupItem is an expression, or ROLLUP (…), CUBE (…), GROUPING SETS (…).
	GroupItem struct {
		Pos
		Kind  GroupKind
		Expr  Expr        // GroupExpr, optionally aliased
		Alias *Identifier // GROUP BY expr AS alias
		Sets  [][]Expr    // GroupRollup, GroupCube: one element a set; GroupSets: the sets
		Items []GroupItem // GroupSets: nested ROLLUP and CUBE
	}
	// OrderItem is expr [ASC|DESC] [NULLS FIRST|LAST].
	OrderItem struct {
		Pos
		Expr       Expr
		Descending bool
		Collate    Expr
		Nulls      NullOrder
	}
	// NamedWindow is name AS window.
	NamedWindow struct {
		Name   Identifier
		Window *Window
	}
	// Window is what stands behind OVER: a name, or (base PARTITION BY … ORDER BY … frame).
	Window struct {
		Pos
		Name        *Identifier // OVER name, or the base within parentheses
		PartitionBy []Expr
		OrderBy     []OrderItem
		Frame       *Frame
	}
	// Frame is ROWS|RANGE [BETWEEN] start [AND end].
	Frame struct {
		Pos
		Rows       bool
		Start, End FrameBound // End is CURRENT ROW if it is not written
	}
	// FrameBound is one end of a frame. Offset is nil unless Kind is Preceding or Following.
	FrameBound struct {
		Pos
		Kind   BoundKind
		Offset Expr
	}
)

func (*Select) body()       {}
func (*SetOperation) body() {}
func (*Query) body()        {}

// A SetOp is UNION, INTERSECT or EXCEPT.
type SetOp uint8

// The set operations.
const (
	Union SetOp = iota
	Intersect
	Except
)

// A GroupKind is the kind of an element of GROUP BY.
type GroupKind uint8

// The kinds.
const (
	GroupExpr GroupKind = iota
	GroupRollup
	GroupCube
	GroupSets
)

// A NullOrder is NULLS FIRST, NULLS LAST or neither.
type NullOrder uint8

// The orders.
const (
	NullsDefault NullOrder = iota
	NullsFirst
	NullsLast
)

// A BoundKind is an end of a window's frame.
type BoundKind uint8

// The bounds.
const (
	UnboundedPreceding BoundKind = iota
	Preceding
	CurrentRow
	Following
	UnboundedFollowing
)

// What stands in FROM.
type (
	// TableExpr is *TableRef, *TableFunction, *SubqueryTable, *Unnest, *Unpack, *Join or *ParenJoin.
	TableExpr interface {
		Node
		table()
	}
	// TableRef is path [AS alias] [WITH OFFSET [AS alias]]: a table, a CTE, or an array of an
	// earlier table.
	TableRef struct {
		Pos
		Path   *Path
		Alias  *Identifier
		Offset *WithOffset
	}
	// TableFunction is name(arguments) [AS alias], such as t(with_history => TRUE).
	TableFunction struct {
		Pos
		Name  *Path
		Args  []Argument
		Alias *Identifier
	}
	// Unpack is UNPACK(table function or query) [AS alias].
	Unpack struct {
		Pos
		Input TableExpr // *TableRef, *TableFunction or *SubqueryTable
		Alias *Identifier
	}
	// SubqueryTable is (query) [AS alias].
	SubqueryTable struct {
		Pos
		Query *Query
		Alias *Identifier
	}
	// Unnest is UNNEST(arrays) [AS alias] [WITH OFFSET [AS alias]].
	Unnest struct {
		Pos
		Arrays []Argument // with an Alias where several arrays are zipped; mode => … is named
		Alias  *Identifier
		Offset *WithOffset
	}
	// WithOffset is WITH OFFSET [AS alias].
	WithOffset struct {
		Pos
		Alias *Identifier
	}
	// Join is left kind JOIN right ON … | USING (…).
	Join struct {
		Pos   // of the word JOIN, or the comma
		Kind  JoinKind
		Comma bool
		Left  TableExpr
		Right TableExpr
		On    Expr
		Using []Identifier
	}
	// ParenJoin is a join in parentheses.
	ParenJoin struct {
		Pos
		Join TableExpr
	}
)

func (*TableRef) table()      {}
func (*TableFunction) table() {}
func (*Unpack) table()        {}
func (*SubqueryTable) table() {}
func (*Unnest) table()        {}
func (*Join) table()          {}
func (*ParenJoin) table()     {}

// A JoinKind is the kind of a join.
type JoinKind uint8

// The kinds.
const (
	InnerJoin JoinKind = iota
	CrossJoin
	LeftJoin
	RightJoin
	FullJoin
)

// Expressions.
type (
	// Null is NULL.
	Null struct{ Pos }
	// BoolLiteral is TRUE or FALSE.
	BoolLiteral struct {
		Pos
		Value bool
	}
	// IntLiteral is an integer without sign, decimal or hexadecimal, as it was written.
	IntLiteral struct {
		Pos
		Text string
	}
	// FloatLiteral is a floating point number without sign, as it was written.
	FloatLiteral struct {
		Pos
		Text string
	}
	// StringLiteral is a string, with its escapes resolved.
	StringLiteral struct {
		Pos
		Value string
	}
	// BytesLiteral is b'…'.
	BytesLiteral struct {
		Pos
		Value string
	}
	// TypedLiteral is DATE '…', TIMESTAMP '…', and others that are no type here (NUMERIC, JSON, …).
	TypedLiteral struct {
		Pos
		Type  string // upper case
		Value *StringLiteral
	}
	// IntervalExpr is INTERVAL value part [TO part].
	IntervalExpr struct {
		Pos
		Value    Expr
		Part, To *Identifier
	}
	// Parameter is @name, or ? with an empty Name.
	Parameter struct {
		Pos
		Name string
	}
	// SystemVariable is @@name.
	SystemVariable struct {
		Pos
		Path *Path
	}
	// Name is an identifier: column, alias, table alias. a.b.c is DotExpr of Name.
	Name struct{ Identifier }
	// Dot is base.name.
	Dot struct {
		Pos  // of the base
		Base Expr
		Name Identifier
	}
	// Extension is base.(path). (base.* is no expression, but a SelectItem.)
	Extension struct {
		Pos
		Base Expr
		Path *Path
	}
	// Subscript is base[index].
	Subscript struct {
		Pos         // of the base
		Bracket Pos // of the [
		Base    Expr
		Index   Expr // may be *Call of OFFSET, ORDINAL, SAFE_OFFSET, SAFE_ORDINAL, KEY, SAFE_KEY
	}
	// Unary is op x: "-", "+", "~", "NOT".
	Unary struct {
		Pos
		Op string
		X  Expr
	}
	// Binary is x op y: "+", "-", "*", "/", "||", "<<", ">>", "&", "^", "|", "=", "!=", "<", "<=", ">", ">=", "AND", "OR".
	// <> is "!=".
	Binary struct {
		Pos   // of x
		OpPos Pos
		Op    string
		X, Y  Expr
	}
	// Is is x IS [NOT] NULL | TRUE | FALSE | UNKNOWN, or IS [NOT] DISTINCT FROM y.
	Is struct {
		Pos
		OpPos Pos
		X     Expr
		Not   bool
		What  string // "NULL", "TRUE", "FALSE", "UNKNOWN", "DISTINCT FROM"
		Y     Expr
	}
	// Between is x [NOT] BETWEEN low AND high. Its OpPos, as that of In, Like and Quantified, is
	// behind NOT.
	Between struct {
		Pos
		OpPos     Pos
		X         Expr
		Not       bool
		Low, High Expr
	}
	// In is x [NOT] IN (list | query) | UNNEST(array).
	In struct {
		Pos
		OpPos Pos
		X     Expr
		Not   bool
		List  []Expr
		Query *Query
		Array Expr
	}
	// Like is x [NOT] LIKE pattern.
	Like struct {
		Pos
		OpPos   Pos
		X       Expr
		Not     bool
		Pattern Expr
	}
	// Quantified is x [NOT] op ANY|SOME|ALL (list | query) | UNNEST(array), of LIKE and of comparisons.
	Quantified struct {
		Pos
		OpPos Pos
		X     Expr
		Op    string // "LIKE", "=", "!=", "<", …
		Not   bool
		All   bool
		List  []Expr
		Query *Query
		Array Expr
	}
	// Case is CASE [x] WHEN … THEN … ELSE … END.
	Case struct {
		Pos
		X     Expr
		Whens []When
		Else  Expr
	}
	// When is WHEN cond THEN then.
	When struct{ Cond, Then Expr }
	// Cast is CAST(x AS type [FORMAT f [AT TIME ZONE z]]), SAFE_CAST likewise.
	Cast struct {
		Pos
		Safe   bool
		X      Expr
		Type   *TypeName
		Format Expr
		Zone   Expr
		// FormatPos is that of the word FORMAT.
		FormatPos Pos
	}
	// Extract is EXTRACT(part FROM x [AT TIME ZONE z]).
	Extract struct {
		Pos
		Part Identifier // WEEK(MONDAY) is WEEK with an Argument
		Arg  *Identifier
		X    Expr
		Zone Expr
	}
	// Call is name(arguments), with everything that can stand in the parentheses and
	// behind them.
	Call struct {
		Pos
		Name *Path // SAFE.F has two names; "F" is in the case it was written in
		// Base is set for (base).F(arguments), a chained call.
		Base        Expr
		Star        bool // COUNT(*)
		Distinct    bool
		Args        []Argument
		Nulls       string // "", "IGNORE", "RESPECT"
		Where       Expr
		Having      *HavingModifier
		GroupBy     *GroupBy
		GroupHaving Expr
		OrderBy     []OrderItem
		Limit       Expr
		Over        *Window
	}
	// HavingModifier is HAVING MAX|MIN expr within an aggregate.
	HavingModifier struct {
		Pos
		Max bool
		X   Expr
	}
	// Argument is [name =>] expr [AS alias]. X may be *Lambda, *IntervalExpr, *Query as Subquery.
	Argument struct {
		Pos
		Name  *Identifier
		X     Expr
		Alias *Identifier
	}
	// Lambda is x -> body or (x, y) -> body.
	Lambda struct {
		Pos
		Params []Identifier
		Body   Expr
	}
	// ArrayLiteral is [ARRAY][<type>][elements].
	ArrayLiteral struct {
		Pos
		Elem  *TypeName // of ARRAY<type>[…]
		Elems []Expr
	}
	// StructLiteral is STRUCT[<fields>](values) or, with at least two values, (a, b).
	StructLiteral struct {
		Pos
		Type   *TypeName  // of STRUCT<…>(…)
		Tuple  bool       // written (a, b)
		Values []Argument // with an Alias
	}
	// NewMessage is NEW type(expr AS field, …).
	NewMessage struct {
		Pos
		Type   *Path
		Values []Argument
	}
	// Subquery is (query), ARRAY(query) or EXISTS(query).
	Subquery struct {
		Pos
		Kind  SubqueryKind
		Query *Query
	}
	// WithExpr is WITH(name AS expr, …, result).
	WithExpr struct {
		Pos
		Vars   []Argument // with an Alias
		Result Expr
	}
	// DefaultValue is DEFAULT in DML.
	DefaultValue struct{ Pos }
	// Paren is an expression in parentheses; it matters for messages and for a.b paths only.
	Paren struct {
		Pos
		X Expr
	}
)

func (*Null) expr()           {}
func (*BoolLiteral) expr()    {}
func (*IntLiteral) expr()     {}
func (*FloatLiteral) expr()   {}
func (*StringLiteral) expr()  {}
func (*BytesLiteral) expr()   {}
func (*TypedLiteral) expr()   {}
func (*IntervalExpr) expr()   {}
func (*Parameter) expr()      {}
func (*SystemVariable) expr() {}
func (*Name) expr()           {}
func (*Dot) expr()            {}
func (*Extension) expr()      {}
func (*Subscript) expr()      {}
func (*Unary) expr()          {}
func (*Binary) expr()         {}
func (*Is) expr()             {}
func (*Between) expr()        {}
func (*In) expr()             {}
func (*Like) expr()           {}
func (*Quantified) expr()     {}
func (*Case) expr()           {}
func (*Cast) expr()           {}
func (*Extract) expr()        {}
func (*Call) expr()           {}
func (*Lambda) expr()         {}
func (*ArrayLiteral) expr()   {}
func (*StructLiteral) expr()  {}
func (*NewMessage) expr()     {}
func (*Subquery) expr()       {}
func (*WithExpr) expr()       {}
func (*DefaultValue) expr()   {}
func (*Paren) expr()          {}

// A SubqueryKind is how a subquery stands in an expression.
type SubqueryKind uint8

// The kinds.
const (
	ScalarSubquery SubqueryKind = iota
	ArraySubquery
	ExistsSubquery
)

// A TypeName is a type as it was written.
type TypeName struct {
	Pos
	// Path names a scalar type, or a message or enum of a schema bundle. It is nil
	// for ARRAY, STRUCT and MAP.
	Path  *Path
	Kind  string // "", "ARRAY", "STRUCT", "MAP"
	Args  []*TypeName
	Names []*Identifier // STRUCT: name of each field, nil if it has none
}
