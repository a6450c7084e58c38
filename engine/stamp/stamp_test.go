package stamp

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
)

func TestTimes(t *testing.T) {
	for _, at := range []time.Time{time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 11, 24, 7, 0, 0, 123456000, time.UTC), time.Date(2069, 1, 1, 0, 0, 0, 1000, time.UTC)} {
		s := At(at)
		if got := Time(s); !got.Equal(at) || s < Least || s >= Most {
			t.Errorf("%v becomes %v by stamp %d", at, got, s)
		}
		if Time(s+Stride).Sub(at) != time.Microsecond {
			t.Errorf("the stamp after that of %v is of %v", at, Time(s+Stride))
		}
	}
	for _, early := range []time.Time{{}, time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC), time.Unix(0, 0)} {
		if At(early) != Least {
			t.Errorf("%v has stamp %d", early, At(early))
		}
	}
	if s := At(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)); s >= Most || !Fits(s, 1<<28) {
		t.Errorf("a clock far ahead gives %d", s)
	}
	if !Time(7).Equal(Time(Least)) {
		t.Error("a counter has a time of its own")
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		first, last cell.Seq
		n           int
	}{{5, 5, 1}, {5, 4, 0}, {5, 9, 5}, {Least, Least, 1}, {Least, Least - Stride, 0}, {Least, Least + 4*Stride, 5}} {
		if got := Last(c.first, c.n); got != c.last {
			t.Errorf("the last of %d from %d on is %d, want %d", c.n, c.first, got, c.last)
		}
	}
	for _, c := range []struct {
		first cell.Seq
		n     int
		want  bool
	}{{1, 1, true}, {1, -1, false}, {cell.MaxSeq + 1, 0, false}, {cell.MaxSeq, 0, true}, {cell.MaxSeq, 1, false}, {Least, int(^uint(0) >> 1), false}, {Most, 1 << 28, true}} {
		if Fits(c.first, c.n) != c.want {
			t.Errorf("%d operations from %d on: %v", c.n, c.first, !c.want)
		}
	}
}

// TestNextGrows: numbers only grow, whatever clocks say, from counters too.
func TestNextGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := cell.Seq(rapid.Uint64Range(0, uint64(Least-1)).Draw(t, "counter"))
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now := time.UnixMicro(rapid.Int64Range(-1<<50, 1<<52).Draw(t, "now"))
			next := Next(last, now)
			if next <= last || next < Least && last >= Least || next < At(now) {
				t.Fatalf("%d follows %d at %v", next, last, now)
			}
			if last < Least && next < Least {
				t.Fatalf("counter %d follows counter %d", next, last)
			}
			last = Last(next, rapid.IntRange(1, 1000).Draw(t, "operations"))
		}
	})
}

func TestClock(t *testing.T) {
	var c Clock
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, s := range []struct {
		name        string
		passed, set time.Duration // in the process; by how much the clock was set
		ahead       time.Duration
	}{
		{"first", 0, 0, 0},
		{"a minute forward", time.Second, time.Minute, 0},
		{"far back", 2 * time.Second, -300 * 24 * time.Hour, 0},
		{"59 minutes forward", 3 * time.Second, 59 * time.Minute, 0},
		{"a day forward", 4 * time.Second, 26 * time.Hour, 26 * time.Hour},
		{"a minute later", time.Minute, 26 * time.Hour, 26 * time.Hour},
		{"back again", 2 * time.Minute, 0, 0},
		{"after a day's sleep", 24 * time.Hour, 0, 0},
		{"followed by 50 minutes", 25 * time.Hour, 50 * time.Minute, 0},
		{"and by 50 more", 26 * time.Hour, 100 * time.Minute, 0},
		{"but not by two hours", 27 * time.Hour, 220 * time.Minute, 2 * time.Hour},
	} {
		wall := at.Add(s.passed + s.set)
		if got, ahead := c.read(wall, s.passed); ahead != s.ahead || !got.Equal(wall.Add(-ahead)) {
			t.Errorf("%s it reads %v, %v ahead, want %v", s.name, got, ahead, wall.Add(-s.ahead))
		}
	}
	var live Clock
	now := time.Now()
	live.Read(now)
	if got, ahead := live.Read(now.Add(48 * time.Hour)); ahead != 0 || !got.Equal(now.Add(48*time.Hour)) {
		t.Errorf("two days later it reads %v, %v ahead", got, ahead)
	}
}

// BenchmarkNext is what a commit pays for its time.
func BenchmarkNext(b *testing.B) {
	var c Clock
	last := Least
	for b.Loop() {
		now, _ := c.Read(time.Now())
		last = Next(last, now)
	}
}
