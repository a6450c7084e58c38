package tabletserver

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/memory"
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
