package changes

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sort"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/varint"
)

// aheadBytes is how much of a chunk is read at once.
const aheadBytes = 256 << 10

// tailBytes is how much of the end of a file is read at once when it is opened: its
// directory, if there are not more than a hundred chunks.
const tailBytes = 8 << 10

// A Readable is the bytes of a finished file. It is that of engine/sstable.
type Readable interface {
	// ReadAt fills p from offset off, or fails; there is no partial success.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size is the length of the file in bytes.
	Size() int64
	// Close releases what the Readable holds. No read may be running.
	Close() error
}

// A File is an open change file. It is safe for concurrent use.
type File struct {
	f      Readable
	name   string
	info   Info
	chunks []chunk
}

// A chunk is as the directory has it.
type chunk struct {
	at           int64
	blocks, tail int // bytes of the frames of its blocks, and of its index
	records      uint64
	lo, hi       cell.Seq
	first, last  []byte // row keys
}

// Open reads the directory of a change file. The File closes f; after an error Open
// has. A file that is not sound is fault.Corruption; name is for errors.
func Open(ctx context.Context, f Readable, name string) (*File, error) {
	c := &File{f: f, name: name}
	if err := c.open(ctx); err != nil {
		_ = f.Close()
		return nil, c.annotate(err)
	}
	return c, nil
}

func (c *File) annotate(err error) error { return fmt.Errorf("change file %s: %w", c.name, err) }

func (c *File) open(ctx context.Context) error {
	size := c.f.Size()
	if size < footerLen {
		return fault.New(fault.Corruption, "it has %d bytes", size)
	}
	tail := make([]byte, min(size, tailBytes))
	if err := c.f.ReadAt(ctx, tail, size-int64(len(tail))); err != nil {
		return err
	}
	foot := tail[len(tail)-footerLen:]
	at := int64(binary.LittleEndian.Uint64(foot))
	switch v := binary.LittleEndian.Uint32(foot[12:]); {
	case string(foot[16:]) != magic:
		return fault.New(fault.Corruption, "it is none")
	case v != version && v != rowsVersion:
		return fault.New(fault.Corruption, "it has version %d, this program reads versions up to %d", v, rowsVersion)
	case crc32.Checksum(foot[:8], castagnoli) != binary.LittleEndian.Uint32(foot[8:]) || at < 0 || at > size-footerLen:
		return fault.New(fault.Corruption, "the footer has a wrong checksum")
	}
	frame := tail[:len(tail)-footerLen]
	if n := size - footerLen - at; n <= int64(len(frame)) {
		frame = frame[int64(len(frame))-n:]
	} else {
		frame = make([]byte, n)
		if err := c.f.ReadAt(ctx, frame, at); err != nil {
			return err
		}
	}
	dir, _, err := openFrame(nil, frame)
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	c.info.Bytes = size
	return c.parse(dir, at)
}

// parse decodes the directory, which begins at end.
func (c *File) parse(dir []byte, end int64) error {
	d := varint.Of(bytes.Clone(dir))
	c.info.Records, c.info.RawBytes = d.Uvarint(), int64(d.Uvarint())
	var at int64
	var records uint64
	for n := d.Uvarint(); n > 0 && !d.Bad(); n-- {
		k := chunk{at: at}
		k.blocks, k.tail, k.records = int(d.Uvarint()), int(d.Uvarint()), d.Uvarint()
		k.lo = cell.Seq(d.Uvarint())
		k.hi = k.lo + cell.Seq(d.Uvarint())
		k.first, k.last = d.Bytes(), d.Bytes()
		if k.blocks <= 0 || int64(k.blocks) > end || k.tail <= 0 || int64(k.tail) > end || k.records == 0 ||
			k.lo == 0 || k.hi < k.lo || k.hi > cell.MaxSeq || bytes.Compare(k.first, k.last) > 0 {
			d.Fail()
		}
		at += int64(k.blocks) + int64(k.tail)
		records += k.records
		if len(c.chunks) == 0 {
			c.info.Lo = k.lo
		}
		c.info.Lo, c.info.Hi = min(c.info.Lo, k.lo), max(c.info.Hi, k.hi)
		c.chunks = append(c.chunks, k)
	}
	if d.Bad() || d.Len() > 0 || at != end || records != c.info.Records {
		return fault.New(fault.Corruption, "the directory is malformed")
	}
	return nil
}

// Info says what the file holds.
func (c *File) Info() Info { return c.info }

// Rows returns Ref.Rows of a file that has a record.
func (c *File) Rows() row.Range {
	var first, last []byte
	for i := range c.chunks {
		k := &c.chunks[i]
		if i == 0 || bytes.Compare(k.first, first) < 0 {
			first = k.first
		}
		if bytes.Compare(k.last, last) > 0 {
			last = k.last
		}
	}
	return bound(first, last)
}

// Close releases the file.
func (c *File) Close() error { return c.f.Close() }

// Shared returns the file for a reader that closes it, while the caller keeps it open.
func (c *File) Shared() *File {
	s := *c
	s.f = unclosed{c.f}
	return &s
}

type unclosed struct{ Readable }

func (unclosed) Close() error { return nil }

// bounds is what a read wants of a chunk.
type bounds struct {
	within row.Range
	// after and through bound the stamps, and at, unless it is 0, is the stamp of all
	// records.
	after, through, at cell.Seq
	// Records of row up to stamp have been read, and those of earlier rows.
	row   []byte
	stamp cell.Seq
}

// A cursor is a place in a chunk.
type cursor struct {
	f *File
	k *chunk
	b *bounds

	index []indexEntry
	next  int // block

	raw     []byte // part of the chunk, from rawAt on
	rawAt   int
	rawSize int // what raw is of the chunk

	frameBuf []byte
	left     []byte // of the block
	size     int    // of the block
	rec      Record
	key      []byte
}

// An indexEntry is a block.
type indexEntry struct {
	first  []byte
	at     int
	length int
}

// start reads the index and goes before the first record that is wanted.
func (u *cursor) start(ctx context.Context, from []byte) error {
	k := u.k
	var frame []byte
	if k.blocks+k.tail <= aheadBytes {
		if err := u.read(ctx, 0, k.blocks+k.tail); err != nil {
			return err
		}
		frame = u.raw[k.blocks:]
		u.rawSize = k.blocks
	} else {
		frame = make([]byte, k.tail)
		if err := u.f.f.ReadAt(ctx, frame, k.at+int64(k.blocks)); err != nil {
			return err
		}
	}
	content, buf, err := openFrame(nil, frame)
	if err != nil {
		return fmt.Errorf("index at %d: %w", k.at+int64(k.blocks), err)
	}
	if buf == nil {
		content = bytes.Clone(content) // raw is used again
	}
	d := varint.Of(content)
	at := 0
	for d.Len() > 0 {
		e := indexEntry{first: d.Bytes(), at: at, length: int(d.Uvarint())}
		if e.length <= 0 || e.length > k.blocks-at || len(u.index) > 0 && bytes.Compare(u.index[len(u.index)-1].first, e.first) > 0 {
			d.Fail()
			break
		}
		at += e.length
		u.index = append(u.index, e)
	}
	if d.Bad() || at != k.blocks {
		return fault.New(fault.Corruption, "the index at %d is malformed", k.at+int64(k.blocks))
	}
	// Records of the row may be at the end of the last block that begins before it.
	u.next = max(0, sort.Search(len(u.index), func(i int) bool { return bytes.Compare(u.index[i].first, from) >= 0 })-1)
	return nil
}

// read makes raw n bytes of the chunk.
func (u *cursor) read(ctx context.Context, at, n int) error {
	if cap(u.raw) < n {
		u.raw = make([]byte, n)
	}
	u.raw = u.raw[:n]
	u.rawAt, u.rawSize = at, n
	return u.f.f.ReadAt(ctx, u.raw, u.k.at+int64(at))
}

// block reads the next block; false if there is none that is wanted.
func (u *cursor) block(ctx context.Context) (bool, error) {
	if u.next == len(u.index) {
		return false, nil
	}
	e := &u.index[u.next]
	if end := u.b.within.End; len(end) > 0 && bytes.Compare(e.first, end) >= 0 {
		return false, nil
	}
	if e.at < u.rawAt || e.at+e.length > u.rawAt+u.rawSize {
		n := e.length
		for _, f := range u.index[u.next+1:] {
			if n+f.length > aheadBytes || len(u.b.within.End) > 0 && bytes.Compare(f.first, u.b.within.End) >= 0 {
				break
			}
			n += f.length
		}
		if err := u.read(ctx, e.at, n); err != nil {
			return false, err
		}
	}
	var err error
	u.left, u.frameBuf, err = openFrame(u.frameBuf, u.raw[e.at-u.rawAt:e.at-u.rawAt+e.length])
	if err != nil {
		return false, fmt.Errorf("block at %d: %w", u.k.at+int64(e.at), err)
	}
	u.key, u.size = u.key[:0], len(u.left)
	u.next++
	return true, nil
}

// advance moves to the next record that is wanted; false at the end. rec is valid until
// the next call.
func (u *cursor) advance(ctx context.Context) (bool, error) {
	for {
		if len(u.left) == 0 {
			if more, err := u.block(ctx); !more || err != nil {
				return false, err
			}
		}
		d := varint.Of(u.left)
		shared := d.Uvarint()
		rest := d.Bytes()
		stamp := u.k.lo + cell.Seq(d.Uvarint())
		body := d.Bytes()
		if d.Bad() || shared > uint64(len(u.key)) || stamp > u.k.hi || stamp < u.k.lo {
			return false, u.malformed()
		}
		u.left = d.Rest()
		if shared < uint64(len(u.key)) || len(rest) > 0 {
			u.key = append(u.key[:shared], rest...)
		}
		if u.b.at != 0 {
			stamp = u.b.at
		}
		if stamp <= u.b.after || stamp > u.b.through {
			continue
		}
		if u.b.row != nil {
			if c := bytes.Compare(u.key, u.b.row); c < 0 || c == 0 && stamp <= u.b.stamp {
				continue
			}
		}
		if bytes.Compare(u.key, u.b.within.Start) < 0 {
			continue
		}
		if end := u.b.within.End; len(end) > 0 && bytes.Compare(u.key, end) >= 0 {
			return false, nil
		}
		u.rec.Stamp, u.rec.Key = stamp, u.key
		if !parseBody(&u.rec, body) {
			return false, u.malformed()
		}
		return true, nil
	}
}

func (u *cursor) malformed() error {
	return fault.New(fault.Corruption, "a record of the chunk at %d is malformed", u.k.at)
}

// parseBody decodes what follows a record's stamp into r, whose slices alias body.
func parseBody(r *Record, body []byte) bool {
	d := varint.Of(body)
	collected := d.Byte()
	r.Collected, r.Changes = collected == 1, r.Changes[:0]
	for d.Len() > 0 {
		r.Changes = append(r.Changes, Change{Op: Op(d.Byte())})
		c := &r.Changes[len(r.Changes)-1]
		if c.Op == 0 || c.Op > MergeToCell {
			return false
		}
		if c.Op == DeleteRow {
			continue
		}
		family := d.Uvarint()
		if c.Family = cell.FamilyID(family); family > 1<<16-1 {
			return false
		}
		switch c.Op {
		case DeleteFamily:
		case DeleteColumn:
			c.Qualifier = d.Bytes()
			c.Times.Start, c.Times.End = d.Varint(), d.Varint()
		default:
			c.Qualifier = d.Bytes()
			c.Timestamp = d.Varint()
			c.Value = d.Bytes()
		}
	}
	return !d.Bad() && collected <= 1
}
