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

// Runs. A file system takes much longer to make a file that lasts than to write
// to one that is there, so Local keeps the objects of a Sequence in runs: files
// that hold the objects of some indexes, one behind the other. To everybody else
// they are objects like others.
//
// The run of the indexes from N on is the file N itself. Beside it lie, under
// names that no object can have,
//
//	.N.run            the same file: it tells a run from an object of the name N
//	.N.open0, .open1  the token, a file that has one of the two names, in turns
//	.N.closed         the token, when it was taken: the writer adds no more
//	.N.end            which objects are in the run, for ever
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
// A put writes a frame, syncs it, and then renames the token from the one name to
// the other. Only then it is done. Whoever wants to put an object of an index in
// the range of a run takes the token away first: by a rename too, of which one
// succeeds. So what was put before that is found in the file, and nothing is put
// after it. What the closer finds it writes down in .N.end, with a copy of the
// last object, of which nothing says that the writer came to sync it (the one
// before was synced before it was written). Put if absent decides between
// closers.
//
// N is given its name, like every object, by link(2): a run does not begin where
// something is. An object of an index in the range of a run that is not the run's
// counts for nothing; whoever puts one looks for runs after that.
//
// The writer of a run that another has closed goes on without runs. It reuses
// the files of runs that it has itself trimmed: their blocks are allocated and
// written, so that a sync of new frames has nothing to journal. What an earlier
// use left has another nonce.
const (
	runVersion     = 1
	runHeaderLen   = 64
	frameHeaderLen = 32
	frameMagic     = 0x6d617266 // "fram"

	// runBytes is how large a run becomes, whose file is made beforehand; the first
	// one, which is made when it is needed, becomes smallRunBytes.
	runBytes      = 8 << 20
	smallRunBytes = 256 << 10
	// knownRuns is of how many runs it is kept in memory what is in them.
	knownRuns = 64
	// spareRuns is how many files of runs are kept for others.
	spareRuns = 4
	// takeTries bounds the attempts to get hold of a token that changes its name.
	takeTries = 10_000
)

var (
	runMagic = [8]byte([]byte("trestrun"))
	endMagic = [8]byte([]byte("trestend"))
	crcTable = crc32.MakeTable(crc32.Castagnoli)
)

// A runHeader opens a run's file, or its end.
type runHeader struct {
	magic        [8]byte
	first, nonce uint64
	count        uint64 // of an end
}

func newRunHeader(first uint64) runHeader {
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return runHeader{magic: runMagic, first: first, nonce: binary.LittleEndian.Uint64(nonce[:])}
}

func (h runHeader) append(b []byte) []byte {
	start := len(b)
	b = append(b, h.magic[:]...)
	b = binary.LittleEndian.AppendUint64(b, runVersion)
	b = binary.LittleEndian.AppendUint64(b, h.first)
	b = binary.LittleEndian.AppendUint64(b, h.nonce)
	b = binary.LittleEndian.AppendUint64(b, h.count)
	b = append(b, make([]byte, runHeaderLen-4-(len(b)-start))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], crcTable))
}

// parseRunHeader reads a header. ok is false if b is none.
func parseRunHeader(b []byte, magic [8]byte, first uint64) (h runHeader, ok bool) {
	if len(b) < runHeaderLen || [8]byte(b) != magic || binary.LittleEndian.Uint64(b[8:]) != runVersion ||
		binary.LittleEndian.Uint32(b[runHeaderLen-4:]) != crc32.Checksum(b[:runHeaderLen-4], crcTable) {
		return h, false
	}
	h = runHeader{magic: magic, first: binary.LittleEndian.Uint64(b[16:]), nonce: binary.LittleEndian.Uint64(b[24:]), count: binary.LittleEndian.Uint64(b[32:])}
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

// A member is where an object of a run is. The zero value is one that is damaged.
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

// A run is what is known of one.
type run struct {
	runHeader
	dir     string   // of the objects
	members []member // in the file, then in the end
	inFile  int      // how many of them are in the file
	closed  bool     // the end is there: nothing of this changes any more
	damaged error    // nothing of it is to be had
	written time.Time
}

func (r *run) next() uint64 { return r.first + uint64(len(r.members)) }

func (r *run) has(index uint64) bool { return index >= r.first && index < r.next() }

// file returns the name of the file that holds an object, and where.
func (r *run) file(index uint64) (string, member) {
	i := int(index - r.first)
	if i < r.inFile {
		return SequenceName(r.dir, r.first), r.members[i]
	}
	return beside(r.dir, r.first, "end"), r.members[i]
}

func (r *run) corrupt(format string, args ...any) error {
	return fault.New(fault.Corruption, "corruption in run %s: "+format, append([]any{SequenceName(r.dir, r.first)}, args...)...)
}

// SequenceName returns the name of the object of an index that a Sequence puts into
// dir.
func SequenceName(dir string, index uint64) string { return fmt.Sprintf("%s/%015d", dir, index) }

// beside returns the name of a file beside a run.
func beside(dir string, first uint64, kind string) string {
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

// firsts returns the first indexes of what may be runs, in ascending order, of
// the names in a directory.
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

// readRun reads what is in the run that begins at first. It returns nil if there
// is none: its file is not there, or is an object. With closing the token was
// taken from the writer. What is damaged is known by that.
func (l *Local) readRun(dir string, first uint64, closing bool) (*run, error) {
	name := SequenceName(dir, first)
	l.mu.Lock()
	known := l.mu.runs[name]
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
	h, ok, err := readRunHeader(f, first)
	if err != nil {
		return nil, err
	}
	r := &run{runHeader: h, dir: dir}
	if !ok {
		if r.damaged, err = l.notRun(dir, first); r.damaged == nil || err != nil {
			return nil, err
		}
	}
	end, err := l.readFile(beside(dir, first, "end"))
	if err != nil && !errors.Is(err, fault.NotFound) {
		return nil, err
	}
	r.closed = err == nil
	// Now, if there is an end, the file grows no more.
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
		r.follow(data, end)
		l.know(r)
	case closing:
		r.followAll(data, 0)
		if len(r.members) == 0 {
			r.members = append(r.members, member{}) // it was there before the run was
		}
	default:
		// One that is not whole may be being written, unless there is another behind
		// it: then it is whole by now.
		if r.followAll(data, 0) {
			limit := r.next()
			if data, err = readAll(f); err != nil {
				return nil, err
			}
			r.members = nil
			r.followAll(data, limit)
		}
		// What is there while the writer has the token stays. If somebody has taken
		// it, a last object that was seen only now may come to nothing.
		switch _, err := l.fs.Stat(l.path(beside(dir, first, "closed"))); {
		case err == nil:
			return l.closeRun(dir, first)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		if n := len(r.members) - 1; n > 0 {
			// The last one may be copied to the end.
			durable := *r
			durable.members = slices.Clip(r.members[:n])
			l.know(&durable)
		}
	}
	return r, nil
}

// know keeps in memory what is in a run: all, or the first ones of a run that is
// open. It is not kept of one that is damaged, as somebody may mend that.
func (l *Local) know(r *run) {
	if r.damaged != nil || slices.Contains(r.members, member{}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.runs) >= knownRuns {
		clear(l.mu.runs)
	}
	l.mu.runs[SequenceName(r.dir, r.first)] = r
}

// readRunHeader reads the header of a run's file. ok is false if it is none.
func readRunHeader(f vfs.File, first uint64) (h runHeader, ok bool, err error) {
	var b [runHeaderLen]byte
	if n, err := f.ReadAt(b[:], 0); n < len(b) && !errors.Is(err, io.EOF) {
		return h, false, err
	}
	if h, ok = parseRunHeader(b[:], runMagic, first); !ok {
		h = runHeader{magic: runMagic, first: first}
	}
	return h, ok, nil
}

// notRun returns nil if the file of an index, which is no run as it should be, is
// an object, which was there before the run came to be: then that still lies
// beside it. Else it returns what is wrong.
func (l *Local) notRun(dir string, first uint64) (damaged, err error) {
	name := beside(dir, first, "run")
	f, err := l.open(l.path(name), name, vfs.SequentialReadsOption)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, ok, err := readRunHeader(f, first)
	if !ok {
		damaged = (&run{dir: dir, runHeader: h}).corrupt("its header is damaged")
	}
	return damaged, errors.Join(err, f.Close())
}

// anyNonce finds the nonce of a run whose header is damaged.
func anyNonce(first uint64, data, end []byte) uint64 {
	if h, ok := parseRunHeader(end, endMagic, first); ok {
		return h.nonce
	}
	if len(data) < runHeaderLen+frameHeaderLen {
		return 0
	}
	return binary.LittleEndian.Uint64(data[runHeaderLen+8:])
}

// follow finds the objects of a run whose end is given, in data, its file, and in
// the end.
func (r *run) follow(data, end []byte) {
	e, ok := parseRunHeader(end, endMagic, r.first)
	if !ok || e.nonce != r.nonce || e.count > mostFrames(data) {
		r.damaged = r.corrupt("its end is damaged")
		r.followAll(data, 0)
		return
	}
	limit := r.first + e.count
	r.followAll(data, limit)
	for r.next() < limit {
		r.members = append(r.members, member{})
	}
	r.inFile = len(r.members)
	if len(end) > runHeaderLen {
		m, index, ok := parseFrame(end[runHeaderLen:], r.nonce, runHeaderLen)
		if !ok || index != r.next() || m.n > int64(len(end))-m.off {
			m = member{}
		}
		r.members = append(r.members, m)
	}
}

// mostFrames is how many frames there can be in data.
func mostFrames(data []byte) uint64 { return uint64(len(data) / frameHeaderLen) }

// followAll finds all objects before limit, which is none if it is not known how
// many there are. Each was durable before the next was written: one that is not
// whole and has another behind it is damaged, if data is what the file held at
// one time, and is what its frame says, if that can be read. It returns whether
// there are such.
func (r *run) followAll(data []byte, limit uint64) (holes bool) {
	if limit == 0 {
		limit = math.MaxUint64
	}
	size := int64(len(data))
	for off := int64(runHeaderLen); r.next() < limit && off < size; {
		m, index, framed := parseFrame(data[off:], r.nonce, off)
		framed = framed && index == r.next() && m.n <= size-m.off
		if framed && crc32.Checksum(data[m.off:m.off+m.n], crcTable) == m.crc {
			r.members = append(r.members, m)
			off = m.off + m.n
			continue
		}
		next, at := r.frameBehind(data, off+1, limit)
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

// frameBehind finds a frame of an index behind the next one, from off on: which,
// and where; 0 if there is none.
func (r *run) frameBehind(data []byte, off int64, limit uint64) (index uint64, at int64) {
	pattern := binary.LittleEndian.AppendUint32(nil, frameMagic)
	for off < int64(len(data)) {
		i := bytes.Index(data[off:], pattern)
		if i < 0 {
			break
		}
		off += int64(i)
		if _, index, ok := parseFrame(data[off:], r.nonce, off); ok && index > r.next() && index < limit && index-r.first <= mostFrames(data) {
			return index, off
		}
		off++
	}
	return 0, 0
}

// listRuns returns the runs of a directory that has files of these names.
func (l *Local) listRuns(dir string, names []string) ([]*run, error) {
	var out []*run
	for _, first := range firsts(names) {
		r, err := l.readRun(dir, first, false)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// inRuns reports whether one of some runs has an object, or is it.
func inRuns(runs []*run, name string) bool {
	if len(runs) == 0 {
		return false
	}
	_, index, ok := parseNumbered(name)
	return ok && slices.ContainsFunc(runs, func(r *run) bool { return r.has(index) || r.first == index })
}

// findRun returns the run that has an object, and the object's index; nil if none
// has.
func (l *Local) findRun(name string) (r *run, index uint64, err error) {
	dir, index, ok := parseNumbered(name)
	if !ok {
		return nil, 0, nil
	}
	if r := l.knownRun(dir, index); r != nil {
		return r, index, nil
	}
	all, err := l.firsts(dir)
	for _, first := range slices.Backward(all) {
		if first > index {
			continue
		}
		r, err := l.readRun(dir, first, false)
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

// knownRun returns the run that has an object, if it is known. It may have been
// deleted since: then it cannot be opened.
func (l *Local) knownRun(dir string, index uint64) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.runs {
		if r.dir == dir && r.has(index) {
			return r
		}
	}
	return nil
}

// openMember opens the file that holds an object of a run.
func (l *Local) openMember(r *run, index uint64) (vfs.File, member, error) {
	if r.damaged != nil {
		return nil, member{}, r.damaged
	}
	name, m := r.file(index)
	if m == (member{}) {
		return nil, m, r.corrupt("object %d is damaged", index)
	}
	f, err := l.open(l.path(name), SequenceName(r.dir, index), vfs.SequentialReadsOption)
	if errors.Is(err, fault.NotFound) {
		l.forgetRun(r.dir, r.first)
	}
	return f, m, err
}

func (l *Local) forgetRun(dir string, first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.runs, SequenceName(dir, first))
}

func (l *Local) getMember(r *run, index uint64) ([]byte, error) {
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

// A memberReadable is an object of a run, open for reading.
type memberReadable struct {
	objstorage.Readable
	f vfs.File
}

func (r *memberReadable) Close() error { return r.f.Close() }

func (l *Local) readMember(r *run, index uint64) (objstorage.Readable, error) {
	f, m, err := l.openMember(r, index)
	if err != nil {
		return nil, err
	}
	return &memberReadable{f: f, Readable: NewRanged(SequenceName(r.dir, index), m.n, func(_ context.Context, p []byte, off int64) error {
		return readAt(f, p, m.off+off)
	})}, nil
}

// closeRuns closes the runs of a directory that may have an index, or get it, and
// returns the one that has it.
func (l *Local) closeRuns(dir string, index uint64) (*run, error) {
	all, err := l.firsts(dir)
	if err != nil {
		return nil, err
	}
	var has *run
	for _, first := range all {
		if first > index {
			break
		}
		r, err := l.closeRun(dir, first)
		if err != nil {
			return nil, err
		}
		if r != nil && r.has(index) {
			has = r
		}
	}
	return has, nil
}

// closeRun ends a run: what is in it is in it, and nothing more will be. It
// returns nil if there is no run.
func (l *Local) closeRun(dir string, first uint64) (*run, error) {
	// The token of what is not a run is nobody's to take.
	r, err := l.readRun(dir, first, true)
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
	if r, err = l.readRun(dir, first, true); err != nil || r == nil || r.closed {
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
	if r, err = l.readRun(dir, first, true); err == nil && (r == nil || !r.closed) {
		err = fault.New(fault.Unavailable, "run %s was deleted while it was closed", SequenceName(dir, first))
	}
	return r, err
}

// takeToken takes the token of a run from its writer.
func (l *Local) takeToken(dir string, first uint64) error {
	closed := l.path(beside(dir, first, "closed"))
	for i := range takeTries {
		for _, open := range openNames {
			err := l.fs.Rename(l.path(beside(dir, first, open)), closed)
			if err == nil || !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if _, err := l.fs.Stat(closed); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if i > 100 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return fault.New(fault.Unavailable, "run %s has no token", SequenceName(dir, first))
}

var openNames = [2]string{"open0", "open1"}

// putEnd writes down which objects a run has, the first count of its file and
// those of tail: fault.AlreadyExists says that another has done so.
func (l *Local) putEnd(r *run, count int, tail []byte) error {
	h := r.runHeader
	h.magic, h.count = endMagic, uint64(count)
	tmp, f, err := l.createTemp()
	if err != nil {
		return err
	}
	_, err = f.Write(append(h.append(nil), tail...))
	return l.publish(tmp, f, beside(r.dir, r.first, "end"), err)
}

// removeBeside removes what lies beside a run that is gone.
func (l *Local) removeBeside(dir string, first uint64) error {
	l.forgetRun(dir, first)
	for _, kind := range []string{"run", openNames[0], openNames[1], "closed", "end"} {
		if err := l.remove(beside(dir, first, kind)); err != nil {
			return err
		}
	}
	return nil
}

// deleteNumbered deletes an object of a sequence. Those of a run go with its last
// one.
func (l *Local) deleteNumbered(dir string, index uint64) error {
	if r := l.knownRun(dir, index); r != nil && index+1 < r.next() {
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
		r, err := l.readRun(dir, first, false)
		switch {
		case err != nil:
			return err
		case r == nil:
			// Of a run that a crash kept from being deleted whole, or from being: a run
			// that is just begun is behind all that can be deleted.
			if err := l.removeBeside(dir, first); err != nil {
				return err
			}
		case r.has(index) && index+1 != r.next():
			return nil
		case r.has(index) && !r.closed:
			// What is deleted has no writer that needs it.
			if r, err = l.closeRun(dir, first); err != nil || r != nil && index+1 != r.next() {
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
			return l.removeBeside(dir, first)
		}
	}
	return l.remove(SequenceName(dir, index))
}
