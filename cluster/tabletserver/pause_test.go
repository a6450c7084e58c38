package tabletserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// What pauses tablets while the server ends gives them back: else the end would
// wait for them for ever.
func TestPauseAtTheEnd(t *testing.T) {
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(ctx, Options{Name: "s", Addr: "s", Lock: memory.New().Client(nil, nil), Objects: store, Logs: store})
	if err != nil {
		t.Fatal(err)
	}
	sch := &schema.Table{ID: 5}
	for id := range metadata.TabletID(3) {
		one := tablet.Open(s.users.env, &metadata.Row{Table: 5, Tablet: id, Version: 1}, func() *schema.Table { return sch })
		one.Start()
		s.mu.Lock()
		s.tablets[id] = &served{Tablet: one, half: s.users}
		s.mu.Unlock()
		if err := s.Pause(ctx, uint64(id), []metadata.TabletID{id}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	// The end has begun, and has not come to the pauses.
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	if _, err := s.Cut(ctx, 0); !errors.Is(err, rpc.ErrNotServing) {
		t.Errorf("cut while the server ends: %v", err)
	}
	if err := s.Resume(ctx, 1); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	s.stopping = false
	s.mu.Unlock()
	now, cancel := context.WithCancel(ctx)
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Close(now) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
	if err := s.Pause(ctx, 9, nil, time.Hour); err == nil {
		t.Error("a pause after the end")
	}
}
