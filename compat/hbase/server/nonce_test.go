package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/sim"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A front is a server without a listener over a backend.
type front struct {
	*Server
	t *model.Table
}

func newFront(t *testing.T, b backend.Backend, n int) *front {
	t.Helper()
	ctx := t.Context()
	catalog, err := model.Open(ctx, b, model.Mapping{Project: "p", Instance: "i"}, model.Server{Host: fmt.Sprintf("front-%d", n), Port: 1, StartCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(catalog, b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) })
	table, err := catalog.Table(ctx, model.ParseName("t"))
	if err != nil {
		t.Fatal(err)
	}
	return &front{s, table}
}

// increment adds 5 to a counter and returns what it is then.
func (f *front) increment(t *testing.T, key string, nonce uint64) uint64 {
	t.Helper()
	var none wire.Cells
	ch, err := parseChange(&pb.MutationProto{Row: []byte(key), MutateType: pb.MutationProto_INCREMENT.Enum(), Nonce: proto.Uint64(nonce),
		ColumnValue: []*pb.MutationProto_ColumnValue{{Family: []byte("f"), QualifierValue: []*pb.MutationProto_ColumnValue_QualifierValue{{
			Qualifier: []byte("n"), Value: binary.BigEndian.AppendUint64(nil, 5)}}}}}, &none)
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.once(t.Context(), new(Call), f.t, nil, 7, nil, ch)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.cells) != 1 || !out.processed {
		t.Fatalf("increment: %+v", out)
	}
	return binary.BigEndian.Uint64(out.cells[0].Value)
}

// TestNoncesTravel: an increment that is repeated counts once, whichever front it
// comes to, and after the tablet server that carried it out was killed.
func TestNoncesTravel(t *testing.T) {
	c, err := sim.New(sim.Options{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.StartMaster("master-1")
	for _, name := range []string{"server-1", "server-2"} {
		if _, err := c.StartServer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	var fronts []*front
	for i := range 3 {
		b, err := c.Client(t.Context(), fmt.Sprintf("front-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err := b.CreateTable(t.Context(), &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1000,
				Families: map[string]schema.Family{"f": {}}}, [][]byte{[]byte("m")})
			if err != nil {
				t.Fatal(err)
			}
		}
		fronts = append(fronts, newFront(t, b, i))
	}
	want := func(f *front, key string, nonce, n uint64) {
		t.Helper()
		if got := f.increment(t, key, nonce); got != n {
			t.Errorf("counter %s is %d, want %d", key, got, n)
		}
	}
	for _, key := range []string{"a", "z"} {
		want(fronts[0], key, 1, 5)
		want(fronts[1], key, 1, 5)
		want(fronts[1], key, 2, 10)
		want(fronts[0], key, 2, 10)
		want(fronts[0], key, 0, 15) // without a nonce each counts
		want(fronts[0], key, 0, 20)
	}
	c.KillServer("server-1")
	for _, key := range []string{"a", "z"} {
		want(fronts[2], key, 2, 20)
		want(fronts[2], key, 1, 20)
		want(fronts[2], key, 3, 25)
	}
	// A deletion of the row does not make a repetition count.
	b := fronts[0].b
	if err := b.MutateRow(t.Context(), fronts[0].t.Resource, &row.Entry{Key: []byte("a"), Mutations: []row.Mutation{{Op: row.DeleteRow}}}); err != nil {
		t.Fatal(err)
	}
	out, err := fronts[1].update(t.Context(), new(Call), fronts[1].t, []byte("a"), nonce{7, 3}, nil, []*change{{kind: pb.MutationProto_INCREMENT, row: []byte("a")}})
	if err != nil || !out.repeated {
		t.Errorf("%+v, %v", out, err)
	}
}
