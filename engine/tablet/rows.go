package tablet

import (
	"bytes"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/sstable"
)

// maxCachedRow is the size of a row, in bytes, beyond which the row cache does
// not take it. Filling it in for a read of one cell must not cost much more
// than the read.
const maxCachedRow = 32 << 10

// manyRows is from how many ranges on a read leaves the row cache alone. Such reads are of
// what has changed, or is to be changed, not of what is popular: to count each row, and to
// gather those that come twice, costs as much as to read them.
const manyRows = 256

// farRows is how many rows a read of many looks up one by one, after one that was not near
// the row before, until it tries again whether they are near each other: twice as many after
// each time that they are not. To try costs a block of each run.
const farRows = 64

// nearBytes is how much may be read on the way to a row that is near: not the large cells of
// the row before, if they are not wanted.
const nearBytes = 256 << 10

// seekOf is seekRow of a read of many rows, which ascend. As long as each is near the one
// before it steps from there: to ask the filter of each run, and to search in the block, costs
// three times as much.
func (r *reader) seekOf(prefix, from []byte) bool {
	if r.far > 0 {
		r.far--
		return r.seekRow(prefix, from)
	}
	if r.near > 0 {
		for range nearby {
			if !r.it.Valid() {
				return false
			}
			if e := r.it.Entry(); bytes.Compare(e.Key, prefix) >= 0 {
				r.near++
				return bytes.HasPrefix(e.Key, prefix)
			}
			if !r.it.Next() {
				return false
			}
			if r.blocks.BlockBytes > nearBytes {
				r.near = 0
				break
			}
		}
		if r.near < farRows {
			r.apart = max(2*r.apart, farRows)
			r.near, r.far = 0, r.apart
			return r.seekRow(prefix, from)
		}
	}
	r.useAll()
	r.near = 1
	return r.it.SeekGE(prefix) && bytes.HasPrefix(r.it.Entry().Key, prefix)
}

// seekRow moves to the first entry of the row of prefix, which all reads of a
// single row begin with. It may leave out cells before the key from, if that is
// longer than prefix. If the row is one that is read often, what the runs have
// of it comes from the row cache.
func (r *reader) seekRow(prefix, from []byte) bool {
	v := r.version
	if r.many || v.env.Rows == nil || len(r.sources) == r.mems || len(v.runs) > 64 {
		r.useAll()
		return r.it.SeekColumn(prefix, from)
	}
	k := rowcache.Key{Tablet: uint64(v.row.Tablet), State: v.state, Part: r.part, Row: prefix}
	e, want := v.env.Rows.Get(k)
	switch {
	case e != nil && !e.TooLarge():
		v.reads.rowHits.Add(1)
	default:
		v.reads.rowMisses.Add(1)
	}
	if want {
		// If that fails the read meets the same error, or is better off.
		if got, err := r.gather(prefix); err == nil {
			v.env.Rows.Put(k, got)
			e = got
		}
	}
	if e == nil || e.TooLarge() {
		r.useAll()
		return r.it.SeekColumn(prefix, from)
	}
	r.cached.Reset(e)
	r.hot = append(append(r.hot[:0], r.sources[:r.mems]...), &r.cached)
	r.it.Reset(r.hot)
	r.inHot = true
	return r.it.SeekRow(prefix)
}

// useAll makes it merge all sources again.
func (r *reader) useAll() {
	if r.inHot {
		r.it.Reset(r.sources)
		r.inHot = false
	}
}

// gather returns a row as the chosen runs together have it: what a compaction of
// them would leave of it. That includes tombstones, some of which hide what is
// yet to come.
func (r *reader) gather(prefix []byte) (*rowcache.Entry, error) {
	v := r.version
	runs := make([]runIterator, len(v.runs))
	sources := make([]cell.Iterator, 0, len(v.runs))
	for i := range v.runs {
		if r.choice.takes(&v.runs[i]) {
			runs[i].reset(r.ctx, v.runs[i].files, sstable.IterOptions{Blocks: &r.blocks})
			sources = append(sources, &runs[i])
		}
	}
	it := merge.New(sources)
	e, err := gatherFrom(it, prefix, v.rangeDel)
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	return e, err
}

func gatherFrom(it *merge.Iterator, prefix []byte, dels merge.Ranges) (*rowcache.Entry, error) {
	var b rowcache.Builder
	var s cell.Suffix
	res := merge.Resolver{Ranges: dels}
	for ok := it.SeekRow(prefix); ok; ok = it.Next() {
		e := it.Entry()
		if !bytes.HasPrefix(e.Key, prefix) {
			break
		}
		verdict, err := res.Judge(e, &s)
		if err != nil {
			return nil, err
		}
		if verdict != merge.Covered {
			b.Add(e)
		}
		if b.Bytes() > maxCachedRow {
			return rowcache.TooLarge(), nil
		}
	}
	if err := it.Error(); err != nil {
		return nil, err
	}
	return b.Entry(), nil
}
