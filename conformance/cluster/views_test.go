package cluster

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/views"
)

var viewRounds = flag.Int("cluster.views", 3, "kills of TestViews, with splits, merges, moves and drains in between")

// viewsOf are a sum by group, a secondary index, and a minimum and a number of distinct
// values by group.
var viewsOf = []views.View{
	{ID: "sums", Columns: "_key, n, total", Query: "SELECT f['group'] AS _key, COUNT(*) AS n, SUM(TO_INT64(f['value'])) AS total FROM source WHERE f['group'] IS NOT NULL GROUP BY _key"},
	{ID: "by_value", Columns: "value, source", Query: "SELECT TO_INT64(f['value']) AS value, _key AS source FROM source WHERE f['value'] IS NOT NULL ORDER BY value, source"},
	{ID: "distincts", Columns: "name, least, sketch",
		Query: "SELECT f['group'] AS name, MIN(f['value']) AS least, HLL_COUNT.INIT(f['value']) AS sketch FROM source WHERE f['group'] IS NOT NULL GROUP BY name"},
}

// TestViews: views equal their queries' results whenever nothing is written, though servers
// are killed meanwhile, and tablets of the source and of the views split, merged and moved
// each second.
func TestViews(t *testing.T) {
	c := start(t, Options{Store: *store})
	t.Logf("-cluster.seed=%d", *seed)
	r := rand.New(rand.NewPCG(*seed, 3))
	ctx := t.Context()
	conn, err := grpc.NewClient(c.API(c.Gateway), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, admin, err := Connect(ctx, c.API(c.Gateway))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "source", SplitKeys: []string{"0250", "0500", "0750"},
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
		t.Fatal(err)
	}
	const instance = "projects/project/instances/instance"
	making, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for i := range viewsOf {
		if err := viewsOf[i].Create(making, conn, instance); err != nil {
			t.Fatalf("%v\n%s%s", err, c.stacks(), c.why())
		}
	}
	var written atomic.Int64
	var compared int
	var slowest time.Duration
	for round := range *viewRounds {
		load, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		for i := range 4 {
			r := rand.New(rand.NewPCG(*seed+uint64(round), uint64(i)))
			wg.Go(func() { changeRows(load, data.Open("source"), r, &written) })
		}
		var did string
		wg.Go(func() {
			r := rand.New(rand.NewPCG(*seed+uint64(round), 9))
			for n := 0; load.Err() == nil; n++ {
				did += ", " + operate(load, c, r)
				wait(load, time.Second)
			}
		})
		wait(ctx, between(r, time.Second, 3*time.Second))
		victims := []*Process{pick(c.Servers, r)}
		if r.IntN(3) == 0 {
			m, err := c.master(ctx)
			if err != nil {
				t.Fatal(err)
			}
			victims = append(victims, m)
		}
		if err := c.kill(ctx, r, victims...); err != nil {
			t.Fatal(err)
		}
		wait(ctx, between(r, 0, 3*time.Second))
		stop()
		wg.Wait()
		began := time.Now()
		quiet, cancel := context.WithTimeout(ctx, 2*time.Minute)
		for i := range viewsOf {
			if err := viewsOf[i].Wait(quiet, c.HTTP(c.Gateway), instance); err != nil {
				t.Fatalf("round %d, %s%s: %v\n%s%s", round+1, victims[0].Name, did, err, c.stacks(), c.why())
			}
		}
		took := time.Since(began)
		slowest = max(slowest, took)
		rows := 0
		for i := range viewsOf {
			n, err := viewsOf[i].Check(quiet, data)
			if err != nil {
				t.Fatalf("round %d, %s%s: %v", round+1, victims[0].Name, did, err)
			}
			rows += n
		}
		cancel()
		compared += rows
		t.Logf("round %d: kill -9 of %s%s; caught up after %v; %d rows of views compared", round+1, victims[0].Name, did, took.Round(time.Millisecond), rows)
	}
	t.Logf("%d kills, %d changes, %d rows of %d views compared, which had caught up after %v at most", *viewRounds, written.Load(), compared, len(viewsOf), slowest.Round(time.Millisecond))
	if written.Load() == 0 || compared == 0 {
		t.Error("nothing was tried")
	}
}

// changeRows changes a thousand rows until ctx ends.
func changeRows(ctx context.Context, t *bigtable.Table, r *rand.Rand, written *atomic.Int64) {
	for ctx.Err() == nil {
		m := bigtable.NewMutation()
		switch k := r.IntN(20); {
		case k < 3:
			m.DeleteRow()
		case k < 5:
			m.DeleteCellsInColumn("f", "group")
		default:
			m.Set("f", "group", bigtable.Now(), fmt.Appendf(nil, "group%d", r.IntN(8)))
			m.Set("f", "value", bigtable.Now(), binary.BigEndian.AppendUint64(nil, uint64(r.IntN(10_000))))
		}
		octx, cancel := context.WithTimeout(ctx, 10*time.Second)
		if t.Apply(octx, fmt.Sprintf("%04d", r.IntN(1000)), m) == nil {
			written.Add(1)
		}
		cancel()
		wait(ctx, time.Millisecond)
	}
}

// operate splits, merges or moves a tablet of any table, or drains a server, and says what.
// That may fail, since servers are killed.
func operate(ctx context.Context, c *Cluster, r *rand.Rand) string {
	st, err := c.Status(ctx)
	if err != nil || len(st.Tables) == 0 {
		return "nothing"
	}
	table := st.Tables[r.IntN(len(st.Tables))]
	if len(table.Tablets) == 0 {
		return "nothing"
	}
	tb := table.Tablets[r.IntN(len(table.Tablets))]
	var args []string
	switch k := r.IntN(10); {
	case k < 3:
		at := fmt.Sprintf("%04d", r.IntN(1000))
		if r.IntN(3) == 0 {
			at = fmt.Sprintf("group%d", r.IntN(8))
		}
		args = []string{"tablet", "split", tb.ID, "--key", at}
	case k < 6:
		args = []string{"tablet", "merge", tb.ID}
	case k < 9:
		args = []string{"tablet", "move", tb.ID, pick(c.Servers, r).Name}
	default:
		s := pick(c.Servers, r)
		_, _ = c.Run(context.WithoutCancel(ctx), "server", "drain", s.Name, "--timeout=5s")
		args = []string{"server", "undrain", s.Name}
	}
	// What is begun is ended: no server stays drained. It may wait for one that is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	what := args[1] + " of " + table.Name[strings.LastIndexByte(table.Name, '/')+1:]
	if _, err := c.Run(ctx, args...); err != nil {
		return what + " failed"
	}
	return what
}
