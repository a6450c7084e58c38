package master

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// An emptyMetadata serves a METADATA tablet that has no rows. It fails reads while fails
// is set.
type emptyMetadata struct {
	rpc.TabletServer
	fails error
}

func (s *emptyMetadata) Dial(string) rpc.TabletServer { return s }

func (s *emptyMetadata) ReadRows(context.Context, rpc.Target, *rpc.Read, scan.Writer) ([]row.Range, scan.Stats, error) {
	return nil, scan.Stats{}, s.fails
}

// TestFailedRefresh: a refresh that fails leaves what is known to have changed to the next.
func TestFailedRefresh(t *testing.T) {
	ctx := t.Context()
	gone, opened := rpc.TabletKey{Table: 5, End: []byte("m")}, rpc.TabletKey{Table: 5}
	for _, c := range []struct {
		name  string
		stale int
		fresh bool
	}{{"a table was made", 1, true}, {"many rows changed", 1001, false}, {"a row changed", 1, false}} {
		t.Run(c.name, func(t *testing.T) {
			l, server := memory.New().Client(nil, nil), &emptyMetadata{fails: fault.New(fault.Internal, "planted")}
			meta := metastore.New(l, server)
			root := &metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{State: metadata.Open, Epoch: 1, Server: "s", Addr: "s", Incarnation: 1}}
			if err := meta.CAS(ctx, root); err != nil {
				t.Fatal(err)
			}
			m := &master{o: Options{Interval: time.Hour, Counters: new(Counters)}, meta: meta}
			k := &m.tablets
			k.scanned, k.servers, k.tables = time.Now(), map[uint64]bool{}, map[uint64]bool{5: true}
			k.rows = []*tabletHint{
				{Table: 5, Tablet: 2, End: gone.End, Assignment: &metadata.Assignment{State: metadata.Open, Incarnation: 1}},
				{Table: 5, Tablet: 3, Start: gone.End, Assignment: &metadata.Assignment{State: metadata.Opening, Incarnation: 1}},
			}
			for range c.stale {
				k.invalidate(gone)
			}
			m.noteOpened([]rpc.TabletKey{opened})
			v := &view{tables: map[uint64]bool{5: true, 7: c.fresh}, servers: map[uint64]catalog.Registration{}}
			if _, err := m.refresh(ctx, time.Minute, v); !errors.Is(err, fault.Internal) {
				t.Fatalf("a refresh while METADATA cannot be read: %v", err)
			}
			server.fails = nil
			if whole, err := m.refresh(ctx, time.Minute, v); err != nil || whole != (c.stale > 1000) {
				t.Fatalf("the next refresh: whole=%v, %v", whole, err)
			}
			if len(k.stale)+len(k.loaded) != 0 {
				t.Errorf("%d rows are still to be read, and %d opened", len(k.stale), len(k.loaded))
			}
			if c.stale > 1000 {
				return // it read METADATA, which has none of them
			}
			if len(k.rows) != 1 || k.rows[0].Tablet != 3 || k.rows[0].Assignment.State != metadata.Open {
				t.Errorf("after the next refresh: %+v", k.rows[0])
			}
		})
	}
}
