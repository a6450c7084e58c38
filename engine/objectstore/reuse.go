package objectstore

import (
	"context"
	"errors"
	"io/fs"
	"math/bits"
	"path"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Reuser is a Store in which an object costs less if it takes the room of a
// deleted one of the same size: on a file system, blocks that are allocated
// need no journal to be written.
type Reuser interface {
	Store
	// Reuse is Delete of an object that nobody reads any more: whoever has it open
	// may see another's bytes.
	Reuse(ctx context.Context, name string) error
	// ReuseSize returns the size, at least n, that an object of n bytes should be
	// given so that there are others of its size.
	ReuseSize(n int) int
}

// ReuseSize is that of s, or n if s is no Reuser.
func ReuseSize(s Store, n int) int {
	s, _ = whole(s, nil)
	if r, ok := s.(Reuser); ok {
		return r.ReuseSize(n)
	}
	return n
}

const (
	// Sizes from leastReuse to mostReuse are kept: below, an object is hardly
	// larger than its file's block, above, writing is what it costs.
	leastReuse = 4 << 10
	mostReuse  = 512 << 10
	// spareLimit bounds the room that is kept.
	spareLimit = 64 << 20
)

// ReuseSize implements Reuser. Sizes are powers of two and half-way between:
// an object grows by a fifth on average.
func (l *Local) ReuseSize(n int) int {
	if n > mostReuse {
		return n
	}
	if n <= leastReuse {
		return leastReuse
	}
	top := 1 << bits.Len(uint(n-1))
	if n <= top/4*3 {
		return top / 4 * 3
	}
	return top
}

// Reuse implements Reuser.
func (l *Local) Reuse(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	info, err := l.fs.Stat(l.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return wrap(err, "delete object", name)
	}
	size := int(info.Size())
	l.mu.Lock()
	keep := size >= leastReuse && size == l.ReuseSize(size) && size <= mostReuse && l.mu.spareBytes+size <= spareLimit
	if keep {
		l.mu.spareBytes += size
	}
	l.mu.Unlock()
	if !keep {
		return l.Delete(ctx, name)
	}
	tmp, dir := l.tempName(), path.Dir(name)
	err = l.fs.Rename(l.path(name), tmp)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.mu.spareBytes -= size
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return wrap(err, "delete object", name)
	}
	l.mu.parting[dir] = append(l.mu.parting[dir], spareFile{tmp, size})
	return nil
}

// A spareFile is the file of a deleted object.
type spareFile struct {
	name string
	size int
}

// takeParting returns the files that a sync of dir, which is to follow, makes
// spares. If it fails they are left to the next OpenLocal.
func (l *Local) takeParting(dir string) []spareFile {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := l.mu.parting[dir]
	delete(l.mu.parting, dir)
	return files
}

// keepSpares adds files whose old names are gone for good.
func (l *Local) keepSpares(files []spareFile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range files {
		l.mu.spares[f.size] = append(l.mu.spares[f.size], f.name)
	}
}

// spare returns the file of a deleted object of a size, nil if there is none.
func (l *Local) spare(size int) (tmp string, f vfs.File, err error) {
	l.mu.Lock()
	s := l.mu.spares[size]
	if len(s) == 0 {
		l.mu.Unlock()
		return "", nil, nil
	}
	tmp = s[len(s)-1]
	l.mu.spares[size] = s[:len(s)-1]
	l.mu.spareBytes -= size
	l.mu.Unlock()
	f, err = l.fs.OpenReadWrite(tmp, vfs.WriteCategoryUnspecified)
	return tmp, f, err
}
