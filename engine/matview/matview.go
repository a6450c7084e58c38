package matview

import (
	"context"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// The hidden families of the table that has a view's rows. No client can name them.
const (
	// StateFamily has the state of a group, in the column without a qualifier, and
	// GoneFamily that of one without rows, until it can be forgotten.
	StateFamily = "~state"
	GoneFamily  = "~gone"
	// CountsFamily counts values: see Reader.
	CountsFamily = "~counts"
)

// The families of the table that has a view's contributions, each in a locality group
// of its own. All have one column, without a qualifier, except for OutboxFamily.
const (
	// ContributionFamily has the contribution of the row of the source that has the
	// same key.
	ContributionFamily = "contribution"
	// ExpiryFamily has the time at which the row is to be evaluated again though nothing
	// is written to it, eight bytes of microseconds since the epoch: when the first of its
	// cells comes to an end of its own (row.Mutation.Until). What a family's rule collects
	// needs none: readers see it until it is collected, and the collection has a record.
	ExpiryFamily = "expiry"
	// OutboxFamily has deltas that are not known to have arrived.
	OutboxFamily = "outbox"
)

// A Row is what a view's query makes of one row of its source.
type Row struct {
	// Key is that of the source's row.
	Key []byte
	// Contribution is empty if the row contributes nothing.
	Contribution []byte
	// Err says why the row could not be evaluated: it contributes nothing then. It names
	// neither the row nor its values.
	Err error
}

// An Evaluator evaluates a view's query for rows of its source, as they are now. Its
// methods are safe for concurrent use.
type Evaluator interface {
	// Keys calls emit for the rows of keys, which ascend, that contribute something or
	// could not be evaluated, in order. What emit gets is valid during the call. An
	// error of emit is returned as it is; others are of the source, or the context's.
	Keys(ctx context.Context, keys [][]byte, emit func(*Row) error) error
	// Range is Keys for the rows of a range. It may also give rows that contribute nothing,
	// to tell that all before were evaluated.
	Range(ctx context.Context, within row.Range, emit func(*Row) error) error
}

// Evaluators makes the Evaluator of a view.
type Evaluators interface {
	// Evaluator fails if the query cannot be analyzed any more: the source is another
	// table, or lacks families of the query.
	Evaluator(ctx context.Context, v *schema.View) (Evaluator, error)
}

// An Update is a payload of Deltas for one row of a view.
type Update struct {
	// Shard says where it comes from, and Seq orders those of a shard. Of each shard
	// updates must come in this order; the ones that come again do nothing. Seq is a
	// stamp.Position: a shard that has sent nothing for stateAge may be forgotten.
	Shard, Seq uint64
	Payload    []byte
}

// A Reader gives the hidden cells of one row of a view's table, as they are before
// what Target.Apply returns is written. What it returns is valid until its next call.
type Reader interface {
	// Cell returns the value of a cell, nil if it is not there.
	Cell(family string, qualifier []byte) ([]byte, error)
	// Cells calls visit for the cells of CountsFamily whose qualifiers are at or after
	// from, ascending, until visit returns false.
	Cells(from []byte, visit func(qualifier, value []byte) bool) error
}
