package objectstore

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// A Sequence puts objects whose names, in one directory, are the numbers of
// fifteen digits from some index on. Its methods may be called from any number of
// goroutines.
type Sequence interface {
	// PutIfAbsent is Store.PutIfAbsent of the object of an index. Indexes must come
	// without a gap; a put of a later one waits for those before it.
	PutIfAbsent(ctx context.Context, index uint64, data []byte) error
	// Trim is Store.Delete of the objects before an index, which have no readers any more.
	// Some of them, at the end, may stay until more are trimmed.
	Trim(ctx context.Context, before uint64) error
	// Close ends the use of the Sequence, whatever it returns. Its objects stay.
	Close() error
}

// A Sequencer is a Store in which the puts of a Sequence cost less than others.
// One Sequence at a time, in all processes, may put objects into a directory;
// Store.PutIfAbsent may do so any time. The objects of a sequence must be deleted
// in the order of their indexes: some go only when a later one does.
type Sequencer interface {
	Store
	// Sequence returns what puts objects into dir, the first of them at index first.
	Sequence(dir string, first uint64) Sequence
}

// NewSequence returns what puts objects into the directory dir of s, the first of
// them at index first. It is for the only writer of the directory.
func NewSequence(s Store, dir string, first uint64) Sequence {
	s, names := whole(s, []string{dir})
	if q, ok := s.(Sequencer); ok {
		return q.Sequence(names[0], first)
	}
	return &plainSequence{s: s, dir: names[0], kept: first}
}

// plainSequence puts each object by itself.
type plainSequence struct {
	s   Store
	dir string

	mu   sync.Mutex
	kept uint64 // index of the first object that is not trimmed
}

func (o *plainSequence) PutIfAbsent(ctx context.Context, index uint64, data []byte) error {
	return o.s.PutIfAbsent(ctx, SequenceName(o.dir, index), data)
}

func (o *plainSequence) Trim(ctx context.Context, before uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for i := o.kept; i < before; i++ {
		names = append(names, SequenceName(o.dir, i))
	}
	err := DeleteAll(ctx, o.s, names)
	if err == nil {
		o.kept = max(o.kept, before)
	}
	return err
}

func (o *plainSequence) Close() error { return nil }

// localSequence puts objects into runs.
type localSequence struct {
	l       *Local
	dir     string
	stopped sync.WaitGroup // goroutines that make files

	mu struct {
		sync.Mutex
		busy    bool
		next    uint64        // index of the next object
		changed chan struct{} // closed when one of these has changed; may be nil

		// What can be trimmed: bundles that are closed, and objects of their own.
		closed []closedBundle
		alone  []uint64

		// Files for bundles, of bundleBytes that are written.
		spares   []string
		making   bool
		stopping bool
	}

	// The goroutine that has set busy owns these.
	open      *openBundle
	lostToken bool // another process closed a bundle: this one makes no more
	buf       []byte
}

// A closedBundle is a bundle whose file can become another's.
type closedBundle struct {
	first, last uint64
	size        int64
}

// An openBundle is the bundle that objects are added to.
type openBundle struct {
	bundle
	f     vfs.File
	off   int64  // of the next frame
	size  int64  // as large as it becomes
	limit uint64 // index of an object that is behind it
	token int    // which of openNames the token has
	bad   bool   // a put has failed
	taken bool   // the token was taken
}

// Sequence implements Sequencer.
func (l *Local) Sequence(dir string, first uint64) Sequence {
	s := &localSequence{l: l, dir: dir}
	s.mu.next = first
	return s
}

// lockIndex waits until it is the turn of an index.
func (s *localSequence) lockIndex(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		if !s.mu.busy && index <= s.mu.next {
			s.mu.busy = true
			s.mu.Unlock()
			return nil
		}
		if s.mu.changed == nil {
			s.mu.changed = make(chan struct{})
		}
		changed := s.mu.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unlockIndex lets others in. done says that there is an object of an index now.
func (s *localSequence) unlockIndex(index uint64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.busy = false
	if done {
		s.mu.next = max(s.mu.next, index+1)
	}
	if s.mu.changed != nil {
		close(s.mu.changed)
		s.mu.changed = nil
	}
}

// PutIfAbsent implements Sequence.
func (s *localSequence) PutIfAbsent(ctx context.Context, index uint64, data []byte) error {
	name := SequenceName(s.dir, index)
	if err := check(ctx, name); err != nil {
		return err
	}
	if err := s.lockIndex(ctx, index); err != nil {
		return err
	}
	s.mu.Lock()
	again := index < s.mu.next
	s.mu.Unlock()
	err := s.put(ctx, index, data, again)
	s.unlockIndex(index, err == nil || errors.Is(err, fault.AlreadyExists))
	return wrap(err, "put object", name)
}

// put puts an object. again says that there was one of its index.
func (s *localSequence) put(ctx context.Context, index uint64, data []byte, again bool) error {
	need := int64(frameHeaderLen + len(data))
	if r := s.open; r != nil && (r.bad || index != r.next() || index >= r.limit || r.off+need > r.size) {
		if err := s.end(); err != nil {
			return err
		}
		if !s.lostToken && r.has(index) {
			return exists(SequenceName(s.dir, index)) // an earlier put has failed only later
		}
	}
	switch {
	case s.open != nil:
		return s.add(ctx, index, data)
	case again || s.lostToken || bundleHeaderLen+need > smallBundleBytes && bundleHeaderLen+need > s.spareSize():
		return s.putAlone(ctx, index, data)
	}
	return s.begin(ctx, index, data)
}

// putAlone makes an object of its own.
func (s *localSequence) putAlone(ctx context.Context, index uint64, data []byte) error {
	err := s.l.PutIfAbsent(ctx, SequenceName(s.dir, index), data)
	if err == nil {
		s.mu.Lock()
		s.mu.alone = append(s.mu.alone, index)
		s.mu.Unlock()
	}
	if !s.lostToken {
		s.makeSpare() // it was large: the next may go into a bundle
	}
	return err
}

// spareSize returns the size of the bundle that begin can begin.
func (s *localSequence) spareSize() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.spares) > 0 {
		return bundleBytes
	}
	return smallBundleBytes
}

// add adds an object to the bundle.
func (s *localSequence) add(ctx context.Context, index uint64, data []byte) error {
	r := s.open
	r.bad = true
	s.buf = appendFrame(s.buf[:0], r.nonce, index, data)
	if _, err := r.f.WriteAt(s.buf, r.off); err != nil {
		return err
	}
	if err := r.f.SyncData(); err != nil {
		return err
	}
	from, to := openNames[r.token], openNames[1-r.token]
	err := s.l.fs.Rename(s.l.path(sidecar(s.dir, r.first, from)), s.l.path(sidecar(s.dir, r.first, to)))
	if errors.Is(err, fs.ErrNotExist) {
		// The holder of the token decides whether the object is in the bundle.
		s.giveUpBundles()
		return s.putAlone(ctx, index, data)
	}
	if err != nil {
		return err
	}
	r.bad, r.token = false, 1-r.token
	s.added(data)
	return nil
}

// added notes that an object was added to the bundle.
func (s *localSequence) added(data []byte) {
	r := s.open
	r.members = append(r.members, member{off: r.off + frameHeaderLen, n: int64(len(data))})
	r.off += int64(frameHeaderLen + len(data))
	if cap(s.buf) > 1<<20 {
		s.buf = nil
	}
	if r.off > r.size/2 {
		s.makeSpare()
	}
}

// giveUpBundles gives up the bundle, and all to come: another has closed it.
func (s *localSequence) giveUpBundles() {
	_ = s.open.f.Close()
	s.open, s.lostToken = nil, true
}

// end closes the bundle.
func (s *localSequence) end() error {
	r := s.open
	var err error
	if !r.taken {
		from := sidecar(s.dir, r.first, openNames[r.token])
		err = s.l.fs.Rename(s.l.path(from), s.l.path(sidecar(s.dir, r.first, "closed")))
	}
	if err == nil {
		r.taken = true
		// A put that has failed may have left its frame: it does not count.
		err = s.l.putEnd(&r.bundle, len(r.members), nil)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fault.AlreadyExists) {
		s.giveUpBundles()
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.closed = append(s.mu.closed, closedBundle{first: r.first, last: r.next() - 1, size: r.size})
	s.mu.Unlock()
	_ = r.f.Close()
	s.open = nil
	return nil
}

// begin begins a bundle with an object.
func (s *localSequence) begin(ctx context.Context, index uint64, data []byte) error {
	l := s.l
	if err := l.makeDir(s.dir); err != nil {
		return err
	}
	tmp, size, err := s.takeSpare()
	if err != nil {
		return err
	}
	// The rest of a failed removal is removed when the store is next opened.
	defer func() { _ = l.fs.Remove(tmp) }()
	f, err := l.fs.OpenReadWrite(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	r := &openBundle{f: f, size: size, off: bundleHeaderLen, bundle: bundle{dir: s.dir, bundleHeader: newBundleHeader(index)}}
	s.buf = appendFrame(r.append(s.buf[:0]), r.nonce, index, data)
	_, err = f.WriteAt(s.buf, 0)
	if err == nil {
		err = f.Sync() // with its size, if it grew
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	// The process that gives this name may give those of the other sidecars.
	if err := l.link(tmp, sidecar(s.dir, index, "run")); err != nil {
		_ = f.Close()
		s.lostToken = true // or it is not known
		return s.putAlone(ctx, index, data)
	}
	if err := s.makeToken(index); err != nil {
		return errors.Join(err, f.Close(), l.removeSidecars(s.dir, index))
	}
	err = l.link(tmp, SequenceName(s.dir, index))
	if errors.Is(err, fault.AlreadyExists) {
		return errors.Join(err, l.sync(l.path(s.dir)), f.Close(), l.removeSidecars(s.dir, index))
	}
	if err != nil {
		// It may be the bundle or not: the next put of an object of the index will see.
		_ = f.Close()
		s.lostToken = true
		return err
	}
	s.open = r
	s.added(data)
	r.bad = true
	if err := l.sync(l.path(s.dir)); err != nil {
		return err
	}
	if r.limit, err = s.firstIndexAfter(index); err != nil {
		return err
	}
	r.bad = false
	return nil
}

// makeToken makes the token of a bundle, and all that lies beside it durable: it is
// there whenever the bundle is.
func (s *localSequence) makeToken(first uint64) error {
	f, err := s.l.fs.Create(s.l.path(sidecar(s.dir, first, openNames[0])), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), s.l.sync(s.l.path(s.dir)))
}

// firstIndexAfter returns the index of the first object behind that of a bundle. A process
// that puts one there looks for bundles after that, so this looks for objects after the
// bundle is there.
func (s *localSequence) firstIndexAfter(first uint64) (uint64, error) {
	limit := uint64(math.MaxUint64)
	names, err := s.l.fs.List(s.l.path(s.dir))
	for _, name := range names {
		if _, index, ok := parseNumbered(s.dir + "/" + name); ok && index > first {
			limit = min(limit, index)
		}
	}
	return limit, err
}

// takeSpare returns the name of a temporary file for a bundle, and how large that may
// become.
func (s *localSequence) takeSpare() (tmp string, size int64, err error) {
	s.mu.Lock()
	if n := len(s.mu.spares); n > 0 {
		tmp = s.mu.spares[n-1]
		s.mu.spares = s.mu.spares[:n-1]
	}
	s.mu.Unlock()
	if tmp != "" {
		return tmp, bundleBytes, nil
	}
	tmp, f, err := s.l.createTemp()
	if err == nil {
		err = f.Close()
	}
	return tmp, smallBundleBytes, err
}

// makeSpare begins to make a file for a bundle, unless there is one.
func (s *localSequence) makeSpare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.making || s.mu.stopping || len(s.mu.spares) > 0 {
		return
	}
	s.mu.making = true
	s.stopped.Go(func() {
		tmp, f, err := s.l.createTemp()
		if err == nil {
			zeros := make([]byte, 1<<20)
			for n := 0; n < bundleBytes && err == nil; n += len(zeros) {
				_, err = f.Write(zeros)
			}
			if err == nil {
				err = f.Sync()
			}
			err = errors.Join(err, f.Close())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.making = false
		if err != nil {
			// A full disk, say: small bundles do as well.
			_ = s.l.fs.Remove(tmp)
			return
		}
		s.mu.spares = append(s.mu.spares, tmp)
	})
}

// Trim implements Sequence.
func (s *localSequence) Trim(ctx context.Context, before uint64) error {
	s.mu.Lock()
	var bundles []closedBundle
	var alone []uint64
	for _, r := range s.mu.closed {
		if r.last < before {
			bundles = append(bundles, r)
		}
	}
	for _, index := range s.mu.alone {
		if index < before {
			alone = append(alone, index)
		}
	}
	s.mu.Unlock()
	for _, index := range alone {
		if err := s.l.Delete(ctx, SequenceName(s.dir, index)); err != nil {
			return err
		}
	}
	files := map[uint64]string{}
	for _, r := range bundles {
		tmp := s.l.tempName()
		err := s.l.fs.Rename(s.l.path(SequenceName(s.dir, r.first)), tmp)
		if err == nil {
			files[r.first] = tmp
		} else if !errors.Is(err, fs.ErrNotExist) {
			return wrap(err, "delete object", SequenceName(s.dir, r.first))
		}
	}
	if len(files) > 0 {
		// Now the files have no other names for good.
		if err := s.l.sync(s.l.path(s.dir)); err != nil {
			return wrap(err, "delete objects", s.dir)
		}
	}
	for _, r := range bundles {
		if err := s.l.removeSidecars(s.dir, r.first); err != nil {
			return wrap(err, "delete object", SequenceName(s.dir, r.first))
		}
		if tmp := files[r.first]; tmp != "" && !s.recycle(tmp, r.size) {
			_ = s.l.fs.Remove(tmp)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = slices.DeleteFunc(s.mu.closed, func(r closedBundle) bool { return r.last < before })
	s.mu.alone = slices.DeleteFunc(s.mu.alone, func(index uint64) bool { return index < before })
	return nil
}

// recycle keeps a file for another bundle, if that is worth it.
func (s *localSequence) recycle(tmp string, size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size != bundleBytes || s.mu.stopping || len(s.mu.spares) >= maxSpareFiles {
		return false
	}
	s.mu.spares = append(s.mu.spares, tmp)
	return true
}

// Close implements Sequence. There must be no other call any more.
func (s *localSequence) Close() error {
	s.mu.Lock()
	s.mu.stopping = true
	s.mu.Unlock()
	s.stopped.Wait()
	for _, tmp := range s.mu.spares {
		_ = s.l.fs.Remove(tmp)
	}
	s.mu.spares = nil
	if s.open == nil {
		return nil
	}
	if err := s.end(); err != nil {
		return errors.Join(wrap(err, "close sequence", s.dir), s.open.f.Close())
	}
	return nil
}
