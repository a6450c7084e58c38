//go:build !unix

package bench

import "time"

// selfCPU is not known on this system.
func selfCPU() time.Duration { return 0 }
