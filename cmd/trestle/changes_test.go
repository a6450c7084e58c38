package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/loopback"
)

// changes reads the changes of the rows from start up to end that were committed from a time on,
// until a response is enough.
func (o *operated) changes(start, end string, from time.Time, enough func(*bigtablepb.ReadChangeStreamResponse) bool) error {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	s, err := bigtablepb.NewBigtableClient(conn).ReadChangeStream(ctx, &bigtablepb.ReadChangeStreamRequest{TableName: "projects/project/instances/instance/tables/users",
		Partition: &bigtablepb.StreamPartition{RowRange: &bigtablepb.RowRange{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte(start)},
			EndKey: &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: []byte(end)}}},
		StartFrom:         &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(from)},
		HeartbeatDuration: durationpb.New(200 * time.Millisecond)})
	for err == nil {
		var r *bigtablepb.ReadChangeStreamResponse
		if r, err = s.Recv(); err == nil && enough(r) {
			return nil
		}
	}
	return err
}

// metrics waits until the server shows lines of metrics.
func (o *operated) metrics(patterns ...string) {
	o.t.Helper()
	for tries := 0; ; tries++ {
		all, missing := httpGet(o.t, o.url+"/metrics"), ""
		for _, p := range patterns {
			if !regexp.MustCompile(`(?m)^` + p + `$`).MatchString(all) {
				missing = p
			}
		}
		if missing == "" {
			return
		}
		if tries == 200 {
			o.t.Fatalf("the metrics lack %s", missing)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestChangesKept: what an operator sees of change streams, and what becomes of them when there
// are more changes than the disk may hold.
func TestChangesKept(t *testing.T) {
	o := operate(t)
	if err := o.admin.UpdateTableWithChangeStream(t.Context(), "users", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	set(t, o.table, "user00001", "a change")
	if out, code := o.tablets("flush", "--table=users", "--all"); code != exitOK {
		t.Fatal(out)
	}
	if out, code := o.tablets("list", "--changes"); code != exitOK || !regexp.MustCompile(`(?s)^[^\n]*tables/users: 1 tablet, [0-9]+ B\n  TABLET .*\n  [0-9a-f]+ +\[ +\) +[0-9]+ B +1 +20[-0-9]+ [0-9:]+Z +20[-0-9]+ [0-9:]+Z\n$`).MatchString(out) {
		t.Errorf("tablet list --changes:\n%s", out)
	}
	seen := false
	if err := o.changes("", "", begin, func(r *bigtablepb.ReadChangeStreamResponse) bool {
		if d := r.GetDataChange(); d != nil && string(d.RowKey) == "user00001" {
			seen = true
			o.metrics(`bigtable_change_stream_readers 1`, `bigtable_change_stream_watermark_lag_seconds [0-9.e-]+`)
		}
		return seen
	}); err != nil {
		t.Fatal(err)
	}
	const users = `\{table="projects/project/instances/instance/tables/users"\}`
	o.metrics(`bigtable_change_stream_readers 0`, `bigtable_change_stream_ends_total\{reason="cancelled"\} 1`, `bigtable_change_stream_ends_total\{reason="expired"\} 0`,
		`bigtable_change_stream_files`+users+` 1`, `bigtable_change_stream_bytes`+users+` [1-9][0-9]*`, `bigtable_change_stream_oldest_commit_seconds`+users+` 1\.[0-9]+e\+09`,
		`bigtable_change_stream_newest_commit_seconds`+users+` 1\.[0-9]+e\+09`, `bigtable_change_stream_delivery_seconds_count 1`, `bigtable_change_stream_limit_bytes 0`, `bigtable_clock_ahead_seconds 0`)

	out, errs, code := tool(t, o.dir, "inspect", "changes", filepath.Join(o.dir, "trestle-data", "nothing.chg"))
	if code != exitFailure || !strings.Contains(errs, "no such file") {
		t.Errorf("inspect of no file: %d\n%s%s", code, out, errs)
	}
	files, err := filepath.Glob(filepath.Join(o.dir, "trestle-data", "sst", "*.chg"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if out, errs, code := tool(t, o.dir, "inspect", "changes", files[0]); code != exitOK || !strings.Contains(out, ": 1 records in 1 chunks, ") || !strings.Contains(out, `"user00001" `) || !strings.Contains(out, "set family 0 ") {
		t.Errorf("inspect: %d\n%s%s", code, out, errs)
	}

	// There is room for none of it.
	o.stop(syscall.SIGTERM)
	o.flags = []string{"--change-stream-max=1"}
	o.start()
	o.metrics(`bigtable_change_stream_files`+users+` 0`, `bigtable_change_stream_dropped_bytes_total [1-9][0-9]*`, `bigtable_change_stream_limit_bytes 1`)
	if log := o.proc.stderr.String(); !strings.Contains(log, "dropped changes before their retention ended") || !strings.Contains(log, "level=ERROR") {
		t.Errorf("it is not said:\n%s", log)
	}
	if err := o.changes("", "", begin, func(*bigtablepb.ReadChangeStreamResponse) bool { return false }); status.Code(err) != codes.OutOfRange {
		t.Errorf("a reader that is behind: %v", err)
	}
	o.metrics(`bigtable_change_stream_ends_total\{reason="expired"\} 1`)
	o.stop(syscall.SIGTERM)
}

// TestDamagedChanges: a change file that is damaged or missing costs readers of its rows its range
// of time. Later changes, other tablets and the table are served, and check names the file. The
// table cannot be deleted with its stream on.
func TestDamagedChanges(t *testing.T) {
	o := operate(t)
	if err := o.admin.UpdateTableWithChangeStream(t.Context(), "users", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if out, code := o.tablets("split", "--table=users", "--key="+rowOf(200)); code != exitOK {
		t.Fatal(out)
	}
	left, right := rowOf(1), rowOf(399)
	// write makes change files of both tablets, and returns their names.
	write := func(value string) []string {
		t.Helper()
		set(t, o.table, left, value)
		set(t, o.table, right, value)
		if out, code := o.tablets("flush", "--table=users", "--all"); code != exitOK {
			t.Fatal(out)
		}
		files, err := filepath.Glob(filepath.Join(o.dir, "trestle-data", "sst", "*.chg"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	early := write("early")
	later := time.Now()
	if late := write("late"); len(early) != 2 || len(late) != 4 {
		t.Fatal(early, late)
	}
	var file string
	for _, f := range early {
		if out, errs, code := tool(t, o.dir, "inspect", "changes", f); code != exitOK {
			t.Fatal(out, errs)
		} else if strings.Contains(out, left) {
			file = f
		}
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[10] ^= 1
	// read returns the values that are read of a row's changes up to the one that is awaited.
	read := func(row, start, end string, from time.Time, last string) (values []string, err error) {
		t.Helper()
		err = o.changes(start, end, from, func(r *bigtablepb.ReadChangeStreamResponse) bool {
			d := r.GetDataChange()
			for _, c := range d.GetChunks() {
				if string(d.RowKey) == row {
					values = append(values, string(c.Mutation.GetSetCell().GetValue()))
				}
			}
			return slices.Contains(values, last)
		})
		return values, err
	}
	for i, c := range []struct {
		name   string
		damage func() error
	}{
		{"damaged", func() error { return os.WriteFile(file, damaged, 0o600) }},
		{"missing", func() error { return os.Remove(file) }},
	} {
		o.stop(syscall.SIGTERM)
		if err := c.damage(); err != nil {
			t.Fatal(err)
		}
		o.start() // with nothing in the cache
		for range 2 {
			if got, err := read(left, "", rowOf(200), begin, "late"); status.Code(err) != codes.DataLoss || strings.Contains(err.Error(), filepath.Base(file)) {
				t.Errorf("%s: its changes are %q, %v", c.name, got, err)
			}
		}
		o.metrics(`bigtable_change_stream_ends_total\{reason="damaged"\} 2`)
		if got, err := read(left, "", rowOf(200), later, "late"); err != nil || len(got) != 1 {
			t.Errorf("%s: later changes are %q, %v", c.name, got, err)
		}
		if got, err := read(right, rowOf(200), "", begin, "late"); err != nil || len(got) != 2 {
			t.Errorf("%s: changes of the other tablet are %q, %v", c.name, got, err)
		}
		next := time.Now()
		again := fmt.Sprint("again ", i)
		set(t, o.table, left, again)
		if got, err := read(left, "", rowOf(200), next, again); err != nil || len(got) != 1 {
			t.Errorf("%s: a change is %q, %v", c.name, got, err)
		}
		if got := value(t, o.table, left); got != again {
			t.Errorf("%s: the row is %q", c.name, got)
		}
		if err := o.admin.DeleteTable(t.Context(), "users"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Disable the change stream") {
			t.Errorf("%s: delete the table: %v", c.name, err)
		}
		o.stop(syscall.SIGTERM)
		if out, errs, code := tool(t, o.dir, "check", "trestle-data"); code != exitFailure || !regexp.MustCompile(`(?m)^damage +sst/`+filepath.Base(file)+`: `).MatchString(out) || !strings.Contains(out, "trestle-data: 1 damaged,") {
			t.Errorf("%s: check: exit code %d\n%s%s", c.name, code, out, errs)
		}
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		o.start()
		if got, err := read(left, "", rowOf(200), begin, again); err != nil || len(got) != 3+i {
			t.Errorf("with the %s file back: %q, %v", c.name, got, err)
		}
	}
	o.stop(syscall.SIGTERM)
}

// TestSplitCloses: the streams of all readers of a tablet end with its split. How long that takes
// from the call on is reported.
func TestSplitCloses(t *testing.T) {
	t.Run("process", func(t *testing.T) {
		o := operate(t)
		splitCloses(t, o.addr, o.url)
		o.stop(syscall.SIGTERM)
	})
	t.Run("cluster", func(t *testing.T) {
		if testing.Short() {
			t.Skip("starts five processes")
		}
		http := loopback.Addr(t)
		c := startCluster(t, 2, func(c *testCluster) {
			c.extra = func(name string) []string {
				if name == "server-1" {
					return []string{"--http-listen=" + http}
				}
				return nil
			}
		})
		splitCloses(t, c.addrs["server-1"], "http://"+http)
	})
}

func splitCloses(t *testing.T, addr, url string) {
	const readers, splits = 100, 50
	admin, client := clients(t, addr)
	if err := admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "orders", ChangeStreamRetention: 24 * time.Hour,
		Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy()}}); err != nil {
		t.Fatal(err)
	}
	table, data := client.Open("orders"), bigtablepb.NewBigtableClient(dial(t, addr))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var took []time.Duration
	start := ""
	for i := range splits {
		from, at := time.Now(), rowOf(i)
		set(t, table, at, "told")
		var told, closed sync.WaitGroup
		told.Add(readers)
		for range readers {
			closed.Go(func() {
				begun := sync.OnceFunc(told.Done)
				defer begun()
				s, err := data.ReadChangeStream(ctx, &bigtablepb.ReadChangeStreamRequest{TableName: "projects/project/instances/instance/tables/orders",
					Partition: &bigtablepb.StreamPartition{RowRange: &bigtablepb.RowRange{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte(start)}}},
					StartFrom: &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(from)}, HeartbeatDuration: durationpb.New(time.Hour)})
				for err == nil {
					var r *bigtablepb.ReadChangeStreamResponse
					if r, err = s.Recv(); err != nil {
						break
					}
					if c := r.GetCloseStream(); c != nil {
						if codes.Code(c.GetStatus().GetCode()) != codes.OutOfRange || len(c.NewPartitions) != 2 || len(c.ContinuationTokens) != 2 {
							t.Errorf("the stream ends with %v", c)
						}
						return
					}
					begun()
				}
				t.Errorf("a stream ends by %v", err)
			})
		}
		told.Wait()
		body, err := json.Marshal(ops.Selection{Table: "orders", Key: &at})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		resp, err := http.Post(url+"/admin/tablets/split", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		closed.Wait()
		took = append(took, time.Since(begin))
		start = at
	}
	slices.Sort(took)
	t.Logf("from the call to the end of %d streams: p50 %v, longest %v of %d splits", readers, took[splits/2], took[splits-1], splits)
}
