package backups

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/gateway"
)

var (
	rows  = flag.Int("backups.rows", 3000, "rows of the table")
	value = flag.Int("backups.value", 100, "bytes of each value")
)

// restoreLimit is how soon a restored table must serve, whatever its size.
const restoreLimit = time.Second

// A node is a server on one data directory that can be killed and started again.
type node struct {
	t    *testing.T
	dir  string
	stop func(kill bool)
	conn *grpc.ClientConn
	// cluster is what the server is one of, if any.
	cluster *target.Cluster
}

// start starts the server: the binary that the environment names, as a cluster
// if it says so, or else one in this process, for which a kill is a stop.
func (n *node) start() {
	n.t.Helper()
	var addr string
	if bin := os.Getenv(target.BinaryEnv); bin != "" {
		p, err := target.Start(n.t.Context(), target.Process{Binary: bin, Dir: n.dir, Cluster: target.OnCluster(), TTL: 3 * time.Second})
		n.ok(err)
		addr, n.cluster = p.Addr, p.Cluster
		n.stop = func(kill bool) {
			if kill {
				n.ok(p.Kill())
				return
			}
			n.ok(p.Stop(time.Minute))
		}
	} else {
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		s, err := standalone.Open(n.t.Context(), standalone.Options{Dir: n.dir, Logger: log})
		n.ok(err)
		g, err := gateway.New(s, gateway.Options{Log: log})
		n.ok(err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		n.ok(err)
		done := make(chan error, 1)
		go func() { done <- g.Serve(l) }()
		addr = l.Addr().String()
		n.stop = func(bool) {
			n.ok(g.Stop(context.Background()))
			n.ok(<-done)
			n.ok(s.Close(context.Background()))
		}
	}
	var err error
	n.conn, err = grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20), grpc.MaxCallSendMsgSize(256<<20)))
	n.ok(err)
}

func (n *node) end(kill bool) {
	n.t.Helper()
	n.ok(n.conn.Close())
	n.stop(kill)
}

func (n *node) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) admin(instance string) *bigtable.AdminClient {
	n.t.Helper()
	c, err := bigtable.NewAdminClient(n.t.Context(), "p", instance, option.WithGRPCConn(n.conn))
	n.ok(err)
	return c
}

func (n *node) table(instance, table string) *bigtable.Table {
	n.t.Helper()
	c, err := bigtable.NewClientWithConfig(n.t.Context(), "p", instance, bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(n.conn))
	n.ok(err)
	return c.Open(table)
}

// hash returns a hash over every cell of a table.
func (n *node) hash(instance, table string) string {
	n.t.Helper()
	h, count := sha256.New(), 0
	err := n.table(instance, table).ReadRows(n.t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		count++
		for _, family := range []string{"f", "g"} {
			for _, c := range r[family] {
				fmt.Fprintf(h, "%q %s@%d=%q\n", c.Row, c.Column, c.Timestamp, c.Value)
			}
		}
		return true
	})
	n.ok(err)
	return fmt.Sprintf("%d rows %x", count, h.Sum(nil))
}

// load writes the table's rows.
func (n *node) load(instance, table string) {
	n.t.Helper()
	tbl := n.table(instance, table)
	const batch, writers = 2000, 4
	var work sync.WaitGroup
	next := make(chan int)
	for range writers {
		work.Go(func() {
			rng := rand.NewChaCha8([32]byte{1})
			for from := range next {
				var keys []string
				var muts []*bigtable.Mutation
				for i := from; i < min(from+batch, *rows); i++ {
					v := make([]byte, *value)
					rng.Read(v[:*value/2])
					m := bigtable.NewMutation()
					m.Set("f", "q", 1000, v)
					m.Set("g", fmt.Sprint("q", i%3), bigtable.Timestamp(i)*1000, nil)
					keys, muts = append(keys, fmt.Sprintf("row%09d", i)), append(muts, m)
				}
				errs, err := tbl.ApplyBulk(n.t.Context(), keys, muts)
				if err != nil || len(errs) > 0 {
					n.t.Errorf("write: %v, %v", err, errs)
				}
			}
		})
	}
	for i := 0; i < *rows; i += batch {
		next <- i
	}
	close(next)
	work.Wait()
	if n.t.Failed() {
		n.t.FailNow()
	}
}

// bytes returns the size of all SSTables.
func (n *node) bytes() int64 {
	n.t.Helper()
	var sum int64
	dir := n.dir
	if n.cluster != nil {
		dir = filepath.Join(dir, "store")
	}
	files, err := filepath.Glob(filepath.Join(dir, "sst", "*.sst"))
	n.ok(err)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

func TestBackupAndRestore(t *testing.T) {
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "data")}
	ctx := t.Context()
	timed := func(what string, do func()) time.Duration {
		t.Helper()
		before, start := n.bytes(), time.Now()
		do()
		elapsed := time.Since(start)
		t.Logf("%-42s %9.1f ms  %+12d bytes of SSTables", what, float64(elapsed.Microseconds())/1000, n.bytes()-before)
		return elapsed
	}
	n.start()
	iac, err := bigtable.NewInstanceAdminClient(ctx, "p", option.WithGRPCConn(n.conn))
	n.ok(err)
	for _, in := range []string{"instance-1", "instance-2"} {
		n.ok(iac.CreateInstance(ctx, &bigtable.InstanceConf{InstanceId: in, DisplayName: in, ClusterId: "cluster-1", Zone: "local-a", NumNodes: 1}))
	}
	a := n.admin("instance-1")
	var splits []string
	for i := 1; i < 4; i++ {
		splits = append(splits, fmt.Sprintf("row%09d", *rows*i/4))
	}
	n.ok(a.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", SplitKeys: splits, Families: map[string]bigtable.GCPolicy{
		"f": bigtable.MaxVersionsPolicy(1), "g": bigtable.NoGcPolicy()}}))
	timed(fmt.Sprintf("load %d rows of %d bytes", *rows, *value), func() { n.load("instance-1", "t") })
	var want string
	timed("scan", func() { want = n.hash("instance-1", "t") })
	timed("back up", func() { n.ok(a.CreateBackup(ctx, "t", "cluster-1", "b", time.Now().Add(24*time.Hour))) })
	info, err := a.BackupInfo(ctx, "cluster-1", "b")
	n.ok(err)
	t.Logf("the backup has %d bytes", info.SizeBytes)
	timed("back up again", func() { n.ok(a.CreateBackup(ctx, "t", "cluster-1", "b2", time.Now().Add(24*time.Hour))) })
	// What comes later is not in it.
	m := bigtable.NewMutation()
	m.Set("f", "q", 2000, []byte("later"))
	n.ok(n.table("instance-1", "t").Apply(ctx, "row000000000", m))
	n.ok(a.DropRowRange(ctx, "t", "row00000000"))
	timed("kill the server and start it again", func() { n.end(true); n.start() })
	a = n.admin("instance-1")
	timed("delete the table", func() { n.ok(a.DeleteTable(ctx, "t")) })
	same := func(what, instance, table string) {
		t.Helper()
		if got := n.hash(instance, table); got != want {
			t.Fatalf("%s: %s, want %s", what, got, want)
		}
	}
	for _, in := range []string{"instance-1", "instance-2"} {
		limit := time.Now().Add(time.Minute) // a busy machine has several attempts
		for i, name := 0, "t"; ; i, name = i+1, fmt.Sprint("t", i) {
			before := n.bytes()
			took := timed("restore in "+in+" until it serves", func() {
				n.ok(n.admin(in).RestoreTableFrom(ctx, "instance-1", name, "cluster-1", "b"))
				row, err := n.table(in, name).ReadRow(ctx, fmt.Sprintf("row%09d", *rows-1))
				n.ok(err)
				if len(row) == 0 {
					t.Error("the last row is missing")
				}
			})
			// A compaction of the restored table may have begun already.
			if copied := n.bytes() - before; copied > info.SizeBytes/2 {
				t.Errorf("restoring wrote %d bytes", copied)
			}
			same("restored", in, name)
			if took <= restoreLimit {
				break
			}
			if time.Now().After(limit) {
				t.Errorf("restoring took %v each time, more than %v", took, restoreLimit)
				break
			}
		}
	}
	keys, err := n.table("instance-2", "t").SampleRowKeys(ctx)
	n.ok(err)
	if got := strings.Join(keys, " "); !strings.HasPrefix(got, strings.Join(splits, " ")) {
		t.Errorf("the restored table is cut at %s, not at %v", got, splits)
	}
	for _, b := range []string{"b", "b2"} {
		timed("delete a backup", func() { n.ok(a.DeleteBackup(ctx, "cluster-1", b)) })
	}
	timed("kill the server and start it again", func() { n.end(true); n.start() })
	same("at last", "instance-1", "t")
	same("at last", "instance-2", "t")
	if n.cluster != nil {
		sum, err := n.cluster.Check(ctx)
		n.ok(err)
		t.Log("in the end: ", sum)
		n.end(false)
		return
	}
	n.end(false)
	sum, err := check.Directory(ctx, vfs.Default, n.dir, nil, func(f check.Finding) {
		if !f.Harmless {
			t.Errorf("the data directory is damaged: %+v", f)
		}
	})
	n.ok(err)
	t.Logf("in the end: %d SSTables, %d bytes", sum.SSTables, sum.SSTableBytes)
}
