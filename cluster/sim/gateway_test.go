package sim

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/backend"
)

func dialGateway(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestGateway: the official client works with a cluster as with one process,
// through two gateways at a time.
func TestGateway(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second}, 3)
	one := dialGateway(t, target.InProcess(t, clientOf(t, c, "gateway-1"), gateway.Options{Emulator: true}))
	two := dialGateway(t, target.InProcess(t, clientOf(t, c, "gateway-2"), gateway.Options{Emulator: true}))
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(one))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", SplitKeys: []string{"g", "n", "t"},
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(two))
	if err != nil {
		t.Fatal(err)
	}
	table := client.Open("t")
	var keys []string
	var muts []*bigtable.Mutation
	for k := 'a'; k <= 'z'; k++ {
		m := bigtable.NewMutation()
		m.Set("f", "q", bigtable.ServerTime, []byte{byte(k)})
		keys, muts = append(keys, string(k)), append(muts, m)
	}
	if errs, err := table.ApplyBulk(ctx, keys, muts); err != nil || errs != nil {
		t.Fatal(errs, err)
	}
	read := func(table *bigtable.Table) (n int) {
		last := ""
		if err := table.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if r.Key() <= last || string(r["f"][0].Value) != r.Key() {
				t.Errorf("row %q after %q: %v", r.Key(), last, r)
			}
			last = r.Key()
			n++
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := read(table); n != 26 {
		t.Errorf("read %d rows", n)
	}
	if err := admin.CreateBackup(ctx, "t", "c", "b", time.Now().Add(7*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := admin.DropRowRange(ctx, "t", "a"); err != nil {
		t.Fatal(err)
	}
	if err := admin.RestoreTable(ctx, "r", "c", "b"); err != nil {
		t.Fatal(err)
	}
	if n := read(client.Open("r")); n != 26 {
		t.Errorf("the restored table has %d rows", n)
	}
	if n := read(table); n != 25 {
		t.Errorf("the table has %d rows", n)
	}
}

// stuck is a backend of a gateway that dies while it makes a backup: before
// that is made, or after.
type stuck struct {
	backend.Backend
	before bool
	begun  chan struct{}
	let    chan struct{}
}

func (s *stuck) CreateBackup(ctx context.Context, table string, want *schema.Backup) (b *schema.Backup, err error) {
	if !s.before {
		b, err = s.Backend.CreateBackup(ctx, table, want)
	}
	close(s.begun)
	<-s.let
	if s.before {
		err = fault.New(fault.Unavailable, "the gateway has died")
	}
	return b, err
}

// TestOperationsOutliveGateways: an operation whose gateway has died is settled
// by another one, once its lease is over.
func TestOperationsOutliveGateways(t *testing.T) {
	ctx := context.Background()
	c := start(t, Options{TTL: time.Second}, 2)
	create(t, clientOf(t, c, "admin"), "projects/p/instances/i/tables/t")
	var ahead atomic.Int64
	o := gateway.Options{Emulator: true}
	o.Admin.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	other := dialGateway(t, target.InProcess(t, clientOf(t, c, "gateway-2"), o))
	for _, before := range []bool{false, true} {
		id := map[bool]string{false: "made", true: "lost"}[before]
		b := &stuck{Backend: clientOf(t, c, "gateway-1"), before: before, begun: make(chan struct{}), let: make(chan struct{})}
		dies := dialGateway(t, target.InProcess(t, b, gateway.Options{Emulator: true}))
		t.Cleanup(func() { close(b.let) })
		op, err := adminpb.NewBigtableTableAdminClient(dies).CreateBackup(ctx, &adminpb.CreateBackupRequest{Parent: "projects/p/instances/i/clusters/c", BackupId: id,
			Backup: &adminpb.Backup{SourceTable: "projects/p/instances/i/tables/t", ExpireTime: timestamppb.New(time.Now().Add(30 * time.Hour))}})
		if err != nil {
			t.Fatal(err)
		}
		<-b.begun
		ahead.Store(0)
		get := func() *longrunningpb.Operation {
			op, err := longrunningpb.NewOperationsClient(other).GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name})
			if err != nil {
				t.Fatal(err)
			}
			return op
		}
		if got := get(); got.Done {
			t.Errorf("%s: while its gateway lives: %v", id, got)
		}
		ahead.Add(int64(2 * time.Minute))
		if got := get(); !got.Done || (got.GetError() != nil) != before {
			t.Errorf("%s: after its gateway died: %v", id, got)
		}
	}
}
