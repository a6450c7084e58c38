package changes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/varint"
)

const (
	indexVersion   = 1
	indexMagic     = "trestidx"
	indexFooterLen = 12
	// maxIndexBytes bounds what a reader of an index object holds: MaxIndexFiles take half of it.
	maxIndexBytes = 4 << 20
)

// MaxIndexFiles is how many change files an index object has at most.
const MaxIndexFiles = 1 << 14

// CompareRefs orders change files by their smallest stamps.
func CompareRefs(a, b Ref) int { return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.ID, b.ID)) }

// indexOf returns what an IndexRef says of its files.
func indexOf(files []Ref) IndexRef {
	x := IndexRef{Files: len(files)}
	for i := range files {
		f := &files[i]
		if i == 0 {
			x.Lo, x.Rows = f.Lo, f.Rows
		}
		x.Lo, x.Hi, x.Rows = min(x.Lo, f.Lo), max(x.Hi, f.Hi), cover(x.Rows, f.Rows)
		x.Bytes += f.Bytes
	}
	return x
}

// WriteIndex writes an index object of files, ascending by CompareRefs, and makes it
// durable. It returns what names the object, but for Object, ID and Tablet. After an error
// there is no object. More than MaxIndexFiles are fault.Internal: nobody could read them.
func WriteIndex(w Writable, files []Ref) (IndexRef, error) {
	if len(files) > MaxIndexFiles {
		w.Abort()
		return IndexRef{}, fault.New(fault.Internal, "%d change files for an index object, and %d at most fit", len(files), MaxIndexFiles)
	}
	b := binary.AppendUvarint(nil, uint64(len(files)))
	var last cell.Seq
	for i := range files {
		f := &files[i]
		b = binary.AppendUvarint(b, f.ID)
		b = binary.AppendUvarint(b, uint64(f.Lo-last))
		b = binary.AppendUvarint(b, uint64(f.Hi-f.Lo))
		var placed byte
		if f.At != 0 {
			placed = 1
		}
		b = append(b, placed)
		b = binary.AppendUvarint(b, f.Records)
		b = binary.AppendUvarint(b, uint64(f.Bytes))
		b = appendBytes(appendBytes(b, f.Rows.Start), f.Rows.End)
		last = f.Lo
	}
	b = appendFrame(nil, b)
	b = binary.LittleEndian.AppendUint32(b, indexVersion)
	b = append(b, indexMagic...)
	ref := indexOf(files)
	ref.Size = int64(len(b))
	err := w.Write(b)
	if err != nil {
		w.Abort()
	} else {
		err = w.Finish()
	}
	if err != nil {
		return IndexRef{}, fmt.Errorf("write index of change files: %w", err)
	}
	return ref, nil
}

// ReadIndex returns the change files that an index object has, ascending by CompareRefs.
// It closes f. An object that is not sound is fault.Corruption; name is for errors.
func ReadIndex(ctx context.Context, f Readable, name string) (files []Ref, err error) {
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			files, err = nil, fmt.Errorf("index object %s: %w", name, err)
		}
	}()
	n := f.Size()
	if n < indexFooterLen || n > maxIndexBytes {
		return nil, fault.New(fault.Corruption, "it has %d bytes", n)
	}
	b := make([]byte, n)
	if err := f.ReadAt(ctx, b, 0); err != nil {
		return nil, err
	}
	frame, foot := b[:n-indexFooterLen], b[n-indexFooterLen:]
	switch v := binary.LittleEndian.Uint32(foot); {
	case string(foot[4:]) != indexMagic:
		return nil, fault.New(fault.Corruption, "it is none")
	case v != indexVersion:
		return nil, fault.New(fault.Corruption, "it has version %d, this program reads version %d", v, indexVersion)
	}
	content, _, err := openFrame(nil, frame)
	if err != nil {
		return nil, err
	}
	return parseIndex(content)
}

// parseIndex decodes the content of an index object, which the files alias.
func parseIndex(content []byte) ([]Ref, error) {
	d := varint.Of(content)
	count := d.Uvarint()
	if count > MaxIndexFiles {
		return nil, fault.New(fault.Corruption, "it has %d change files, and %d at most make sense", count, MaxIndexFiles)
	}
	var files []Ref
	var last cell.Seq
	for range count {
		f := Ref{ID: d.Uvarint()}
		f.Lo = last + cell.Seq(d.Uvarint())
		f.Hi = f.Lo + cell.Seq(d.Uvarint())
		placed := d.Byte()
		f.Records, f.Bytes = d.Uvarint(), int64(d.Uvarint())
		f.Rows = row.Range{Start: d.Bytes(), End: d.Bytes()}
		f.Object = FileName(f.ID)
		if placed == 1 {
			f.At = f.Lo
		}
		if d.Bad() || placed > 1 || f.Lo < last || f.Lo == 0 || !f.check() || len(files) > 0 && CompareRefs(files[len(files)-1], f) >= 0 {
			return nil, fault.New(fault.Corruption, "change file %d of it is malformed", len(files))
		}
		files, last = append(files, f), f.Lo
	}
	if d.Bad() || d.Len() > 0 {
		return nil, fault.New(fault.Corruption, "it does not end with its last change file")
	}
	return files, nil
}

// Verify tells, as fault.Corruption, if files are not those that the index object of a
// reference was written of.
func (r *IndexRef) Verify(files []Ref) error {
	x := indexOf(files)
	if x.Lo != r.Lo || x.Hi != r.Hi || x.Files != r.Files || x.Bytes != r.Bytes || !bytes.Equal(x.Rows.Start, r.Rows.Start) || !bytes.Equal(x.Rows.End, r.Rows.End) {
		return fault.New(fault.Corruption, "index object %s has %d change files of %d bytes with stamps %d to %d instead of %d of %d with %d to %d",
			r.Object, x.Files, x.Bytes, x.Lo, x.Hi, r.Files, r.Bytes, r.Lo, r.Hi)
	}
	return nil
}

// DumpIndex writes an index object as text: a line for each change file.
func DumpIndex(ctx context.Context, w io.Writer, f Readable, name string) error {
	files, err := ReadIndex(ctx, f, name)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d change files\n", name, len(files))
	at := func(s cell.Seq) string { return stamp.Time(s).Format(time.RFC3339Nano) }
	for i := range files {
		f := &files[i]
		fmt.Fprintf(w, "  %s %d records, %d bytes, committed %s to %s, rows [%s, %s)\n", f.Object, f.Records, f.Bytes, at(f.Lo), at(f.Hi), row.Escape(f.Rows.Start), row.Escape(f.Rows.End))
	}
	return nil
}
