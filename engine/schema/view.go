package schema

import "slices"

// A View says that a table belongs to a materialized view: it holds the view's rows,
// or, with State, what the view knows of its source's rows.
type View struct {
	// Name is the resource name, projects/P/instances/I/materializedViews/V.
	Name string
	// Life tells the view from others of the same name, before and after it.
	Life uint64
	// State says that the table is that of contributions, as opposed to rows.
	State bool `json:",omitempty"`
	// Source is the full name of the table that the view is made of, and SourceID its
	// Table.ID.
	Source   string
	SourceID uint64
	// Query is the text of the view's query.
	Query string
	// Families are those of the source that Query reads.
	Families []string `json:",omitempty"`
	// Index says that the view has a row for each row of its query (ORDER BY), as
	// opposed to each group (GROUP BY).
	Index bool `json:",omitempty"`
	// Key are the columns of the view's row key, in order. RawKey says that it is one,
	// whose value is the key as it is; else the key is in OrderedCode.
	Key    []ViewColumn
	RawKey bool `json:",omitempty"`
	// Columns are the others, in the order of the query. Those of a view of groups are
	// its aggregates.
	Columns []ViewColumn `json:",omitempty"`
}

// A ViewColumn is a column of a materialized view.
type ViewColumn struct {
	// Name is what the query calls it.
	Name string
	// Family and Qualifier are where its cells are; of a column of the key they are
	// empty. A Map fills the whole family.
	Family    string `json:",omitempty"`
	Qualifier string `json:",omitempty"`
	Map       bool   `json:",omitempty"`
	// Type is the type of its value.
	Type ViewType
	// Aggregate is the function that makes it of a group; Arg is the type of the
	// function's argument.
	Aggregate ViewAggregate `json:",omitempty"`
	Arg       ViewType      `json:",omitempty"`
	// Precision is that of the sketches of ViewSketch.
	Precision int `json:",omitempty"`
}

// A ViewType is the type of a value of a materialized view.
type ViewType uint8

// The types. An INT64 is eight bytes, big-endian, and so are a TIMESTAMP's microseconds
// and a FLOAT64; a FLOAT32 is four, a BOOL one. The values are stored.
const (
	ViewBytes ViewType = iota + 1
	ViewString
	ViewInt
	ViewTimestamp
	ViewFloat
	ViewFloat32
	ViewBool
)

// A ViewAggregate is a function of a group.
type ViewAggregate uint8

// The functions. Their numbers are stored.
const (
	ViewCountRows   ViewAggregate = iota + 1 // COUNT(*)
	ViewCount                                // COUNT(x)
	ViewSum                                  // SUM of INT64 or FLOAT64
	ViewAvg                                  // AVG of them
	ViewMin                                  // MIN
	ViewMax                                  // MAX
	ViewAny                                  // ANY_VALUE: the least
	ViewBitAnd                               // BIT_AND of INT64
	ViewBitOr                                // BIT_OR
	ViewBitXor                               // BIT_XOR
	ViewSketch                               // HLL_COUNT.INIT
	ViewMerge                                // HLL_COUNT.MERGE
	ViewMergeSketch                          // HLL_COUNT.MERGE_PARTIAL
)

// Clone returns a deep copy. It accepts nil.
func (v *View) Clone() *View {
	if v == nil {
		return nil
	}
	c := *v
	c.Families, c.Key, c.Columns = slices.Clone(v.Families), slices.Clone(v.Key), slices.Clone(v.Columns)
	return &c
}
