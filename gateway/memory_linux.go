package gateway

import "golang.org/x/sys/unix"

// installedMemory returns the bytes of memory of the machine, or 0.
func installedMemory() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}
