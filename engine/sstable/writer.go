package sstable

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// A Compression is how the blocks of a file are compressed. A block that
// shrinks by less than 12 % is stored as it is.
type Compression uint8

// The compressions, which differ in speed and in what they save.
const (
	Snappy        Compression = iota // the default
	NoCompression                    // for values that are compressed already
	MinLZ                            // a little denser than Snappy, as fast
	Zstd                             // densest and slowest
)

var profiles = [...]*sstable.CompressionProfile{
	Snappy: sstable.SnappyCompression, NoCompression: sstable.NoCompression,
	MinLZ: sstable.MinLZCompression, Zstd: sstable.ZstdCompression,
}

var compressionNames = [...]string{Snappy: "snappy", NoCompression: "none", MinLZ: "minlz", Zstd: "zstd"}

// String returns the name that ParseCompression reads.
func (c Compression) String() string {
	if int(c) < len(compressionNames) {
		return compressionNames[c]
	}
	return fmt.Sprintf("compression %d", uint8(c))
}

// ParseCompression returns the Compression of that name: snappy, none, minlz
// or zstd.
func ParseCompression(name string) (Compression, error) {
	if i := slices.Index(compressionNames[:], name); i >= 0 {
		return Compression(i), nil
	}
	return 0, fault.New(fault.Invalid, "unknown compression %q", name)
}

// Options are the choices of a Writer. Files written with different Options
// are read alike.
type Options struct {
	// BlockBytes is the length of a data block before compression, the unit of
	// reading and caching. Zero means 31.5 KiB: with what the cache keeps beside
	// it, a block then takes 32 KiB of Go's memory. What is longer than that takes
	// 40.
	BlockBytes int
	// Compression of all blocks.
	Compression Compression
	// BloomBitsPerKey is the size of the Bloom filter per row: 10 bits let one
	// in a hundred absent rows through. Zero means 10, negative no filter.
	BloomBitsPerKey int

	// FilterColumns is how many columns a row must have, on average of the file,
	// for the filter to hold them beside the rows. Zero means 16.
	FilterColumns int

	indexBytes int // of an index block; 0 unless a test wants other ones
}

// WithDefaults returns o with what it leaves open filled in.
func (o Options) WithDefaults() Options {
	if o.BlockBytes == 0 {
		o.BlockBytes = 32<<10 - 512
	}
	if o.BloomBitsPerKey == 0 {
		o.BloomBitsPerKey = 10
	}
	if o.FilterColumns == 0 {
		o.FilterColumns = 16
	}
	if o.indexBytes == 0 {
		o.indexBytes = indexBlockBytes
	}
	return o
}

// Validate returns what is wrong with o.
func (o Options) Validate() error {
	if o.BlockBytes < 0 || o.BlockBytes > 16<<20 {
		return fault.New(fault.Invalid, "block size of %d bytes is not within 1 B and 16 MiB", o.BlockBytes)
	}
	if int(o.Compression) >= len(profiles) {
		return fault.New(fault.Invalid, "unknown compression %d", o.Compression)
	}
	return nil
}

// indexBlockBytes is large so that most files have one index block: a point
// read then costs one lookup in the cache less. 256 KiB index about 5,000
// data blocks, 160 MB.
const indexBlockBytes = 256 << 10

// A Writable takes the bytes of a new file.
type Writable interface {
	// Write appends p. It may change p, and must not keep it.
	Write(p []byte) error
	// Finish makes the file durable and visible. Neither Write nor Abort may
	// follow.
	Finish() error
	// Abort gives up; the file does not come to exist. Nothing may follow.
	Abort()
}

// A Writer writes one file. It is not safe for concurrent use. Either Finish
// or Abort must be called.
type Writer struct {
	raw    sstable.RawWriter
	sink   *sink
	filter *filterWriter // nil if the file is to have none
	info   Info
	err    error

	// interval is what timeMapper says of the entry being added.
	interval sstable.BlockInterval

	prev    []byte // key of the last entry
	prevSeq cell.Seq
	prevRow int        // length of the row prefix of prev
	shape   cell.Shape // of prev
	rank    int        // cells counted so far in the column of prev
	family  int        // index in info.Families
}

// NewWriter returns a Writer that writes to w, which it will finish or abort.
// When NewWriter fails, w is still the caller's.
func NewWriter(w Writable, o Options) (*Writer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	wr := &Writer{sink: &sink{w: w, buf: make([]byte, 0, sinkBytes)}}
	wr.info.MaxTS, wr.info.PlainRows = -1, true
	wo := sstable.WriterOptions{
		BlockSize:          o.BlockBytes,
		IndexBlockSize:     o.indexBytes,
		Comparer:           comparer,
		Compression:        profiles[o.Compression],
		KeySchema:          &keySchema,
		TableFormat:        tableFormat,
		DisableValueBlocks: true, // see the package comment
		BlockPropertyCollectors: []func() sstable.BlockPropertyCollector{
			func() sstable.BlockPropertyCollector {
				return sstable.NewBlockIntervalCollector(timesProperty, timeMapper{wr}, nil)
			},
			func() sstable.BlockPropertyCollector { return infoCollector{wr} },
		},
	}
	if o.BloomBitsPerKey > 0 {
		wr.filter = newFilterWriter(o)
		wo.FilterPolicy, wo.FilterType = wr.filter, sstable.TableFilter
	}
	wr.raw = sstable.NewRawWriter(wr.sink, wo)
	return wr, nil
}

// Add appends e. It must sort after all entries before it (cell.Compare); an
// entry that does not, or whose key is malformed, is a bug of the caller and
// makes the Writer useless.
func (w *Writer) Add(e *cell.Entry) error {
	if w.err != nil {
		return w.err
	}
	if err := w.add(e); err != nil {
		w.err = err
		return err
	}
	return nil
}

func (w *Writer) add(e *cell.Entry) error {
	first := w.info.Entries == 0
	same := false // same key as prev
	if !first {
		c := bytes.Compare(w.prev, e.Key)
		same = c == 0
		if c > 0 || same && w.prevSeq <= e.Seq {
			return fault.New(fault.Internal, "write sstable: %s#%d does not sort after %s#%d",
				appendKey(nil, e.Key), e.Seq, appendKey(nil, w.prev), w.prevSeq)
		}
	}
	if e.Seq > cell.MaxSeq || !e.Kind.Valid(len(e.Value)) {
		return fault.New(fault.Internal, "write sstable: bad entry %s#%d kind %d", appendKey(nil, e.Key), e.Seq, e.Kind)
	}

	// A row prefix is no prefix of another one, so a key that starts with the
	// last row prefix is of the same row.
	sameRow := !first && bytes.HasPrefix(e.Key, w.prev[:w.prevRow])
	n := w.prevRow
	if !sameRow {
		var plain bool
		if n, plain = e.RowPart(); n < 0 {
			return fault.New(fault.Internal, "write sstable: key %x has no row prefix", e.Key)
		}
		w.info.PlainRows = w.info.PlainRows && plain
		w.filter.row(e.Key[:n])
	}
	s, err := cell.ParseSuffix(e.Key[n:])
	if err != nil {
		return fault.New(fault.Internal, "write sstable: %w", err)
	}
	isCell := s.Shape == cell.Cell
	if isCell && !(sameRow && w.shape == cell.Cell && sameColumn(w.prev, e.Key)) {
		w.filter.column(e.Key[:len(e.Key)-8])
	}
	if isCell && e.Kind == cell.Set {
		w.interval = timeInterval(s.Timestamp)
	} else {
		w.interval = allTimes
	}
	if err := w.raw.Add(pebble.MakeInternalKey(e.Key, pebble.SeqNum(e.Seq), pebble.InternalKeyKind(e.Kind)), e.Value, false); err != nil {
		return fmt.Errorf("write sstable: %w", err) // not from storage: that Pebble tells at the end
	}

	in := &w.info
	in.Entries++
	in.RawBytes += uint64(len(e.Key) + len(e.Value))
	if first {
		in.MinSeq, in.MaxSeq = e.Seq, e.Seq
		in.Lo = slices.Clone(e.Key[:n])
	} else {
		in.MinSeq, in.MaxSeq = min(in.MinSeq, e.Seq), max(in.MaxSeq, e.Seq)
	}
	if same {
		in.Shadowed++
	}
	if !isCell || e.Kind == cell.Delete {
		in.Tombstones++
	}
	if e.Kind == cell.SetUntil {
		in.addEnd(e)
	}
	if isCell {
		if in.MaxTS < in.MinTS {
			in.MinTS, in.MaxTS = s.Timestamp, s.Timestamp
		} else {
			in.MinTS, in.MaxTS = min(in.MinTS, s.Timestamp), max(in.MaxTS, s.Timestamp)
		}
		if !sameRow || w.shape != cell.Cell || !sameColumn(w.prev, e.Key) {
			w.rank = 0
		}
		if e.Kind != cell.Delete && !same {
			w.familyInfo(s.Family).add(len(e.Key)+len(e.Value), s.Timestamp, w.rank)
			w.rank++
		}
	}
	w.shape = s.Shape
	w.prev = append(w.prev[:0], e.Key...)
	w.prevSeq, w.prevRow = e.Seq, n
	return nil
}

// sameColumn tells whether two cell keys differ at most in their timestamps.
func sameColumn(a, b []byte) bool {
	return len(a) == len(b) && bytes.Equal(a[:len(a)-8], b[:len(b)-8])
}

func (w *Writer) familyInfo(id cell.FamilyID) *FamilyInfo {
	fs := w.info.Families
	if w.family < len(fs) && fs[w.family].ID == id {
		return &fs[w.family]
	}
	i, ok := slices.BinarySearchFunc(fs, id, func(f FamilyInfo, id cell.FamilyID) int { return int(f.ID) - int(id) })
	if !ok {
		w.info.Families = slices.Insert(fs, i, FamilyInfo{ID: id})
	}
	w.family = i
	return &w.info.Families[i]
}

// EstimatedSize returns about how long the file would be if it were finished
// now, in bytes, without its Bloom filter.
func (w *Writer) EstimatedSize() uint64 { return w.raw.EstimatedSize() }

// Entries returns how many entries have been added.
func (w *Writer) Entries() uint64 { return w.info.Entries }

// Finish completes the file: when it returns nil the file is durable. When it
// returns an error the file is aborted. A file without entries is an error.
func (w *Writer) Finish() (Info, error) {
	if w.err == nil && w.info.Entries == 0 {
		w.err = fault.New(fault.Internal, "write sstable: no entries")
	}
	if w.err != nil {
		w.Abort()
		return Info{}, w.err
	}
	w.info.Hi = slices.Clone(w.prev[:w.prevRow])
	w.info.FilterColumns = w.filter.columnsPay()
	for i := range w.info.Families {
		w.info.Families[i].sum()
	}
	if err := w.raw.Close(); err != nil {
		w.err = w.fail(err)
		w.Abort()
		return Info{}, w.err
	}
	meta, err := w.raw.Metadata()
	if err != nil {
		w.err = w.fail(err)
		return Info{}, w.err
	}
	w.info.Size = int64(meta.Size)
	w.err = fault.New(fault.Internal, "write sstable: the file is finished")
	return w.info, nil
}

// Abort gives the file up. It may be called at any time, also after Finish, on
// which it has no effect.
func (w *Writer) Abort() {
	if w.sink.done {
		return
	}
	if w.err == nil {
		w.err = fault.New(fault.Internal, "write sstable: aborted")
	}
	// The raw writer has a goroutine that only Close ends. Close tries to
	// complete the file, which the sink refuses.
	w.sink.refuse.Store(true)
	_ = w.raw.Close()
	w.sink.Abort()
}

// fail prefers the storage's own error, which has a kind, to Pebble's, once its writer is closed.
func (w *Writer) fail(err error) error {
	if w.sink.err != nil {
		err = w.sink.err
	}
	return fmt.Errorf("write sstable: %w", err)
}

// sinkBytes is how much goes to storage at once.
const sinkBytes = 256 << 10

// sink gathers Pebble's many small writes, a block and its 5-byte trailer
// each, into few large ones. Until Pebble's writer is closed its goroutine may be in Write.
type sink struct {
	w      Writable
	buf    []byte
	err    error
	refuse atomic.Bool
	done   bool
}

func (s *sink) Write(p []byte) error {
	for len(p) > 0 {
		n := copy(s.buf[len(s.buf):cap(s.buf)], p)
		s.buf = s.buf[:len(s.buf)+n]
		p = p[n:]
		if len(s.buf) == cap(s.buf) {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *sink) flush() error {
	if s.refuse.Load() && s.err == nil {
		s.err = fault.New(fault.Internal, "write sstable: aborted")
	}
	if s.err != nil {
		return s.err
	}
	if len(s.buf) > 0 {
		s.err = s.w.Write(s.buf)
		s.buf = s.buf[:0]
	}
	return s.err
}

func (s *sink) Finish() error {
	if err := s.flush(); err != nil {
		s.Abort()
		return err
	}
	s.done = true
	s.err = s.w.Finish()
	return s.err
}

func (s *sink) Abort() {
	if !s.done {
		s.done = true
		s.w.Abort()
	}
}
