package tablet

import (
	"sync/atomic"

	"github.com/trestledb/trestle/engine/compaction"
)

// progress is how far a compaction has come, in bytes of keys and values read.
type progress struct{ done, total atomic.Int64 }

// advance notes that n bytes more were read. A flush has no progress.
func (p *progress) advance(n int64) {
	if p != nil {
		p.done.Add(n)
	}
}

// left returns how many bytes are still to be read.
func (p *progress) left() int64 { return p.total.Load() - p.done.Load() }

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
// compactions that are under way have read; zeros if there is none.
func (t *Tablet) Progress() (done, total int64) {
	for _, w := range t.jobs.running() {
		n := w.progress.total.Load()
		done, total = done+min(w.progress.done.Load(), n), total+n
	}
	return done, total
}
