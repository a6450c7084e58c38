//go:build unix

package transport

import (
	"errors"
	"os"
	"syscall"

	"github.com/trestledb/trestle/engine/tryio"
)

// canTry says that descriptors can be read without waiting.
const canTry = true

// tryRead reads what is there. It returns false if that is nothing yet.
func (r *reader) tryRead(fd uintptr) bool {
	p := r.want
	if p == nil {
		r.hold()
		p = *r.box
	}
	n, err := tryio.Read(fd, p)
	switch {
	case errors.Is(err, syscall.EAGAIN):
		if r.want == nil {
			r.drop()
		}
		return false
	case err != nil:
		r.err = os.NewSyscallError("read", err)
	default:
		r.n = n
	}
	return true
}
