package commitlog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir"
)

// A Gap is a part of a log in files that holds, or held, acknowledged records and
// cannot be read.
type Gap struct {
	File string
	// Start and End bound its bytes; an End of 0 means all of a file that is missing.
	Start, End uint32
	// Why says what is there instead of what was written.
	Why string
}

// String says where the gap is, and why.
func (g Gap) String() string {
	if g.End == 0 {
		return fmt.Sprintf("%s: %s", g.File, g.Why)
	}
	return fmt.Sprintf("%s, bytes %d to %d: %s", g.File, g.Start, g.End, g.Why)
}

// Salvage calls each for the records of the log in dir that can be read, in the order they
// were appended. It calls gap in the place of those that cannot, where Open or Replay
// would refuse. It takes no lock and changes nothing. The end that a power cut leaves is
// no gap, and neither are segments that are missing from the front, as trimmed ones are.
func Salvage(fs vfs.FS, dir string, each func(Record) error, gap func(Gap)) error {
	return salvage(fs, dir, func(segment uint64, f *frame) error { return f.eachRecord(segment, each) }, gap)
}

func salvage(fs vfs.FS, dir string, each func(segment uint64, f *frame) error, gap func(Gap)) error {
	files, _, err := listSegments(fs, dir)
	if err != nil {
		return fmt.Errorf("read commit log %s: %w", dir, err)
	}
	l := &FileLog{fs: fs, dir: dir, files: files}
	ends := map[uint64]Pos{}     // of segments, by number, as the header of the next one says
	writers := map[uint64]bool{} // incarnations
	newest, there := uint64(0), map[uint64]bool{}
	for _, f := range files {
		there[f.number] = true
		if f.state == headerValid {
			newest, writers[f.header.incarnation] = f.number, true
			ends[f.header.prev.Segment] = f.header.prev
		}
	}
	begun := false
	for i, s := range files {
		end, sealed := ends[s.number]
		if s.state == headerValid && !sealed && i+1 < len(files) && files[i+1].state == headerValid && files[i+1].header.prev.Segment < s.number {
			continue // the next segment follows one before this
		}
		data, err := l.read(s)
		if err != nil {
			return fmt.Errorf("read commit log %s: %w", dir, err)
		}
		h, name := s.header, segmentName(s.number)
		last, until := uint32(data.end()), uint32(data.end())
		if sealed {
			last, until = min(last, end.Offset), end.Offset
		}
		switch {
		case s.state == headerValid:
			if prev := h.prev.Segment; begun && prev != 0 && !there[prev] {
				gap(Gap{File: segmentName(prev), Why: "is missing"})
			}
		case !sealed && (s.number < newest || provenDurable(data, h, 0) == 0):
			continue // no part of the log: allocated and not begun, or torn
		default:
			if h.incarnation = writerOf(data, s.number, writers); h.incarnation == 0 {
				gap(Gap{File: name, End: max(until, segmentHeaderLen), Why: "damaged segment header, and no frame that can be told to be the log's"})
				begun = true
				continue
			}
			gap(Gap{File: name, End: segmentHeaderLen, Why: "damaged segment header"})
		}
		begun = true
		off := uint32(segmentHeaderLen)
		for off < last {
			f, v := readFrame(data.until(last), h, int(off))
			if v == frameWhole {
				if err := each(s.number, &f); err != nil {
					return err
				}
				off = f.end()
				continue
			}
			if !sealed && provenDurable(data, h, int(off)) <= off {
				break // the end of the log, as a power cut leaves it
			}
			next := until
			if v == frameBadPayload { // of a sound header
				next = f.end()
			} else if n := nextFrameHeader(data.until(last), h, int(off)+1); n >= 0 {
				next = uint32(n)
			}
			gap(Gap{File: name, Start: off, End: next, Why: string(v)})
			off = next
		}
		if sealed && off < until {
			gap(Gap{File: name, Start: off, End: until, Why: "the file ends"})
		}
	}
	return nil
}

// writerOf returns the incarnation that wrote a segment whose header is damaged, 0 if that
// cannot be told. It is that of its first frame, or of one that names the writer of
// another segment. A value that a client made to look like a frame is not in the place of
// the first. Nor does it know that number, which is random.
func writerOf(data window, segment uint64, writers map[uint64]bool) uint64 {
	if f, ok := parseFrameHeader(data, segment, segmentHeaderLen); ok {
		return f.incarnation
	}
	for off := 0; ; off += frameHeaderLen {
		if off = nextFrameHeader(data, segmentHeader{segment: segment}, off); off < 0 {
			return 0
		}
		if f, _ := parseFrameHeader(data, segment, off); writers[f.incarnation] {
			return f.incarnation
		}
	}
}

// Rewrite makes a new log in to, which must not be there, of what can be read of
// the log in dir, which may be missing, and of the records last, durably. Its segments follow
// those of dir, so that redo points from before stay behind it.
func Rewrite(fs vfs.FS, dir, to string, last ...Record) (err error) {
	files, free, err := listSegments(fs, dir)
	missing := isNotExist(err)
	if err != nil && !missing {
		return fmt.Errorf("rewrite commit log %s: %w", dir, err)
	}
	number := uint64(1)
	for _, f := range files {
		number = max(number, f.number+1)
	}
	for _, n := range free {
		number = max(number, n+1)
	}
	if err := datadir.Make(fs, to, 0o700); err != nil {
		return fmt.Errorf("rewrite commit log %s: %w", dir, err)
	}
	w := &rewriter{fs: fs, dir: to, header: segmentHeader{incarnation: newIncarnation(), segment: number}}
	if err = nil; !missing {
		err = salvage(fs, dir, func(_ uint64, f *frame) error {
			if f.mark() {
				return nil
			}
			return w.frame(f.records, f.payload)
		}, func(Gap) {})
	}
	for _, r := range last {
		if err == nil {
			payload := append(make([]byte, recordHeaderLen), r.Payload...)
			putRecordHeader(payload, uint32(len(r.Payload)), uint32(r.N), r.Tablet, r.FirstSeq)
			err = w.frame(1, payload)
		}
	}
	if err == nil {
		err = w.flush()
	}
	if err == nil {
		err = datadir.Sync(fs, to)
	}
	if err != nil {
		return fmt.Errorf("rewrite commit log %s: %w", dir, ioError(err))
	}
	return nil
}

// rewriteBytes is from where on a rewriter begins another segment.
const rewriteBytes = 64 << 20

// A rewriter writes segments that are not read before all of them are there.
type rewriter struct {
	fs     vfs.FS
	dir    string
	header segmentHeader // of the segment in buf
	buf    []byte
}

func (w *rewriter) frame(records uint32, payload []byte) error {
	if len(w.buf) > 0 && len(w.buf)+frameHeaderLen+len(payload) > rewriteBytes {
		end := uint32(len(w.buf))
		if err := w.flush(); err != nil {
			return err
		}
		w.header.prev = Pos{Segment: w.header.segment, Offset: end}
		w.header.segment++
	}
	w.append(records, payload)
	return nil
}

func (w *rewriter) append(records uint32, payload []byte) {
	if len(w.buf) == 0 {
		w.buf = w.header.append(w.buf)
	}
	off := len(w.buf)
	w.buf = append(append(w.buf, make([]byte, frameHeaderLen)...), payload...)
	// Everything before is synced when this can be read.
	putFrameHeader(w.buf[off:], w.header.incarnation, w.header.segment, uint32(off), uint32(off), records)
}

// flush writes the segment, if it has a frame.
func (w *rewriter) flush() (err error) {
	if len(w.buf) == 0 {
		return nil
	}
	f, err := w.fs.Create(w.fs.PathJoin(w.dir, segmentName(w.header.segment)), WriteCategory)
	if err != nil {
		return err
	}
	_, err = f.Write(w.buf)
	if err == nil {
		err = f.Sync()
	}
	w.buf = nil
	return errors.Join(err, f.Close())
}
