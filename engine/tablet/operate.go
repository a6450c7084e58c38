package tablet

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/compaction"
)

// progress is how far the compaction that is under way has come, in bytes of
// keys and values read.
type progress struct{ done, total atomic.Int64 }

func (p *progress) begin(total int64) {
	p.done.Store(0)
	p.total.Store(total)
}

func (p *progress) end() { p.begin(0) }

// advance also counts the entries of a flush that runs meanwhile; nothing but
// what a person is shown depends on it.
func (p *progress) advance(n int64) {
	if p.total.Load() > 0 {
		p.done.Add(n)
	}
}

// rawBytes returns how many bytes of keys and values a job reads.
func rawBytes(job *compaction.Job, files map[uint64]file) int64 {
	var total int64
	for i := range job.Parts {
		p := &job.Parts[i]
		for _, in := range p.Inputs {
			for _, f := range in.Files {
				if !p.Move {
					total += int64(files[f.ID].ref.RawBytes)
				}
			}
		}
	}
	return total
}

// Progress returns how many bytes of keys and values, of how many, the
// compaction that is under way has read; zeros if there is none.
func (t *Tablet) Progress() (done, total int64) {
	total = t.progress.total.Load()
	return min(t.progress.done.Load(), total), total
}

// CompactMajor flushes the tablet and does a major compaction.
func (t *Tablet) CompactMajor(ctx context.Context) error {
	t.Rotate()
	for {
		more, err := t.Flush(ctx)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	t.RequestMajor()
	for t.major.Load() {
		// One that is not a major one may come first, or another goroutine do it.
		if _, err := t.Compact(ctx); err != nil {
			t.major.Store(false)
			return err
		}
	}
	return nil
}

// SettleRedo ends recovery: it makes the redo point in the METADATA row that of
// the first record replayed. They differ if a power cut took records that were
// acknowledged but not synced.
func (t *Tablet) SettleRedo(ctx context.Context) error {
	t.change.Lock()
	defer t.change.Unlock()
	r := t.Row()
	pos, _ := t.RedoPoint()
	if r.Redo == (commitlog.Pos{}) || r.Redo == pos {
		return nil
	}
	next := r.Clone()
	next.Redo = pos
	return t.change1(ctx, next)
}

// A State is what an operator wants to know of a tablet.
type State struct {
	Bytes, MemtableBytes int64 // of SSTables and memtables together; of memtables
	Runs, Files          int
	LastMajor            time.Time // zero if there was none
}

// State returns the tablet's state; ok is false if it is closed.
func (t *Tablet) State() (s State, ok bool) {
	v := t.pin()
	if v == nil {
		return s, false
	}
	defer v.release()
	s.Bytes, s.Runs, s.Files = v.bytes(), len(v.runs), len(v.row.Files)
	for _, m := range v.mems {
		if !m.Empty() {
			s.MemtableBytes += m.Bytes()
		}
	}
	if v.row.MajorTime > 0 {
		s.LastMajor = time.Unix(v.row.MajorTime, 0).UTC()
	}
	return s, true
}

// Verify reads every SSTable of the tablet from storage, past the cache, and
// checks all checksums. It calls each with every object and what is wrong with
// it, or nil; an error of each ends it.
func (t *Tablet) Verify(ctx context.Context, each func(object string, bytes int64, err error) error) error {
	v := t.pin()
	if v == nil {
		return t.gone()
	}
	defer v.release()
	for _, u := range v.runs {
		for _, f := range u.files {
			err := f.reader.VerifyChecksums(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := each(f.name, f.ref.Size, t.readError(err)); err != nil {
				return err
			}
		}
	}
	return nil
}
