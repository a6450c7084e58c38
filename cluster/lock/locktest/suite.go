package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// Run tests the service that open returns. ttl is that of sessions; the tests
// wait for its end several times. It is 0 for a service whose sessions end with
// the process and not before. around may be nil, or runs each test, as
// synctest.Test does.
func Run(t *testing.T, open func(t *testing.T) lock.Service, ttl time.Duration, around func(*testing.T, func(*testing.T))) {
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			if around == nil {
				test(t)
			} else {
				around(t, test)
			}
		})
	}
	run("Items", func(t *testing.T) { items(t, open(t)) })
	run("Race", func(t *testing.T) { race(t, open(t)) })
	run("Watch", func(t *testing.T) { watch(t, open(t)) })
	run("OwnValues", func(t *testing.T) { ownValues(t, open(t)) })
	run("Session", func(t *testing.T) { session(t, open(t), ttl) })
	run("Acquire", func(t *testing.T) { acquire(t, open(t), ttl) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func items(t *testing.T, s lock.Service) {
	ctx := t.Context()
	_, err := s.Get(ctx, "a")
	refused(t, "Get of nothing", err, fault.NotFound)
	_, err = s.Put(ctx, "a", []byte("1"), 7)
	refused(t, "Put over a version that is not there", err, fault.Aborted)
	v1, err := s.Put(ctx, "a", []byte("1"), 0)
	must(t, err)
	_, err = s.Put(ctx, "a", []byte("x"), 0)
	refused(t, "Put of what exists", err, fault.Aborted)
	v2, err := s.Put(ctx, "a", []byte("2"), v1)
	must(t, err)
	if v2 <= v1 || v1 < 1 {
		t.Errorf("versions %d, %d", v1, v2)
	}
	_, err = s.Put(ctx, "a", []byte("x"), v1)
	refused(t, "Put over an old version", err, fault.Aborted)
	i, err := s.Get(ctx, "a")
	must(t, err)
	if i.Key != "a" || string(i.Value) != "2" || i.Version != v2 || i.Created != v1 || i.Held {
		t.Errorf("got %+v", i)
	}
	refused(t, "Delete of an old version", s.Delete(ctx, "a", v1), fault.Aborted)
	must(t, s.Delete(ctx, "a", v2))
	refused(t, "Delete of nothing", s.Delete(ctx, "a", v2), fault.Aborted)
	v3, err := s.Put(ctx, "a", nil, 0)
	must(t, err)
	if v3 <= v2 {
		t.Errorf("version %d after %d", v3, v2)
	}
	const n = 1500
	for k := range n {
		_, err := s.Put(ctx, fmt.Sprintf("list/%04d", k), fmt.Append(nil, k), 0)
		must(t, err)
	}
	list, revision, err := s.List(ctx, "list/")
	must(t, err)
	if len(list) != n || revision < list[n-1].Version {
		t.Fatalf("%d items of revision %d", len(list), revision)
	}
	for k, i := range list {
		if i.Key != fmt.Sprintf("list/%04d", k) || string(i.Value) != fmt.Sprint(k) {
			t.Fatalf("item %d: %+v", k, i)
		}
	}
}

// race: of several callers that change one version of an item one succeeds.
func race(t *testing.T, s lock.Service) {
	var version int64
	for round := range 20 {
		var won []int64
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				v, err := s.Put(t.Context(), "race", fmt.Append(nil, round, i), version)
				if err == nil {
					mu.Lock()
					won = append(won, v)
					mu.Unlock()
				} else if !errors.Is(err, fault.Aborted) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("round %d: %d have won", round, len(won))
		}
		version = won[0]
	}
}

// ownValues: what one caller does with a value that it was given, or gave, no
// other caller sees.
func ownValues(t *testing.T, s lock.Service) {
	ctx := t.Context()
	_, before, err := s.List(ctx, "own")
	must(t, err)
	given := []byte("value")
	_, err = s.Put(ctx, "own", given, 0)
	must(t, err)
	given[0] = 'x'
	get := func() []byte {
		i, err := s.Get(ctx, "own")
		must(t, err)
		return i.Value
	}
	get()[0] = 'x'
	list, _, err := s.List(ctx, "own")
	must(t, err)
	list[0].Value[0] = 'x'
	for range 2 {
		enough := errors.New("enough")
		err := s.Watch(ctx, "own", before, func(e lock.Event) error {
			if string(e.Value) != "value" {
				t.Errorf("a watcher is told of %q", e.Value)
			}
			e.Value[0] = 'x'
			return enough
		})
		refused(t, "Watch", err, enough)
	}
	if list, _, err = s.List(ctx, "own"); err != nil || string(list[0].Value) != "value" || string(get()) != "value" {
		t.Errorf("%q, %q, %v", list[0].Value, get(), err)
	}
}

func watch(t *testing.T, s lock.Service) {
	ctx := t.Context()
	must2 := func(v int64, err error) int64 { must(t, err); return v }
	must2(s.Put(ctx, "w/before", nil, 0))
	_, revision, err := s.List(ctx, "w/")
	must(t, err)
	v := must2(s.Put(ctx, "w/a", []byte("1"), 0)) // before the watch begins
	var got []string
	begun, enough := make(chan struct{}), errors.New("enough")
	var watching sync.WaitGroup
	watching.Go(func() {
		err := s.Watch(ctx, "w/", revision, func(e lock.Event) error {
			got = append(got, fmt.Sprintf("%s=%s %v", e.Key, e.Value, e.Deleted))
			if len(got) == 1 {
				close(begun)
			}
			if len(got) == 4 {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Errorf("Watch: %v", err)
		}
	})
	<-begun
	v = must2(s.Put(ctx, "w/a", []byte("2"), v))
	must2(s.Put(ctx, "other", nil, 0))
	must(t, s.Delete(ctx, "w/a", v))
	must2(s.Put(ctx, "w/a", []byte("3"), 0))
	watching.Wait()
	if want := []string{"w/a=1 false", "w/a=2 false", "w/a= true", "w/a=3 false"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := s.Watch(short, "w/", revision+1000, func(lock.Event) error { return nil }); err == nil {
		t.Error("a watch ended without an error")
	}
}

func session(t *testing.T, s lock.Service, ttl time.Duration) {
	ctx := t.Context()
	begun := time.Now()
	a, err := s.NewSession(ctx, ttl)
	must(t, err)
	if d, left := a.Deadline().Sub(begun), time.Until(a.Deadline()); d < ttl || ttl > 0 && left > ttl+time.Second {
		t.Errorf("the deadline of a new session is in %v", left)
	}
	i, err := a.Hold(ctx, "held", []byte("1"))
	must(t, err)
	_, err = a.Hold(ctx, "held", []byte("1"))
	refused(t, "Hold of what exists", err, fault.Aborted)
	v, err := s.Put(ctx, "held", []byte("2"), i.Version)
	must(t, err)
	time.Sleep(2 * ttl)
	if got, err := s.Get(ctx, "held"); err != nil || string(got.Value) != "2" || got.Version != v {
		t.Fatalf("after two ttl: %+v, %v", got, err)
	}
	got, err := s.Get(ctx, "held")
	must(t, err)
	listed, _, err := s.List(ctx, "held")
	must(t, err)
	if !i.Held || !got.Held || len(listed) != 1 || !listed[0].Held {
		t.Errorf("a session holds %+v, %+v and %+v", i, got, listed)
	}
	if !a.Deadline().After(time.Now()) {
		t.Error("a session that is kept is at its end")
	}
	must(t, a.Close(ctx))
	<-a.Done()
	_, err = s.Get(ctx, "held")
	refused(t, "Get of what a closed session held", err, fault.NotFound)
	_, err = a.Hold(ctx, "held", nil)
	refused(t, "Hold by a closed session", err, fault.Unavailable)
}

func acquire(t *testing.T, s lock.Service, ttl time.Duration) {
	ctx := t.Context()
	one, err := s.NewSession(ctx, ttl)
	must(t, err)
	two, err := s.NewSession(ctx, ttl)
	must(t, err)
	first, err := lock.Acquire(ctx, s, one, "master", []byte("one"))
	must(t, err)
	short, cancel := context.WithTimeout(ctx, max(min(ttl/2, time.Second/2), 20*time.Millisecond))
	if _, err := lock.Acquire(short, s, two, "master", []byte("two")); err == nil {
		t.Error("two masters")
	}
	cancel()
	got := make(chan lock.Item)
	go func() {
		i, err := lock.Acquire(ctx, s, two, "master", []byte("two"))
		if err != nil {
			t.Error(err)
		}
		got <- i
	}()
	must(t, one.Close(ctx))
	if second := <-got; second.Created <= first.Created {
		t.Errorf("the second holder's epoch is %d, the first's was %d", second.Created, first.Created)
	}
	must(t, two.Close(ctx))
}
