package changes

import (
	"bytes"
	"context"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// Verify reads all of the file. It verifies every checksum, and that the records are
// those that the directory and the indexes say, in order. What is wrong is
// fault.Corruption.
func (c *File) Verify(ctx context.Context) error {
	var raw int64
	for i := range c.chunks {
		n, err := c.verify(ctx, &c.chunks[i])
		if err != nil {
			return c.annotate(err)
		}
		raw += n
	}
	if raw != c.info.RawBytes {
		return c.annotate(fault.New(fault.Corruption, "its records have %d bytes, and the directory says %d", raw, c.info.RawBytes))
	}
	return nil
}

// verify returns how many bytes the blocks of a chunk are.
func (c *File) verify(ctx context.Context, k *chunk) (raw int64, err error) {
	u := cursor{f: c, k: k, b: &bounds{through: cell.MaxSeq}}
	if err := u.start(ctx, nil); err != nil {
		return 0, err
	}
	var first, last []byte
	var stamp, lo, hi cell.Seq
	var n uint64
	for {
		was := u.next
		ok, err := u.advance(ctx)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		if u.next != was {
			raw += int64(u.size)
			if !bytes.Equal(u.key, u.index[u.next-1].first) {
				return 0, fault.New(fault.Corruption, "the index at %d names another row than its block begins with", k.at+int64(k.blocks))
			}
		}
		if n == 0 {
			first, lo, hi = bytes.Clone(u.key), u.rec.Stamp, u.rec.Stamp
		} else if d := bytes.Compare(last, u.key); d > 0 || d == 0 && u.rec.Stamp <= stamp {
			return 0, fault.New(fault.Corruption, "row %q with stamp %d of the chunk at %d is out of order", u.key, u.rec.Stamp, k.at)
		}
		n++
		last, stamp = append(last[:0], u.key...), u.rec.Stamp
		lo, hi = min(lo, stamp), max(hi, stamp)
	}
	if n != k.records || lo != k.lo || hi != k.hi || !bytes.Equal(first, k.first) || !bytes.Equal(last, k.last) {
		return 0, fault.New(fault.Corruption, "the chunk at %d has %d records with stamps %d to %d, and the directory says %d with %d to %d", k.at, n, lo, hi, k.records, k.lo, k.hi)
	}
	return raw, nil
}
