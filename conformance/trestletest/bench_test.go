package trestletest

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// descriptors returns how many files the process has open, 0 where the system
// does not tell.
func descriptors() int {
	open, _ := os.ReadDir("/proc/self/fd")
	return len(open)
}

// Servers that were open at once, and used, give everything back. The runtime
// keeps some 400 bytes for each goroutine that ever ran at the same time, so what
// may be left of a server also bounds how many goroutines it has.
func TestGivesBack(t *testing.T) {
	servers, leftOfEach := 200, int64(32<<10)
	if testing.Short() {
		servers = 50
	}
	round := func(n int) {
		var open []*Server
		for range n {
			s, err := NewServer("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() // if a later one cannot start
			open = append(open, s)
		}
		conn := dial(t, open[0].Addr)
		use(t, conn)
		conn.Close()
		for _, s := range open {
			s.Close()
		}
	}
	round(1) // what the process keeps once is no server's
	time.Sleep(100 * time.Millisecond)
	before, goroutines, files := heap(), runtime.NumGoroutine(), descriptors()
	began := time.Now()
	round(servers)
	t.Logf("%v for each of %d servers", time.Since(began)/time.Duration(servers), servers)

	// The client's goroutines and finalizers take a moment.
	var left int64
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
		left = heap() - before
		if left <= int64(servers)*leftOfEach && runtime.NumGoroutine() <= goroutines && descriptors() <= files {
			t.Logf("%d bytes are left of each", left/int64(servers))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("of each of %d servers %d bytes are left, want at most %d; goroutines went from %d to %d, open files from %d to %d",
		servers, left/int64(servers), leftOfEach, goroutines, runtime.NumGoroutine(), files, descriptors())
}

// BenchmarkNewServer starts and closes a server, as each test of a program
// does. It reports how much of the heap one leaves behind.
func BenchmarkNewServer(b *testing.B) {
	one := func() {
		s, err := NewServer("127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
	one()
	before := heap()
	for b.Loop() {
		one()
	}
	runtime.GC() // and another in heap, for what has a finalizer
	b.ReportMetric(float64(heap()-before)/float64(b.N), "left-B/op")
}
