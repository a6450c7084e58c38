package gateway

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// totalMemory returns the bytes of memory that the process may use: those of
// the machine, or of its control group if that is less.
func totalMemory() int64 {
	total := int64(1) << 30 // a cautious guess
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		total = int64(si.Totalram) * int64(si.Unit)
	}
	for _, f := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && n > 0 && n < total {
			total = n
		}
	}
	return total
}
