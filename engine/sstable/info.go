package sstable

import (
	"encoding/json"
	"math/bits"

	"github.com/trestledb/trestle/engine/cell"
)

// An Info says what a file holds, so that the owner of a list of files can route reads
// and choose compactions without opening them.
type Info struct {
	// Size is the length of the file in bytes.
	Size int64
	// Entries counts all entries; Tombstones those that are markers or of kind
	// Delete; Shadowed those whose key is also that of a newer entry of the file.
	Entries    uint64
	Tombstones uint64 `json:",omitempty"`
	Shadowed   uint64 `json:",omitempty"`
	// Ends counts the entries of kind SetUntil. A file from before it was counted has 0.
	Ends uint64 `json:",omitempty"`
	// EndBytes is the length of their keys and values before compression. MinEnd and MaxEnd
	// bound the times until which they live, in microseconds. A file from before that was
	// noted has 0 in all three.
	EndBytes       uint64 `json:",omitempty"`
	MinEnd, MaxEnd int64  `json:",omitempty"`
	// PlainRows says that no row key has a byte 00, which would be escaped.
	PlainRows bool `json:",omitempty"`
	// FilterColumns says that the Bloom filter holds columns, beside rows.
	FilterColumns bool `json:",omitempty"`
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
	// Older[i] counts the cells that have at least olderThan(i) newer cells in
	// their column, as far as this file knows. Trailing zeros are left out.
	Older []uint64 `json:",omitempty"`
}

// Ranks up to exactRanks are counted one by one, since these are what rules say
// ("keep 3 versions"), larger ones by powers of two up to 1<<15.
const (
	exactRanks = 16
	maxOlder   = exactRanks + 11
)

// olderThan returns what Older[i] stands for.
func olderThan(i int) int {
	if i < exactRanks {
		return i + 1
	}
	return exactRanks << (i - exactRanks + 1)
}

// olderIndex returns the largest i with olderThan(i) <= rank, -1 if none.
func olderIndex(rank int) int {
	if rank <= exactRanks {
		return rank - 1
	}
	return min(exactRanks-1+bits.Len(uint(rank))-bits.Len(exactRanks), maxOlder-1)
}

// OlderThan returns how many cells have at least n newer cells in their column
// in this file. For n above 16 that is no power of two it returns fewer.
func (f *FamilyInfo) OlderThan(n int) uint64 {
	if n <= 0 {
		return f.Cells
	}
	i := olderIndex(n)
	if olderThan(i) < n {
		i++
	}
	if i >= len(f.Older) {
		return 0
	}
	return f.Older[i]
}

// add counts a cell with rank newer cells in its column.
func (f *FamilyInfo) add(size int, ts int64, rank int) {
	if f.Cells == 0 {
		f.MinTS, f.MaxTS = ts, ts
	} else {
		f.MinTS, f.MaxTS = min(f.MinTS, ts), max(f.MaxTS, ts)
	}
	f.Cells++
	f.Bytes += uint64(size)
	if i := olderIndex(rank); i >= 0 {
		for len(f.Older) <= i {
			f.Older = append(f.Older, 0)
		}
		f.Older[i]++ // until sum adds what comes behind
	}
}

// addEnd counts an entry of kind SetUntil.
func (i *Info) addEnd(e *cell.Entry) {
	until, _ := e.Until()
	if i.Ends == 0 {
		i.MinEnd, i.MaxEnd = until, until
	} else {
		i.MinEnd, i.MaxEnd = min(i.MinEnd, until), max(i.MaxEnd, until)
	}
	i.Ends++
	i.EndBytes += uint64(len(e.Key) + len(e.Value))
}

// sum turns counts per range of ranks into counts of that range and above.
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
