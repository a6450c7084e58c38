//go:build !unix

package tryio

import (
	"io"
	"net"
)

// NewReader returns c.
func NewReader(c net.Conn) io.Reader { return c }

// A Writer writes to a connection without waiting for it. There are none here.
type Writer struct{}

// NewWriter returns nil.
func NewWriter(net.Conn) *Writer { return nil }

// Write writes nothing.
func (*Writer) Write([]byte) int { return 0 }
