package changes

import (
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// A Request asks for the changes of a key range of one table.
type Request struct {
	// Table is the full resource name.
	Table string
	// Life is the schema.Stream's: FailedPrecondition if the table's stream is not,
	// or no longer, of this life.
	Life uint64
	// Within is the range whose changes are read.
	Within row.Range
	// Partition, if it is not nil, is the partition of which Within is a part. It is the
	// partition that a Close ends.
	Partition *row.Range
	// From is where to begin: what it says to have been read is left out.
	From Position
	// Until, if it is not 0, ends the read, without a Close, when all changes with
	// stamps up to it were given. None with a later stamp is.
	Until cell.Seq
	// Every is how often Watermark is to be called while there is nothing to give.
	Every time.Duration
	// Rows says that only the rows matter that have changed, and when: records may lack
	// their Changes.
	Rows bool
}

// A Writer takes the changes of a read:
//
//	(Record+ Flush | Watermark)*
//
// Changes of one row come in the order of their stamps. The reader holds nothing
// (no lock, block or memtable) while Flush or Watermark runs.
type Writer interface {
	// Record takes a record; at is the position after it. Both are valid during the
	// call only. When full is true the reader calls Flush before the next record.
	Record(r *Record, at Position) (full bool, err error)
	// Flush passes on what Record took. It may block for as long as the client
	// pleases.
	Flush() error
	// Watermark tells that all records up to at.Through were given, and that none
	// with such a stamp will ever follow. Everything was flushed before. It may
	// block like Flush.
	Watermark(at Position) error
}

// A Close is why a read is over that was not to be: the key range was split, or
// merged with others.
type Close struct {
	// At is the position up to which all was given.
	At Position
	// Partitions are the ranges to go on with, ascending. Together they cover
	// Request.Within, and the first and the last may reach beyond it.
	Partitions []row.Range
}

// Watermark returns the stamp up to which everything before p has been read.
func (p *Position) Watermark() cell.Seq { return p.Through }

// ExpiredReason is the Reason of an Expired. EarliestKey is where its metadata have
// the time, in the form of RFC 3339.
const (
	ExpiredReason = "CHANGES_EXPIRED"
	EarliestKey   = "earliest"

	beginsKey = "begins" // of the metadata of Begins
)

// Expired returns the error of a read of changes that are no longer kept, or were
// never: the earliest that can be read have a stamp above after.
func Expired(table string, after cell.Seq) *fault.Error {
	t := stamp.Time(after + stamp.Stride).Format(time.RFC3339Nano)
	err := fault.New(fault.OutOfRange, "The change stream of table %s begins at %s: what was committed before is no longer kept", table, t)
	err.Reason = ExpiredReason
	err.Metadata = map[string]string{EarliestKey: t}
	return err
}

// Begins returns the Expired of a read from before the stream's begin, of which nothing
// was let go. What was committed up to after was committed before the stream was
// enabled, though the reader's clock may say otherwise: commit times run ahead where
// there is more than a change each microsecond, and so does a server's clock.
func Begins(table string, after cell.Seq) *fault.Error {
	err := Expired(table, after)
	err.Msg = fmt.Sprintf("The change stream of table %s begins at %s", table, err.Metadata[EarliestKey])
	err.Metadata[beginsKey] = "true"
	return err
}

// BeginOf returns where to read on for what Begins says: nothing that the stream has is
// before. ok is false of other errors.
func BeginOf(err error) (p Position, ok bool) {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != ExpiredReason || f.Metadata[beginsKey] == "" {
		return Position{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, f.Metadata[EarliestKey])
	return Position{Through: stamp.At(t) - 1}, err == nil
}
