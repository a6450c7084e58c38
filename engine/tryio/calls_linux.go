//go:build !race

package tryio

import (
	"syscall"
	"unsafe"
)

// rawBytes are moved at most in a call that the scheduler does not know of, some 10 µs. More
// is worth a hand-over: scans of a cluster lost a seventh without it. And the goroutine
// cannot be stopped meanwhile, as it must to collect garbage.
const rawBytes = 32 << 10

func read(fd uintptr, p []byte) (int, error) {
	if len(p) > rawBytes {
		return syscall.Read(int(fd), p)
	}
	return raw(syscall.SYS_READ, fd, p)
}

func write(fd uintptr, p []byte) (int, error) {
	if len(p) > rawBytes {
		return syscall.Write(int(fd), p)
	}
	return raw(syscall.SYS_WRITE, fd, p)
}

func raw(call, fd uintptr, p []byte) (int, error) {
	n, _, err := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}
