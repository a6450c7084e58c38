package algebra

// An Access says which rows of a stored table a Scan reads, and how.
type Access struct {
	// Keys is what is known of the keys of the rows that are wanted; nil is nothing. A
	// condition that Keys stands for as a whole is in no Filter any more.
	Keys *KeyCondition
	// Limit is how many rows are enough, and Offset how many rows more; nil is no limit.
	Limit, Offset Expr
	// Reversed reads the rows in descending order of their keys.
	Reversed bool
	// Unordered says that the order of the rows does not matter, so that tablets may be
	// read at the same time.
	Unordered bool
	// Present says that a row with no cell in a column of the Scan need not come.
	Present bool
	// Prepared is what package plan has worked out for all executions.
	Prepared any
}

// A KeyCondition restricts the keys of rows. The Exprs are constant while the Scan
// runs: they refer to parameters, and to rows of the query around, only. They are
// evaluated when it begins.
type KeyCondition struct {
	Op KeyOp
	// Of are the parts of KeyAnd and KeyOr.
	Of []*KeyCondition
	// Values are operands: BYTES, or of the type of the field.
	Values []Expr
	// Array is set if Values is one ARRAY of the operands of KeyIn.
	Array bool
	// Field is the field of a structured key that Op is about, RowKey for the key itself.
	Field int
	// Exact says that a key satisfies the condition exactly if it is in the ranges made
	// of it. Others only leave less to be looked at.
	Exact bool
}

// RowKey is the Field of a KeyCondition about _key.
const RowKey = -1

// A KeyOp is what a KeyCondition asks for.
type KeyOp uint8

// The operations. A NULL among the operands is satisfied by no key.
const (
	KeyAnd            KeyOp = iota // all of Of
	KeyOr                          // some of Of
	KeyEqual                       // Values[0]
	KeyIn                          // one of Values
	KeyLess                        // less than Values[0]
	KeyLessOrEqual                 // at most Values[0]
	KeyGreater                     // more than Values[0]
	KeyGreaterOrEqual              // at least Values[0]
	KeyPrefix                      // starts with Values[0]
	KeyLike                        // LIKE Values[0]: its prefix
	KeyRegexp                      // REGEXP_CONTAINS(key, Values[0]): its prefix if it begins with ^
)
