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

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}
