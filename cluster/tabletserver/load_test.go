package tabletserver

import (
	"testing"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
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
