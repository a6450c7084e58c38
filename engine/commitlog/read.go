package commitlog

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// windowBytes is how much of a segment is in memory at a time, unless a frame is larger.
// A window stays in the processor's cache; the pages of a whole segment's buffer, which a
// process that starts has yet to be given, cost as much as reading it. Tests change it.
var windowBytes = 1 << 20

// replayWindows are those of a replay, of which some are read while one is replayed: more
// than two, since a goroutine takes its time to wake up. One above largeWindow is alone.
const (
	replayWindows = 5
	largeWindow   = 2 * groupBytes
)

// A window is bytes of a segment, from offset base on.
type window struct {
	base int
	data []byte
}

func (w window) end() int { return w.base + len(w.data) }

// until returns the part of the window before end.
func (w window) until(end uint32) window { return window{w.base, w.data[:int(end)-w.base]} }

// cutsFrame reports whether the frame at off may go on behind the window.
func (w window) cutsFrame(segment uint64, off int) bool {
	if w.end()-off < frameHeaderLen {
		return true
	}
	f, ok := parseFrameHeader(w, segment, off)
	return ok && uint64(f.offset)+frameHeaderLen+uint64(f.length) > uint64(w.end())
}

// A segmentReader reads a segment, window by window.
type segmentReader struct {
	segment uint64
	file    vfs.File
	size    int
}

func (l *FileLog) openSegment(s segmentFile) (*segmentReader, error) {
	f, err := l.fs.Open(l.path(s.number))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", segmentName(s.number), ioError(err))
	}
	return &segmentReader{s.number, f, int(s.size)}, nil
}

func (r *segmentReader) close() { _ = r.file.Close() }

// last reports whether the segment ends with w.
func (r *segmentReader) last(w window) bool { return w.end() == r.size }

// length returns that of the window that begins at from, which is an offset of w or its
// end. A frame that begins there and has its header in w is whole, if the file has it.
func (r *segmentReader) length(w window, from int) int {
	n := windowBytes
	if f, ok := parseFrameHeader(w, r.segment, from); ok {
		n = max(n, frameHeaderLen+int(f.length))
	}
	return min(n, r.size-from)
}

// next returns the window that begins at from. It uses buf, which may be that of w.
func (r *segmentReader) next(buf []byte, w window, from int) (window, error) {
	there, n := w.data[from-w.base:], r.length(w, from)
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	copy(buf, there)
	if err := readFull(r.file, buf[len(there):], int64(from+len(there))); err != nil {
		return window{}, fmt.Errorf("read %s: %w", segmentName(r.segment), ioError(err))
	}
	return window{from, buf}, nil
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

// read returns all bytes of a segment.
func (l *FileLog) read(s segmentFile) (window, error) {
	r, err := l.openSegment(s)
	if err != nil {
		return window{}, err
	}
	defer r.close()
	all := window{data: make([]byte, s.size)}
	if err := readFull(r.file, all.data, 0); err != nil {
		return window{}, fmt.Errorf("read %s: %w", segmentName(s.number), ioError(err))
	}
	return all, nil
}

// eachWindow calls fn with the windows of a segment from an offset on. fn returns where the
// next one is to begin.
func (l *FileLog) eachWindow(s segmentFile, from int, fn func(w window, last bool) (from int)) error {
	r, err := l.openSegment(s)
	if err != nil {
		return err
	}
	defer r.close()
	for w := (window{base: from}); ; {
		if w, err = r.next(w.data, w, from); err != nil {
			return err
		}
		if from = fn(w, r.last(w)); r.last(w) {
			return nil
		}
	}
}

// A proof is what the frame headers behind an offset say of a segment.
type proof struct {
	header  segmentHeader
	from    int    // the offset
	found   bool   // there is such a header
	durable uint32 // the highest offset that one of them calls durable
}

// look looks for frame headers in w, and returns where to go on with the next window.
func (p *proof) look(w window) (from int) {
	for p.from = max(p.from, w.base); ; p.from += frameHeaderLen {
		off := nextFrameHeader(w, p.header, p.from)
		if off < 0 {
			p.from = max(p.from, w.end()-frameHeaderLen+1) // one may begin there
			return min(p.from, w.end())
		}
		f, _ := parseFrameHeader(w, p.header.segment, off)
		p.found, p.durable, p.from = true, max(p.durable, f.durable), off
	}
}

// findEnd reads the last segment up to its end, and the files beyond it.
func (l *FileLog) findEnd() error {
	if len(l.chain) == 0 {
		return l.checkBeyond(0)
	}
	last := l.chain[len(l.chain)-1]
	beyond := make(chan error)
	go func() { beyond <- l.checkBeyond(last.number) }()
	err := l.readEnd(last)
	return cmp.Or(err, <-beyond)
}

// readEnd reads the last segment up to its end.
func (l *FileLog) readEnd(last segmentFile) error {
	off, why := segmentHeaderLen, frameWhole
	var behind proof
	err := l.eachWindow(last, off, func(w window, final bool) int {
		for why == frameWhole {
			if !final && w.cutsFrame(last.number, off) {
				return off
			}
			var f frame
			if f, why = readFrame(w, last.header, off); why == frameWhole {
				l.proven = max(l.proven, f.durable)
				off = int(f.end())
			} else { // the end
				behind = proof{header: last.header, from: off}
			}
		}
		return behind.look(w)
	})
	if err != nil {
		return err
	}
	if behind.durable > uint32(off) {
		return corrupt(last.number, off, why)
	}
	l.end = Pos{Segment: last.number, Offset: uint32(off)}
	l.unused = int64(off) < last.size && (why == frameBlank || why == frameBadHeader) && !behind.found
	return nil
}

// checkBeyond reads the files beyond the last segment. One was lost before its first sync,
// unless one of its frames knows better.
func (l *FileLog) checkBeyond(last uint64) error {
	l.written = map[uint64]bool{}
	for _, f := range l.files {
		if f.number <= last || f.state != headerBad && f.size <= segmentHeaderLen {
			continue
		}
		all := proof{header: f.header}
		if err := l.eachWindow(f, 0, func(w window, _ bool) int { return all.look(w) }); err != nil {
			return err
		}
		if all.durable > 0 {
			return fault.New(fault.Corruption, "corruption in %s at offset 0: damaged segment header", segmentName(f.number))
		}
		if all.found {
			l.written[f.number] = true
		}
	}
	return nil
}

// A batch is the frames of one window, whose bytes are in buf. A large one stands for all
// that there may be.
type batch struct {
	buf    []byte
	frames []frame
	large  bool
}

// replaySegment replays a segment up to end. Another goroutine reads the file and
// checks the frames, which is a third of the work. It takes its batches from spent.
func (l *FileLog) replaySegment(s segmentFile, end uint32, from Pos, spent chan batch, fn func(Record) error) error {
	batches, ended := make(chan batch, replayWindows), make(chan struct{})
	var readErr error
	go func() {
		defer close(batches)
		readErr = l.readFrames(s, end, spent, batches, ended)
	}()
	err := func() error {
		defer func() { // also if fn panics
			close(ended)
			for range batches {
			}
		}()
		for b := range batches {
			if err := l.replayFrames(s, b.frames, from, fn); err != nil {
				return err
			}
			if b.large {
				for range replayWindows - 1 {
					spent <- batch{}
				}
				b = batch{}
			}
			spent <- b
		}
		return nil
	}()
	if err == nil && readErr != nil {
		err = fmt.Errorf("replay commit log %s: %w", l.dir, readErr)
	}
	return err
}

// readFrames sends the frames of a segment up to end, window by window, until there are
// no more or ended is closed.
func (l *FileLog) readFrames(s segmentFile, end uint32, spent <-chan batch, batches chan<- batch, ended <-chan struct{}) error {
	r, err := l.openSegment(s)
	if err != nil {
		return err
	}
	defer r.close()
	w, off := window{base: segmentHeaderLen}, segmentHeaderLen
	for err == nil && off < int(end) {
		var b batch
		take := 1
		if r.length(w, off) > largeWindow {
			take = replayWindows
		}
		for range take {
			select {
			case b = <-spent:
			case <-ended:
				return nil
			}
		}
		if w, err = r.next(b.buf, w, off); err != nil {
			return err
		}
		b = batch{w.data, b.frames[:0], take > 1}
		for off < int(end) && (r.last(w) || !w.cutsFrame(s.number, off)) {
			f, v := readFrame(w, s.header, off)
			if v == frameWhole && f.end() > end {
				v = frameShort
			}
			if v != frameWhole {
				err = corrupt(s.number, off, v) // but first what is before it
				break
			}
			b.frames = append(b.frames, f)
			off = int(f.end())
		}
		select {
		case batches <- b:
		case <-ended:
			return nil
		}
	}
	return err
}

// replayFrames calls fn with the records of frames that come at or after from.
func (l *FileLog) replayFrames(s segmentFile, frames []frame, from Pos, fn func(Record) error) error {
	var fnErr error
	each := func(r Record) error {
		if r.Pos.Less(from) {
			return nil
		}
		fnErr = fn(r)
		return fnErr
	}
	for i := range frames {
		if err := frames[i].eachRecord(s.number, each); err != nil {
			if fnErr != nil {
				return fnErr
			}
			return fmt.Errorf("replay commit log %s: %s: %w", l.dir, segmentName(s.number), err)
		}
	}
	return nil
}
