package membership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
)

// join returns the list as a member has it, and what ends the membership.
func join(t *testing.T, l lock.Service, name string) (list func() []string, leave func()) {
	t.Helper()
	var values atomic.Pointer[[]string]
	leave, err := Join(t.Context(), Options{Lock: l, Prefix: "m/", Key: "m/" + name, Value: []byte(name), TTL: 200 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Changed: func(items []lock.Item) error {
			var all []string
			for _, i := range items {
				all = append(all, string(i.Value))
			}
			slices.Sort(all)
			values.Store(&all)
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	return func() []string { return *values.Load() }, leave
}

func wait(t *testing.T, list func() []string, want ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !slices.Equal(list(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the list is %v, want %v", list(), want)
		}
	}
}

// TestMembers: each member hears of the others, of one that leaves, and of one whose
// session ended and who is back.
func TestMembers(t *testing.T) {
	s := memory.New()
	var cut atomic.Bool
	a, leaveA := join(t, s.Client(nil, nil), "a")
	b, leaveB := join(t, s.Client(func(_ context.Context, _ string, do func()) error {
		if cut.Load() {
			return errors.New("cut off")
		}
		do()
		return nil
	}, nil), "b")
	if got := b(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("Join returns before the list is known: %v", got)
	}
	wait(t, a, "a", "b")
	cut.Store(true)
	wait(t, a, "a")
	cut.Store(false)
	wait(t, a, "a", "b")
	c, leaveC := join(t, s.Client(nil, nil), "c")
	wait(t, b, "a", "b", "c") // it listens again, too
	leaveA()
	wait(t, b, "b", "c")
	wait(t, c, "b", "c")
	leaveB()
	leaveC()
	if items, _, err := s.Client(nil, nil).List(t.Context(), ""); err != nil || len(items) > 0 {
		t.Errorf("%d items are left, %v", len(items), err)
	}
}

// TestJoinFails: who cannot be told of the others is not a member.
func TestJoinFails(t *testing.T) {
	l := memory.New().Client(nil, nil)
	broken := errors.New("what is in the list cannot be read")
	_, err := Join(t.Context(), Options{Lock: l, Prefix: "m/", Key: "m/a", TTL: time.Second, Log: slog.New(slog.DiscardHandler), Changed: func([]lock.Item) error { return broken }})
	if !errors.Is(err, broken) {
		t.Errorf("Join: %v", err)
	}
	if items, _, err := l.List(t.Context(), ""); err != nil || len(items) > 0 {
		t.Errorf("%d items are left, %v", len(items), err)
	}
}
