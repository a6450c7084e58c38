package exec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"syscall"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A spill is rows in a temporary file: frames of a length, the CRC32C of what
// follows, and a batch as appendBatch writes it. The file has no name: it goes with
// the process.
type spill struct {
	x     *execution
	stats *algebra.Stats
	name  string // of the operator
	types []*types.Type
	file  *os.File
	buf   []byte
	small *bytes.Reader // instead of file
	size  int64         // written to the file
	n     int64         // rows
}

const (
	frameHeader = 8
	// frameTarget is how long a frame becomes, about, and bufferTarget how much is written
	// at a time. A merge of many runs holds a frame of each.
	frameTarget  = 64 << 10
	bufferTarget = 64 << 10
	// smallSpill is how long a spill stays in memory when no more rows come: a file costs
	// more than a page of memory.
	smallSpill = 4 << 10
)

var spillSums = crc32.MakeTable(crc32.Castagnoli)

func (x *execution) newSpill(name string, stats *algebra.Stats, ts []*types.Type) *spill {
	return &spill{x: x, name: name, stats: stats, types: ts}
}

// append adds rows: those of sel, or all n.
func (s *spill) append(cols []*types.Vector, sel []int32, n int) error {
	if sel != nil {
		n = len(sel)
	}
	if n == 0 {
		return nil
	}
	// As many rows to a frame as make it about frameTarget long.
	step := int(min(int64(n), max(1, frameTarget*int64(n)/max(1, batchBytes(cols, sel, n)))))
	for from := 0; from < n; from += step {
		take := min(step, n-from)
		start := len(s.buf)
		s.buf = append(s.buf, make([]byte, frameHeader)...)
		s.buf = appendBatch(s.buf, s.types, cols, sel, from, take)
		payload := s.buf[start+frameHeader:]
		if int64(len(payload)) > int64(1)<<31 {
			return fault.New(fault.Exhausted, "%s cannot spill a row of %d bytes", s.name, len(payload))
		}
		binary.LittleEndian.PutUint32(s.buf[start:], uint32(len(payload)))
		binary.LittleEndian.PutUint32(s.buf[start+4:], crc32.Checksum(payload, spillSums))
		s.n += int64(take)
		if len(s.buf) >= bufferTarget {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// flush writes what is buffered.
func (s *spill) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.x.Pool.limits.Dir, "trestle-query-*")
		if err != nil {
			return spillError(s.name, err)
		}
		s.file = f
		s.x.filesMu.Lock()
		if s.x.files == nil {
			s.x.files = map[*spill]struct{}{}
		}
		s.x.files[s] = struct{}{}
		s.x.filesMu.Unlock()
		if err := os.Remove(f.Name()); err != nil {
			return spillError(s.name, err)
		}
	}
	n := int64(len(s.buf))
	if err := s.x.Pool.spillRoom(s.name, n); err != nil {
		return err
	}
	// What was counted is given back by close, also if the write fails.
	offset := s.size
	s.size += n
	if s.stats != nil {
		s.stats.Spilled += n
	}
	if _, err := s.file.WriteAt(s.buf, offset); err != nil {
		return spillError(s.name, err)
	}
	s.buf = s.buf[:0]
	return nil
}

func spillError(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.New(fault.Exhausted, "%s cannot spill: %w", name, err)
	}
	return fault.New(fault.Internal, "%s cannot spill: %w", name, err)
}

// finish writes the rest and frees the buffer. Rows can be read afterwards.
func (s *spill) finish() error {
	if s.file == nil && s.small == nil && len(s.buf) <= smallSpill {
		s.size = int64(len(s.buf))
		s.small, s.buf = bytes.NewReader(s.buf), nil
		return nil
	}
	err := s.flush()
	s.buf = nil
	return err
}

// close frees the file. It may be called again.
func (s *spill) close() {
	s.buf, s.small = nil, nil
	if s.file == nil {
		return
	}
	s.file.Close()
	s.file = nil
	s.x.filesMu.Lock()
	delete(s.x.files, s)
	s.x.filesMu.Unlock()
	s.x.Pool.spills.Add(-s.size)
}

// A spillReader reads the rows of a spill in order. Several may read one.
type spillReader struct {
	spill  *spill
	offset int64
	batch  types.Batch
	frame  []byte
}

func (s *spill) reader() *spillReader {
	return &spillReader{spill: s, batch: types.Batch{Cols: newVectors(s.types)}}
}

// next returns the next rows, or io.EOF. The batch is valid until the next call.
func (r *spillReader) next() (*types.Batch, error) {
	s := r.spill
	if r.offset >= s.size {
		return nil, io.EOF
	}
	var from io.ReaderAt = s.file
	if s.small != nil {
		from = s.small
	}
	payload, err := readFrame(from, &r.offset, s.size, &r.frame)
	if err != nil {
		return nil, err
	}
	// The strings of the batch lie in this copy.
	if err := decodeBatch(string(payload), s.types, &r.batch); err != nil {
		return nil, err
	}
	return &r.batch, nil
}

// readFrame returns the payload of the frame at *offset of a file of size bytes,
// and moves *offset behind it. *room is memory that is used again.
func readFrame(f io.ReaderAt, offset *int64, size int64, room *[]byte) ([]byte, error) {
	var header [frameHeader]byte
	if size-*offset < frameHeader {
		return nil, errDamaged("a frame ends early")
	}
	if _, err := f.ReadAt(header[:], *offset); err != nil {
		return nil, fault.New(fault.Internal, "reading a temporary file: %w", err)
	}
	n := int64(binary.LittleEndian.Uint32(header[:]))
	if n > size-*offset-frameHeader {
		return nil, errDamaged("a frame is longer than the file")
	}
	if int64(cap(*room)) < n {
		*room = make([]byte, n)
	}
	payload := (*room)[:n]
	if _, err := f.ReadAt(payload, *offset+frameHeader); err != nil && !(errors.Is(err, io.EOF)) {
		return nil, fault.New(fault.Internal, "reading a temporary file: %w", err)
	}
	if crc32.Checksum(payload, spillSums) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, errDamaged("a checksum does not fit")
	}
	*offset += frameHeader + n
	return payload, nil
}
