package tabletserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// TestLoadInSplit: while a tablet is split or merged, METADATA calls the new one
// open and the server does not serve it yet. A late call of the master to load it
// does not make the server seal, and so lose, its own log.
func TestLoadInSplit(t *testing.T) {
	ctx := t.Context()
	s, _ := startServer(t, nil)
	defer s.Kill()
	own := catalog.MetadataLog(s.owner)
	row := &metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{State: metadata.Open, Epoch: 1, Server: "s", Addr: "s",
		Incarnation: s.owner, Log: uint64(own)}}
	if err := s.meta.CAS(ctx, row); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(ctx, []rpc.TabletKey{{Table: metastore.Table}}); err != nil {
		t.Error(err)
	}
	if state, _, err := catalog.ReadLog(ctx, s.o.Lock, own); err != nil || state.Frozen {
		t.Errorf("the server's own log is sealed: %+v, %v", state, err)
	}
	if _, err := s.tabletsByID(1); err == nil {
		t.Error("the tablet is served beside the one that will be")
	}
}

// A slowLog holds up the caller that reads the item of a log for the first time, and refuses it
// to that one.
type slowLog struct {
	lock.Service
	key             string
	entered, opened chan struct{}
}

func (l *slowLog) Get(ctx context.Context, key string) (lock.Item, error) {
	if key == l.key {
		select {
		case <-l.opened:
		default:
			close(l.entered)
			<-l.opened
			return lock.Item{}, fault.New(fault.Unavailable, "planted")
		}
	}
	return l.Service.Get(ctx, key)
}

// TestLoadTwice: a call to load tablets that another call is opening already says that they
// are served when they are, and opens them itself if the other fails.
func TestLoadTwice(t *testing.T) {
	ctx := t.Context()
	log := commitlog.ID(1 << 20)
	l := &slowLog{memory.New().Client(nil, nil), catalog.LogKey(log), make(chan struct{}), make(chan struct{})}
	s, _ := startServerOn(t, nil, l)
	defer s.Kill()
	if _, err := l.Put(ctx, l.key, []byte("{}"), 0); err != nil {
		t.Fatal(err)
	}
	row := &metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{State: metadata.Opening, Epoch: 1, Server: "s", Addr: "s",
		Incarnation: s.owner, Log: uint64(log)}}
	if err := s.meta.CAS(ctx, row); err != nil {
		t.Fatal(err)
	}
	load := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() { done <- s.Load(ctx, []rpc.TabletKey{{Table: metastore.Table}}) }()
		return done
	}
	first := load(ctx)
	<-l.entered
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := <-load(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that ends before the tablet is open: %v", err)
	}
	second := load(ctx)
	time.Sleep(20 * time.Millisecond)
	if len(second) > 0 {
		t.Error("a second call ends before the first")
	}
	close(l.opened)
	if err := <-first; fault.KindOf(err) != fault.Unavailable {
		t.Errorf("the first call: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second call: %v", err)
	}
	if _, err := s.tabletsByID(1); err != nil {
		t.Errorf("after the second call: %v", err)
	}
}
