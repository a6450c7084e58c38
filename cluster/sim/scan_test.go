package sim

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A cutDialer reaches servers of which one call of ReadRows gives some rows, and is then
// refused. between runs before its caller is told.
type cutDialer struct {
	rpc.Dialer
	rows    int64
	done    *atomic.Bool
	between func()
}

func (d cutDialer) Dial(addr string) rpc.TabletServer { return cutServer{d.Dialer.Dial(addr), d} }

type cutServer struct {
	rpc.TabletServer
	d cutDialer
}

func (s cutServer) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	if s.d.done.Swap(true) {
		return s.TabletServer.ReadRows(ctx, at, req, w)
	}
	part := *req
	part.Limit = s.d.rows
	rest, stats, err := s.TabletServer.ReadRows(ctx, at, &part, w)
	if err != nil {
		return rest, stats, err
	}
	s.d.between()
	return rest, stats, rpc.ErrNotServing
}

// TestScanBesideSplit: a scan of METADATA gives each row once, in order, though METADATA is split
// behind it.
func TestScanBesideSplit(t *testing.T) {
	t.Parallel() // most of the time it waits
	ctx := t.Context()
	var done atomic.Bool
	done.Store(true)
	var between func()
	c := start(t, Options{WrapDialer: func(node string, d rpc.Dialer) rpc.Dialer {
		if node == "scanner" {
			return cutDialer{d, 6, &done, func() { between() }}
		}
		return d
	}}, 1)
	defer c.Close()
	admin, scanner := clientOf(t, c, "admin"), clientOf(t, c, "scanner")
	var splits []string
	for i := range 9 {
		splits = append(splits, fmt.Sprint("k", i))
	}
	table := create(t, admin, upkeepTable, splits...)
	between = func() {
		roots, err := admin.Metadata().Roots(ctx)
		if err != nil || len(roots) != 1 {
			t.Errorf("METADATA has %d tablets: %v", len(roots), err)
			return
		}
		at := metastore.Key(rpc.TabletKey{Table: table.ID, End: []byte("k2")})
		if err := c.Dialer("test").Dial(roots[0].Assignment.Addr).Split(ctx, roots[0].Tablet, at); err != nil {
			t.Error(err)
		}
	}
	var got []string
	done.Store(false)
	if err := scanner.Metadata().ScanTable(ctx, table.ID, func(r *metadata.Row) error {
		got = append(got, string(r.End))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := append(splits, ""); !slices.Equal(got, want) {
		t.Errorf("a scan gave %q, not %q", got, want)
	}
}
