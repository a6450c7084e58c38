//go:build !unix

package tryio

import (
	"io"
	"net"
)

// A Reader reads a connection. There are none here.
type Reader struct{}

// NewReader returns c.
func NewReader(c net.Conn) io.Reader { return c }

// Read reads nothing.
func (*Reader) Read([]byte) (int, error) { return 0, io.EOF }

// ReadLent reads nothing.
func (*Reader) ReadLent(Lender) (int, error) { return 0, io.EOF }

// A Writer writes to a connection without waiting for it. There are none here.
type Writer struct{}

// NewWriter returns nil.
func NewWriter(net.Conn) *Writer { return nil }

// Write writes nothing.
func (*Writer) Write([]byte) int { return 0 }
