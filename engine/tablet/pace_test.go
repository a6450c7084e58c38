package tablet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: work takes its share while there are requests and no debt, more with
// more debt, and all of it if it is behind or nobody asks for anything.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		name        string
		least, debt float64
		requests    int64 // in each look
		want        time.Duration
	}{
		{"no requests", 0.25, 0, 0, 100 * time.Millisecond},
		{"requests", 0.25, 0, 1, 400 * time.Millisecond},
		{"some debt", 0.25, 1. / 3, 1, 200 * time.Millisecond},
		{"behind", 0.25, 1, 1, 100 * time.Millisecond},
		{"far behind", 0.25, 7, 1, 100 * time.Millisecond},
		{"less than no debt", 0.25, -1, 1, 400 * time.Millisecond},
		{"all there is", 1, 0, 1, 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked int64
			p := Pace{Look: func() (int64, float64) { asked += c.requests; return asked, c.debt }}
			p.share(&pacer{least: 1}) // the first look has nothing to compare with
			time.Sleep(paceLook)
			w, start := p.pacer(c.least), time.Now()
			for range 100 {
				time.Sleep(time.Millisecond) // the work
				if err := w.worked(context.Background(), paceStep); err != nil {
					t.Fatal(err)
				}
			}
			took := time.Since(start)
			if took < c.want*95/100 || took > c.want*105/100 {
				t.Errorf("%s: 100 ms of work took %v, want %v", c.name, took, c.want)
			}
			if y := p.Yielded(); y != took-100*time.Millisecond {
				t.Errorf("%s: yielded for %v", c.name, y)
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			var err error
			for range 100 {
				time.Sleep(time.Millisecond)
				if err = w.worked(ctx, paceStep); err != nil {
					break
				}
			}
			if (err != nil) != (c.want > 100*time.Millisecond) {
				t.Errorf("%s: cancelled work ends with %v", c.name, err)
			}
		})
	}
}

// A nil pacer and a Pace that nobody has bound hold nothing back.
func TestNoPace(t *testing.T) {
	if w := new(Pace).pacer(0.25); w != nil || w.worked(context.Background(), 1<<30) != nil {
		t.Error("held back")
	}
}
