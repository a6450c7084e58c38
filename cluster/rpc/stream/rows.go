package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// The records of a read's answer.
const (
	recordStart   = iota + 1 // key
	recordCell               // cell
	recordEnd                // of the row
	recordScanned            // key
	recordDone               // stats, rest: the last
	recordPiece              // rows, cells, key, open, length: encoded rows, behind the message
	recordWork               // what it cost: for a question of a request, before the last
)

// A rowWriter takes rows and makes records of them. The first cell of a message
// says everything: a message can be read without the one before.
type rowWriter struct {
	b []byte
	// send takes a message, and returns what to write the next one to. Nil: all
	// has to be one message.
	send func(b []byte) ([]byte, error)
	// full is the size at which a message ends with the next row. large is that at which a
	// row is divided between messages, or, without send, refused.
	full, large int

	work *request.Work // what to tell with the last record, if not nil

	family    string
	qualifier []byte
	some      bool // cells of this message
	start     int  // where the row that is open begins in b; 0 if in an earlier message
	open      bool
	err       error
}

var _ scan.Writer = (*rowWriter)(nil)

// errLarge is a row that does not fit where it has to.
var errLarge = fault.New(fault.Internal, "the row is too large for one message")

// StartRow implements scan.Writer.
func (w *rowWriter) StartRow(key []byte) {
	w.start, w.open = len(w.b), true
	w.b = appendBytes(append(w.b, recordStart), key)
}

// Cell implements scan.Writer.
func (w *rowWriter) Cell(c *row.Cell) {
	if w.err != nil {
		return
	}
	if len(w.b) >= w.large {
		if w.err = w.Flush(); w.err != nil {
			return
		}
	}
	var flags byte
	if w.some && c.Family == w.family {
		flags = sameFamily
		if bytes.Equal(c.Qualifier, w.qualifier) {
			flags |= sameQualifier
		}
	}
	if flags&sameFamily == 0 {
		w.family = c.Family
	}
	if flags&sameQualifier == 0 {
		w.qualifier = append(w.qualifier[:0], c.Qualifier...)
	}
	w.some = true
	w.b = appendCell(append(w.b, recordCell), c, flags)
}

// EndRow implements scan.Writer.
func (w *rowWriter) EndRow() (bool, error) {
	w.b, w.open = append(w.b, recordEnd), false
	return len(w.b) >= w.full, w.err
}

// piece writes the description of encoded rows, which follow the message.
func (w *rowWriter) piece(p *scan.Piece, n int) {
	w.b = binary.AppendUvarint(append(w.b, recordPiece), uint64(p.Rows))
	w.b = appendBytes(binary.AppendUvarint(w.b, uint64(p.Cells)), p.Key)
	var open byte
	if p.Open {
		open = 1
	}
	w.b = binary.AppendUvarint(append(w.b, open), uint64(n))
}

// Scanned implements scan.Writer.
func (w *rowWriter) Scanned(key []byte) { w.b = appendBytes(append(w.b, recordScanned), key) }

// Flush implements scan.Writer.
func (w *rowWriter) Flush() error {
	if w.send == nil {
		return errLarge
	}
	if len(w.b) == 0 {
		return nil
	}
	var err error
	w.b, err = w.send(w.b)
	w.some, w.start = false, 0
	return err
}

// drop takes back the row that is open, unless part of it was sent.
func (w *rowWriter) drop() {
	if w.open && w.start > 0 {
		w.b, w.open = w.b[:w.start], false
	}
}

// done writes the last record.
func (w *rowWriter) done(stats *scan.Stats, rest []row.Range) {
	if w.work != nil {
		w.b = appendWork(append(w.b, recordWork), w.work)
	}
	w.b = appendRanges(appendStats(append(w.b, recordDone), stats), rest)
}

// A rowReader gives records to a Writer.
type rowReader struct {
	to    scan.Writer
	open  bool // a row
	torn  bool // an encoded row
	cell  row.Cell
	stats scan.Stats
	rest  []row.Range
	ended bool
	work  *request.Record // of the request that the read is a part of; may be nil

	// encoded takes encoded rows, which are read from from. Both may be nil.
	encoded scan.EncodedWriter
	from    io.Reader
}

// read takes a message.
func (r *rowReader) read(b []byte) error {
	d := decoderOf(b)
	r.cell.Qualifier = nil
	for d.Len() > 0 {
		record := d.Byte()
		if r.ended || r.open != (record == recordCell || record == recordEnd) || r.torn && record != recordPiece {
			return errMalformed
		}
		switch record {
		case recordStart, recordScanned:
			key := d.bytes()
			if d.Bad() {
				return errMalformed
			}
			if record == recordScanned {
				// Its reader has let go of the tablet, so a caller that waits for rows may
				// have those that have come.
				if r.to.Scanned(key); d.Len() == 0 {
					if err := r.to.Flush(); err != nil {
						return err
					}
				}
				break
			}
			r.open = true
			r.to.StartRow(key)
		case recordCell:
			if d.cell(&r.cell); d.Bad() {
				return errMalformed
			}
			r.to.Cell(&r.cell)
		case recordEnd:
			r.open = false
			if err := r.flushIf(r.to.EndRow()); err != nil {
				return err
			}
		case recordPiece:
			p := scan.Piece{Rows: int64(d.Uvarint()), Cells: int64(d.Uvarint()), Key: d.bytes(), Open: d.Byte() != 0}
			n := d.Uvarint()
			// An open row is the only one, and a row has a cell.
			if d.Bad() || r.encoded == nil || n == 0 || n > maxMessage || p.Rows < 0 || p.Cells < p.Rows || p.Open != (p.Rows == 0) || r.torn && p.Rows > 1 {
				return errMalformed
			}
			if err := r.piece(&p, int(n)); err != nil {
				return err
			}
		case recordWork:
			d.work(r.work)
		case recordDone:
			r.stats, r.rest, r.ended = d.stats(), clone(d.ranges()), true
		default:
			return errMalformed
		}
	}
	return d.err()
}

// piece takes encoded rows of n bytes.
func (r *rowReader) piece(p *scan.Piece, n int) error {
	for n > 0 {
		b, err := r.encoded.Room(n)
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(r.from, b); err != nil {
			return errors.Join(errTruncated, err)
		}
		n -= len(b)
	}
	r.torn = p.Open
	return r.flushIf(r.encoded.Encoded(p))
}

// errTruncated is an answer that ends too early.
var errTruncated = errors.New("the answer ends in the middle")

func (r *rowReader) flushIf(full bool, err error) error {
	if err == nil && full {
		err = r.to.Flush()
	}
	return err
}

// appendFrame appends a frame whose parts after the number are head and body.
func appendFrame(b []byte, number uint64, head, body []byte) []byte {
	var num [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(num[:], number)
	b = binary.AppendUvarint(b, uint64(n+len(head)+len(body)))
	b = append(b, num[:n]...)
	b = append(b, head...)
	return append(b, body...)
}

// frame returns the next frame of a message.
func (d *decoder) frame() (number uint64, rest decoder) {
	rest = decoderOf(d.bytes())
	number = rest.Uvarint()
	if rest.Bad() {
		d.Fail()
	}
	return number, rest
}
