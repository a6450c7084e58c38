package commitlog

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// The form of a segment object; doc.go has the picture.
const (
	objectMagic   = "trestseg"
	objectVersion = 1

	objectHeaderLen = 64
	extentLen       = 24

	kindSegment = 1
	kindFence   = 2

	// fenceLen is the size of a fence. A segment is always larger, so that a
	// listing tells the two apart.
	fenceLen = objectHeaderLen
)

// objectName returns the name of a segment or fence. Names sort as IDs and
// indexes do.
func objectName(id ID, index uint64) string { return objectstore.SequenceName(id.String(), index) }

func parseObjectName(name string) (id ID, index uint64, ok bool) {
	log, digits, ok := strings.Cut(name, "/")
	if !ok || len(log) != 16 || len(digits) != 15 {
		return 0, 0, false
	}
	v, err := strconv.ParseUint(log, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	index, err = strconv.ParseUint(digits, 10, 64)
	return ID(v), index, err == nil && v > 0 && index > 0 && objectName(ID(v), index) == name
}

// An objectHeader opens a segment, and is all of a fence.
type objectHeader struct {
	kind  uint32
	log   ID
	index uint64
	// nonce is the writer's own, the same in all its segments. It tells a put whose
	// outcome got lost from that of another writer.
	nonce uint64
	// acked is the index up to which every segment was acknowledged, and
	// therefore there, when this one was built. It proves that a hole at or below
	// it was trimmed, and is not a place for a fence.
	acked    uint64
	extents  uint32
	padding  uint32 // zeros behind the extents, which nothing writes any more
	indexCRC uint32 // of the extent entries
}

func (h *objectHeader) put(b []byte) {
	copy(b, objectMagic)
	binary.LittleEndian.PutUint32(b[8:], objectVersion)
	binary.LittleEndian.PutUint32(b[12:], h.kind)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.log))
	binary.LittleEndian.PutUint64(b[24:], h.index)
	binary.LittleEndian.PutUint64(b[32:], h.nonce)
	binary.LittleEndian.PutUint64(b[40:], h.acked)
	binary.LittleEndian.PutUint32(b[48:], h.extents)
	binary.LittleEndian.PutUint32(b[52:], h.padding)
	binary.LittleEndian.PutUint32(b[56:], h.indexCRC)
	binary.LittleEndian.PutUint32(b[60:], checksum(b[:60]))
}

// parseObjectHeader reads the header of the object of log id at index. Whatever
// is not one is fault.Corruption, but for a version that this program does not
// know.
func parseObjectHeader(b []byte, id ID, index uint64) (h objectHeader, err error) {
	bad := func(what string) (objectHeader, error) {
		return objectHeader{}, fault.New(fault.Corruption, "corruption in log object %s: %s", objectName(id, index), what)
	}
	if len(b) < objectHeaderLen || string(b[:8]) != objectMagic || checksum(b[:60]) != binary.LittleEndian.Uint32(b[60:]) {
		return bad("damaged header")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != objectVersion {
		return h, fault.New(fault.FailedPrecondition, "log object %s has format version %d, this program knows %d",
			objectName(id, index), v, objectVersion)
	}
	h = objectHeader{
		kind:     binary.LittleEndian.Uint32(b[12:]),
		log:      ID(binary.LittleEndian.Uint64(b[16:])),
		index:    binary.LittleEndian.Uint64(b[24:]),
		nonce:    binary.LittleEndian.Uint64(b[32:]),
		acked:    binary.LittleEndian.Uint64(b[40:]),
		extents:  binary.LittleEndian.Uint32(b[48:]),
		padding:  binary.LittleEndian.Uint32(b[52:]),
		indexCRC: binary.LittleEndian.Uint32(b[56:]),
	}
	switch {
	case h.log != id || h.index != index:
		return bad(fmt.Sprintf("it is that of log %v at index %d", h.log, h.index))
	case h.kind != kindSegment && h.kind != kindFence:
		return bad(fmt.Sprintf("unknown kind %d", h.kind))
	case h.kind == kindSegment && h.acked >= index:
		return bad(fmt.Sprintf("it says that segment %d was acknowledged", h.acked))
	}
	return h, nil
}

// fence returns a fence object.
func fence(id ID, index, nonce uint64) []byte {
	b := make([]byte, fenceLen)
	(&objectHeader{kind: kindFence, log: id, index: index, nonce: nonce}).put(b)
	return b
}

// An extent is where a segment keeps the records of one tablet, in the order
// they were appended.
type extent struct {
	tablet         uint64
	offset, length uint32 // in the object
	records        uint32
	crc            uint32 // of its bytes
}

func (e *extent) put(b []byte) {
	binary.LittleEndian.PutUint64(b, e.tablet)
	binary.LittleEndian.PutUint32(b[8:], e.offset)
	binary.LittleEndian.PutUint32(b[12:], e.length)
	binary.LittleEndian.PutUint32(b[16:], e.records)
	binary.LittleEndian.PutUint32(b[20:], e.crc)
}

// parseExtents reads the index, which b begins with. size is that of the object.
func (h *objectHeader) parseExtents(b []byte, size int64) ([]extent, error) {
	n := uint64(h.extents) * extentLen
	if uint64(len(b)) < n || checksum(b[:n]) != h.indexCRC {
		return nil, h.corrupt("damaged index")
	}
	out := make([]extent, h.extents)
	next := uint64(objectHeaderLen) + n
	for i := range out {
		e := b[i*extentLen:]
		out[i] = extent{
			tablet:  binary.LittleEndian.Uint64(e),
			offset:  binary.LittleEndian.Uint32(e[8:]),
			length:  binary.LittleEndian.Uint32(e[12:]),
			records: binary.LittleEndian.Uint32(e[16:]),
			crc:     binary.LittleEndian.Uint32(e[20:]),
		}
		if uint64(out[i].offset) != next {
			return nil, h.corrupt("extent %d is at offset %d, not %d", i, out[i].offset, next)
		}
		next += uint64(out[i].length)
	}
	if next += uint64(h.padding); next != uint64(size) {
		return nil, h.corrupt("it has %d bytes, its index says %d", size, next)
	}
	return out, nil
}

func (h *objectHeader) corrupt(format string, args ...any) error {
	return fault.New(fault.Corruption, "corruption in log object %s: %s", objectName(h.log, h.index), fmt.Sprintf(format, args...))
}

// eachRecord calls fn for each record of the extent whose bytes b are. An error
// of fn ends it and is returned as second result.
func (h *objectHeader) eachRecord(e *extent, b []byte, fn func(Record) error) (err, fnErr error) {
	if checksum(b) != e.crc {
		return h.corrupt("the records of tablet %x do not match their checksum", e.tablet), nil
	}
	count, last := uint32(0), int64(-1)
	for len(b) > 0 {
		if len(b) < recordHeaderLen || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-recordHeaderLen) {
			return h.corrupt("a record of tablet %x exceeds its extent", e.tablet), nil
		}
		end := recordHeaderLen + int(binary.LittleEndian.Uint32(b))
		ordinal := binary.LittleEndian.Uint32(b[8:])
		if int64(ordinal) <= last {
			return h.corrupt("record %d of tablet %x follows record %d", ordinal, e.tablet, last), nil
		}
		last = int64(ordinal)
		fnErr := fn(Record{
			Tablet:   e.tablet,
			FirstSeq: binary.LittleEndian.Uint64(b[16:]),
			N:        int(binary.LittleEndian.Uint32(b[4:])),
			Payload:  b[recordHeaderLen:end:end],
			Pos:      Pos{Log: h.log, Segment: h.index, Offset: ordinal},
		})
		if fnErr != nil {
			return nil, fnErr
		}
		b = b[end:]
		count++
	}
	if count != e.records {
		return h.corrupt("tablet %x has %d records, the index says %d", e.tablet, count, e.records), nil
	}
	return nil, nil
}

// buildRoom is kept free at the front of a builder's buffer, for the header and
// the index of a segment with one tablet.
const buildRoom = objectHeaderLen + extentLen

// A builder gathers the records of a segment.
type builder struct {
	buf  []byte // buildRoom bytes, then the records as appended
	out  []byte // the segment, if records had to change places
	recs []builtRecord
}

type builtRecord struct {
	tablet      uint64
	offset, end int // in buf
}

func (b *builder) reset() { b.buf, b.recs = b.buf[:0], b.recs[:0] }

// size returns how many bytes of records there are.
func (b *builder) size() int { return max(0, len(b.buf)-buildRoom) }

// add appends records and returns the ordinal of the first, the size of all and
// the sequence number that follows. They take most bytes at most, the first
// one's header not counted.
func (b *builder) add(tablet, firstSeq uint64, most int, recs Records) (ordinal uint32, size int, next uint64) {
	if len(b.buf) == 0 {
		b.buf = append(b.buf, make([]byte, buildRoom)...)
	}
	start, ordinal, next := len(b.buf), uint32(len(b.recs)), firstSeq
	buf := slices.Grow(b.buf, recordHeaderLen+most) // at once, not by halves while encoding
	for i := range recs.Records() {
		at := len(buf)
		var n int
		buf, n = encodeRecord(buf, 0, next, recs, i)
		binary.LittleEndian.PutUint64(buf[at+8:], uint64(len(b.recs))) // the ordinal
		b.recs = append(b.recs, builtRecord{tablet, at, len(buf)})
		next = after(next, n)
	}
	size = len(buf) - start
	if size < recordHeaderLen || size > recordHeaderLen+most {
		panic(fmt.Sprintf("commitlog: records of %d bytes in a reservation of %d", size, most))
	}
	b.buf = buf
	return ordinal, size, next
}

// build returns the segment as an object: the buffer itself if all records are
// of one tablet, else a copy in the order of tablets. It orders b.recs.
func (b *builder) build(h objectHeader) []byte {
	slices.SortStableFunc(b.recs, func(x, y builtRecord) int { return cmp.Compare(x.tablet, y.tablet) })
	var extents []extent
	for i, r := range b.recs {
		if i == 0 || b.recs[i-1].tablet != r.tablet {
			extents = append(extents, extent{tablet: r.tablet})
		}
		e := &extents[len(extents)-1]
		e.records++
		e.length += uint32(r.end - r.offset)
	}
	out := b.buf
	if len(extents) != 1 {
		head := objectHeaderLen + extentLen*len(extents)
		out = slices.Grow(b.out[:0], head+b.size())[:head]
		for _, r := range b.recs {
			out = append(out, b.buf[r.offset:r.end]...)
		}
		b.out = out
	}
	next := uint32(objectHeaderLen + extentLen*len(extents))
	for i := range extents {
		e := &extents[i]
		e.offset = next
		next += e.length
		e.crc = checksum(out[e.offset:next])
		e.put(out[objectHeaderLen+i*extentLen:])
	}
	h.extents = uint32(len(extents))
	h.indexCRC = checksum(out[objectHeaderLen : objectHeaderLen+extentLen*len(extents)])
	h.put(out)
	return out
}
