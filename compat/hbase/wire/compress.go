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
	// DecompressedLen returns how long a block is when it is decompressed; Exhausted
	// above limit.
	DecompressedLen(b []byte, limit int) (int, error)
	// Decompress returns a block of that length.
	Decompress(b []byte, length int) ([]byte, error)
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

// DecompressedLen sums the lengths that the parts of b say they have.
func (snappyCodec) DecompressedLen(b []byte, limit int) (int, error) {
	n := 0
	for len(b) > 0 {
		part, err := nextPart(&b)
		if err != nil {
			return 0, err
		}
		if part > limit-n {
			return 0, fault.New(fault.Exhausted, "cell block of more than %d bytes", limit)
		}
		for n += part; part > 0; {
			_, size, err := nextChunk(&b, part)
			if err != nil {
				return 0, err
			}
			part -= size
		}
	}
	return n, nil
}

func (snappyCodec) Decompress(b []byte, n int) ([]byte, error) {
	out := make([]byte, 0, n)
	for len(b) > 0 {
		part, err := nextPart(&b)
		if err != nil {
			return nil, err
		}
		for part > 0 {
			chunk, size, err := nextChunk(&b, part)
			if err != nil {
				return nil, err
			}
			if size > n-len(out) {
				return nil, badBlock("it is longer than it says")
			}
			dec, err := snappy.Decode(out[len(out):len(out)+size], chunk)
			if err != nil || len(dec) != size {
				return nil, badBlock("a chunk that is not Snappy's")
			}
			out, part = out[:len(out)+size], part-size
		}
	}
	return out, nil
}

func badBlock(what string) error {
	return fault.New(fault.Invalid, "malformed compressed cell block: %s", what)
}

// nextPart takes the length that a part of *b has when it is decompressed.
func nextPart(b *[]byte) (int, error) {
	if len(*b) < 4 {
		return 0, badBlock("it ends within a length")
	}
	n := binary.BigEndian.Uint32(*b)
	*b = (*b)[4:]
	return int(n), nil
}

// nextChunk takes a chunk of *b, which decompresses to size bytes of the left
// ones of its part.
func nextChunk(b *[]byte, left int) (chunk []byte, size int, err error) {
	if len(*b) < 4 {
		return nil, 0, badBlock("it ends within a length")
	}
	n := binary.BigEndian.Uint32(*b)
	if *b = (*b)[4:]; uint64(n) > uint64(len(*b)) {
		return nil, 0, badBlock("a chunk is longer than the block")
	}
	chunk, *b = (*b)[:n], (*b)[n:]
	if size, err = snappy.DecodedLen(chunk); err != nil || size > left || size == 0 {
		return nil, 0, badBlock("a chunk of another length")
	}
	return chunk, size, nil
}
