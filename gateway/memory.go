package gateway

import (
	"bytes"
	"os"
	"strconv"
)

// totalMemory returns the bytes of memory that the process may use: those of
// the machine, or of its control group if that is less.
func totalMemory() int64 {
	total := installedMemory()
	if total == 0 {
		total = 1 << 30 // a cautious guess
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
