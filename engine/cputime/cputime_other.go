//go:build !unix

package cputime

import "time"

// Used returns 0: the processor time is not known on this system.
func Used() time.Duration { return 0 }
