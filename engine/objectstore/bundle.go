package objectstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// Bundles. A file system takes much longer to make a durable file than to write to an
// existing one. So Local keeps the objects of a Sequence in bundles: files that hold the
// objects of some indexes, one behind the other. Readers see objects like all others.
//
// The bundle of the indexes from N on is the file N itself. Beside it lie, under
// names that no object can have,
//
//	.N.run            the same file: it tells a bundle from an object of the name N
//	.N.open0, .open1  the token, a file that has one of the two names, in turns
//	.N.closed         the token, when it was taken: the writer adds no more
//	.N.end            which objects are in the bundle, for ever
//
//	file  := header frame* rest
//	header (64 bytes)
//	  0  magic "trestrun"   8  version u64   16  first index u64   24  nonce u64
//	 32  zeros             60  crc u32 of bytes 0-59
//	frame (32 bytes, then the object)
//	  0  magic u32          4  length u32     8  nonce u64  16  index u64
//	 24  crc u32 of the object               28  crc u32 of bytes 0-27
//	end   := header frame*
//	  (its header has the magic "trestend", and at 32 how many frames of the file
//	  count, u64; the frames of the end come after those)
//
// A put writes a frame, syncs it, and then renames the token from the one name to the
// other. Only then it is done. A process that wants to put an object of an index in the
// range of a bundle takes the token away first. It does so by a rename too, of which one
// succeeds. So everything that was put before is found in the file, and nothing is put
// after it. The closer writes its findings to .N.end, with a copy of the last object. The
// writer need not have come to sync that one; the one before was synced before it was
// written. Put if absent decides between closers.
//
// N is given its name, like every object, by link(2): a bundle does not begin where
// something is. An object of an index in the range of a bundle that is not in the bundle
// does not count: its writer looks for bundles after the put.
//
// The writer of a bundle that another has closed goes on without bundles. It reuses the
// files of bundles that it has itself trimmed. Their blocks are allocated and written, so
// a sync of new frames has nothing to journal. Frames of an earlier use have another
// nonce.
const (
	bundleVersion   = 1
	bundleHeaderLen = 64
	frameHeaderLen  = 32
	frameMagic      = 0x6d617266 // "fram"

	// bundleBytes is how large a bundle becomes, whose file is made beforehand; the first
	// one, which is made when it is needed, becomes smallBundleBytes.
	bundleBytes      = 8 << 20
	smallBundleBytes = 256 << 10
	// maxCachedBundles is how many bundles' contents are cached.
	maxCachedBundles = 64
	// maxSpareFiles is how many files of bundles are kept for others.
	maxSpareFiles = 4
	// takeTries bounds the attempts to get hold of a token that changes its name.
	takeTries = 10_000
)

var (
	bundleMagic = [8]byte([]byte("trestrun"))
	endMagic    = [8]byte([]byte("trestend"))
	crcTable    = crc32.MakeTable(crc32.Castagnoli)
)

// A bundleHeader opens a bundle's file, or its end.
type bundleHeader struct {
	magic        [8]byte
	first, nonce uint64
	count        uint64 // of an end
}

func newBundleHeader(first uint64) bundleHeader {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return bundleHeader{magic: bundleMagic, first: first, nonce: binary.LittleEndian.Uint64(nonce[:])}
}

func (h bundleHeader) append(b []byte) []byte {
	start := len(b)
	b = append(b, h.magic[:]...)
	b = binary.LittleEndian.AppendUint64(b, bundleVersion)
	b = binary.LittleEndian.AppendUint64(b, h.first)
	b = binary.LittleEndian.AppendUint64(b, h.nonce)
	b = binary.LittleEndian.AppendUint64(b, h.count)
	b = append(b, make([]byte, bundleHeaderLen-4-(len(b)-start))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], crcTable))
}

// parseBundleHeader reads a header. ok is false if b is none.
func parseBundleHeader(b []byte, magic [8]byte, first uint64) (h bundleHeader, ok bool) {
	if len(b) < bundleHeaderLen || [8]byte(b) != magic || binary.LittleEndian.Uint64(b[8:]) != bundleVersion ||
		binary.LittleEndian.Uint32(b[bundleHeaderLen-4:]) != crc32.Checksum(b[:bundleHeaderLen-4], crcTable) {
		return h, false
	}
	h = bundleHeader{magic: magic, first: binary.LittleEndian.Uint64(b[16:]), nonce: binary.LittleEndian.Uint64(b[24:]), count: binary.LittleEndian.Uint64(b[32:])}
	return h, h.first == first && h.count <= math.MaxInt32
}

// appendFrame appends the frame of an object.
func appendFrame(b []byte, nonce, index uint64, data []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, frameMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	b = binary.LittleEndian.AppendUint64(b, nonce)
	b = binary.LittleEndian.AppendUint64(b, index)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(data, crcTable))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], crcTable))
	return append(b, data...)
}

// A member is where an object of a bundle is. The zero value is one that is damaged.
type member struct {
	off int64
	n   int64
	crc uint32
}

// parseFrame reads the header of a frame at off, of any index.
func parseFrame(b []byte, nonce uint64, off int64) (m member, index uint64, ok bool) {
	if len(b) < frameHeaderLen || binary.LittleEndian.Uint32(b) != frameMagic || binary.LittleEndian.Uint64(b[8:]) != nonce ||
		binary.LittleEndian.Uint32(b[28:]) != crc32.Checksum(b[:28], crcTable) {
		return m, 0, false
	}
	m = member{off: off + frameHeaderLen, n: int64(binary.LittleEndian.Uint32(b[4:])), crc: binary.LittleEndian.Uint32(b[24:])}
	return m, binary.LittleEndian.Uint64(b[16:]), true
}

// A bundle is the known content of one.
type bundle struct {
	bundleHeader
	dir     string   // of the objects
	members []member // in the file, then in the end
	inFile  int      // how many of them are in the file
	closed  bool     // the end is there: nothing of this changes any more
	damaged error    // nothing of it can be read
	written time.Time
}

func (r *bundle) next() uint64 { return r.first + uint64(len(r.members)) }

func (r *bundle) has(index uint64) bool { return index >= r.first && index < r.next() }

// file returns the name of the file that holds an object, and where.
func (r *bundle) file(index uint64) (string, member) {
	i := int(index - r.first)
	if i < r.inFile {
		return SequenceName(r.dir, r.first), r.members[i]
	}
	return sidecar(r.dir, r.first, "end"), r.members[i]
}

func (r *bundle) corrupt(format string, args ...any) error {
	return fault.New(fault.Corruption, "corruption in bundle %s: "+format, append([]any{SequenceName(r.dir, r.first)}, args...)...)
}

// SequenceName returns the name of the object of an index that a Sequence puts into
// dir.
func SequenceName(dir string, index uint64) string { return fmt.Sprintf("%s/%015d", dir, index) }

// sidecar returns the name of a file beside a bundle.
func sidecar(dir string, first uint64, kind string) string {
	return fmt.Sprintf("%s/.%015d.%s", dir, first, kind)
}

const numberLen = 15

// parseNumbered takes the name of an object of a sequence apart.
func parseNumbered(name string) (dir string, index uint64, ok bool) {
	if len(name) <= numberLen+1 || name[len(name)-numberLen-1] != '/' {
		return "", 0, false
	}
	index, err := strconv.ParseUint(name[len(name)-numberLen:], 10, 64)
	dir = name[:len(name)-numberLen-1]
	return dir, index, err == nil && SequenceName(dir, index) == name
}

// firsts returns the first indexes of possible bundles, in ascending order, of the names
// in a directory.
func firsts(names []string) []uint64 {
	var out []uint64
	for _, name := range names {
		if len(name) != numberLen+5 || name[0] != '.' || name[numberLen+1:] != ".run" {
			continue
		}
		if n, err := strconv.ParseUint(name[1:numberLen+1], 10, 64); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func (l *Local) firsts(dir string) ([]uint64, error) {
	names, err := l.fs.List(l.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return firsts(names), err
}

// readBundle reads the content of the bundle that begins at first. It returns nil if there
// is none: its file is not there, or is an object. With closing the token was taken from
// the writer. Damaged objects are found by that.
func (l *Local) readBundle(dir string, first uint64, closing bool) (*bundle, error) {
	name := SequenceName(dir, first)
	l.mu.Lock()
	known := l.mu.bundles[name]
	l.mu.Unlock()
	if known != nil && known.closed {
		return known, nil
	}
	f, err := l.fs.Open(l.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, ok, err := readBundleHeader(f, first)
	if err != nil {
		return nil, err
	}
	r := &bundle{bundleHeader: h, dir: dir}
	if !ok {
		if r.damaged, err = l.checkNotBundle(dir, first); r.damaged == nil || err != nil {
			return nil, err
		}
	}
	end, err := l.readFile(sidecar(dir, first, "end"))
	if err != nil && !errors.Is(err, fault.NotFound) {
		return nil, err
	}
	r.closed = err == nil
	// From here on, if there is an end, the file does not grow.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r.written = info.ModTime()
	data, err := readAll(f)
	if err != nil {
		return nil, err
	}
	if !ok {
		r.nonce = anyNonce(first, data, end)
	}
	switch {
	case r.closed:
		r.scanWithEnd(data, end)
		l.cacheBundle(r)
	case closing:
		r.scanFrames(data, 0)
		if len(r.members) == 0 {
			r.members = append(r.members, member{}) // it was there before the bundle was
		}
	default:
		// One that is not whole may be being written, unless there is another behind
		// it: then it is whole by now.
		if r.scanFrames(data, 0) {
			limit := r.next()
			if data, err = readAll(f); err != nil {
				return nil, err
			}
			r.members = nil
			r.scanFrames(data, limit)
		}
		// Objects that are there while the writer has the token stay. If another process
		// has taken it, a last object that was seen only now may not be in the bundle.
		switch _, err := l.fs.Stat(l.path(sidecar(dir, first, "closed"))); {
		case err == nil:
			return l.closeBundle(dir, first)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		if n := len(r.members) - 1; n > 0 {
			// The last one may be copied to the end.
			durable := *r
			durable.members = slices.Clip(r.members[:n])
			l.cacheBundle(&durable)
		}
	}
	return r, nil
}

// cacheBundle caches the content of a bundle: all, or the first objects of one that is
// open. A damaged bundle is not cached, as an operator may repair it.
func (l *Local) cacheBundle(r *bundle) {
	if r.damaged != nil || slices.Contains(r.members, member{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.bundles) >= maxCachedBundles {
		clear(l.mu.bundles)
	}
	l.mu.bundles[SequenceName(r.dir, r.first)] = r
}

// readBundleHeader reads the header of a bundle's file. ok is false if it is none.
func readBundleHeader(f vfs.File, first uint64) (h bundleHeader, ok bool, err error) {
	var b [bundleHeaderLen]byte
	if n, err := f.ReadAt(b[:], 0); n < len(b) && !errors.Is(err, io.EOF) {
		return h, false, err
	}
	if h, ok = parseBundleHeader(b[:], bundleMagic, first); !ok {
		h = bundleHeader{magic: bundleMagic, first: first}
	}
	return h, ok, nil
}

// checkNotBundle returns nil if the file of an index, which is no intact bundle, is an
// object. It is one if it was there before the bundle was made, which then still lies
// beside it. Else it returns the damage.
func (l *Local) checkNotBundle(dir string, first uint64) (damaged, err error) {
	name := sidecar(dir, first, "run")
	f, err := l.open(l.path(name), name, vfs.SequentialReadsOption)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, ok, err := readBundleHeader(f, first)
	if !ok {
		damaged = (&bundle{dir: dir, bundleHeader: h}).corrupt("its header is damaged")
	}
	return damaged, errors.Join(err, f.Close())
}

// anyNonce finds the nonce of a bundle whose header is damaged.
func anyNonce(first uint64, data, end []byte) uint64 {
	if h, ok := parseBundleHeader(end, endMagic, first); ok {
		return h.nonce
	}
	if len(data) < bundleHeaderLen+frameHeaderLen {
		return 0
	}
	return binary.LittleEndian.Uint64(data[bundleHeaderLen+8:])
}

// scanWithEnd finds the objects of a bundle whose end is given, in data, its file, and in
// the end.
func (r *bundle) scanWithEnd(data, end []byte) {
	e, ok := parseBundleHeader(end, endMagic, r.first)
	if !ok || e.nonce != r.nonce || e.count > maxFrames(data) {
		r.damaged = r.corrupt("its end is damaged")
		r.scanFrames(data, 0)
		return
	}
	limit := r.first + e.count
	r.scanFrames(data, limit)
	for r.next() < limit {
		r.members = append(r.members, member{})
	}
	r.inFile = len(r.members)
	if len(end) > bundleHeaderLen {
		m, index, ok := parseFrame(end[bundleHeaderLen:], r.nonce, bundleHeaderLen)
		if !ok || index != r.next() || m.n > int64(len(end))-m.off {
			m = member{}
		}
		r.members = append(r.members, m)
	}
}

// maxFrames is how many frames there can be in data.
func maxFrames(data []byte) uint64 { return uint64(len(data) / frameHeaderLen) }

// scanFrames finds all objects before limit, which is none if it is not known how many
// there are. Each was durable before the next was written. So one that is not whole and
// has another behind it is damaged, if data is what the file held at one time. Its frame
// says what it was, if that can be read. It returns whether there are such.
func (r *bundle) scanFrames(data []byte, limit uint64) (holes bool) {
	if limit == 0 {
		limit = math.MaxUint64
	}
	size := int64(len(data))
	for off := int64(bundleHeaderLen); r.next() < limit && off < size; {
		m, index, framed := parseFrame(data[off:], r.nonce, off)
		framed = framed && index == r.next() && m.n <= size-m.off
		if framed && crc32.Checksum(data[m.off:m.off+m.n], crcTable) == m.crc {
			r.members = append(r.members, m)
			off = m.off + m.n
			continue
		}
		next, at := r.nextFrame(data, off+1, limit)
		if next == 0 && (!framed || limit == math.MaxUint64) {
			break // the last one, which was not stored
		}
		holes = true
		if framed {
			r.members = append(r.members, m)
		}
		for r.next() < next {
			r.members = append(r.members, member{})
		}
		if off = at; next == 0 {
			break
		}
	}
	r.inFile = len(r.members)
	return holes
}

// nextFrame finds a frame of an index behind the next one, from off on: which,
// and where; 0 if there is none.
func (r *bundle) nextFrame(data []byte, off int64, limit uint64) (index uint64, at int64) {
	pattern := binary.LittleEndian.AppendUint32(nil, frameMagic)
	for off < int64(len(data)) {
		i := bytes.Index(data[off:], pattern)
		if i < 0 {
			break
		}
		off += int64(i)
		if _, index, ok := parseFrame(data[off:], r.nonce, off); ok && index > r.next() && index < limit && index-r.first <= maxFrames(data) {
			return index, off
		}
		off++
	}
	return 0, 0
}

// listBundles returns the bundles of a directory that has files of these names.
func (l *Local) listBundles(dir string, names []string) ([]*bundle, error) {
	var out []*bundle
	for _, first := range firsts(names) {
		r, err := l.readBundle(dir, first, false)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// inBundles reports whether one of some bundles has an object, or is it.
func inBundles(bundles []*bundle, name string) bool {
	if len(bundles) == 0 {
		return false
	}
	_, index, ok := parseNumbered(name)
	return ok && slices.ContainsFunc(bundles, func(r *bundle) bool { return r.has(index) || r.first == index })
}

// findBundle returns the bundle that has an object, and the object's index; nil if none
// has.
func (l *Local) findBundle(name string) (r *bundle, index uint64, err error) {
	dir, index, ok := parseNumbered(name)
	if !ok {
		return nil, 0, nil
	}
	if r := l.cachedBundle(dir, index); r != nil {
		return r, index, nil
	}
	all, err := l.firsts(dir)
	for _, first := range slices.Backward(all) {
		if first > index {
			continue
		}
		r, err := l.readBundle(dir, first, false)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case r == nil:
		case r.has(index):
			return r, index, nil
		case r.first == index:
			return nil, 0, fault.New(fault.NotFound, "object %s does not exist", name)
		default:
			return nil, 0, nil
		}
	}
	return nil, 0, err
}

// cachedBundle returns the bundle that has an object, if it is known. It may have been
// deleted since: then it cannot be opened.
func (l *Local) cachedBundle(dir string, index uint64) *bundle {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.bundles {
		if r.dir == dir && r.has(index) {
			return r
		}
	}
	return nil
}

// openMember opens the file that holds an object of a bundle.
func (l *Local) openMember(r *bundle, index uint64) (vfs.File, member, error) {
	if r.damaged != nil {
		return nil, member{}, r.damaged
	}
	name, m := r.file(index)
	if m == (member{}) {
		return nil, m, r.corrupt("object %d is damaged", index)
	}
	f, err := l.open(l.path(name), SequenceName(r.dir, index), vfs.SequentialReadsOption)
	if errors.Is(err, fault.NotFound) {
		l.uncacheBundle(r.dir, r.first)
	}
	return f, m, err
}

func (l *Local) uncacheBundle(dir string, first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.bundles, SequenceName(dir, first))
}

func (l *Local) getMember(r *bundle, index uint64) ([]byte, error) {
	f, m, err := l.openMember(r, index)
	if err != nil {
		return nil, err
	}
	data := make([]byte, m.n)
	return data, errors.Join(readAt(f, data, m.off), f.Close())
}

// readAt fills p.
func readAt(f vfs.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	return err
}

// A memberReadable is an object of a bundle, open for reading.
type memberReadable struct {
	objstorage.Readable
	f vfs.File
}

func (r *memberReadable) Close() error { return r.f.Close() }

func (l *Local) readMember(r *bundle, index uint64) (objstorage.Readable, error) {
	f, m, err := l.openMember(r, index)
	if err != nil {
		return nil, err
	}
	return &memberReadable{f: f, Readable: NewRanged(SequenceName(r.dir, index), m.n, func(_ context.Context, p []byte, off int64) error {
		return readAt(f, p, m.off+off)
	})}, nil
}

// closeBundles closes the bundles of a directory that may have an index, or get it, and
// returns the one that has it.
func (l *Local) closeBundles(dir string, index uint64) (*bundle, error) {
	all, err := l.firsts(dir)
	if err != nil {
		return nil, err
	}
	var has *bundle
	for _, first := range all {
		if first > index {
			break
		}
		r, err := l.closeBundle(dir, first)
		if err != nil {
			return nil, err
		}
		if r != nil && r.has(index) {
			has = r
		}
	}
	return has, nil
}

// closeBundle ends a bundle: its content is final. It returns nil if there is no bundle.
func (l *Local) closeBundle(dir string, first uint64) (*bundle, error) {
	// The token of what is not a bundle must not be taken.
	r, err := l.readBundle(dir, first, true)
	if err != nil || r == nil || r.closed {
		return r, err
	}
	if err := l.takeToken(dir, first); err != nil {
		return nil, err
	}
	if err := l.sync(l.path(dir)); err != nil {
		return nil, err
	}
	// Again: now nothing more comes.
	if r, err = l.readBundle(dir, first, true); err != nil || r == nil || r.closed {
		return r, err
	}
	last, count := r.next()-1, len(r.members)
	var tail []byte
	switch data, err := l.getMember(r, last); {
	case err == nil:
		tail = appendFrame(nil, r.nonce, last, data)
		count--
	case !errors.Is(err, fault.Corruption):
		return nil, err
	}
	if err := l.putEnd(r, count, tail); err != nil && !errors.Is(err, fault.AlreadyExists) {
		return nil, err
	}
	if r, err = l.readBundle(dir, first, true); err == nil && (r == nil || !r.closed) {
		err = fault.New(fault.Unavailable, "bundle %s was deleted while it was closed", SequenceName(dir, first))
	}
	return r, err
}

// takeToken takes the token of a bundle from its writer. There is none to take if the bundle
// is gone: another caller, who deletes too, has closed it and removed it.
func (l *Local) takeToken(dir string, first uint64) error {
	closed := l.path(sidecar(dir, first, "closed"))
	for i := range takeTries {
		for _, open := range openNames {
			err := l.fs.Rename(l.path(sidecar(dir, first, open)), closed)
			if err == nil || !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if _, err := l.fs.Stat(closed); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, err := l.fs.Stat(l.path(SequenceName(dir, first))); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if i > 100 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return fault.New(fault.Unavailable, "bundle %s has no token", SequenceName(dir, first))
}

var openNames = [2]string{"open0", "open1"}

// putEnd writes down which objects a bundle has, the first count of its file and
// those of tail: fault.AlreadyExists says that another has done so.
func (l *Local) putEnd(r *bundle, count int, tail []byte) error {
	h := r.bundleHeader
	h.magic, h.count = endMagic, uint64(count)
	tmp, f, err := l.createTemp()
	if err != nil {
		return err
	}
	_, err = f.Write(append(h.append(nil), tail...))
	return l.publish(tmp, f, sidecar(r.dir, r.first, "end"), err)
}

// removeSidecars removes what lies beside a bundle that is gone.
func (l *Local) removeSidecars(dir string, first uint64) error {
	l.uncacheBundle(dir, first)
	for _, kind := range []string{"run", openNames[0], openNames[1], "closed", "end"} {
		if err := l.remove(sidecar(dir, first, kind)); err != nil {
			return err
		}
	}
	return nil
}

// deleteNumbered deletes an object of a sequence. Those of a bundle go with its last
// one.
func (l *Local) deleteNumbered(dir string, index uint64) error {
	if r := l.cachedBundle(dir, index); r != nil && index+1 < r.next() {
		return nil
	}
	all, err := l.firsts(dir)
	if err != nil {
		return err
	}
	for _, first := range all {
		if first > index {
			break
		}
		r, err := l.readBundle(dir, first, false)
		switch {
		case err != nil:
			return err
		case r == nil:
			// Left by a bundle whose creation or deletion a crash interrupted: a bundle
			// that is just begun is behind all that can be deleted.
			if err := l.removeSidecars(dir, first); err != nil {
				return err
			}
		case r.has(index) && index+1 != r.next():
			return nil
		case r.has(index) && !r.closed:
			// Deleted objects have no writer that needs them.
			if r, err = l.closeBundle(dir, first); err != nil || r != nil && index+1 != r.next() {
				return err
			}
			fallthrough
		case r.has(index):
			if err := l.remove(SequenceName(dir, first)); err != nil {
				return err
			}
			// First the file must be gone for good, or it would be taken for an object.
			if err := l.sync(l.path(dir)); err != nil {
				return err
			}
			return l.removeSidecars(dir, first)
		}
	}
	return l.remove(SequenceName(dir, index))
}
