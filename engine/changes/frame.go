package changes

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/klauspost/compress/s2"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	stored     = 0
	compressed = 1
	frameTail  = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendFrame appends the frame of content.
func appendFrame(dst, content []byte) []byte {
	start := len(dst)
	if need := start + s2.MaxEncodedLen(len(content)) + frameTail; need > cap(dst) {
		dst = append(make([]byte, 0, max(need, 2*cap(dst))), dst...)
	}
	n := len(s2.EncodeSnappy(dst[start:cap(dst)], content))
	kind := byte(compressed)
	if n >= len(content) {
		n, kind = copy(dst[start:cap(dst)], content), stored
	}
	dst = append(dst[:start+n], kind)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// openFrame returns the content of a frame: a part of it, or in buf, which it
// returns too.
func openFrame(buf, frame []byte) (content, newBuf []byte, err error) {
	n := len(frame) - frameTail
	if n < 0 || crc32.Checksum(frame[:n+1], castagnoli) != binary.LittleEndian.Uint32(frame[n+1:]) {
		return nil, buf, fault.New(fault.Corruption, "%d bytes have a wrong checksum", len(frame))
	}
	switch frame[n] {
	case stored:
		return frame[:n], buf, nil
	case compressed:
		// Three bytes stand for 64 at most.
		size, err := s2.DecodedLen(frame[:n])
		if err != nil || size > 22*n {
			return nil, buf, fault.New(fault.Corruption, "%d bytes do not decompress", n)
		}
		if size > cap(buf) {
			buf = make([]byte, size)
		}
		content, err = s2.Decode(buf[:cap(buf)], frame[:n])
		if err != nil {
			return nil, buf, fault.New(fault.Corruption, "%d bytes do not decompress: %w", n, err)
		}
		return content, buf, nil
	}
	return nil, buf, fault.New(fault.Corruption, "unknown compression %d", frame[n])
}

// A decoder takes parts from the front of bytes. Once something is missing it is
// bad, and takes nothing more.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.b, d.bad = nil, true }

func (d *decoder) uvarint() uint64 {
	if len(d.b) > 0 && d.b[0] < 0x80 {
		v := d.b[0]
		d.b = d.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
