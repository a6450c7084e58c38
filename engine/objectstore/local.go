package objectstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
)

const tempDir = ".tmp"

// LocalOptions configure a Local. The zero value is for a process that has the
// directory to itself.
type LocalOptions struct {
	// Owner tells apart the processes that share the directory. It is one part
	// of a name, without a dot, and the same after a restart. Empty means that
	// no other process writes there.
	Owner string
	// KeepUnfinished leaves what OpenLocal would remove to RemoveUnfinished, so that an
	// owner can serve before: the file of an SSTable takes 50 ms.
	KeepUnfinished bool
}

// Local is a Store in a directory.
type Local struct {
	fs        vfs.FS
	dir       string
	temp      string // path and beginning of the name of every temporary file
	lastTemp  atomic.Uint64
	leftovers []string // unfinished files of processes that have ended
	readahead *objstorageprovider.ReadaheadConfig

	mu struct {
		sync.Mutex
		dirs    map[string]bool    // directories, relative to dir, known to be durable
		bundles map[string]*bundle // some that are closed, by name
	}
}

var (
	_ Store     = (*Local)(nil)
	_ Sequencer = (*Local)(nil)
)

// OpenLocal opens the store in dir, which it creates if need be. It removes unfinished
// files of the same owner, and those that are Abandoned. With an empty LocalOptions.Owner
// that is everything unfinished, so the caller must hold what keeps other processes out
// of dir.
func OpenLocal(fsys vfs.FS, dir string, opts LocalOptions) (*Local, error) {
	if opts.Owner != "" && (CheckName(opts.Owner) != nil || strings.ContainsAny(opts.Owner, "/.")) {
		return nil, fault.New(fault.Invalid, "%q cannot name the owner of an object store's temporary files", opts.Owner)
	}
	l := &Local{fs: fsys, dir: dir, readahead: objstorageprovider.NewReadaheadConfig()}
	l.mu.dirs, l.mu.bundles = map[string]bool{}, map[string]*bundle{}
	// A nonce, so that two processes that wrongly go by one name do not write to
	// one file.
	l.temp = l.path(tempDir, opts.Owner+"."+rand.Text()+".")
	if err := l.makeRoot(); err != nil {
		return nil, wrap(err, "open object store", dir)
	}
	if err := l.makeDir(tempDir); err != nil {
		return nil, wrap(err, "open object store", dir)
	}
	leftovers, err := fsys.List(l.path(tempDir))
	if err != nil {
		return nil, wrap(err, "open object store", dir)
	}
	for _, f := range leftovers {
		if opts.Owner != "" && !strings.HasPrefix(f, opts.Owner+".") && !l.abandoned(f) {
			continue
		}
		l.leftovers = append(l.leftovers, f)
	}
	if opts.KeepUnfinished {
		return l, nil
	}
	if err := l.RemoveUnfinished(); err != nil {
		return nil, err
	}
	return l, nil
}

// RemoveUnfinished removes the unfinished files that OpenLocal has found, and left because
// of LocalOptions.KeepUnfinished. It may be called beside everything else, once.
func (l *Local) RemoveUnfinished() error {
	for _, f := range l.leftovers {
		if err := l.fs.Remove(l.path(tempDir, f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return wrap(err, "remove what was unfinished in the object store", l.dir)
		}
	}
	return nil
}

// abandoned tells whether a temporary file is Abandoned.
func (l *Local) abandoned(file string) bool {
	info, err := l.fs.Stat(l.path(tempDir, file))
	return err == nil && Abandoned(file, info.ModTime())
}

func (l *Local) path(elem ...string) string {
	return l.fs.PathJoin(append([]string{l.dir}, elem...)...)
}

// makeRoot makes the store's directory, and those above it that it has to
// make, durable.
func (l *Local) makeRoot() error {
	parent := l.fs.PathDir(l.dir)
	stale := []string{parent}
	for {
		_, err := l.fs.Stat(parent)
		if err == nil {
			break
		}
		if up := l.fs.PathDir(parent); errors.Is(err, fs.ErrNotExist) && up != parent {
			parent = up
			stale = append(stale, parent)
			continue
		}
		return err
	}
	if err := l.fs.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	for _, d := range stale {
		if err := l.sync(d); err != nil {
			return err
		}
	}
	return nil
}

// sync makes the entries of a directory durable.
func (l *Local) sync(dir string) error { return datadir.Sync(l.fs, dir) }

// makeDir makes the directory rel and those above it durable.
func (l *Local) makeDir(rel string) error {
	if rel == "." {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.makeDirLocked(rel)
}

func (l *Local) makeDirLocked(rel string) error {
	if rel == "." || l.mu.dirs[rel] {
		return nil
	}
	parent := path.Dir(rel)
	if err := l.makeDirLocked(parent); err != nil {
		return err
	}
	if err := l.fs.MkdirAll(l.path(rel), 0o755); err != nil {
		return err
	}
	// Also if it was there: the process that made it may have died before the sync.
	if err := l.sync(l.path(parent)); err != nil {
		return err
	}
	l.mu.dirs[rel] = true
	return nil
}

// PutIfAbsent implements Store.
func (l *Local) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	if err := l.makeDir(path.Dir(name)); err != nil {
		return wrap(err, "create object", name)
	}
	dir, index, inSequence := parseNumbered(name)
	if inSequence {
		r, err := l.closeBundles(dir, index)
		if r != nil {
			err = exists(name)
		}
		if err != nil {
			return wrap(err, "put object", name)
		}
	}
	tmp, f, err := l.createTemp()
	if err != nil {
		return wrap(err, "create object", name)
	}
	if f.Fd() == vfs.InvalidFd {
		data = bytes.Clone(data) // a vfs.File may change the slice; one of the system's does not
	}
	_, err = f.Write(data)
	err = l.publish(tmp, f, name, err)
	if inSequence && (err == nil || errors.Is(err, fault.AlreadyExists)) {
		// A bundle that has begun since wins. The bundle's content must be known by now, also
		// for a caller that is told AlreadyExists.
		r, e := l.closeBundles(dir, index)
		switch {
		case e != nil:
			err = e
		case r != nil && err == nil:
			if err = l.fs.Remove(l.path(name)); err == nil {
				err = exists(name)
			}
		}
	}
	return wrap(err, "put object", name)
}

// exists returns the error of a put of an object that is there.
func exists(name string) error {
	return fault.New(fault.AlreadyExists, "object %s already exists", name)
}

// tempName returns a name that no temporary file has had.
func (l *Local) tempName() string { return fmt.Sprintf("%s%d", l.temp, l.lastTemp.Add(1)) }

// createTemp creates a temporary file.
func (l *Local) createTemp() (tmp string, f vfs.File, err error) {
	tmp = l.tempName()
	f, err = l.fs.Create(tmp, vfs.WriteCategoryUnspecified)
	return tmp, f, err
}

// publish syncs and closes f, the temporary file tmp, and gives it its name. It
// always removes tmp. err is the error that writing f had.
func (l *Local) publish(tmp string, f vfs.File, name string, err error) error {
	if err == nil {
		err = f.SyncData()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = l.link(tmp, name)
	}
	// A loser syncs too: it may act on the winner's object, which therefore must
	// not vanish if the winner dies before its own sync.
	if err == nil || errors.Is(err, fault.AlreadyExists) {
		if e := l.sync(l.path(path.Dir(name))); e != nil {
			err = e
		}
	}
	// The rest of a failed removal is removed when the store is next opened.
	_ = l.fs.Remove(tmp)
	return err
}

// link gives the file tmp a name, or returns fault.AlreadyExists if another file
// has it.
func (l *Local) link(tmp, name string) error {
	err := l.fs.Link(tmp, l.path(name))
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if l.sameFile(tmp, l.path(name)) {
		return nil
	}
	return exists(name)
}

// sameFile reports whether two names are of one file. A network file system sends a
// link(2) again whose reply got lost, and then says that the name, which it has given
// itself, is taken.
func (l *Local) sameFile(a, b string) bool {
	x, errX := l.fs.Stat(a)
	y, errY := l.fs.Stat(b)
	return errX == nil && errY == nil && sameInode(x, y)
}

// Create implements Store.
func (l *Local) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	if err := l.makeDir(path.Dir(name)); err != nil {
		return nil, wrap(err, "create object", name)
	}
	tmp, f, err := l.createTemp()
	if err != nil {
		return nil, wrap(err, "create object", name)
	}
	return newLocalWriter(l, name, tmp, f), nil
}

// Open implements Store. Reads of a ReadHandle that turn out sequential, or are
// announced as a compaction's, are read ahead by the kernel.
func (l *Local) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	return l.openReadable(ctx, name, func(vfs.File) {})
}

// OpenStored implements Copying: the copy is the system's page cache.
func (l *Local) OpenStored(ctx context.Context, name string) (objstorage.Readable, error) {
	return l.openReadable(ctx, name, dropPages)
}

// Distrust implements Copying. OpenStored has done it.
func (l *Local) Distrust(string) {}

var _ Copying = (*Local)(nil)

func (l *Local) openReadable(ctx context.Context, name string, before func(vfs.File)) (objstorage.Readable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	if r, index, err := l.findBundle(name); err != nil {
		return nil, wrap(err, "open object", name)
	} else if r != nil {
		o, err := l.readMember(r, index)
		return o, wrap(err, "open object", name)
	}
	p := l.path(name)
	f, err := l.open(p, name, vfs.RandomReadsOption)
	if err != nil {
		return nil, err
	}
	before(f)
	// Pebble's own type, since its SSTable reader avoids allocations for it.
	r, err := objstorageprovider.NewFileReadable(f, l.fs, l.readahead, p)
	if err != nil {
		return nil, wrap(errors.Join(err, f.Close()), "open object", name)
	}
	return r, nil
}

// open opens the file p of the object name.
func (l *Local) open(p, name string, opt vfs.OpenOption) (vfs.File, error) {
	f, err := l.fs.Open(p, opt)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "object %s does not exist: %w", name, err)
	}
	return f, wrap(err, "open object", name)
}

// Get implements Store.
func (l *Local) Get(ctx context.Context, name string) ([]byte, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	if r, index, err := l.findBundle(name); err != nil {
		return nil, wrap(err, "get object", name)
	} else if r != nil {
		data, err := l.getMember(r, index)
		return data, wrap(err, "get object", name)
	}
	return l.readFile(name)
}

// readFile returns the content of a file, or fault.NotFound.
func (l *Local) readFile(name string) ([]byte, error) {
	f, err := l.open(l.path(name), name, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	data, err := readAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, wrap(err, "get object", name)
	}
	return data, nil
}

func readAll(f vfs.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, info.Size())
	if n, err := f.ReadAt(data, 0); n < len(data) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return data, nil
}

// Delete implements Store.
func (l *Local) Delete(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	if dir, index, ok := parseNumbered(name); ok {
		return wrap(l.deleteNumbered(dir, index), "delete object", name)
	}
	return wrap(l.remove(name), "delete object", name)
}

// remove removes a file, if it is there.
func (l *Local) remove(name string) error {
	if err := l.fs.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Probe implements Store.
func (l *Local) Probe(ctx context.Context) error { return Probe(ctx, l) }

// List implements Store.
func (l *Local) List(ctx context.Context, prefix, after string, n int) ([]Info, error) {
	if n <= 0 {
		n = -1
	}
	var out []Info
	if err := l.list(ctx, "", prefix, after, n, &out); err != nil {
		return nil, wrap(err, "list objects", prefix)
	}
	return out, nil
}

// list appends to out what List wants of the directory dir, which is empty or
// ends in a slash.
func (l *Local) list(ctx context.Context, dir, prefix, after string, n int, out *[]Info) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	names, err := l.fs.List(l.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	type entry struct {
		Info  // the name has a slash behind it if it is a directory's
		isDir bool
	}
	var entries []entry
	bundles, err := l.listBundles(strings.TrimSuffix(dir, "/"), names)
	if err != nil {
		return err
	}
	for _, r := range bundles {
		for i, m := range r.members {
			entries = append(entries, entry{Info: Info{Name: SequenceName(r.dir, r.first+uint64(i)), Size: m.n, Modified: r.written}})
		}
	}
	for _, name := range names {
		full := dir + name
		if name[0] == '.' ||
			!strings.HasPrefix(full, prefix) && !strings.HasPrefix(prefix, full+"/") ||
			allBefore(full, after) || inBundles(bundles, full) {
			continue
		}
		info, err := l.fs.Stat(l.path(full))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			full += "/"
		}
		entries = append(entries, entry{Info{Name: full, Size: info.Size(), Modified: info.ModTime()}, info.IsDir()})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range entries {
		if len(*out) == n {
			return nil
		}
		switch {
		case allBefore(e.Name, after):
		case e.isDir:
			if err := l.list(ctx, e.Name, prefix, after, n, out); err != nil {
				return err
			}
		case strings.HasPrefix(e.Name, prefix) && e.Name > after:
			*out = append(*out, e.Info)
		}
	}
	return nil
}

// allBefore tells whether name, and every name it begins, sorts before after.
func allBefore(name, after string) bool {
	return name < after && !strings.HasPrefix(after, name)
}

func check(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return CheckName(name)
}

// wrap says which operation on which object failed, and gives errors that a caller can act
// on their kind.
func wrap(err error, doing, name string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fault.AlreadyExists):
		return err
	case vfs.IsNoSpaceError(err), errors.Is(err, syscall.EDQUOT):
		return fault.New(fault.Exhausted, "%s %s: %w", doing, name, err)
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}
