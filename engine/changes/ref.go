package changes

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

const fileSuffix, indexSuffix = ".chg", ".chx"

// FileName returns the name of the change file with an id. Its writer is known by it, as
// that of an SSTable.
func FileName(id uint64) string { return fmt.Sprintf("%016x%s", id, fileSuffix) }

// IndexName returns the name of the index object with an id.
func IndexName(id uint64) string { return fmt.Sprintf("%016x%s", id, indexSuffix) }

// IsFile tells whether an object is a change file, by its name.
func IsFile(object string) bool { return strings.HasSuffix(object, fileSuffix) }

// IsIndex tells whether an object is an index object, by its name.
func IsIndex(object string) bool { return strings.HasSuffix(object, indexSuffix) }

// A Ref names a change file.
type Ref struct {
	// Object is the name in the object store. ID is the number that it was made of.
	Object string
	ID     uint64
	// Lo and Hi are the smallest and largest stamp in it.
	Lo, Hi cell.Seq
	// At is that of a Source.
	At cell.Seq `json:",omitempty"`
	// Rows has all rows of the file, and may have more.
	Rows row.Range `json:",omitzero"`
	// Records and Bytes are those of the file.
	Records uint64
	Bytes   int64
}

// check tells whether a Ref makes sense.
func (r *Ref) check() bool {
	return r.Object != "" && r.Lo <= r.Hi && r.Hi <= cell.MaxSeq && r.Bytes >= 0 && (r.At == 0 || r.Lo == r.At && r.Hi == r.At) && !r.Rows.Empty()
}

// Equal tells whether two Refs say the same.
func (r *Ref) Equal(o *Ref) bool {
	return r.Object == o.Object && r.ID == o.ID && r.Lo == o.Lo && r.Hi == o.Hi && r.At == o.At && r.Records == o.Records && r.Bytes == o.Bytes &&
		bytes.Equal(r.Rows.Start, o.Rows.Start) && bytes.Equal(r.Rows.End, o.Rows.End)
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

// An IndexRef names an index object, by which its owner names many change files. Which of
// them is up to the owner: those whose largest stamp is above one that it has.
type IndexRef struct {
	// Object is the name in the object store. ID is the number that it was made of.
	Object string
	ID     uint64
	// Tablet is the one that wrote it. Others share it.
	Tablet uint64
	// Lo and Hi are the smallest and largest stamp of its files, Rows has all their rows.
	Lo, Hi cell.Seq
	Rows   row.Range `json:",omitzero"`
	// Files counts its files, Bytes is their length, Size that of the index object.
	Files int
	Bytes int64
	Size  int64
}

// CheckIndexes reports a list of IndexRefs that cannot be.
func CheckIndexes(refs []IndexRef) error {
	for i := range refs {
		if r := &refs[i]; r.Object == "" || r.Lo > r.Hi || r.Hi > cell.MaxSeq || r.Files <= 0 || r.Bytes < 0 || r.Size <= 0 || r.Rows.Empty() {
			return fault.New(fault.Corruption, "index object %q of %d change files with stamps %d to %d makes no sense", r.Object, r.Files, r.Lo, r.Hi)
		}
	}
	return nil
}

// Kept estimates how many of its files have stamps above since, and their length: as if
// they were of one length, and evenly spread over their time. The index object knows.
func (r *IndexRef) Kept(since cell.Seq) (files int, size int64) {
	switch {
	case since < r.Lo:
		return r.Files, r.Bytes
	case since >= r.Hi:
		return 0, 0
	}
	part := float64(r.Hi-since) / float64(r.Hi-r.Lo)
	return int(math.Ceil(part * float64(r.Files))), int64(part * float64(r.Bytes))
}

// maxBound is the length of the longest key that Rows of a Ref has: they are in METADATA.
const maxBound = 32

// bound returns a range, with short keys, of the rows from first to last.
func bound(first, last []byte) row.Range {
	var r row.Range
	if len(last) < maxBound {
		r.End = row.Successor(last)
	} else {
		r.End = row.Prefix(last[:maxBound]).End
	}
	if n := min(len(first), maxBound); n > 0 {
		r.Start = bytes.Clone(first[:n])
	}
	return r
}

// cover returns the smallest range that has all rows of a and b.
func cover(a, b row.Range) row.Range {
	if bytes.Compare(b.Start, a.Start) < 0 {
		a.Start = b.Start
	}
	if len(a.End) > 0 && (len(b.End) == 0 || bytes.Compare(b.End, a.End) > 0) {
		a.End = b.End
	}
	return a
}
