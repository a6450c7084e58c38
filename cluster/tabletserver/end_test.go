package tabletserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// startServer starts a server of a cluster of one table.
func startServer(t *testing.T, d rpc.Dialer) (*Server, *catalog.Table) {
	t.Helper()
	return startServerOn(t, d, memory.New().Client(nil, nil))
}

// startServerOn starts such a server on a lock service.
func startServerOn(t *testing.T, d rpc.Dialer, l lock.Service) (*Server, *catalog.Table) {
	t.Helper()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.WriteName(t.Context(), l, "t", catalog.Name{{Table: &schema.Table{Name: "t", ID: 5, Version: 1}}}, 0); err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Options{Name: "s", Addr: "s", Lock: l, Dialer: d, Objects: store, Logs: store})
	if err != nil {
		t.Fatal(err)
	}
	table, err := s.schemas.ByID(5)
	if err != nil {
		t.Fatal(err)
	}
	return s, table
}

// What pauses tablets while the server ends gives them back: else the end would
// wait for them for ever.
func TestPauseAtTheEnd(t *testing.T) {
	ctx := t.Context()
	s, table := startServer(t, nil)
	for id := range metadata.TabletID(3) {
		one := tablet.Open(s.users.env, &metadata.Row{Table: 5, Tablet: id, Version: 1}, table.Schema)
		one.Start()
		s.mu.Lock()
		s.tablets[id] = &served{Tablet: one, table: table, group: s.users}
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

// A tablet that cannot be opened after a split was finished is given up: else the
// end of the server would wait for its readers for ever.
func TestOpenFails(t *testing.T) {
	ctx := t.Context()
	// The two children's rows are changed; of the third change nobody hears.
	m := &metadataServer{lost: 3}
	s, table := startServer(t, m)
	m.give = s.cancel // what it does ends
	root := &metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{State: metadata.Open, Epoch: 1, Addr: "m"}}
	if err := s.meta.CAS(ctx, root); err != nil {
		t.Fatal(err)
	}
	r := &metadata.Row{Table: 5, Tablet: 2, Version: 7, Assignment: &metadata.Assignment{State: metadata.Opening, Epoch: 3, Incarnation: s.incarnation},
		Op: &metadata.Op{Kind: metadata.Split, At: []byte("m"), Left: 3, Right: 4}}
	one := &served{Tablet: tablet.Open(s.users.env, r, table.Schema), table: table, epoch: 3, group: s.users}
	one.Start()
	if err := s.open(ctx, one); err == nil || m.changes < 3 {
		t.Errorf("%d changes, %v", m.changes, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = s.Close(ctx)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
	}
}

// A metadataServer carries out changes of rows up to one.
type metadataServer struct {
	rpc.TabletServer
	changes, lost int
	give          func()
}

// Dial implements rpc.Dialer.
func (m *metadataServer) Dial(string) rpc.TabletServer { return m }

// CheckAndMutateRow implements rpc.Data.
func (m *metadataServer) CheckAndMutateRow(_ context.Context, _ rpc.Target, _ []byte, _ *filter.Node, then, _ []row.Mutation) (bool, error) {
	if m.changes++; m.changes >= m.lost {
		m.give()
		return false, rpc.ErrUnknown
	}
	return len(then) > 0, nil
}
