package hdfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const (
	tempDir = ".tmp"

	// finishTime bounds Finish, which has no context, and stallTime each Write.
	finishTime = 10 * time.Minute
	stallTime  = time.Minute
	// discardTime bounds the removal of a temporary file that is not needed.
	discardTime = time.Second
)

// Options say where the files are.
type Options struct {
	// NameNodes are the HTTP addresses of the NameNodes, HOST:PORT. With more
	// than one the one is found that is active.
	NameNodes []string
	// Insecure speaks HTTP instead of HTTPS.
	Insecure bool
	// User is the name by which the NameNode knows this process. Default "trestle".
	User string
	// Dir is the directory of the store, as in "/trestle/prod". It is made if need
	// be, which that user must be allowed to do.
	Dir string
	// Owner tells apart the processes that share the directory, as
	// objectstore.LocalOptions has it.
	Owner string
	// Transport, if set, carries the requests.
	Transport http.RoundTripper
}

// Store is an objectstore.Store in a directory of an HDFS.
type Store struct {
	c     *client
	dir   string
	owner string

	mu struct {
		sync.Mutex
		temp     string // the directory of temporary files
		lastTemp uint64
	}
}

var _ objectstore.Store = (*Store)(nil)

// Open opens the store in a directory. It removes what a process of the same
// owner left unfinished, and what is objectstore.Abandoned; with an empty
// Options.Owner that is everything unfinished, as in objectstore.OpenLocal.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.User == "" {
		o.User = "trestle"
	}
	switch {
	case len(o.NameNodes) == 0:
		return nil, fault.New(fault.Invalid, "an HDFS store needs a NameNode")
	case !path.IsAbs(o.Dir) || path.Clean(o.Dir) == "/":
		return nil, fault.New(fault.Invalid, "%q is not a directory of its own for an HDFS store", o.Dir)
	case o.Owner != "" && (objectstore.CheckName(o.Owner) != nil || strings.ContainsAny(o.Owner, "/.")):
		return nil, fault.New(fault.Invalid, "%q cannot name the owner of an object store's temporary files", o.Owner)
	}
	s := &Store{c: newClient(o), dir: path.Clean(o.Dir), owner: o.Owner}
	if err := s.clean(ctx); err != nil {
		return nil, fmt.Errorf("open HDFS store %s: %w", s.dir, err)
	}
	if err := s.renew(ctx, ""); err != nil {
		return nil, fmt.Errorf("open HDFS store %s: %w", s.dir, err)
	}
	return s, nil
}

// clean makes the directory of temporary files and removes leftovers.
func (s *Store) clean(ctx context.Context) error {
	if err := s.c.mkdir(ctx, s.path(tempDir)); err != nil {
		return err
	}
	var leftovers []string
	err := s.c.list(ctx, s.path(tempDir), "", func(f fileStatus) {
		if s.owner == "" || strings.HasPrefix(f.PathSuffix, s.owner+".") || objectstore.Abandoned(f.PathSuffix, time.UnixMilli(f.ModificationTime)) {
			leftovers = append(leftovers, f.PathSuffix)
		}
	})
	for _, name := range leftovers {
		if err == nil {
			_, err = s.c.remove(ctx, s.path(tempDir, name), true)
		}
	}
	return err
}

// renew takes a new directory for temporary files in place of old.
func (s *Store) renew(ctx context.Context, old string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.temp != old {
		return nil
	}
	return s.c.again(ctx, func() error {
		// With a name of its own for each attempt: one that is carried out late must
		// not make a directory again that was removed. See resolveRename.
		dir := s.path(tempDir, s.owner+"."+rand.Text())
		_, err := s.c.once(ctx, http.MethodPut, dir, map[string][]string{"op": {"MKDIRS"}, "permission": {"700"}})
		if err == nil {
			s.mu.temp = dir
		}
		return err
	})
}

func (s *Store) path(elem ...string) string {
	return s.dir + "/" + strings.Join(elem, "/")
}

// newTemp returns a name for a temporary file.
func (s *Store) newTemp() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.lastTemp++
	return s.mu.temp + "/" + strconv.FormatUint(s.mu.lastTemp, 10)
}

// discard removes a temporary file whose object is given up. What is left of a
// failure is removed when the store is next opened.
func (s *Store) discard(ctx context.Context, tmp string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTime)
	defer cancel()
	_, _ = s.c.remove(ctx, tmp, false)
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	size := int64(len(data))
	var tmp string
	err := s.c.again(ctx, func() error {
		tmp = s.newTemp()
		where, host, err := s.c.place(ctx, tmp)
		if err != nil {
			return err
		}
		one, cancel := context.WithTimeout(ctx, timeFor(size))
		defer cancel()
		var body io.Reader = http.NoBody
		if size > 0 {
			body = bytes.NewReader(data)
		}
		if err = s.c.write(one, ctx, where, host, body, size); err != nil {
			s.discard(ctx, tmp)
			return s.lostTemp(ctx, tmp, err)
		}
		return nil
	})
	if err == nil {
		err = s.publish(ctx, tmp, name)
	}
	return wrap(err, "put object", name)
}

// lostTemp returns err of writing tmp. If that is because the directory of
// temporary files is gone, there is a new one, and trying again helps.
func (s *Store) lostTemp(ctx context.Context, tmp string, err error) error {
	if !errors.Is(err, fault.NotFound) {
		return err
	}
	if e := s.renew(ctx, path.Dir(tmp)); e != nil {
		return e
	}
	return fault.New(fault.Unavailable, "the directory of temporary files was removed: does another process go by the name %q? %v", s.owner, err)
}

// publish gives the whole temporary file tmp the name of its object.
func (s *Store) publish(ctx context.Context, tmp, name string) error {
	for try := 1; ; try++ {
		err := s.c.rename(ctx, tmp, s.path(name))
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fault.AlreadyExists):
			// The loser may act on the winner's object, which the NameNode perhaps has
			// not in its journal yet. It has when a later change is there: that tmp is
			// removed.
			removed, e := s.c.remove(ctx, tmp, false)
			if e == nil && !removed {
				e = fault.New(fault.Unavailable, "the outcome is not known: %s vanished", tmp)
			}
			if e != nil {
				return e
			}
			return fault.New(fault.AlreadyExists, "object %s already exists", name)
		case errors.Is(err, fault.NotFound) && try < attempts:
			if _, e := s.c.status(ctx, tmp); errors.Is(e, fault.NotFound) {
				return s.resolveRename(ctx, tmp)
			} else if e != nil {
				return e
			}
			if e := s.c.mkdir(ctx, path.Dir(s.path(name))); e != nil {
				return e
			}
		default:
			s.discard(ctx, tmp)
			return err
		}
	}
}

// resolveRename is called when tmp, which was whole, is gone, while an attempt to rename
// it had no answer. A process that removes temporary files of others removes their
// directories whole (clean). These never come again (renew, and createparent=false of each
// file). So if the directory is there the attempt has succeeded. The change of the
// directory goes into the NameNode's journal behind the rename, and is answered when both
// are on disk.
func (s *Store) resolveRename(ctx context.Context, tmp string) error {
	err := s.c.touch(ctx, path.Dir(tmp))
	if errors.Is(err, fault.NotFound) {
		return fault.New(fault.Unavailable, "the outcome is not known: somebody has removed %s", path.Dir(tmp))
	}
	return err
}

// Create implements objectstore.Store. The bytes go to a DataNode as they come.
func (s *Store) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	tmp := s.newTemp()
	var where, host string
	err := s.c.again(ctx, func() (err error) {
		where, host, err = s.c.place(ctx, tmp)
		return err
	})
	if err != nil {
		return nil, wrap(err, "create object", name)
	}
	w := &writable{s: s, name: name, tmp: tmp, sent: make(chan error, 1)}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	body, pipe := io.Pipe()
	w.pipe = pipe
	w.stall = time.AfterFunc(stallTime, w.cancel)
	w.stall.Stop()
	go func() {
		err := s.c.write(w.ctx, context.Background(), where, host, body, -1)
		body.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		w.sent <- err
	}()
	return w, nil
}

// writable implements objstorage.Writable.
type writable struct {
	s         *Store
	name, tmp string
	ctx       context.Context // of the request that carries the bytes
	cancel    context.CancelFunc
	stall     *time.Timer // ends a request that gets no further
	pipe      *io.PipeWriter
	sent      chan error // has the outcome of the request
	err       error      // the first failure
}

func (w *writable) Write(p []byte) error {
	if w.err == nil {
		w.stall.Reset(stallTime)
		_, w.err = w.pipe.Write(p)
		w.stall.Stop()
	}
	return wrap(w.err, "write object", w.name)
}

func (w *writable) Finish() error {
	w.stall.Reset(finishTime)
	defer w.stall.Stop()
	defer w.cancel()
	_ = w.pipe.Close()
	err := <-w.sent
	if err == nil {
		err = w.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	if err != nil {
		w.s.discard(ctx, w.tmp)
		err = w.s.lostTemp(ctx, w.tmp, err)
	} else {
		err = w.s.publish(ctx, w.tmp, w.name)
	}
	return wrap(err, "finish object", w.name)
}

func (w *writable) Abort() {
	w.stall.Stop()
	w.cancel()
	_ = w.pipe.CloseWithError(context.Canceled)
	<-w.sent //nolint:errcheck // what came of it does not matter
	w.s.discard(context.Background(), w.tmp)
}

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, name string) ([]byte, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	data, err := s.c.read(ctx, s.path(name), 0, -1, nil)
	return data, wrap(err, "get object", name)
}

// Open implements objectstore.Store. Each ReadAt is a request of its own; a
// ReadHandle reads ahead.
func (s *Store) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	f, err := s.c.status(ctx, s.path(name))
	if err != nil {
		return nil, wrap(err, "open object", name)
	}
	return objectstore.NewRanged(name, f.Length, func(ctx context.Context, p []byte, off int64) error {
		_, err := s.c.read(ctx, s.path(name), off, int64(len(p)), p)
		return wrap(err, "read object", name)
	}), nil
}

// List implements objectstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string, n int) ([]objectstore.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if n <= 0 {
		n = -1
	}
	var out []objectstore.Info
	dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
	if err := s.list(ctx, dir, prefix, after, n, &out); err != nil {
		return nil, wrap(err, "list objects", prefix)
	}
	return out, nil
}

// list appends to out what List wants of the directory dir, which is empty or
// ends in a slash.
func (s *Store) list(ctx context.Context, dir, prefix, after string, n int, out *[]objectstore.Info) error {
	type entry struct {
		key string // the full name, with a slash behind that of a directory
		fileStatus
	}
	var entries []entry
	err := s.c.list(ctx, strings.TrimSuffix(s.path(dir), "/"), startAfter(dir, after), func(f fileStatus) {
		key := dir + f.PathSuffix
		if f.PathSuffix[0] == '.' {
			return
		}
		if f.isDir() {
			key += "/"
		}
		if !allBefore(key, after) && (strings.HasPrefix(key, prefix) || f.isDir() && strings.HasPrefix(prefix, key)) {
			entries = append(entries, entry{key, f})
		}
	})
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	for _, e := range entries {
		if len(*out) == n {
			return nil
		}
		switch {
		case e.isDir():
			if err := s.list(ctx, e.key, prefix, after, n, out); err != nil {
				return err
			}
		case e.key > after:
			*out = append(*out, objectstore.Info{Name: e.key, Size: e.Length, Modified: time.UnixMilli(e.ModificationTime)})
		}
	}
	return nil
}

// allBefore tells whether name, and every name it begins, sorts before after.
func allBefore(name, after string) bool {
	return name < after && !strings.HasPrefix(after, name)
}

// startAfter returns an entry of dir that this and all entries before it need
// not be looked at, as what they are or hold sorts before after.
//
// The entries come in the order of their names. A directory whose name begins
// another's can hold names behind that one's: "a/x" is behind "a-b" and "a.b",
// as these bytes are before the slash. So after counts up to the first of them
// only, and its last byte does not count, since it may name such a directory.
func startAfter(dir, after string) string {
	name, ok := strings.CutPrefix(after, dir)
	if !ok || name == "" {
		return ""
	}
	if i := strings.IndexAny(name, "-./"); i >= 0 {
		name = name[:i]
	}
	return name[:max(len(name)-1, 0)]
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	_, err := s.c.remove(ctx, s.path(name), false)
	return wrap(err, "delete object", name)
}

// Probe implements objectstore.Store.
func (s *Store) Probe(ctx context.Context) error { return objectstore.Probe(ctx, s) }

func check(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return objectstore.CheckName(name)
}

// wrap says what was done to which object when err happened.
func wrap(err error, doing, name string) error {
	if err == nil || errors.Is(err, fault.AlreadyExists) {
		return err
	}
	return fmt.Errorf("%s %s: %w", doing, name, err)
}
