//go:build unix && (!linux || race)

package tryio

import "syscall"

// read and write are the system's by their usual way. The race detector learns of the
// order of a write and its read by them.

func read(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }

func write(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
