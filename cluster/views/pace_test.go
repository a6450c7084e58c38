package views

import (
	"math"
	"testing"
	"time"
)

// TestPace: while others wait for processors, Workers have a small part of them, and more the
// further they are behind; the time in which a Worker has waited for a processor is not held
// against it.
func TestPace(t *testing.T) {
	const n, row = 1000, 5 * time.Microsecond
	start := time.Unix(1, 0)
	// part returns which part of the processors a Worker with a lag has, that is held up
	// nine times of ten.
	part := func(busy, wall bool, lag time.Duration) float64 {
		p := &pace{busy: busy, wall: wall}
		now, worked := start, time.Duration(0)
		for i := range 500 {
			took := n * row
			if worked += took; i%10 != 0 {
				took *= 5
			}
			p.looked = now // busy is what the test says
			now = now.Add(max(n*row, p.charge(now, n, took, share(lag))))
		}
		return float64(worked) / float64(now.Sub(start)) / float64(processors())
	}
	for lag, want := range map[time.Duration]float64{0: leastShare, 6 * time.Second: leastShare + 0.01, 24 * time.Second: leastShare + 0.16, -time.Second: leastShare} {
		if got := part(true, false, lag); math.Abs(got-want) > want/10 {
			t.Errorf("with a lag of %v, Workers have %.3f of the processors, want %.3f", lag, got, want)
		}
	}
	// It is held up for four times of what it works, nearly.
	if got := part(true, true, 0) * 4.6; math.Abs(got-leastShare) > leastShare/10 {
		t.Errorf("if the time counts that it has waited, a Worker has %.3f of what there is", got)
	}
	if got := part(true, false, time.Hour) * float64(processors()); got < 0.9 {
		t.Errorf("a Worker that is far behind has %.2f of a processor", got)
	}
	if got := part(false, false, 0) * float64(processors()); got < 0.9 {
		t.Errorf("a Worker has %.2f of a processor that nobody else waits for", got)
	}
}

// TestPaceRequests: requests are noticed when there were some since the last look.
func TestPaceRequests(t *testing.T) {
	n := int64(0)
	p := &pace{requests: func() int64 { return n }}
	for i, more := range []int64{0, 1, 0, 0, 5} {
		n += more
		if got := p.hadRequests(); got != (more > 0) {
			t.Errorf("look %d, after %d more: %v", i, more, got)
		}
	}
	if !new(pace).hadRequests() {
		t.Error("requests that are not known are not there")
	}
}

// TestRowSet: each key once, ascending, also when the set is used again.
func TestRowSet(t *testing.T) {
	s := newRowSet()
	for range 3 {
		big := make([]byte, roomBytes+1)
		for _, k := range [][]byte{[]byte("b"), []byte("a"), big, []byte("b"), {}, []byte("a")} {
			s.add(k)
		}
		got := s.sorted()
		if len(got) != 4 || len(got[0]) != 0 || len(got[1]) != len(big) || string(got[2]) != "a" || string(got[3]) != "b" || s.bytes != len(big)+2 {
			t.Fatalf("%d keys of %d bytes: %.40q", len(got), s.bytes, got)
		}
		s.reset()
	}
	if s.bytes != 0 || !s.add([]byte("a")) {
		t.Error("a set is not empty after reset")
	}
}
