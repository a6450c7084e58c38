package sim

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A blinded dialer leads to servers that leave out the first tablet of a table,
// up to m, when METADATA is read for the first time after hide is set.
type blinded struct {
	rpc.Dialer
	table uint64
	hide  atomic.Bool
}

func (d *blinded) Dial(addr string) rpc.TabletServer { return &blindedServer{d.Dialer.Dial(addr), d} }

type blindedServer struct {
	rpc.TabletServer
	d *blinded
}

func (s *blindedServer) ReadRows(ctx context.Context, at rpc.Target, r *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	if s.d.hide.Swap(false) {
		hidden := *r
		hidden.Ranges = []row.Range{{Start: append(metastore.Key(rpc.TabletKey{Table: s.d.table, End: []byte("m")}), 0), End: r.Ranges[0].End}}
		r = &hidden
	}
	return s.TabletServer.ReadRows(ctx, at, r, w)
}

// TestOrderWhileTabletOpens: of the entries of one row none comes before an
// earlier one whose tablet was served by nobody when it was its turn.
func TestOrderWhileTabletOpens(t *testing.T) {
	ctx := context.Background()
	d := new(blinded)
	c := start(t, Options{WrapDialer: func(node string, real rpc.Dialer) rpc.Dialer {
		if node != "late" {
			return real
		}
		d.Dialer = real
		return d
	}}, 2)
	b := clientOf(t, c, "client")
	d.table = create(t, b, upkeepTable, "m").ID
	late := clientOf(t, c, "late") // it knows the table, and not where it is
	var entries []row.Entry
	for _, v := range []string{"1", "2"} {
		entries = append(entries, row.Entry{Key: []byte("a"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(v)}}})
	}
	d.hide.Store(true)
	if err := late.MutateRows(ctx, upkeepTable, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if d.hide.Load() {
		t.Error("nothing was hidden")
	}
	if got := contents(t, b, upkeepTable); got["a"] != "2" {
		t.Errorf("the table holds %v", got)
	}
}
