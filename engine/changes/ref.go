package changes

import (
	"context"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// A Ref names a change file.
type Ref struct {
	// Object is the name in the object store. ID is the number that it was made of.
	Object string
	ID     uint64
	// Lo and Hi are the smallest and largest stamp in it.
	Lo, Hi cell.Seq
	// At is that of a Source.
	At cell.Seq `json:",omitempty"`
	// Records and Bytes are those of the file.
	Records uint64
	Bytes   int64
}

// check tells whether a Ref makes sense.
func (r *Ref) check() bool {
	return r.Object != "" && r.Lo <= r.Hi && r.Hi <= cell.MaxSeq && r.Bytes >= 0 && (r.At == 0 || r.Lo == r.At && r.Hi == r.At)
}

// Check reports a list of Refs that cannot be.
func Check(refs []Ref) error {
	for i := range refs {
		if !refs[i].check() {
			return fault.New(fault.Corruption, "change file %q with stamps %d to %d makes no sense", refs[i].Object, refs[i].Lo, refs[i].Hi)
		}
	}
	return nil
}

// Source returns where to read a change file from.
func (r *Ref) Source(open func(ctx context.Context) (*File, error)) Source {
	return Source{Lo: r.Lo, Hi: r.Hi, At: r.At, Open: open}
}
