package compaction

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
)

// A File is what the choice needs to know of one SSTable.
type File struct {
	// ID tells files apart.
	ID uint64
	// Lo and Hi are the row prefixes of the first and last entry. A file shared
	// with another tablet may be given the bounds of this tablet's part of it.
	Lo, Hi []byte
	// Bytes is the length of the file.
	Bytes int64
	// Entries and Tombstones count, as those of sstable.Info do.
	Entries, Tombstones int64
	// Garbage estimates the bytes of entries, other than tombstones, that a
	// major compaction would drop: see Garbage.
	Garbage int64
	// Rewrite says that the file must not stay as it is: it holds rows of
	// another tablet, say, or its compression is out of date. It goes with the
	// next compaction of its run, and calls for a major one.
	Rewrite bool
}

// dirty estimates the bytes of f that a major compaction would drop.
func (f *File) dirty() int64 {
	d := f.Garbage
	if f.Tombstones > 0 && f.Entries > 0 {
		// A tombstone is small but hides, on average, as much as an entry holds.
		d += int64(float64(f.Bytes) * min(1, float64(f.Tombstones)/float64(f.Entries)))
	}
	return min(d, f.Bytes)
}

// dense tells whether f is, by number, tombstones for the most part: a scan of its
// rows steps over all of them, and over what they hide, to find little.
func (f *File) dense(o *Options) bool {
	return f.Tombstones >= o.DenseTombstones && 2*f.Tombstones >= f.Entries
}

// spent tells whether f is, for the most part, what a major compaction would drop.
func (f *File) spent(o *Options) bool {
	return f.Entries >= o.DenseTombstones && 2*f.Garbage >= f.Bytes
}

// clean tells whether a major compaction of f alone would leave it as it is.
func (f *File) clean() bool { return f.Garbage == 0 && f.Tombstones == 0 && !f.Rewrite }

// A Run is files that do not overlap, in ascending order.
type Run struct {
	// ID tells runs apart.
	ID    uint64
	Files []File
	// MinSeq and MaxSeq bound the sequence numbers of the entries.
	MinSeq, MaxSeq cell.Seq
	// Busy says that the run cannot be compacted: it is damaged, say. It is left
	// alone.
	Busy bool
	// Compacting says that a compaction of the run is under way. It is left alone
	// until that has ended.
	Compacting bool
}

// taken tells whether the run can be in no compaction now.
func (r *Run) taken() bool { return r.Busy || r.Compacting }

// Bytes returns the length of all files.
func (r *Run) Bytes() int64 {
	var n int64
	for i := range r.Files {
		n += r.Files[i].Bytes
	}
	return n
}

// A Kind says what a compaction is for.
type Kind uint8

// The kinds of compaction that Pick chooses. (A minor compaction is a flush,
// which needs no choice of inputs.)
const (
	Merging Kind = iota + 1 // of some runs, to have fewer
	Major                   // of all runs, to collect garbage as well
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Merging:
		return "merging"
	case Major:
		return "major"
	}
	return fmt.Sprintf("compaction kind %d", uint8(k))
}

// Options steer Pick.
type Options struct {
	// MaxRuns is how many runs there are at most, those that wait included, when
	// Pick finds nothing to do and nothing is under way. Zero means 6.
	MaxRuns int
	// Waiting is how many runs more there would be, had they not been kept from
	// coming: memtables whose flush waits until there are fewer than MaxRuns.
	Waiting int
	// Long is the number of rewritten bytes from which a compaction takes as long
	// as several flushes take to come. It is begun earlier, as those need room.
	// Zero means 512 MiB.
	Long int64
	// Short asks for nothing that is long, small files aside that are joined.
	Short bool
	// Major says that a major compaction is under way.
	Major bool
	// Growth is what a rewrite must gain while runs are few. Zero means 4.
	Growth float64
	// SmallFile is the length below which neighbouring files that need no
	// rewriting are joined all the same, to keep their number down. It should be
	// a fraction of the length at which outputs are cut. Zero means 8 MiB.
	SmallFile int64

	// MajorRatio is the part of all bytes that must be garbage to make a major
	// compaction worthwhile. Zero means 0.25.
	MajorRatio float64
	// MajorEvery is the time within which everything deleted or collectable is
	// gone from storage. Zero means 24 h.
	MajorEvery time.Duration
	// MajorPause is the least time between major compactions for estimated
	// garbage, so that an estimate that is wrong costs little. Zero means 1 h.
	MajorPause time.Duration
	// DenseTombstones is how many tombstones of one file, if they are half of its
	// entries, call for a major compaction for the sake of scans, however few bytes
	// they are. A file of so many entries that is garbage for the most part calls
	// for one too. Zero means 10,000.
	DenseTombstones int64
	// DensePause is the least time between major compactions for that. Zero means
	// 10 min.
	DensePause time.Duration
	// LastMajor is when the last major compaction ended, or the tablet began to
	// exist. With the zero time nothing happens for its age.
	LastMajor time.Time
	// Now is the time.
	Now time.Time
	// Force asks for a major compaction at once.
	Force bool
}

// WithDefaults returns o with what it leaves open filled in.
func (o Options) WithDefaults() Options {
	if o.MaxRuns == 0 {
		o.MaxRuns = 6
	}
	if o.Growth == 0 {
		o.Growth = 4
	}
	if o.Long == 0 {
		o.Long = 512 << 20
	}
	if o.SmallFile == 0 {
		o.SmallFile = 8 << 20
	}
	if o.MajorRatio == 0 {
		o.MajorRatio = 0.25
	}
	if o.MajorEvery == 0 {
		o.MajorEvery = 24 * time.Hour
	}
	if o.DenseTombstones == 0 {
		o.DenseTombstones = 10_000
	}
	if o.DensePause == 0 {
		o.DensePause = 10 * time.Minute
	}
	if o.MajorPause == 0 {
		o.MajorPause = time.Hour
	}
	return o
}

// A Job is one compaction: of neighbouring runs into one.
type Job struct {
	Kind Kind
	// Reason says why, in a word or two, for the log.
	Reason string
	// Runs are the IDs of the inputs, newest first.
	Runs []uint64
	// Parts cut the inputs by key, ascending. Every input file is in one part,
	// and no part overlaps another. The output run is the parts' outputs in
	// order. Outputs of neighbouring parts that are rewritten may share a file.
	Parts []Part
}

// A Part is input files and what becomes of them.
type Part struct {
	// Move says to keep the one file of the part as it is.
	Move bool
	// Complete says that no older run overlaps the part: tombstones and
	// collectable cells can be dropped rather than buried.
	Complete bool
	// Inputs has one element per run that has files in the part, newest first.
	Inputs []Input
}

// An Input is the files of one run in one part, ascending.
type Input struct {
	Run   uint64
	Files []File
}

func (p *Part) first() []byte {
	lo := p.Inputs[0].Files[0].Lo
	for _, in := range p.Inputs[1:] {
		if bytes.Compare(in.Files[0].Lo, lo) < 0 {
			lo = in.Files[0].Lo
		}
	}
	return lo
}

func (p *Part) last() []byte {
	var hi []byte
	for _, in := range p.Inputs {
		if l := in.Files[len(in.Files)-1].Hi; hi == nil || bytes.Compare(l, hi) > 0 {
			hi = l
		}
	}
	return hi
}

// Bytes returns the length of the part's files.
func (p *Part) Bytes() int64 {
	var n int64
	for _, in := range p.Inputs {
		for i := range in.Files {
			n += in.Files[i].Bytes
		}
	}
	return n
}

// RewriteBytes returns how many bytes the job reads.
func (j *Job) RewriteBytes() int64 {
	var n int64
	for i := range j.Parts {
		if !j.Parts[i].Move {
			n += j.Parts[i].Bytes()
		}
	}
	return n
}

// Apply returns runs, which may have got newer ones since the job was chosen,
// with the job's inputs replaced by out. An out without files just removes them.
// It returns false if the inputs are not there, next to each other, any more.
func (j *Job) Apply(runs []Run, out Run) ([]Run, bool) {
	at := slices.IndexFunc(runs, func(r Run) bool { return r.ID == j.Runs[0] })
	if at < 0 || at+len(j.Runs) > len(runs) {
		return runs, false
	}
	for i, id := range j.Runs {
		if runs[at+i].ID != id {
			return runs, false
		}
	}
	next := slices.Clone(runs[:at])
	if len(out.Files) > 0 {
		next = append(next, out)
	}
	return append(next, runs[at+len(j.Runs):]...), true
}
