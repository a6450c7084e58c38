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
	// unused says that the file goes on behind the end, and has nothing there that was
	// written for the last segment.
	unused bool
	tail   vfs.File // that of the last segment, until it is shrunk
	// written are the files beyond the last segment that have frames of their number.
	written map[uint64]bool
	// spare is the segment never used that the writer begins with, 0 if there is none.
	spare uint64
	// floor is the highest segment number a redo point named.
	floor  uint64
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
	spent := make(chan batch, replayWindows)
	for range cap(spent) {
		spent <- batch{}
	}
	for i, s := range l.chain {
		if s.number < from.Segment {
			continue
		}
		end := l.end.Offset
		if i+1 < len(l.chain) {
			end = l.chain[i+1].header.prev.Offset
		}
		if err := l.replaySegment(s, end, from, spent, fn); err != nil {
			return err
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
func (l *FileLog) Start() (_ Writer, err error) {
	if l.writer != nil {
		return nil, fault.New(fault.FailedPrecondition, "the commit log has a writer")
	}
	defer func() {
		if err != nil {
			l.shrinkTail()
			err = fmt.Errorf("start commit log: %w", err)
		}
	}()
	if err := l.finishReplay(); err != nil {
		return nil, err
	}
	w, err := newWriter(l)
	if err != nil {
		return nil, err
	}
	l.writer = w
	return w, nil
}

// finishReplay makes what Replay shows durable, and removes segments never used, but for
// the first, which is used now.
func (l *FileLog) finishReplay() error {
	kept := l.files[:0]
	for _, f := range l.files {
		// One that a redo point names stays, as checkRedoPoint looks for it. Its number
		// must not be used again, since positions in it were given out and what was there
		// is lost.
		if f.number <= max(l.end.Segment, l.floor) || f.state != headerBlank {
			kept = append(kept, f)
			continue
		}
		// Removing a file of 64 MiB takes 25 ms. Frames of its number, which were never
		// durable, must not be found beside those of the next writer.
		if l.spare == 0 && f.size == l.opts.SegmentBytes && !l.written[f.number] {
			l.spare = f.number
		} else if err := l.fs.Remove(l.path(f.number)); err != nil {
			return ioError(err)
		}
	}
	if l.files = kept; l.spare != 0 && len(kept) > 0 && kept[len(kept)-1].number > l.spare {
		if err := l.fs.Remove(l.path(l.spare)); err != nil { // a damaged one follows it
			return ioError(err)
		}
		l.spare = 0
	}
	if err := l.recoverSpares(); err != nil {
		return ioError(err)
	}
	if l.end != (Pos{}) {
		if err := l.rewriteTail(); err != nil {
			return fmt.Errorf("rewrite the tail of %s: %w", segmentName(l.end.Segment), ioError(err))
		}
	}
	return ioError(datadir.Sync(l.fs, l.dir))
}

// rewriteTail writes the unproven bytes of the last segment once more. After an fsync that
// failed they may be in the page cache and not on the disk, and clean, so that syncing
// alone would not write them.
//
// Blocks behind them that were never used go back, or what they had before: at once if the
// disk is full, else by shrinkTail. A torn write stays to be looked at.
func (l *FileLog) rewriteTail() error {
	f, err := l.fs.OpenReadWrite(l.path(l.end.Segment), WriteCategory)
	if err != nil {
		return err
	}
	// The file is opened here, while it is sure to be there: Trim may remove it.
	if l.tail = f; !l.unused || l.checkFree(l.opts.SegmentBytes) != nil {
		defer l.shrinkTail()
	}
	if l.proven >= l.end.Offset {
		return nil
	}
	unproven := make([]byte, l.end.Offset-l.proven)
	if err := readFull(f, unproven, int64(l.proven)); err != nil {
		return err
	}
	if _, err := f.WriteAt(unproven, int64(l.proven)); err != nil {
		return err
	}
	if err := f.SyncData(); err != nil {
		return err
	}
	l.proven = l.end.Offset
	return nil
}

// shrinkTail ends the last segment's file where the log ends, and closes it.
func (l *FileLog) shrinkTail() {
	if l.tail == nil {
		return
	}
	if l.unused {
		truncate(l.tail, int64(l.end.Offset))
	}
	_ = l.tail.Close() // what matters is synced
	l.tail = nil
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
