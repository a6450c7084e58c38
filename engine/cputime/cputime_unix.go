//go:build unix

package cputime

import (
	"syscall"
	"time"
)

// Used returns the processor time that this process has had, of user and system, by
// getrusage(2).
func Used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only of arguments that are not these
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
