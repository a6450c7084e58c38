package sstable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A Verdict is what Check has found out about an SSTable.
type Verdict struct {
	Entries uint64
	// Wrong says what is wrong, "" if nothing is.
	Wrong string
	// Rows says that only some rows cannot be read, or all of them: what METADATA
	// and the SSTable say of it agrees, as far as that can be told.
	Rows bool
}

// Check reads an SSTable from end to end. It verifies every checksum, and that
// METADATA (info, if not nil) and the file say the same of it. Its entries must
// be those that it says it has, in order. An error means that it could not be
// found out. cache is for what is read, and f is closed.
func Check(ctx context.Context, cache *Cache, f Readable, name string, info *Info) (Verdict, error) {
	r, err := Open(ctx, cache, f, name)
	if fault.KindOf(err) == fault.Corruption {
		return Verdict{Wrong: err.Error(), Rows: true}, nil
	}
	if err != nil {
		return Verdict{}, err
	}
	v, err := r.check(ctx, info)
	return v, errors.Join(err, r.Close())
}

func (r *Reader) check(ctx context.Context, info *Info) (Verdict, error) {
	says, err := r.Info(ctx)
	if fault.KindOf(err) == fault.Corruption {
		return Verdict{Wrong: err.Error(), Rows: true}, nil
	}
	if err != nil {
		return Verdict{}, err
	}
	if info != nil && !says.Equal(info) {
		return Verdict{Wrong: "METADATA says other things of it than it says itself: it is not the one that was written"}, nil
	}
	var got Info
	var wrong string
	if err = r.VerifyChecksums(ctx); err == nil {
		got, wrong, err = readEntries(ctx, r)
	}
	switch {
	case fault.KindOf(err) == fault.Corruption:
		return Verdict{got.Entries, fmt.Sprintf("%v; %s", err, readable(ctx, r, &says)), true}, nil
	case err != nil:
		return Verdict{Entries: got.Entries}, err
	case wrong != "":
	case got.Entries != says.Entries || got.Tombstones != says.Tombstones || got.Shadowed != says.Shadowed || got.RawBytes != says.RawBytes ||
		got.MinSeq != says.MinSeq || got.MaxSeq != says.MaxSeq || !bytes.Equal(got.Lo, says.Lo) || !bytes.Equal(got.Hi, says.Hi):
		wrong = fmt.Sprintf("holds %d entries with sequence numbers %d to %d and says it holds %d with %d to %d",
			got.Entries, got.MinSeq, got.MaxSeq, says.Entries, says.MinSeq, says.MaxSeq)
	case says.Ends != 0 && got.Ends != says.Ends:
		wrong = fmt.Sprintf("holds %d cells that come to an end of their own and says it holds %d", got.Ends, says.Ends)
	case says.EndBytes != 0 && (got.EndBytes != says.EndBytes || got.MinEnd != says.MinEnd || got.MaxEnd != says.MaxEnd):
		wrong = fmt.Sprintf("holds %d bytes of cells that end from %d to %d and says it holds %d from %d to %d",
			got.EndBytes, got.MinEnd, got.MaxEnd, says.EndBytes, says.MinEnd, says.MaxEnd)
	case says.PlainRows && !got.PlainRows:
		wrong = "says that no row key has a byte 00, and has one that does"
	}
	return Verdict{Entries: got.Entries, Wrong: wrong}, nil
}

// Equal tells whether two say the same of an SSTable.
func (i *Info) Equal(other *Info) bool {
	a, _ := json.Marshal(i)
	b, _ := json.Marshal(other)
	return bytes.Equal(a, b)
}

// readEntries counts the entries of r. wrong is the first that is out of order
// or makes no sense, "" if there is none.
func readEntries(ctx context.Context, r *Reader) (got Info, wrong string, err error) {
	it, err := r.CompactionIterator(ctx)
	if err != nil {
		return got, "", err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	var last cell.Entry
	got.MinSeq, got.PlainRows = cell.MaxSeq, true
	for ok := it.First(); ok; ok = it.Next() {
		if got.Entries%1024 == 0 && ctx.Err() != nil {
			return got, "", ctx.Err()
		}
		e := it.Entry()
		n, plain := cell.EscapedPart(e.Key)
		got.PlainRows = got.PlainRows && plain
		if n < 0 {
			return got, fmt.Sprintf("key %x has no row", e.Key), nil
		}
		suffix, err := cell.ParseSuffix(e.Key[n:])
		if err != nil {
			return got, fmt.Sprintf("key %x: %v", e.Key, err), nil
		}
		if got.Entries > 0 {
			if cell.Compare(&last, e) >= 0 {
				return got, fmt.Sprintf("key %x #%d is followed by %x #%d, which is not behind it", last.Key, last.Seq, e.Key, e.Seq), nil
			}
			if bytes.Equal(last.Key, e.Key) {
				got.Shadowed++
			}
		} else {
			got.Lo = bytes.Clone(e.Key[:n])
		}
		if suffix.Shape == cell.ColumnMarker || suffix.Shape == cell.FamilyMarker && len(e.Value) > 0 {
			if _, _, err := cell.ParseMarker(nil, e.Value); err != nil {
				return got, fmt.Sprintf("deletion at key %x: %v", e.Key, err), nil
			}
		}
		if suffix.Shape != cell.Cell || e.Kind == cell.Delete {
			got.Tombstones++
		}
		if e.Kind == cell.SetUntil {
			got.addEnd(e)
		}
		got.Entries++
		got.RawBytes += uint64(len(e.Key) + len(e.Value))
		got.MinSeq, got.MaxSeq = min(got.MinSeq, e.Seq), max(got.MaxSeq, e.Seq)
		got.Hi = append(got.Hi[:0], e.Key[:n]...)
		last = cell.Entry{Key: append(last.Key[:0], e.Key...), Seq: e.Seq, Kind: e.Kind}
	}
	return got, "", it.Error()
}

// readable says which rows of a damaged SSTable can be read before the damage.
func readable(ctx context.Context, r *Reader, says *Info) string {
	lo, hi := shownRow(says.Lo), shownRow(says.Hi)
	got, _, err := readEntries(ctx, r)
	switch {
	case err == nil:
		return fmt.Sprintf("the rows from %s to %s can be read", lo, hi)
	case got.Entries == 0:
		return fmt.Sprintf("of its rows from %s to %s the first cannot be read", lo, hi)
	}
	return fmt.Sprintf("of its rows from %s to %s those after %s cannot all be read", lo, hi, shownRow(got.Hi))
}

func shownRow(prefix []byte) string {
	key, err := cell.RowOf(nil, prefix)
	if err != nil {
		return fmt.Sprintf("%x", prefix)
	}
	return `"` + row.Escape(key) + `"`
}
