package data

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/varint"
)

// A place is how far the changes of a partition have been read: parts of it,
// ascending and adjacent, each with its position. There are several after a merge,
// until the last of them has been read as far as the first.
type place []part

type part struct {
	rows row.Range
	at   changes.Position
}

// watermark returns the stamp up to which everything in p was read.
func (p place) watermark() cell.Seq {
	w := p[0].at.Through
	for _, s := range p[1:] {
		w = min(w, s.at.Through)
	}
	return w
}

// goal returns the stamp up to which each part is read by itself: from there on all
// parts are one. 0: they are one already.
func (p place) goal() cell.Seq {
	if len(p) == 1 {
		return 0
	}
	var g cell.Seq
	for _, s := range p {
		g = max(g, s.at.Through, s.at.ChunkEnd)
	}
	return g
}

// within returns the part of p that is in r.
func (p place) within(r row.Range) place {
	var out place
	for _, s := range p {
		if s.rows = s.rows.Intersect(r); !s.rows.Empty() {
			out = append(out, s)
		}
	}
	return out
}

// simple joins parts with the same position. It reuses p.
func (p place) simple() place {
	out := p[:0]
	for _, s := range p {
		if n := len(out); n > 0 && samePosition(&out[n-1].at, &s.at) {
			out[n-1].rows.End = s.rows.End
			out[n-1].at.Born = max(out[n-1].at.Born, s.at.Born)
			continue
		}
		out = append(out, s)
	}
	return out
}

func samePosition(a, b *changes.Position) bool {
	return a.Through == b.Through && a.ChunkEnd == b.ChunkEnd && a.Stamp == b.Stamp && bytes.Equal(a.Row, b.Row)
}

// A token of a change stream is base64 of
//
//	mac version table life (parts) part (end part)...
//
// where numbers are uvarints, parts is their count less one, end is where a part ends,
// with its length, and a part is
//
//	through born chunk_end (row stamp)?
//
// in which through is a stamp, born too or 0, chunk_end is 0 or by how much it is more, and row and
// stamp are there if it is not 0. The mac is over all that follows, and over the
// partition, which is not in the token as the client sends it beside.
const (
	tokenVersion = 1
	tokenMAC     = 16
	// maxTokenText bounds a token: it is longer only of very many partitions with
	// long keys that were merged.
	maxTokenText = 1 << 20
)

var tokenText = base64.RawURLEncoding

// A sealer makes and opens tokens of one partition. It is not safe for concurrent
// use.
type sealer struct {
	key   []byte
	mac   hash.Hash
	table uint64
	life  uint64
	rows  row.Range
	buf   []byte
	head  [32]byte
	all   [sha256.Size]byte
}

func newSealer(key []byte, table, life uint64, rows row.Range) *sealer {
	return &sealer{key: key, mac: hmac.New(sha256.New, key), table: table, life: life, rows: rows}
}

// use has later tokens sealed with key.
func (s *sealer) use(key []byte) {
	if !bytes.Equal(key, s.key) {
		s.key, s.mac = key, hmac.New(sha256.New, key)
	}
}

// sum appends the mac of body.
func (s *sealer) sum(dst, body []byte) []byte {
	s.mac.Reset()
	b := append(s.head[:0], "change stream\x00"...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.rows.Start)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.rows.End)))
	s.mac.Write(b)
	s.mac.Write(s.rows.Start)
	s.mac.Write(s.rows.End)
	s.mac.Write(body)
	return append(dst, s.mac.Sum(s.all[:0])[:tokenMAC]...)
}

// seal appends the token of p, which covers the partition.
func (s *sealer) seal(dst []byte, p place) []byte {
	b := append(s.buf[:0], make([]byte, tokenMAC)...)
	b = append(b, tokenVersion)
	b = binary.AppendUvarint(b, s.table)
	b = binary.AppendUvarint(b, s.life)
	b = binary.AppendUvarint(b, uint64(len(p)-1))
	for i := range p {
		at := &p[i].at
		if i > 0 {
			b = appendKey(b, p[i].rows.Start)
		}
		b = binary.AppendUvarint(b, uint64(at.Through))
		b = binary.AppendUvarint(b, uint64(at.Born))
		if at.ChunkEnd <= at.Through {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(at.ChunkEnd-at.Through))
		b = appendKey(b, at.Row)
		b = binary.AppendUvarint(b, uint64(at.Stamp))
	}
	s.buf = b
	s.sum(b[:0], b[tokenMAC:])
	return tokenText.AppendEncode(dst, b)
}

func appendKey(b, key []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(key))), key...)
}

// size returns the most bytes that the token of p has.
func (s *sealer) size(p place) int {
	n := tokenMAC + 4*binary.MaxVarintLen64
	for i := range p {
		n += 6*binary.MaxVarintLen64 + len(p[i].rows.Start) + len(p[i].at.Row)
	}
	return tokenText.EncodedLen(n)
}

var errToken = fault.New(fault.Invalid, "Not a token of this partition of the table's change stream")

// open returns the place of a token.
func (s *sealer) open(token string) (place, error) {
	if len(token) > maxTokenText {
		return nil, errToken
	}
	b, err := tokenText.Strict().DecodeString(token)
	if err != nil || len(b) < tokenMAC {
		return nil, errToken
	}
	sum, body := b[:tokenMAC], b[tokenMAC:]
	if !hmac.Equal(sum, s.sum(nil, body)) {
		return nil, errToken
	}
	return s.parse(body)
}

// parse decodes what a token seals.
func (s *sealer) parse(b []byte) (place, error) {
	d := varint.Of(b)
	if d.Byte() != tokenVersion {
		return nil, fault.New(fault.Invalid, "The token is of a version that this server does not know")
	}
	table, life, n := d.Uvarint(), d.Uvarint(), d.Uvarint()
	if d.Bad() || n >= uint64(len(b)) {
		return nil, errToken
	}
	switch {
	case table != s.table:
		return nil, fault.New(fault.Invalid, "The token is of another table's change stream, or of a table of this name that was deleted")
	case life != s.life:
		return nil, fault.New(fault.Invalid, "The token is of an earlier change stream of the table, which was disabled since: start again with start_time")
	}
	p := make(place, n+1)
	start := s.rows.Start
	for i := range p {
		if i > 0 {
			start = d.Bytes()
			if !s.rows.Contains(start) || bytes.Compare(start, p[i-1].rows.Start) <= 0 {
				return nil, errToken
			}
			p[i-1].rows.End = start
		}
		p[i].rows = row.Range{Start: start, End: s.rows.End}
		at := &p[i].at
		at.Through, at.Born = cell.Seq(d.Uvarint()), cell.Seq(d.Uvarint())
		if more := d.Uvarint(); more > 0 {
			at.ChunkEnd, at.Row, at.Stamp = at.Through+cell.Seq(more), d.Bytes(), cell.Seq(d.Uvarint())
		}
		if d.Bad() || at.Through > stamp.Most || at.ChunkEnd > stamp.Most || at.ChunkEnd > 0 && at.ChunkEnd <= at.Through {
			return nil, errToken
		}
	}
	if d.Len() > 0 {
		return nil, errToken
	}
	return p, nil
}
