package sstable

import (
	"encoding/json"
	"math/bits"

	"github.com/trestledb/trestle/engine/cell"
)

// An Info says what a file holds, so that whoever lists files can route reads
// and choose compactions without opening them.
type Info struct {
	// Size is the length of the file in bytes.
	Size int64
	// Entries counts all entries; Tombstones those that are markers or of kind
	// Delete; Shadowed those whose key is also that of a newer entry of the file.
	Entries    uint64
	Tombstones uint64 `json:",omitempty"`
	Shadowed   uint64 `json:",omitempty"`
	// RawBytes is the length of all keys and values before compression.
	RawBytes uint64
	// MinSeq and MaxSeq bound the sequence numbers.
	MinSeq, MaxSeq cell.Seq
	// Lo and Hi are the row prefixes of the first and the last entry. They are
	// prefixes and not whole keys: a lookup by row prefix must find the first
	// row inside the bounds.
	Lo, Hi []byte
	// MinTS and MaxTS bound the timestamps of the cells, in microseconds. They
	// are 0 and -1 if the file has no cells.
	MinTS, MaxTS int64
	// Families has what the garbage collection of each family can go by,
	// ascending by ID.
	Families []FamilyInfo `json:",omitempty"`
}

// A FamilyInfo counts the cells of one family in one file: entries of kind Set
// that are no markers and not Shadowed.
type FamilyInfo struct {
	ID    cell.FamilyID
	Cells uint64
	// Bytes is the length of the cells' keys and values before compression.
	Bytes uint64
	// MinTS and MaxTS bound the timestamps, in microseconds.
	MinTS, MaxTS int64
	// Older[i] counts the cells that have at least 1<<i newer cells in their
	// column, as far as this file knows. Trailing zeros are left out.
	Older []uint64 `json:",omitempty"`
}

// maxOlder limits Older to columns of 2^15 versions; beyond, cells count in
// the last bucket.
const maxOlder = 16

// add counts a cell with rank newer cells in its column.
func (f *FamilyInfo) add(size int, ts int64, rank int) {
	if f.Cells == 0 {
		f.MinTS, f.MaxTS = ts, ts
	} else {
		f.MinTS, f.MaxTS = min(f.MinTS, ts), max(f.MaxTS, ts)
	}
	f.Cells++
	f.Bytes += uint64(size)
	if n := min(bits.Len(uint(rank)), maxOlder); n > 0 {
		if f.Older == nil {
			f.Older = make([]uint64, 0, maxOlder)
		}
		for len(f.Older) < n {
			f.Older = append(f.Older, 0)
		}
		// Older[i] counts all ranks of at least 1<<i; sum makes it so.
		f.Older[n-1]++
	}
}

// sum turns counts per power of two into counts of that power and above.
func (f *FamilyInfo) sum() {
	for i := len(f.Older) - 2; i >= 0; i-- {
		f.Older[i] += f.Older[i+1]
	}
}

// infoProperty is the name under which a file keeps its own Info.
const infoProperty = "trestle.info"

func encodeInfo(dst []byte, i *Info) []byte {
	b, err := json.Marshal(i)
	if err != nil {
		panic(err) // no field of Info can fail to encode
	}
	return append(dst, b...)
}

func decodeInfo(b []byte) (Info, error) {
	var i Info
	err := json.Unmarshal(b, &i)
	return i, err
}
