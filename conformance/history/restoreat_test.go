package history

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"

	"github.com/trestledb/trestle/conformance/target"
)

var (
	restores    = flag.Int("history.restores", 4, "kills of TestRestoreAt")
	restoreRows = flag.Int("history.restorerows", 2000, "rows that are changed after TestRestoreAt's backup")
)

// A past is what acknowledged writes have made of a table: the cells of each row. Each writer has
// rows of its own.
type past map[string]map[string]string

// change writes to a row, in the table and in p.
func (p past) change(ctx context.Context, tbl *bigtable.Table, row string, r *rand.Rand, n int) error {
	m, next := bigtable.NewMutation(), maps.Clone(p[row])
	if next == nil {
		next = map[string]string{}
	}
	set := func(q string) {
		ts, v := bigtable.Timestamp(1000*r.IntN(5)), fmt.Sprint(n)
		m.Set("f", q, ts, []byte(v))
		next[fmt.Sprintf("f:%s@%d", q, ts)] = v
	}
	set(fmt.Sprint(r.IntN(4)))
	switch r.IntN(8) {
	case 0:
		m.DeleteRow()
		clear(next)
		set("after")
	case 1:
		q := fmt.Sprint(r.IntN(4))
		m.DeleteCellsInColumn("f", q)
		maps.DeleteFunc(next, func(k, _ string) bool { return len(k) > 4 && k[:4] == "f:"+q+"@" })
	case 2, 3:
		// What is added twice is seen.
		m.AddIntToCell("sum", "n", 0, int64(n))
		var old int64
		if v := next["sum:n@0"]; v != "" {
			old = int64(binary.BigEndian.Uint64([]byte(v)))
		}
		next["sum:n@0"] = string(binary.BigEndian.AppendUint64(nil, uint64(old+int64(n))))
	}
	if err := tbl.Apply(once(ctx), row, m); err != nil {
		return err
	}
	if p[row] = next; len(next) == 0 {
		delete(p, row)
	}
	return nil
}

// load has writers change n rows, n times together. p has no others.
func (p past) load(ctx context.Context, tbl *bigtable.Table, n int, seed uint64) error {
	const writers = 8
	parts, errs := make([]past, writers), make([]error, writers)
	var all sync.WaitGroup
	for w := range writers {
		parts[w] = past{}
		for i := w; i < n; i += writers {
			if c, ok := p[fmt.Sprintf("%06d", i)]; ok {
				parts[w][fmt.Sprintf("%06d", i)] = c
			}
		}
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for i := w; i < n && errs[w] == nil; i += writers {
				errs[w] = parts[w].change(ctx, tbl, fmt.Sprintf("%06d", r.IntN(n/writers)*writers+w), r, i+1)
			}
		})
	}
	all.Wait()
	clear(p)
	for w := range writers {
		maps.Copy(p, parts[w])
	}
	return errors.Join(errs...)
}

// differs tells a row that a table has otherwise.
func (p past) differs(ctx context.Context, tbl *bigtable.Table) error {
	n, wrong := 0, error(nil)
	err := tbl.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		cells := map[string]string{}
		for _, items := range r {
			for _, i := range items {
				cells[fmt.Sprintf("%s@%d", i.Column, i.Timestamp)] = string(i.Value)
			}
		}
		if n++; !maps.Equal(cells, p[r.Key()]) {
			wrong = fmt.Errorf("row %s is %q, and was %q", r.Key(), cells, p[r.Key()])
		}
		return wrong == nil
	})
	if err == nil && wrong == nil && n != len(p) {
		wrong = fmt.Errorf("there are %d rows, and were %d", n, len(p))
	}
	if err != nil {
		return err
	}
	return wrong
}

// TestRestoreAt: the server is killed during `trestle restore --to-time`. Afterwards the table that
// it was to make is what the source was at that time, by what was acknowledged, or is not there,
// and the command makes it.
func TestRestoreAt(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" {
		t.Skipf("set %s to a trestle binary; `make crash` does", target.BinaryEnv)
	}
	t.Logf("-history.seed=%d", *seed)
	ctx, r := t.Context(), rand.New(rand.NewPCG(*seed, 1))
	p := target.Process{Binary: bin, Dir: t.TempDir(), Args: []string{"--emulator"}, Cluster: target.OnCluster(), TTL: 3 * time.Second}
	var s *target.Server
	var cl *cluster
	start := func() {
		t.Helper()
		next, err := target.Start(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		s = next
		if cl, err = dial(ctx, s.Addr); err != nil {
			t.Fatal(err)
		}
	}
	start()
	defer func() { _ = s.Kill() }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(cl.admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", ChangeStreamRetention: 24 * time.Hour, SplitKeys: []string{fmt.Sprintf("%06d", *restoreRows/2)},
		ColumnFamilies: map[string]bigtable.Family{"f": {GCPolicy: bigtable.NoGcPolicy()},
			"sum": {GCPolicy: bigtable.NoGcPolicy(), ValueType: bigtable.AggregateType{Input: bigtable.Int64Type{}, Aggregator: bigtable.SumAggregator{}}}}}))
	tbl, was := cl.data.Open("t"), past{}
	must(was.load(ctx, tbl, *restoreRows, *seed))
	must(cl.admin.CreateBackup(ctx, "t", "cluster", "b", time.Now().Add(24*time.Hour)))
	must(was.load(ctx, tbl, *restoreRows, *seed+1))
	at := time.Now()
	time.Sleep(time.Millisecond) // the next writes are later
	must(maps.Clone(was).load(ctx, tbl, *restoreRows, *seed+2))
	restore := func(to string) *exec.Cmd {
		cmd := exec.Command(bin, "restore", project+"/"+instance+"/cluster/b", project+"/"+instance+"/"+to, "--to-time", at.UTC().Format(time.RFC3339Nano), "--plaintext", "--server", s.Addr)
		cmd.Env = os.Environ()
		return cmd
	}
	whole := func(to string) time.Duration {
		t.Helper()
		begin := time.Now()
		if out, err := restore(to).CombinedOutput(); err != nil {
			t.Fatalf("restore %s: %v\n%s", to, err, out)
		}
		took := time.Since(begin)
		if err := was.differs(ctx, cl.data.Open(to)); err != nil {
			t.Errorf("restored %s: %v", to, err)
		}
		return took
	}
	took := whole("whole")
	t.Logf("%d changes in %v", *restoreRows, took)
	// known tells whether the server has begun a restore.
	known := func(to string) bool {
		ops, err := longrunningpb.NewOperationsClient(cl.cc).ListOperations(ctx, &longrunningpb.ListOperationsRequest{Name: "operations/projects/" + project + "/instances/" + instance + "/tables/" + to})
		must(err)
		return len(ops.Operations) > 0
	}
	begun := 0
	for i := range *restores {
		to := fmt.Sprint("restored-", i)
		cmd := restore(to)
		must(cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		wait := time.Duration(r.Int64N(int64(took)))
		if i%2 == 0 { // soon after it has begun
			for wait /= 10; len(ended) == 0 && !known(to); {
				time.Sleep(time.Millisecond)
			}
		}
		select {
		case <-time.After(wait):
		case err := <-ended:
			must(err)
			ended <- nil
		}
		must(s.Kill())
		acked := <-ended == nil
		_ = cl.close()
		start()
		has := known(to)
		if !acked && has {
			begun++
		}
		tables, err := cl.admin.Tables(ctx)
		must(err)
		there := false
		for _, name := range tables {
			there = there || name == to
		}
		t.Logf("kill %d: begun: %v, acknowledged: %v, the table is there: %v", i, has, acked, there)
		if !there {
			if acked {
				t.Errorf("%s is lost, and was acknowledged", to)
			}
			whole(to)
		} else if err := was.differs(ctx, cl.data.Open(to)); err != nil {
			t.Errorf("%s after the kill: %v", to, err)
		}
	}
	if *restores > 0 && begun == 0 {
		t.Error("no kill was within a restore that the server had begun")
	}
	_ = cl.close()
}
