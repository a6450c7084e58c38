package settings

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// MachineMemory returns the bytes of memory that this process may use: the
// machine's, or the smallest limit of the control groups it is in. It returns
// 4 GiB where the system does not tell.
func MachineMemory() int64 { return machineMemory("/") }

// machineMemory is MachineMemory with the file system's root to read from.
func machineMemory(root string) int64 {
	read := func(name string) []byte {
		b, _ := os.ReadFile(path.Join(root, name))
		return b
	}
	total := int64(math.MaxInt64)
	limit := func(b []byte) {
		// cgroup v2 writes "max" for no limit, v1 a huge number.
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && n > 0 {
			total = min(total, n)
		}
	}
	for line := range bytes.Lines(read("proc/meminfo")) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemTotal:")); ok {
			f := bytes.Fields(rest)
			if kib, err := strconv.ParseInt(string(f[0]), 10, 64); err == nil {
				total = kib << 10
			}
		}
	}
	// A line is hierarchy:controllers:path. Version 2 has the one hierarchy 0.
	// Inside a container the path may be that of the host while the mount shows
	// the container's own group as the root, hence every parent is tried.
	sc := bufio.NewScanner(bytes.NewReader(read("proc/self/cgroup")))
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), ":", 3)
		if len(f) != 3 {
			continue
		}
		base, file := "", ""
		switch {
		case f[0] == "0":
			base, file = "sys/fs/cgroup", "memory.max"
		case f[1] == "memory":
			base, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			limit(read(path.Join(base, dir, file)))
			if dir == "/" {
				break
			}
		}
	}
	if total == math.MaxInt64 {
		return 4 << 30
	}
	return total
}
