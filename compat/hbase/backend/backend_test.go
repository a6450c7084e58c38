package backend

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/compat/hbase/master"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/compat/hbase/zk"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	gateway "github.com/trestledb/trestle/gateway/backend"
)

func TestMain(m *testing.M) {
	// gohbase tells of every attempt.
	if os.Getenv("TRESTLE_GOHBASE_LOG") == "" {
		logrus.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

var (
	_ gateway.Backend    = (*Backend)(nil)
	_ gateway.RowUpdater = (*Backend)(nil)
)

// startOurs serves HBase's protocol over an engine, and returns the address of
// its ZooKeeper.
func startOurs(t testing.TB) string {
	quorum, _ := startStore(t)
	return quorum
}

func startStore(t testing.TB) (quorum string, store *standalone.Server) {
	t.Helper()
	return startChanged(t, changes{})
}

// changes of the server that startStore starts.
type changes struct {
	// listener returns what is listened on in place of the server's own; nil changes nothing.
	listener func(net.Listener) net.Listener
	// methods stand in place of the master's of these names.
	methods map[string]server.Method
}

// refuse is a method that answers an exception, to any request.
func refuse(context.Context, *server.Call, *pb.GetCompletedSnapshotsRequest) (*pb.GetCompletedSnapshotsResponse, error) {
	return nil, wire.DoNotRetryIO.New("refused by the test")
}

// startChanged is startStore with changes.
func startChanged(t testing.TB, change changes) (quorum string, store *standalone.Server) {
	t.Helper()
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	store, err := standalone.Open(ctx, standalone.Options{Dir: t.TempDir(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	me := model.Server{Host: "127.0.0.1", Port: uint32(l.Addr().(*net.TCPAddr).Port), StartCode: uint64(time.Now().UnixMilli())}
	catalog, err := model.Open(ctx, store, model.Mapping{Project: "p", Instance: "i"}, me)
	if err != nil {
		t.Fatal(err)
	}
	m := master.New(catalog, master.Options{Tablets: store, Backups: store, Log: quiet,
		Ensure: func(context.Context, string) error { return nil }})
	services := m.Services()
	maps.Copy(services["MasterService"], change.methods)
	s, err := server.New(catalog, store, server.Options{Log: quiet, Services: services})
	if err != nil {
		t.Fatal(err)
	}
	served := l
	if change.listener != nil {
		served = change.listener(l)
	}
	go s.Serve(served)
	zs := zk.NewServer(zk.Options{})
	name := zk.ServerName{Host: me.Host, Port: uint16(me.Port), StartCode: int64(me.StartCode)}
	zs.Publish(zk.Cluster{ID: catalog.ClusterID(), Master: name, Meta: name, Servers: []zk.ServerName{name}}.Tree())
	zl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go zs.Serve(zl)
	t.Cleanup(func() {
		zs.Close()
		stop, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = s.Stop(stop)
		if err := store.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return zl.Addr().String(), store
}

func open(t testing.TB, quorum string) *Backend {
	t.Helper()
	b, err := Open(context.Background(), Options{Quorum: quorum, Project: "p", Instance: "i", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// TestOurs runs the suite of backends through gohbase and our own HBase server
// to the engine.
func TestOurs(t *testing.T) {
	backendtest.RunExcept(t, func(t testing.TB) gateway.Backend { return open(t, startOurs(t)) }, map[string]string{
		"Read/LargestKeys": "the longest column name, all of it zero bytes, is a byte longer in HBase, where ours allows no more than Bigtable",
	})
}

// TestReal runs the suite on a real HBase, whose ZooKeeper is
// TRESTLE_HBASE_QUORUM: see testdata/standalone. It deletes every table there.
func TestReal(t *testing.T) {
	quorum := os.Getenv("TRESTLE_HBASE_QUORUM")
	if quorum == "" {
		t.Skip("TRESTLE_HBASE_QUORUM does not name the ZooKeeper of an HBase whose tables may be deleted")
	}
	backendtest.RunExcept(t, func(t testing.TB) gateway.Backend {
		b := open(t, quorum)
		wipe(t, b)
		return b
	}, map[string]string{
		"Tables/TableBytes":               "HBase tells sizes in MiB, seconds later",
		"Backups/CutsAllRowsAtOneInstant": "HBase's snapshots take one region after the other",
	})
}

// wipe deletes what earlier tests have left in HBase.
func wipe(t testing.TB, b *Backend) {
	t.Helper()
	ctx := context.Background()
	list, err := b.descriptors(ctx, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		n := model.NameOf(d.GetTableName())
		if _, err := b.disable(ctx, n); err != nil {
			t.Fatal(err)
		}
		if err := b.remove(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range snapshots(t, b) {
		if err := b.dropSnapshot(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	type rec struct {
		key     string
		version uint64
	}
	var all []rec
	for _, kind := range []string{clientRecord, deletedRecord, backupRecord, lockRecord} {
		if err := b.records(ctx, prefixRange(kind), func(k string, _ []byte, v uint64) error { all = append(all, rec{k, v}); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range all {
		if _, err := b.setRecord(ctx, x.key, nil, x.version, true); err != nil {
			t.Fatal(err)
		}
	}
}

// snapshots returns the names of the snapshots that HBase has.
func snapshots(t testing.TB, b *Backend) (names []string) {
	t.Helper()
	r, err := ask[*pb.GetCompletedSnapshotsResponse](context.Background(), b, "GetCompletedSnapshots", &pb.GetCompletedSnapshotsRequest{},
		func() proto.Message { return new(pb.GetCompletedSnapshotsResponse) })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.GetSnapshots() {
		names = append(names, s.GetName())
	}
	return names
}

func prefixRange(p string) row.Range { return row.Prefix([]byte(p)) }

// TestSameVersion: of two calls that choose the same new version of a record, as when the clock
// was set back, one is told that it was too late. Both had the lock of a table.
func TestSameVersion(t *testing.T) {
	b := open(t, startOurs(t))
	ctx := context.Background()
	const key = lockRecord + "x"
	future := uint64(time.Now().Add(time.Hour).UnixNano())
	_, err := b.atomic(ctx, &table{name: recordsTable, versioned: true}, []byte(key), []*pb.MutationProto{mutation([]byte(key), pb.MutationProto_PUT,
		map[string]*pb.MutationProto_ColumnValue{recordFamily: {Family: []byte(recordFamily), QualifierValue: []*pb.MutationProto_ColumnValue_QualifierValue{
			{Qualifier: []byte(recordValue), Value: []byte("v")},
			{Qualifier: []byte(recordVersion), Value: binary.BigEndian.AppendUint64(nil, future)}}}})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := b.setRecord(ctx, key, []byte("first"), future, false); err != nil || v != future+1 {
		t.Fatal(v, err)
	}
	if v, err := b.setRecord(ctx, key, []byte("second"), future, false); !errors.Is(err, fault.Aborted) {
		t.Errorf("version %d, %v", v, err)
	}
	if value, v, err := b.record(ctx, key); err != nil || v != future+1 || string(value) != "first" {
		t.Errorf("%q of version %d, %v", value, v, err)
	}
}

// TestLeaseBeginsWithTheLock: a caller that has waited for a lock has it for as long as one that has not, and
// is told to end before the lease does.
func TestLeaseBeginsWithTheLock(t *testing.T) {
	b := open(t, startOurs(t))
	ctx := context.Background()
	freed := make(chan time.Time, 1)
	second := make(chan error, 1)
	err := b.locked(ctx, "x", func(context.Context) error {
		go func() {
			second <- b.locked(ctx, "x", func(ctx context.Context) error {
				value, _, err := b.record(ctx, lockRecord+"x")
				if err != nil {
					return err
				}
				var l lease
				if err := json.Unmarshal(value, &l); err != nil {
					return err
				}
				released := <-freed
				if l.Until.Before(released.Add(leaseTime)) {
					t.Errorf("the lease ends %v after the lock was free", l.Until.Sub(released))
				}
				if end, ok := ctx.Deadline(); !ok || end.After(l.Until.Add(-leaseSpare)) {
					t.Errorf("the work may go on until %v, the lease until %v", end, l.Until)
				}
				return nil
			})
		}()
		time.Sleep(300 * time.Millisecond)
		freed <- time.Now()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
}
