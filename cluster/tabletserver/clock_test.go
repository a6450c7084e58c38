package tabletserver

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/stamp"
)

// setForward returns t as a clock says it that was set forward by d: the monotonic reading of t
// stays. A Time with such a reading has its seconds in the bits of the first word from 30 on.
func setForward(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}

// TestClockWatched: a clock that is set forward before the first change and the first reader is
// followed by neither, and an operator is told.
func TestClockWatched(t *testing.T) {
	const ahead = 48 * time.Hour
	var jumped atomic.Bool
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Options{Name: "s", Addr: "s", Lock: memory.New().Client(nil, nil), Objects: store, Logs: store, Now: func() time.Time {
		if jumped.Load() {
			return setForward(time.Now(), ahead)
		}
		return time.Now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	jumped.Store(true)
	if now := s.o.Now(); time.Until(now) > time.Minute || now.Round(0).Sub(time.Now().Round(0)) < ahead-time.Minute {
		t.Fatalf("the clock was not set forward: %v", now)
	}
	var p promises
	p.init(&s.clock)
	p.join(nil, time.Hour)
	if w := p.next(s.o.Now()); stamp.Time(w).After(time.Now().Add(time.Hour)) {
		t.Errorf("readers are promised %v", stamp.Time(w))
	}
	if got := s.Changes().ClockAhead; got < ahead-time.Minute || got > ahead+time.Minute {
		t.Errorf("the clock is %v ahead, and should be %v", got, ahead)
	}
}

// A fullLog takes no record for as long as refuses says.
type fullLog struct {
	ownLog
	refuses bool
	trimmed commitlog.Pos
}

func (l *fullLog) allow(context.Context, cell.Seq) error { return nil }

func (l *fullLog) Reserve(context.Context, int) (commitlog.Reservation, error) {
	if l.refuses {
		return 0, fault.New(fault.Exhausted, "the store is full")
	}
	return 0, nil
}

func (l *fullLog) Append(commitlog.Reservation, uint64, uint64, commitlog.Records, commitlog.Sink) commitlog.Pos {
	return commitlog.Pos{Segment: 9}
}

func (l *fullLog) Wait(context.Context, commitlog.Pos) error { return nil }

func (l *fullLog) Bytes() int64 { return 2 * renewBytes }

func (l *fullLog) Trim(before commitlog.Pos) error {
	l.trimmed = before
	return nil
}

// TestClockRecordAskedForAgain: a clock record that holds up trimming of the log is asked for
// again if it could not be appended.
func TestClockRecordAskedForAgain(t *testing.T) {
	asked := 0
	log := &fullLog{refuses: true}
	c := &clockedLog{ownLog: log, wake: func() { asked++ }}
	c.found(commitlog.Pos{Segment: 1})
	end := commitlog.Pos{Segment: 8}
	trim := func() {
		t.Helper()
		if err := c.Trim(end); err != nil {
			t.Fatal(err)
		}
	}
	trim()
	if err := c.append(t.Context(), 5); asked != 1 || err == nil {
		t.Fatalf("a record was asked for %d times, %v", asked, err)
	}
	log.refuses = false
	trim()
	if err := c.append(t.Context(), 5); asked != 2 || err != nil || log.trimmed.Segment != 1 {
		t.Fatalf("a record was asked for %d times, not twice; %v; the log is trimmed up to %v", asked, err, log.trimmed)
	}
	if trim(); log.trimmed != end || asked != 2 {
		t.Errorf("the log is trimmed up to %v, and a record was asked for %d times", log.trimmed, asked)
	}
}
