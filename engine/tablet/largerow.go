package tablet

import (
	"bytes"
	"context"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// LargeRowBytes is the size from which on a row is a large one, before compression.
const LargeRowBytes = 200 << 20

// A LargeRow is a row with LargeRowBytes or more.
type LargeRow struct {
	Key []byte
	// Bytes are those of its SSTables, RawBytes about what they were before compression.
	Bytes, RawBytes int64
}

// LargeRow returns the largest row of the tablet, nil if that is none of LargeRowBytes. It is
// known by the indexes of SSTables, each of which is read once; what memtables hold does not
// count. At most most are read now: read is their number, and the result is of those that
// were read so far.
func (t *Tablet) LargeRow(ctx context.Context, most int) (largest *LargeRow, read int, err error) {
	return t.largeRow(ctx, LargeRowBytes, most)
}

func (t *Tablet) largeRow(ctx context.Context, least int64, most int) (largest *LargeRow, read int, err error) {
	// A large row may be in several files.
	part := uint64(least / 4)
	v := t.pin()
	if v == nil {
		return nil, 0, t.gone()
	}
	defer v.release()
	rows := map[string]*LargeRow{}
	for _, u := range v.runs {
		for i := range u.files {
			f := &u.files[i]
			if f.ref.RawBytes < part {
				continue
			}
			x := f.largest.Load()
			if x == nil {
				if read == most {
					continue
				}
				read++
				if x, err = f.largestRow(ctx); err != nil {
					return nil, read, t.readError(err)
				}
				f.largest.Store(x)
			}
			if !t.bounds.Contains(x.Key) {
				continue
			}
			sum := rows[string(x.Key)]
			if sum == nil {
				sum = &LargeRow{Key: bytes.Clone(x.Key)}
				rows[string(x.Key)] = sum
			}
			sum.Bytes += x.Bytes
			if sum.RawBytes += x.RawBytes; sum.RawBytes >= least && (largest == nil || sum.RawBytes > largest.RawBytes) {
				largest = sum
			}
		}
	}
	return largest, read, nil
}

func (f *file) largestRow(ctx context.Context) (*LargeRow, error) {
	prefix, n, err := f.reader.LargestRow(ctx)
	if err != nil {
		return nil, err
	}
	key, err := cell.RowOf(nil, prefix)
	if err != nil {
		return nil, fault.New(fault.Corruption, "%w", err)
	}
	return &LargeRow{key, n, int64(float64(f.ref.RawBytes) * (float64(n) / float64(max(f.ref.Size, 1))))}, nil
}
