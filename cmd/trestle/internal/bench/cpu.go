package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// processorTime returns the sum of the processor time of some processes.
func processorTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		sum += processCPU(pid)
	}
	return sum
}

// processCPU returns the processor time that a process has used, with a
// resolution of 10 ms; 0 if there is no such process or the system does not
// tell.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field, the name, is in parentheses and may hold anything. utime
	// and stime are the 14th and 15th field, in ticks of which Linux shows 100 a
	// second.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
