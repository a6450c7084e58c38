package tablet

import (
	"bytes"
	"context"
	"sort"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/sstable"
)

// runIterator walks the files of a run as if they were one. It opens a file
// when it comes to it.
type runIterator struct {
	ctx   context.Context
	files []file
	opts  sstable.IterOptions
	// expected is what will probably be read: opts has its place.
	expected sstable.Ahead
	// compaction reads ahead and leaves the block cache alone.
	compaction bool
	inRow      bool              // since SeekRow or SeekColumn
	i          int               // of the file that it is in
	it         *sstable.Iterator // nil if no file is open
	err        error
}

func (u *runIterator) reset(ctx context.Context, files []file, opts sstable.IterOptions) {
	*u = runIterator{ctx: ctx, files: files, opts: opts, i: -1}
}

// enter makes file i the current one.
func (u *runIterator) enter(i int) bool {
	if u.it != nil && u.i == i {
		return true
	}
	if !u.leave() || i < 0 || i >= len(u.files) {
		return false
	}
	var it *sstable.Iterator
	var err error
	if u.compaction {
		it, err = u.files[i].reader.CompactionIterator(u.ctx)
	} else {
		it, err = u.files[i].reader.Iterator(u.ctx, u.opts)
	}
	if err != nil {
		u.err = err
		return false
	}
	u.it, u.i = it, i
	return true
}

func (u *runIterator) leave() bool {
	if u.it != nil {
		if err := u.it.Close(); err != nil && u.err == nil {
			u.err = err
		}
		u.it = nil
	}
	return u.err == nil
}

// found returns ok, noting the error if it is false because of one.
func (u *runIterator) found(ok bool) bool {
	if !ok && u.err == nil {
		u.err = u.it.Error()
	}
	return ok
}

// onward moves to the first entry of the files from i on.
func (u *runIterator) onward(i int) bool {
	for ; i < len(u.files); i++ {
		if !u.enter(i) {
			return false
		}
		if u.found(u.it.First()) {
			return true
		}
		if u.err != nil {
			return false
		}
	}
	return false
}

// at returns the first file that ends at or behind the row of key.
func (u *runIterator) at(key []byte) int {
	key = key[:cell.RowPrefixLen(key)]
	return sort.Search(len(u.files), func(i int) bool { return bytes.Compare(u.files[i].ref.Hi, key) >= 0 })
}

// First implements cell.Iterator.
func (u *runIterator) First() bool {
	u.inRow = false
	return u.onward(0)
}

// SeekGE implements cell.Iterator.
func (u *runIterator) SeekGE(key []byte) bool {
	u.inRow = false
	i := u.at(key)
	if i == len(u.files) || !u.enter(i) {
		return false
	}
	if u.found(u.it.SeekGE(key)) {
		return true
	}
	return u.err == nil && u.onward(i+1)
}

// SeekRow implements cell.Iterator.
func (u *runIterator) SeekRow(row []byte) bool { return u.SeekColumn(row, row) }

// SeekColumn implements merge.ColumnSeeker.
func (u *runIterator) SeekColumn(row, key []byte) bool {
	u.inRow = true
	i := u.at(row)
	if i == len(u.files) || bytes.Compare(u.files[i].ref.Lo, row) > 0 || !u.enter(i) {
		return false
	}
	if len(key) > len(row) && u.files[i].ref.Tombstones == 0 {
		return u.found(u.it.SeekColumn(row, key))
	}
	return u.found(u.it.SeekRow(row))
}

// SeekLT implements cell.Iterator.
func (u *runIterator) SeekLT(key []byte) bool {
	u.inRow = false
	i := sort.Search(len(u.files), func(i int) bool { return bytes.Compare(u.files[i].ref.Lo, key) >= 0 })
	for i--; i >= 0; i-- {
		if !u.enter(i) {
			return false
		}
		if u.found(u.it.SeekLT(key)) {
			return true
		}
		if u.err != nil {
			return false
		}
	}
	return false
}

// Next implements cell.Iterator.
func (u *runIterator) Next() bool {
	if u.it.Next() {
		return true
	}
	u.found(false)
	// A row is in one file, so that a read of one need not look into the next.
	return u.err == nil && !u.inRow && u.onward(u.i+1)
}

// Entry implements cell.Iterator.
func (u *runIterator) Entry() *cell.Entry { return u.it.Entry() }

// Error implements cell.Iterator.
func (u *runIterator) Error() error { return u.err }

// Close implements cell.Iterator.
func (u *runIterator) Close() error {
	u.leave()
	return u.err
}
