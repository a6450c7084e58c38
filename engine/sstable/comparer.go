package sstable

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// comparer is part of the file format: files name it.
//
// Keys compare as bytes, and Split ends a key's prefix where its row prefix
// ends. Pebble asks three things of a Split, also for keys that no client
// wrote, such as the separators of its index:
//
//   - a prefix sorts before all longer keys that have it: bytes do;
//   - prefixes order keys before suffixes do. Let a <= b. If the prefix of a
//     were greater than the prefix of b it would have to extend it; then b's
//     prefix is complete (an incomplete one is the whole key) and a, which
//     starts with it, has the same prefix;
//   - keys of equal prefix compare as their suffixes do: bytes do.
//
// Pebble's columnar blocks store prefixes and suffixes apart and search the
// prefixes as bytes, which the second point makes right.
var comparer = &pebble.Comparer{
	Name:                 "trestle.v1",
	Compare:              bytes.Compare,
	Equal:                bytes.Equal,
	CompareRangeSuffixes: bytes.Compare,
	ComparePointSuffixes: bytes.Compare,
	Split:                cell.RowPrefixLen,
	AbbreviatedKey:       pebble.DefaultComparer.AbbreviatedKey,
	Separator:            pebble.DefaultComparer.Separator,
	Successor:            pebble.DefaultComparer.Successor,
	ImmediateSuccessor:   pebble.DefaultComparer.ImmediateSuccessor,
	FormatKey:            func(key []byte) fmt.Formatter { return keyFormatter(key) },
}

// keySchema is part of the file format, like its bundle size of 16 keys.
var keySchema = colblk.DefaultKeySchema(comparer, 16)

// keyFormatter prints keys in dumps and in Pebble's own messages.
type keyFormatter []byte

func (k keyFormatter) Format(s fmt.State, _ rune) { _, _ = s.Write(appendKey(nil, k)) }

// appendKey appends a readable form of key: "row" for a row marker, "row" f3
// for a family marker, "row" f3:"qualifier" for a column marker, and that with
// @timestamp for a cell, with the escapes of row.Escape. What is no key comes out as
// hexadecimal digits.
func appendKey(dst, key []byte) []byte {
	n := cell.EscapedLen(key)
	if n < 0 {
		return fmt.Appendf(dst, "%x", key)
	}
	r, err := cell.RowOf(nil, key[:n])
	if err != nil {
		return fmt.Appendf(dst, "%x", key)
	}
	s, err := cell.ParseSuffix(key[n:])
	if err != nil {
		return fmt.Appendf(dst, "%x", key)
	}
	dst = fmt.Appendf(dst, `"%s"`, row.Escape(r))
	if s.Shape == cell.RowMarker {
		return dst
	}
	dst = fmt.Appendf(dst, " f%d", s.Family)
	if s.Shape == cell.FamilyMarker {
		return dst
	}
	dst = fmt.Appendf(dst, `:"%s"`, row.Escape(cell.Qualifier(nil, s.Column)))
	if s.Shape == cell.ColumnMarker {
		return dst
	}
	return fmt.Appendf(dst, "@%d", s.Timestamp)
}
