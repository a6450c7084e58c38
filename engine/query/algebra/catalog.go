package algebra

import (
	"context"
	"time"

	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

// A Catalog knows the tables of an instance.
type Catalog interface {
	// Table returns the table or view called name, or NotFound.
	Table(ctx context.Context, name string) (*Table, error)
	// Tables returns the names of all tables and views, for suggestions.
	Tables(ctx context.Context) ([]string, error)
	// Type returns the message or enum of a schema bundle that path names, bundle id first.
	// NotFound if there is none.
	Type(ctx context.Context, path []string) (*types.Type, error)
}

// A Table is a table as a query sees it. It does not change. One of Schema, View
// and Rows is set.
type Table struct {
	// Name is what it is called in SQL: the last part of its resource name.
	Name string
	// FullName is the full resource name, "" for one of Rows.
	FullName string
	// Columns are in the order of SELECT *.
	Columns []TableColumn
	// Schema is that of a stored table.
	Schema *schema.Table
	// Key decodes structured row keys; nil if the table has none.
	Key *KeySchema
	// View is the text of a logical view.
	View *View
	// Rows are those of a relation in memory, in the order of Columns.
	Rows [][]types.Value
	// ValueTable is set of a relation in memory whose rows are values, of one column.
	ValueTable bool
	// Version changes whenever Columns do.
	Version uint64
	// Definer is set if the table was reached through a view: it is read with the rights
	// of that principal (query.Options.As). Empty means those of the caller.
	Definer string
}

// A TableColumn is a column of a Table.
type TableColumn struct {
	Name string
	Type *types.Type
	Kind ColumnKind
	// Pseudo columns can be named, and are not in SELECT *.
	Pseudo bool
	// Family is the index of no column: of a FamilyColumn its name.
	Family string
	// Field is, of a KeyColumn, the index of its field in Table.Key.
	Field int
}

// A ColumnKind is what a column of a stored table is made of.
type ColumnKind uint8

// The kinds.
const (
	PlainColumn  ColumnKind = iota // of a relation in memory
	RowKeyColumn                   // _key, BYTES
	KeyColumn                      // a field of a structured row key
	FamilyColumn                   // a family: MAP<BYTES, V>, or with history MAP<BYTES, ARRAY<STRUCT<timestamp TIMESTAMP, value V>>>
)

// A KeySchema says how a row key is made of fields (google.bigtable.admin.v2.Type.Struct).
type KeySchema struct {
	Fields []KeyField
	// Encoding is that of the whole: Singleton, Delimited or OrderedCode.
	Encoding KeyEncoding
	// Delimiter stands between fields of Delimited keys.
	Delimiter string
}

// A KeyEncoding is how fields are joined.
type KeyEncoding uint8

// The encodings, as google.bigtable.admin.v2.Type.Struct.Encoding has them.
const (
	Singleton KeyEncoding = iota
	Delimited
	OrderedCode
)

// A KeyField is one field of a KeySchema.
type KeyField struct {
	Name string
	Type *types.Type
	// Encoding is how the value itself is written.
	Encoding ValueEncoding
}

// A ValueEncoding is how a value is written in a key.
type ValueEncoding uint8

// The encodings.
const (
	RawBytes   ValueEncoding = iota // BYTES as they are
	UTF8                            // STRING as it is
	BigEndian                       // INT64 as eight bytes, two's complement
	OrderedInt                      // INT64, or a TIMESTAMP's microseconds, in OrderedCode's varint
	HexBytes                        // BYTES in hexadecimal digits
)

// A View is a logical view.
type View struct {
	Query string
	// Definer is the principal with whose rights it reads, "" for nobody in particular.
	Definer string
	// Etag changes with the query.
	Etag string
	// Catalog resolves the names in Query: those of tables with the rights of the
	// definer. It refuses views that refer to themselves, and too many on top of each
	// other. Nil means the catalog that returned the view.
	Catalog Catalog
}

// A History is what the arguments of t(…) ask for.
type History struct {
	WithHistory bool
	// After and Before bound timestamps: [After, Before), in microseconds; nil if there is
	// no such bound. They are constant expressions: literals and parameters.
	After, AfterOrEqual, Before, BeforeOrEqual Expr
	LatestN                                    Expr
	AsOf                                       Expr
	// Unpack makes a row of each timestamp, with a column _timestamp.
	Unpack bool
}

// A Statement is what a query text means.
type Statement struct {
	// Query is the relation whose rows are the result. Nil for DML.
	Query Rel
	// Columns are the columns of the result, in order.
	Columns []OutputColumn
	// Mutation is that of DML; its result is one row, rows_affected INT64.
	Mutation *Mutation
	// Explain is 0, ExplainPlan or ExplainAnalyze.
	Explain ExplainMode
	// Ordered tells whether the rows' order was asked for.
	Ordered bool
	// ValueTable is set if the result is of values instead of rows: SELECT AS STRUCT or AS
	// VALUE. Columns has one then, without a name.
	ValueTable bool
	// Tables are those that the statement reads and writes, views included.
	Tables []*Table
	// Params are the parameters that it uses, by name in lower case.
	Params map[string]*types.Type
	// NextColumn is larger than any column's number.
	NextColumn ColumnID
	// Volatile tells whether it calls a function that is not fixed by the statement's time.
	Volatile bool
	// UseViews is set by the hint use_materialized_views=true: materialized views may answer
	// in place of the tables that they are made of.
	UseViews bool
	// Views are the names of materialized views that answer a part of it, or could.
	Views []string
}

// An ExplainMode is what EXPLAIN asks for.
type ExplainMode uint8

// The modes.
const (
	NoExplain ExplainMode = iota
	ExplainPlan
	ExplainAnalyze
)

// An OutputColumn is a column of a result.
type OutputColumn struct {
	Name   string // "" if it has none
	Column ColumnID
	Type   *types.Type
}

// A Mutation is DML: for each row of Input, what Targets say is written to the row
// of Table whose key is in Key.
type Mutation struct {
	Kind  MutationKind
	Table *Table
	Input Rel
	Key   ColumnID
	// Targets is empty if the whole row is deleted.
	Targets []Target
	// Mode of INSERT: "", IGNORE, REPLACE, UPDATE.
	Mode string
}

// A MutationKind is INSERT, UPDATE or DELETE.
type MutationKind uint8

// The kinds.
const (
	InsertRows MutationKind = iota + 1
	UpdateRows
	DeleteRows
)

// A Target is a column, or a whole family, that DML writes.
type Target struct {
	Family    string
	Qualifier *ColumnID // BYTES; nil for the whole family
	// Value is a column of Input: BYTES, or a MAP for a whole family. NULL and Delete
	// delete.
	Value  ColumnID
	Delete bool
}

// Params are what a statement is executed with.
type Params struct {
	// Values by name in lower case.
	Values map[string]types.Value
	// View are what VIEW_PARAMETERS() returns.
	View map[string]types.Value
	// Now is the statement's time.
	Now time.Time
}
