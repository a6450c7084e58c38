package zk

import (
	"encoding/binary"
	"errors"
	"io"
)

// The operations that are known by name; others are answered with
// errUnimplemented.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opGetACL          = 6
	opSetACL          = 7
	opGetChildren     = 8
	opSync            = 9
	opPing            = 11
	opGetChildren2    = 12
	opMulti           = 14
	opCreate2         = 15
	opReconfig        = 16
	opRemoveWatches   = 18
	opCreateContainer = 19
	opDeleteContainer = 20
	opCreateTTL       = 21
	opAuth            = 100
	opSetWatches      = 101
	opSetWatches2     = 105
	opClose           = -11
)

// The errors of a reply (KeeperException.Code).
const (
	errOK            = 0
	errMarshalling   = -5
	errUnimplemented = -6
	errBadArguments  = -8
	errNoNode        = -101
	errNoWatcher     = -121
	errReadOnly      = -119
)

// The xids that no request of a client has.
const (
	xidEvent = -1
	xidPing  = -2
)

// The types of an event (Watcher.Event.EventType).
const (
	eventCreated  = 1
	eventDeleted  = 2
	eventChanged  = 3
	eventChildren = 4

	stateConnected = 3 // Watcher.Event.KeeperState.SyncConnected
)

// A reader takes jute values off the front of a frame. After the first value
// that is not there it gives zeros, and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) int32() int32 {
	b := r.take(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

func (r *reader) int64() int64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

func (r *reader) bool() bool {
	b := r.take(1)
	return b != nil && b[0] != 0
}

// buffer returns bytes of the frame; nil for ZooKeeper's null, length -1.
func (r *reader) buffer() []byte {
	n := r.int32()
	if n == -1 {
		return nil
	}
	return r.take(int(n))
}

// strings appends a vector's strings to dst.
func (r *reader) strings(dst []string) []string {
	for n := r.int32(); n > 0 && !r.bad; n-- {
		if s := r.buffer(); !r.bad {
			dst = append(dst, string(s))
		}
	}
	return dst
}

func appendInt32(b []byte, v int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(v)) }
func appendInt64(b []byte, v int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(v)) }

func appendBuffer[S ~string | ~[]byte](b []byte, s S) []byte {
	return append(appendInt32(b, int32(len(s))), s...)
}

// beginFrame and endFrame put a frame's length before what is appended between.
func beginFrame() []byte { return make([]byte, 4, 64) }

func endFrame(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// readFrame reads a frame of at most limit bytes into buf. Its memory grows
// with what arrives, not with what the length promises.
func readFrame(r io.Reader, buf []byte, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	return readBody(r, buf, head, limit)
}

func readBody(r io.Reader, buf []byte, head [4]byte, limit int) ([]byte, error) {
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 0 || n > limit {
		return nil, errors.New("frame of " + itoa(n) + " bytes is over the limit")
	}
	buf = buf[:0]
	for len(buf) < n {
		chunk := min(n-len(buf), 16<<10)
		have := len(buf)
		buf = append(buf, make([]byte, chunk)...)
		if _, err := io.ReadFull(r, buf[have:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}
