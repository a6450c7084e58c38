package admin

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway/backend"
)

// silentRecords answers no question for records while it is silent.
type silentRecords struct {
	backend.Backend
	silent atomic.Bool
	asked  atomic.Int64
}

func (b *silentRecords) GetRecord(ctx context.Context, key string) ([]byte, uint64, error) {
	if b.asked.Add(1); b.silent.Load() {
		<-ctx.Done()
		return nil, 0, context.Cause(ctx)
	}
	return b.Backend.GetRecord(ctx, key)
}

// TestProfileOfSilentRecords: requests go on with what is known of an instance
// while its record cannot be read, and one at a time tries to.
func TestProfileOfSilentRecords(t *testing.T) {
	b := &silentRecords{Backend: model.New(model.Options{})}
	c := newClock()
	s := serve(t, b, Options{Now: c.now, ProfileTTL: time.Second})
	s.createInstance(t, "inst-one", "cluster-one")
	want := must(s.admin.Profile(t.Context(), testInstance, ""))(t)
	b.silent.Store(true)
	c.add(time.Minute)
	asked := b.asked.Load()
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got, err := s.admin.Profile(ctx, testInstance, "")
		cancel()
		if err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if n := b.asked.Load() - asked; n != 1 {
		t.Errorf("the record was asked for %d times", n)
	}
	b.silent.Store(false)
	must(s.inst.CreateAppProfile(t.Context(), &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "new", AppProfile: multi("cluster-one")}))(t)
	c.add(time.Minute)
	must(s.admin.Profile(t.Context(), testInstance, "new"))(t)
}

// TestKeyOfSilentRecords: callers go on with the key that is known while its record cannot
// be read. Without one they wait for it as long as they like, none behind another.
func TestKeyOfSilentRecords(t *testing.T) {
	b := &silentRecords{Backend: model.New(model.Options{})}
	a := New(b, Options{})
	hurry := func(want error) {
		t.Helper()
		start := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := a.TokenKey(ctx); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("20 callers took %v", d)
		}
	}
	b.silent.Store(true)
	hurry(context.DeadlineExceeded)
	b.silent.Store(false)
	hurry(nil)
	known := a.key.Load()
	a.key.Store(&tokenKey{key: known.key, read: known.read.Add(-time.Minute)})
	b.silent.Store(true)
	asked := b.asked.Load()
	hurry(nil)
	if n := b.asked.Load() - asked; n != 1 {
		t.Errorf("the record was asked for %d times", n)
	}
}
