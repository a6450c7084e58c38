package server

import "sync"

// buffers holds what responses were in: without it they are most of the garbage
// that reads make.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxBuffer is the size of the largest that is kept, that of a usual response of
// a scan.
const maxBuffer = 4 << 20

// newBuffer returns an empty buffer to append to.
func newBuffer() []byte { return (*buffers.Get().(*[]byte))[:0] }

// recycle takes a buffer that is no longer used.
func recycle(b []byte) {
	if n := cap(b); n > 0 && n <= maxBuffer {
		buffers.Put(&b)
	}
}
