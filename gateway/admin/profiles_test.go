package admin

import (
	"context"
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
