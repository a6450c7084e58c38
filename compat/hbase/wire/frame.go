package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
)

// The first bytes of a connection.
const (
	Magic         = "HBas"
	Version       = 0
	AuthSimple    = 80
	AuthKerberos  = 81
	AuthDigest    = 82
	RegistryMagic = "Regist" // asks for the cluster's id, and nothing else
	SecurityMagic = "Securi" // asks for the server's principal, and then begins anew
	PreambleLen   = 6
)

// NoCall is the id of the response to what was no call.
const NoCall = math.MaxUint32

// MaxHeader bounds a ConnectionHeader, which is read before anything is known of the
// caller.
const MaxHeader = 64 << 10

// maxRequestHeader bounds the header of a request: its attributes are decoded before
// anything is known of the caller.
const maxRequestHeader = 64 << 10

// MaxUser bounds the name of a user in bytes: what is kept of requests has it.
const MaxUser = 1024

// ReadLength reads the length of a frame. What is negative as Java sees it is
// malformed.
func ReadLength(r io.Reader) (int, error) {
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if n > math.MaxInt32 {
		return 0, fault.New(fault.Invalid, "frame of length %d", int32(n))
	}
	return int(n), nil
}

// firstRead is how much memory a frame gets before any of it has come.
const firstRead = 1 << 20

// ReadBody reads the n bytes of a frame. Memory grows with what arrives, so
// that a client that only claims to send much costs little. With an error it
// returns what has arrived.
func ReadBody(r io.Reader, n int) ([]byte, error) {
	b := make([]byte, min(n, firstRead))
	for at := 0; ; {
		m, err := io.ReadFull(r, b[at:])
		if at += m; err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return b[:at], err
		}
		if at == n {
			return b, nil
		}
		grown := make([]byte, min(n, 4*len(b)))
		copy(grown, b)
		b = grown
	}
}

// A Request is a frame of a client, split up. Its parts alias the frame.
type Request struct {
	Header pb.RequestHeader
	// Param is the encoded message, nil if there is none.
	Param []byte
	// Block is the cell block as it came.
	Block []byte
}

// ParseRequest splits a frame. When err is not nil, what was read of the
// header is in r all the same, so that the error can reach its call.
func ParseRequest(frame []byte, r *Request) error {
	header, rest, err := delimited(frame)
	if err != nil {
		return err
	}
	if len(header) > maxRequestHeader {
		return fault.New(fault.Invalid, "request header of %d bytes; at most %d are taken", len(header), maxRequestHeader)
	}
	if err := proto.Unmarshal(header, &r.Header); err != nil {
		return fault.New(fault.Invalid, "malformed request header: %w", err)
	}
	if r.Header.GetRequestParam() {
		if r.Param, rest, err = delimited(rest); err != nil {
			return err
		}
	}
	if n := r.Header.GetCellBlockMeta().GetLength(); n > 0 {
		if uint64(n) > uint64(len(rest)) {
			return fault.New(fault.Invalid, "cell block of %d bytes in a frame that has %d left", n, len(rest))
		}
		r.Block = rest[:n]
	}
	return nil
}

// delimited returns the bytes behind a length, and the rest.
func delimited(b []byte) (part, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, fault.New(fault.Invalid, "malformed frame: a message is longer than what holds it")
	}
	end := w + int(n)
	return b[w:end:end], b[end:], nil
}

// AppendResponse appends the frame of a response without its cell block, of
// which the given number of bytes comes right behind. With an exception in the
// header there is neither a message nor a block; m may be nil only then. The
// header's CellBlockMeta is set here.
func AppendResponse(dst []byte, h *pb.ResponseHeader, m proto.Message, block int) ([]byte, error) {
	if h.CellBlockMeta = nil; block > 0 {
		h.CellBlockMeta = &pb.CellBlockMeta{Length: proto.Uint32(uint32(block))}
	}
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	var err error
	if dst, err = appendDelimited(dst, h); err == nil && h.Exception == nil {
		dst, err = appendDelimited(dst, m)
	}
	n := len(dst) - at - 4 + block
	if err == nil && n > math.MaxInt32 {
		err = fault.New(fault.Exhausted, "response of %d bytes", n)
	}
	if err != nil {
		return dst[:at], err
	}
	binary.BigEndian.PutUint32(dst[at:], uint32(n))
	return dst, nil
}

func appendDelimited(dst []byte, m proto.Message) ([]byte, error) {
	dst = binary.AppendUvarint(dst, uint64(proto.Size(m)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, m)
}
