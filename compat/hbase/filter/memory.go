package filter

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A decoder decodes one filter. It counts each message before it decodes it: those of
// filters inside filters are bytes of the message around them until then.
type decoder struct {
	take  func(bytes int64) error // nil: there is room for everything
	taken int64
}

func (d *decoder) count(bytes int64) error {
	d.taken += bytes
	if d.take == nil {
		return nil
	}
	return d.take(bytes)
}

// What parts of filters take in memory, decoded, and what filters make of them.
const (
	messageBytes   = 300 // of a class, and of each message of a list
	bytesBytes     = 96  // of each element of another list
	perByte        = 3   // in the message around, in its own, in what is made of it
	timestampBytes = 20  // of a byte of a list of timestamps
)

// read decodes the message of a class.
func read[M any, P interface {
	*M
	proto.Message
}](d *decoder, b []byte) (P, error) {
	return readList[M, P](d, b, 0, perByte)
}

// readList is read for a class that has a list: each field takes each bytes, each byte
// perByte.
func readList[M any, P interface {
	*M
	proto.Message
}](d *decoder, b []byte, each, perByte int64) (P, error) {
	n := messageBytes + perByte*int64(len(b))
	if each > 0 {
		n += each * fields(b)
	}
	if err := d.count(n); err != nil {
		return new(M), err
	}
	return parse[M, P](b)
}

// fields returns how many fields a message has.
func fields(b []byte) (n int64) {
	for ; len(b) > 0; n++ {
		// Most are short, of a low number, and have a length.
		if len(b) > 1 && b[0] < 0x80 && protowire.Type(b[0]&7) == protowire.BytesType && int(b[1]) <= min(len(b)-2, 0x7f) {
			b = b[2+b[1]:]
			continue
		}
		number, kind, w := protowire.ConsumeTag(b)
		if w < 0 {
			break // as decoding will
		}
		b = b[w:]
		if w = protowire.ConsumeFieldValue(number, kind, b); w < 0 {
			break
		}
		b = b[w:]
	}
	return n
}
