package commitlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	formatVersion = 1

	segmentHeaderLen = 64
	frameHeaderLen   = 40
	recordHeaderLen  = 24

	segmentMagic = "trestlog"
	frameMagic   = "\xf7TLg" // no UTF-8 text holds it

	lockName      = "LOCK"
	segmentSuffix = ".log"
	freeSuffix    = ".free" // of a segment that waits to be used again

	// The first blank of a reused file is as long as what a writer may read of it at once,
	// so writing it reads nothing.
	blankLen = 4096
	// headLen is what there is to know of a file from its start.
	headLen    = 128
	blankMagic = "trestnew"

	// maxSegmentBytes bounds a segment so that offsets fit 32 bits with room
	// for the arithmetic done on them.
	maxSegmentBytes = 3 << 30

	// MaxRecordBytes bounds the payload of one record, and of all that are
	// appended together.
	MaxRecordBytes = 1 << 30

	// RecordBytes is what a record takes beside its payload.
	RecordBytes = recordHeaderLen
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, crcTable) }

func segmentName(number uint64) string { return fmt.Sprintf("%012d", number) + segmentSuffix }

// freeName returns the name of a trimmed segment that is kept to be used again.
// No frame in it names a higher segment.
func freeName(number uint64) string { return fmt.Sprintf("%012d", number) + freeSuffix }

func parseSegmentName(name string) (number uint64, ok bool) { return parseName(name, segmentSuffix) }

func parseName(name, suffix string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 12 {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 32)
	return number, err == nil && number > 0
}

// A segmentHeader opens a segment and closes the one before it.
type segmentHeader struct {
	incarnation uint64
	segment     uint64
	prev        Pos // the end of the segment before; zero for the first
}

func (h segmentHeader) append(b []byte) []byte {
	start := len(b)
	b = append(b, segmentMagic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, h.incarnation)
	b = binary.LittleEndian.AppendUint64(b, h.segment)
	b = binary.LittleEndian.AppendUint64(b, h.prev.Segment)
	b = binary.LittleEndian.AppendUint32(b, h.prev.Offset)
	b = append(b, make([]byte, 16)...)
	return binary.LittleEndian.AppendUint32(b, checksum(b[start:]))
}

// headerState says what the first bytes of a file are.
type headerState uint8

const (
	headerBad   headerState = iota // something else, or damaged
	headerBlank                    // zeros: the file was allocated and not begun
	headerValid
)

// parseSegmentHeader reads the start of the file of the given number. Of a file without a
// valid header the returned one has the number. If that can be told, it also has the
// incarnation of the writer that is to begin it. Only a valid header of a format this
// program does not know is an error.
func parseSegmentHeader(b []byte, number uint64) (segmentHeader, headerState, error) {
	none := segmentHeader{segment: number}
	if isZero(b[:min(len(b), segmentHeaderLen)]) {
		none.incarnation = parseBlank(b, number)
		return none, headerBlank, nil
	}
	if len(b) < segmentHeaderLen || string(b[:8]) != segmentMagic ||
		checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return none, headerBad, nil
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return none, headerBad, fault.New(fault.FailedPrecondition,
			"log format version %d, this program knows %d", v, formatVersion)
	}
	h := segmentHeader{
		incarnation: binary.LittleEndian.Uint64(b[16:]),
		segment:     binary.LittleEndian.Uint64(b[24:]),
		prev: Pos{
			Segment: binary.LittleEndian.Uint64(b[32:]),
			Offset:  binary.LittleEndian.Uint32(b[40:]),
		},
	}
	if h.segment != number || h.prev.Segment >= number {
		return none, headerBad, nil
	}
	return h, headerValid, nil
}

// appendBlank appends what the start of a file is made when it is to be used
// again.
func appendBlank(b []byte, incarnation, segment uint64) []byte {
	start := len(b)
	b = append(b, make([]byte, blankLen)...)
	n := b[start+segmentHeaderLen : start+headLen]
	copy(n, blankMagic)
	binary.LittleEndian.PutUint64(n[8:], incarnation)
	binary.LittleEndian.PutUint64(n[16:], segment)
	binary.LittleEndian.PutUint32(n[60:], checksum(n[:60]))
	return b
}

// parseBlank returns the incarnation that a blank names, 0 if it is none for that segment.
// Then the file was never used before, and is all zeros.
func parseBlank(b []byte, segment uint64) (incarnation uint64) {
	if len(b) < headLen {
		return 0
	}
	n := b[segmentHeaderLen:headLen]
	if string(n[:8]) != blankMagic || binary.LittleEndian.Uint64(n[16:]) != segment ||
		checksum(n[:60]) != binary.LittleEndian.Uint32(n[60:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(n[8:])
}

var zeros [4096]byte

func isZero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}

// A frame is one group commit as found in a segment.
type frame struct {
	incarnation uint64
	offset      uint32 // of the frame header in its segment
	durable     uint32 // bytes of the segment that were synced before this frame
	records     uint32
	length      uint32
	payloadCRC  uint32
	payload     []byte
}

// end returns the offset after the frame.
func (f *frame) end() uint32 { return f.offset + frameHeaderLen + f.length }

// mark reports whether the frame is the mark of a clean Close.
func (f *frame) mark() bool { return f.records == 0 && f.length == 0 }

// putFrameHeader fills b[:frameHeaderLen]; the payload follows it in b.
func putFrameHeader(b []byte, incarnation, segment uint64, offset, durable, records uint32) {
	payload := b[frameHeaderLen:]
	copy(b, frameMagic)
	binary.LittleEndian.PutUint64(b[8:], incarnation)
	binary.LittleEndian.PutUint32(b[16:], uint32(segment))
	binary.LittleEndian.PutUint32(b[20:], offset)
	binary.LittleEndian.PutUint32(b[24:], durable)
	binary.LittleEndian.PutUint32(b[28:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[32:], checksum(payload))
	binary.LittleEndian.PutUint32(b[36:], records)
	binary.LittleEndian.PutUint32(b[4:], checksum(b[8:frameHeaderLen]))
}

// parseFrameHeader reads the frame header at off. The header proves its own place: it
// names segment and offset under its checksum. So bytes of a value that happen to be a
// copy of log bytes are not taken for a frame.
func parseFrameHeader(w window, segment uint64, off int) (frame, bool) {
	if off < w.base || off > math.MaxUint32 || w.end()-off < frameHeaderLen {
		return frame{}, false
	}
	b := w.data[off-w.base:][:frameHeaderLen]
	if string(b[:4]) != frameMagic ||
		checksum(b[8:]) != binary.LittleEndian.Uint32(b[4:]) ||
		binary.LittleEndian.Uint32(b[16:]) != uint32(segment) ||
		binary.LittleEndian.Uint32(b[20:]) != uint32(off) {
		return frame{}, false
	}
	return frame{
		incarnation: binary.LittleEndian.Uint64(b[8:]),
		offset:      uint32(off),
		durable:     binary.LittleEndian.Uint32(b[24:]),
		length:      binary.LittleEndian.Uint32(b[28:]),
		payloadCRC:  binary.LittleEndian.Uint32(b[32:]),
		records:     binary.LittleEndian.Uint32(b[36:]),
	}, true
}

// A verdict says what was found where a frame was expected.
type verdict string

const (
	frameWhole      verdict = "ok"
	frameBlank      verdict = "blank"
	frameBadHeader  verdict = "damaged frame header"
	frameForeign    verdict = "frame of another incarnation"
	frameShort      verdict = "frame cut off"
	frameBadPayload verdict = "frame payload does not match its checksum"
)

// readFrame reads the frame at off.
func readFrame(w window, h segmentHeader, off int) (frame, verdict) {
	f, ok := parseFrameHeader(w, h.segment, off)
	if !ok {
		if off >= w.end() || isZero(w.data[off-w.base:min(len(w.data), off-w.base+frameHeaderLen)]) {
			return frame{}, frameBlank
		}
		return frame{}, frameBadHeader
	}
	if f.incarnation != h.incarnation {
		return f, frameForeign
	}
	body := w.data[off-w.base+frameHeaderLen:]
	if uint64(len(body)) < uint64(f.length) {
		return f, frameShort
	}
	f.payload = body[:f.length]
	if checksum(f.payload) != f.payloadCRC {
		return f, frameBadPayload
	}
	return f, frameWhole
}

// nextFrameHeader returns the offset of the first frame header of the segment at or after
// off, or -1. What does not have the header's incarnation is no part of the segment,
// though a reused file is full of it. It is older frames, and values that a client may
// have made to look like frames of this segment; a client cannot know the incarnation. If
// the header has none (0), any will do.
func nextFrameHeader(w window, h segmentHeader, off int) int {
	for off < w.end() {
		i := bytes.Index(w.data[off-w.base:], []byte(frameMagic))
		if i < 0 {
			return -1
		}
		off += i
		if f, ok := parseFrameHeader(w, h.segment, off); ok && (h.incarnation == 0 || h.incarnation == f.incarnation) {
			return off
		}
		off++
	}
	return -1
}

// provenDurable returns the highest offset of the segment that one of its frame
// headers at or after off calls durable.
func provenDurable(w window, h segmentHeader, off int) (durable uint32) {
	p := proof{header: h, from: off}
	p.look(w)
	return p.durable
}

func putRecordHeader(b []byte, length, n uint32, tablet, firstSeq uint64) {
	binary.LittleEndian.PutUint32(b, length)
	binary.LittleEndian.PutUint32(b[4:], n)
	binary.LittleEndian.PutUint64(b[8:], tablet)
	binary.LittleEndian.PutUint64(b[16:], firstSeq)
}

// eachRecord calls fn for each record of a whole frame, in order. An error of fn
// ends it and is returned; a payload that is not a list of records is
// corruption, since its checksum held.
func (f *frame) eachRecord(segment uint64, fn func(Record) error) error {
	b, count := f.payload, uint32(0)
	for len(b) > 0 {
		off := f.offset + frameHeaderLen + uint32(len(f.payload)-len(b))
		if len(b) < recordHeaderLen || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-recordHeaderLen) {
			return fault.New(fault.Corruption, "record at offset %d exceeds its frame", off)
		}
		end := recordHeaderLen + int(binary.LittleEndian.Uint32(b))
		r := Record{
			N:        int(binary.LittleEndian.Uint32(b[4:])),
			Tablet:   binary.LittleEndian.Uint64(b[8:]),
			FirstSeq: binary.LittleEndian.Uint64(b[16:]),
			Payload:  b[recordHeaderLen:end:end],
			Pos:      Pos{Segment: segment, Offset: off},
		}
		if err := fn(r); err != nil {
			return err
		}
		b = b[end:]
		count++
	}
	if count != f.records {
		return fault.New(fault.Corruption, "frame at offset %d holds %d records, its header says %d", f.offset, count, f.records)
	}
	return nil
}
