package commitlog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
)

// WriteCategory is how the log's files are accounted by the file system.
const WriteCategory vfs.DiskWriteCategory = "commit-log"

// pack returns a position in files as one ordered integer; segment numbers are
// below 1<<32.
func (p Pos) pack() uint64 { return p.Segment<<32 | uint64(p.Offset) }

func unpack(v uint64) Pos { return Pos{Segment: v >> 32, Offset: uint32(v)} }

// A Durability says what an acknowledged record survives.
type Durability uint8

const (
	// Sync acknowledges after fdatasync: a record survives a power cut.
	Sync Durability = iota
	// Async acknowledges after write(2) and syncs in the background: a record
	// survives the death of the process at once, a power cut after SyncInterval.
	Async
)

// Options of a log. The zero value is a good server's.
type Options struct {
	// SegmentBytes is the size of a segment, allocated before it is used. The
	// log takes one segment more than its records, and after Trim up to four more,
	// whose files are used again. Zero means 64 MiB.
	SegmentBytes int64
	// PendingBytes bounds what is appended and not yet written; above it
	// Reserve waits. Zero means 32 MiB.
	PendingBytes int64
	// Durability of acknowledged records. The zero value is Sync.
	Durability Durability
	// SyncInterval bounds how long an Async record is not synced. Zero means 100 ms.
	SyncInterval time.Duration
	// KeepFreeBytes is left on the disk: with less, no new segment is
	// allocated and the log counts as full. It leaves room for the flushes
	// that let the log be trimmed. Zero keeps none.
	KeepFreeBytes int64
	// Observe, if set, is called by the flusher after every group commit.
	Observe func(Commit)
	Log     *slog.Logger // component; nil discards
}

// A Commit describes one group commit to Options.Observe.
type Commit struct {
	Records int
	Bytes   int
	Write   time.Duration // time in write, or in the put of a segment object
	Sync    time.Duration // time in fdatasync; zero if there was none
}

// WithDefaults returns o with zero values replaced.
func (o Options) WithDefaults() Options {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.PendingBytes == 0 {
		o.PendingBytes = 32 << 20
	}
	if o.SyncInterval == 0 {
		o.SyncInterval = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Validate returns everything that is wrong with o, with fault.Invalid.
func (o Options) Validate() error {
	var errs []error
	if o.SegmentBytes != 0 && (o.SegmentBytes < 4<<10 || o.SegmentBytes > 1<<30) {
		errs = append(errs, fault.InvalidField("segment_bytes", "segment size %d is not between 4 KiB and 1 GiB", o.SegmentBytes))
	}
	if o.PendingBytes < 0 || o.PendingBytes > 1<<30 {
		errs = append(errs, fault.InvalidField("pending_bytes", "pending bytes %d are not between 0 and 1 GiB", o.PendingBytes))
	}
	if o.Durability > Async {
		errs = append(errs, fault.InvalidField("durability", "unknown durability %d", o.Durability))
	}
	if o.SyncInterval < 0 {
		errs = append(errs, fault.InvalidField("sync_interval", "negative sync interval %v", o.SyncInterval))
	}
	if o.KeepFreeBytes < 0 {
		errs = append(errs, fault.InvalidField("keep_free_bytes", "negative free space %d", o.KeepFreeBytes))
	}
	return errors.Join(errs...)
}

// segmentFile is a segment found by Open.
type segmentFile struct {
	number uint64
	size   int64
	state  headerState
	header segmentHeader
}

// A FileLog is the append form of a Log: a directory that this process alone
// may use.
type FileLog struct {
	fs   vfs.FS
	dir  string
	opts Options
	lock io.Closer

	files []segmentFile // everything named as a segment, by number
	free  []uint64      // files that wait to be used again, by number
	chain []segmentFile // the segments of the log, oldest first
	end   Pos           // where the last segment ends
	// proven is the offset of the last segment up to which a synced write
	// stands behind its bytes.
	proven uint32
	// floor is the highest segment number a redo point named.
	floor  uint64
	buf    []byte
	held   uint64 // the segment that is in buf, 0 if none is, wholly
	writer *FileWriter
}

// Open locks the log in dir, creating it if need be, and finds its end. The
// directory that holds dir must itself be durable.
//
// It fails with fault.Unavailable if another process holds the log, with
// fault.Corruption if its end is damaged in a way no power cut explains.
func Open(fs vfs.FS, dir string, opts Options) (_ *FileLog, err error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open commit log %s: %w", dir, ioError(err))
	}
	if err := datadir.Sync(fs, fs.PathDir(dir)); err != nil {
		return nil, fmt.Errorf("open commit log %s: %w", dir, ioError(err))
	}
	lock, err := fs.Lock(fs.PathJoin(dir, lockName))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "commit log %s is in use: %w", dir, err)
	}
	l := &FileLog{fs: fs, dir: dir, opts: opts.WithDefaults(), lock: lock}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if l.files, l.free, err = listSegments(fs, dir); err != nil {
		return nil, fmt.Errorf("open commit log %s: %w", dir, err)
	}
	if err := l.link(); err != nil {
		return nil, fmt.Errorf("open commit log %s: %w", dir, err)
	}
	if err := l.findEnd(); err != nil {
		return nil, fmt.Errorf("open commit log %s: %w", dir, err)
	}
	return l, nil
}

// listSegments returns the segment files of dir by number, with their headers,
// and the numbers of those that wait to be used again.
func listSegments(fs vfs.FS, dir string) (files []segmentFile, free []uint64, err error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, nil, ioError(err)
	}
	for _, name := range names {
		if number, ok := parseName(name, freeSuffix); ok {
			free = append(free, number)
		}
		number, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		f := segmentFile{number: number}
		b, size, err := readHead(fs, fs.PathJoin(dir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", name, ioError(err))
		}
		f.size = size
		if f.header, f.state, err = parseSegmentHeader(b, number); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", name, err)
		}
		files = append(files, f)
	}
	slices.SortFunc(files, func(a, b segmentFile) int { return Pos{Segment: a.number}.Compare(Pos{Segment: b.number}) })
	slices.Sort(free)
	return files, free, nil
}

func (l *FileLog) path(number uint64) string     { return l.fs.PathJoin(l.dir, segmentName(number)) }
func (l *FileLog) freePath(number uint64) string { return l.fs.PathJoin(l.dir, freeName(number)) }

func readHead(fs vfs.FS, path string) (head []byte, size int64, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	head = make([]byte, min(info.Size(), headLen))
	if err := readFull(f, head, 0); err != nil {
		return nil, 0, err
	}
	return head, info.Size(), nil
}

func readFull(f vfs.File, b []byte, at int64) error {
	if len(b) == 0 {
		return nil
	}
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// read returns the bytes of a segment in the log's own buffer.
func (l *FileLog) read(s segmentFile) ([]byte, error) {
	if l.held == s.number && len(l.buf) == int(s.size) {
		return l.buf, nil
	}
	err := l.readParts(s, int(s.size), func(int) error { return nil })
	return l.buf, err
}

// readParts reads a segment into the log's own buffer, in parts of a length. It calls each
// with the length read after each part.
func (l *FileLog) readParts(s segmentFile, part int, each func(there int) error) error {
	name := segmentName(s.number)
	f, err := l.fs.Open(l.path(s.number))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, ioError(err))
	}
	defer f.Close()
	if l.held = 0; cap(l.buf) < int(s.size) {
		// Unlike slices.Grow, make does not clear what is new from the system: that
		// takes as long as reading the file, and holds up the garbage collector.
		l.buf = make([]byte, s.size)
	}
	l.buf = l.buf[:s.size]
	for there := 0; there < len(l.buf); {
		next := min(there+part, len(l.buf))
		if err := readFull(f, l.buf[there:next], int64(there)); err != nil {
			return fmt.Errorf("read %s: %w", name, ioError(err))
		}
		if err := each(next); err != nil {
			return err
		}
		there = next
	}
	l.held = s.number
	return nil
}

// link follows the headers back from the newest segment. A file that none
// names is not part of the log: allocated and never used, or begun by a write
// that a power cut took.
func (l *FileLog) link() error {
	byNumber := make(map[uint64]segmentFile, len(l.files))
	newest := uint64(0)
	for _, f := range l.files {
		byNumber[f.number] = f
		if f.state == headerValid {
			newest = f.number
		}
	}
	for n := newest; n != 0; {
		f, ok := byNumber[n]
		if !ok {
			break // trimmed, or missing: Replay knows which
		}
		if f.state != headerValid {
			return fault.New(fault.Corruption, "corruption in %s at offset 0: damaged segment header", segmentName(n))
		}
		l.chain = append(l.chain, f)
		n = f.header.prev.Segment
	}
	slices.Reverse(l.chain)
	return nil
}

// findEnd reads the last segment up to its end.
func (l *FileLog) findEnd() error {
	if len(l.chain) > 0 {
		last := l.chain[len(l.chain)-1]
		data, err := l.read(last)
		if err != nil {
			return err
		}
		off, why := segmentHeaderLen, frameBlank
		for {
			var f frame
			if f, why = readFrame(data, last.header, off); why != frameWhole {
				break
			}
			l.proven = max(l.proven, f.durable)
			off = int(f.end())
		}
		if proof := provenDurable(data, last.header, off); proof > uint32(off) {
			return corrupt(last.number, off, why)
		}
		l.end = Pos{Segment: last.number, Offset: uint32(off)}
	}
	// A segment beyond the end was lost before its first sync, unless one of
	// its frames knows better.
	for _, f := range l.files {
		if f.number <= l.end.Segment || f.state != headerBad && f.size <= segmentHeaderLen {
			continue
		}
		data, err := l.read(f)
		if err != nil {
			return err
		}
		if provenDurable(data, f.header, 0) > 0 {
			return fault.New(fault.Corruption, "corruption in %s at offset 0: damaged segment header", segmentName(f.number))
		}
	}
	return nil
}

func corrupt(segment uint64, off int, why verdict) error {
	return fault.New(fault.Corruption, "corruption in %s at offset %d: %s", segmentName(segment), off, string(why))
}

// ioError gives an error of the file system its kind.
func ioError(err error) error {
	switch {
	case err == nil || fault.KindOf(err) != 0:
		return err
	case isNoSpace(err):
		return fault.New(fault.Exhausted, "disk full: %w", err)
	}
	return fault.New(fault.Unavailable, "%w", err)
}

// End returns where the log ends: after its last whole frame.
func (l *FileLog) End() Pos { return l.end }

// Replay calls fn for every record at or after from, in the order they were
// appended. An error of fn ends it and is returned as it is. It may be called
// several times, before Start.
//
// It fails with fault.Corruption, naming file and offset, if bytes that were acknowledged
// are missing or are not what was written. fn may have seen the records before them.
func (l *FileLog) Replay(from Pos, fn func(Record) error) error {
	l.floor = max(l.floor, from.Segment)
	if err := l.checkRedoPoint(from); err != nil {
		return fmt.Errorf("replay commit log %s: %w", l.dir, err)
	}
	for i, s := range l.chain {
		if s.number < from.Segment {
			continue
		}
		end := l.end.Offset
		if i+1 < len(l.chain) {
			end = l.chain[i+1].header.prev.Offset
		}
		if err := l.replaySegment(s, end, from, fn); err != nil {
			return err
		}
	}
	return nil
}

// replayPart is how much of a segment is read at a time while what was read before
// is replayed.
const replayPart = 1 << 20

// replaySegment replays a segment up to end. Another goroutine reads the file and
// checks the frames, which is a third of the work.
func (l *FileLog) replaySegment(s segmentFile, end uint32, from Pos, fn func(Record) error) error {
	frames, ended := make(chan frame, 256), make(chan struct{})
	var readErr error
	go func() {
		defer close(frames)
		readErr = l.readFrames(s, end, func(f frame) error {
			select {
			case frames <- f:
				return nil
			case <-ended:
				return errReplayEnded
			}
		})
	}()
	err := func() error {
		defer func() { // also if fn panics: the buffer is the log's
			close(ended)
			for range frames {
			}
		}()
		return l.replayFrames(s, frames, from, fn)
	}()
	if err == nil && readErr != nil {
		err = fmt.Errorf("replay commit log %s: %w", l.dir, readErr)
	}
	return err
}

// errReplayEnded ends the reading of frames when the replay has ended.
var errReplayEnded = errors.New("the replay has ended")

// readFrames calls each with the frames of a segment up to end, whose content is in
// the log's buffer.
func (l *FileLog) readFrames(s segmentFile, end uint32, each func(frame) error) error {
	off := segmentHeaderLen
	err := l.readParts(s, replayPart, func(there int) error {
		for off < int(end) {
			if there < len(l.buf) {
				// The frame may go on in the next part.
				f, ok := parseFrameHeader(l.buf[:there], s.number, off)
				if there-off < frameHeaderLen || ok && uint64(there) < uint64(f.offset)+frameHeaderLen+uint64(f.length) {
					return nil
				}
			}
			f, v := readFrame(l.buf[:there], s.header, off)
			if v == frameWhole && f.end() > end {
				v = frameShort
			}
			if v != frameWhole {
				return corrupt(s.number, off, v)
			}
			if err := each(f); err != nil {
				return err
			}
			off = int(f.end())
		}
		return nil
	})
	if err == nil && off < int(end) {
		err = corrupt(s.number, off, frameBlank) // the file is shorter
	}
	return err
}

// replayFrames calls fn with the records of frames that come at or after from.
func (l *FileLog) replayFrames(s segmentFile, frames <-chan frame, from Pos, fn func(Record) error) error {
	var fnErr error
	each := func(r Record) error {
		if r.Pos.Less(from) {
			return nil
		}
		fnErr = fn(r)
		return fnErr
	}
	for f := range frames {
		if err := f.eachRecord(s.number, each); err != nil {
			if fnErr != nil {
				return fnErr
			}
			return fmt.Errorf("replay commit log %s: %s: %w", l.dir, segmentName(s.number), err)
		}
	}
	return nil
}

// checkRedoPoint fails if the log cannot hold everything since from.
func (l *FileLog) checkRedoPoint(from Pos) error {
	// The file of a segment is durable before a position in it is given out. So a crash
	// can take its content but not the file.
	if from.Segment > l.end.Segment &&
		!slices.ContainsFunc(l.files, func(f segmentFile) bool { return f.number == from.Segment }) {
		return fault.New(fault.Corruption, "%s of the redo point %v is missing; the log ends at %v",
			segmentName(from.Segment), from, l.end)
	}
	if len(l.chain) == 0 {
		return nil
	}
	first := l.chain[0]
	missing := first.header.prev.Segment
	if missing == 0 || first.number <= from.Segment || missing < from.Segment {
		return nil
	}
	if from == (Pos{}) && l.files[0].number > missing {
		return nil // no redo point, and the log was trimmed
	}
	return fault.New(fault.Corruption, "%s is missing, the redo point is %v", segmentName(missing), from)
}

// Start makes the end of the log durable and returns a Writer, which begins a
// new segment with its first record. A full disk is not an error here: the
// Writer refuses reservations until there is room.
func (l *FileLog) Start() (Writer, error) {
	if l.writer != nil {
		return nil, fault.New(fault.FailedPrecondition, "the commit log has a writer")
	}
	if err := l.finishReplay(); err != nil {
		return nil, fmt.Errorf("start commit log: %w", err)
	}
	l.buf, l.held = nil, 0
	w, err := newWriter(l)
	if err != nil {
		return nil, fmt.Errorf("start commit log: %w", err)
	}
	l.writer = w
	return w, nil
}

// finishReplay makes what Replay shows durable and removes segments never used.
func (l *FileLog) finishReplay() error {
	kept := l.files[:0]
	for _, f := range l.files {
		// One that a redo point names stays, as checkRedoPoint looks for it. Its number
		// must not be used again, since positions in it were given out and what was there
		// is lost.
		if f.number > max(l.end.Segment, l.floor) && f.state == headerBlank {
			if err := l.fs.Remove(l.path(f.number)); err != nil {
				return ioError(err)
			}
			continue
		}
		kept = append(kept, f)
	}
	l.files = kept
	if err := l.recoverSpares(); err != nil {
		return ioError(err)
	}
	if len(l.chain) > 0 {
		if err := l.rewriteTail(); err != nil {
			return fmt.Errorf("rewrite the tail of %s: %w", segmentName(l.end.Segment), ioError(err))
		}
	}
	return ioError(datadir.Sync(l.fs, l.dir))
}

// rewriteTail writes the unproven bytes of the last segment once more. After an fsync that
// failed they may be in the page cache and not on the disk, and clean, so that syncing
// alone would not write them.
func (l *FileLog) rewriteTail() error {
	last := &l.chain[len(l.chain)-1]
	data, err := l.read(*last)
	if err != nil {
		return err
	}
	f, err := l.fs.OpenReadWrite(l.path(last.number), WriteCategory)
	if err != nil {
		return err
	}
	defer f.Close()
	end := int64(l.end.Offset)
	if l.proven < l.end.Offset {
		if _, err := f.WriteAt(data[l.proven:end], int64(l.proven)); err != nil {
			return err
		}
		if err := f.SyncData(); err != nil {
			return err
		}
		l.proven = l.end.Offset
	}
	// Blocks that were never used go back, or what they had before; a torn write
	// stays to be looked at.
	_, v := readFrame(data, last.header, int(end))
	if int64(len(data)) > end && (v == frameBlank || v == frameBadHeader) && nextFrameHeader(data, last.header, int(end)) < 0 {
		truncate(f, end)
		last.size = end
	}
	return nil
}

// recoverSpares takes over the files that an earlier writer kept, and removes those that are
// of no use. These have another size, are too many, or are not older than every segment,
// so that their names might be needed again.
func (l *FileLog) recoverSpares() error {
	kept := l.free[:0]
	for _, n := range l.free {
		info, err := l.fs.Stat(l.freePath(n))
		if err != nil {
			return err
		}
		if info.Size() == l.opts.SegmentBytes && len(kept) < keepFree && len(l.files) > 0 && n < l.files[0].number {
			kept = append(kept, n)
		} else if err := l.fs.Remove(l.freePath(n)); err != nil {
			return err
		}
	}
	l.free = kept
	return nil
}

// Close ends the writer, if there is one, and releases the lock.
func (l *FileLog) Close() error {
	var err error
	if l.writer != nil {
		err = l.writer.Close()
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
		l.lock = nil
	}
	return err
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func newIncarnation() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}
