package wire

import (
	"encoding/binary"

	"github.com/klauspost/compress/snappy"

	"github.com/trestledb/trestle/engine/fault"
)

// A Compressor compresses cell blocks, as a Hadoop codec does:
//
//	uncompressed length i32 { chunk length i32, chunk }*   repeated
type Compressor interface {
	// Compress appends the compressed form of block.
	Compress(dst, block []byte) []byte
	// Decompress returns a block of at most limit bytes.
	Decompress(b []byte, limit int) ([]byte, error)
}

// CompressorOf returns the compressor with a Java class name, nil for the
// empty name. ok is false if there is none.
func CompressorOf(class string) (c Compressor, ok bool) {
	switch class {
	case "":
		return nil, true
	case "org.apache.hadoop.io.compress.SnappyCodec":
		return snappyCodec{}, true
	}
	return nil, false
}

type snappyCodec struct{}

// snappyChunk is what fits, compressed, into the 256 KiB buffer of a reader.
const snappyChunk = 256<<10*5/6 - 32

func (snappyCodec) Compress(dst, block []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(block)))
	for len(block) > 0 {
		chunk := block[:min(len(block), snappyChunk)]
		block = block[len(chunk):]
		at := len(dst)
		if need := at + 4 + snappy.MaxEncodedLen(len(chunk)); need > cap(dst) {
			dst = append(make([]byte, 0, max(need, 2*cap(dst))), dst...)
		}
		enc := snappy.Encode(dst[at+4:cap(dst)], chunk)
		dst = dst[:at+4+len(enc)]
		binary.BigEndian.PutUint32(dst[at:], uint32(len(enc)))
	}
	return dst
}

func (snappyCodec) Decompress(b []byte, limit int) ([]byte, error) {
	bad := func(what string) ([]byte, error) {
		return nil, fault.New(fault.Invalid, "malformed compressed cell block: %s", what)
	}
	var out []byte
	for len(b) > 0 {
		if len(b) < 4 {
			return bad("it ends within a length")
		}
		left := int(binary.BigEndian.Uint32(b))
		b = b[4:]
		if left > limit-len(out) {
			return nil, fault.New(fault.Exhausted, "cell block of more than %d bytes", limit)
		}
		for left > 0 {
			if len(b) < 4 {
				return bad("it ends within a length")
			}
			n := binary.BigEndian.Uint32(b)
			if b = b[4:]; uint64(n) > uint64(len(b)) {
				return bad("a chunk is longer than the block")
			}
			size, err := snappy.DecodedLen(b[:n])
			if err != nil || size > left || size == 0 {
				return bad("a chunk of another length")
			}
			at := len(out)
			if need := at + size; need > cap(out) {
				out = append(make([]byte, 0, max(need, 2*cap(out))), out...)
			}
			dec, err := snappy.Decode(out[at:at+size], b[:n])
			if err != nil || len(dec) != size {
				return bad("a chunk that is not Snappy's")
			}
			out, b, left = out[:at+size], b[n:], left-size
		}
	}
	return out, nil
}
