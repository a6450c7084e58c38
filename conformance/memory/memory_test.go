package memory

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/conformance/target"
)

var settings = flag.String("memory.settings", "128,512,2048", "values of --memory to test, in MiB")

const (
	slack    = 60 // MiB resident beyond the setting
	instance = "projects/p/instances/i"
	table    = instance + "/tables/t"
)

// TestMemory: whatever callers do, the process takes no more than --memory and
// the program itself. The canary's latencies are reported: who else works on the
// machine is in them.
func TestMemory(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" {
		t.Skip(target.BinaryEnv + " names no binary (make memory)")
	}
	for _, mib := range strings.Split(*settings, ",") {
		t.Run(mib+"MiB", func(t *testing.T) { abuse(t, bin, mib) })
	}
}

func abuse(t *testing.T, bin, mib string) {
	s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: t.TempDir(), Args: []string{"--emulator", "--memory", mib + "MiB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(30 * time.Second); err != nil {
			t.Errorf("stop the server: %v\n%s", err, s.Log())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	conns := make([]*grpc.ClientConn, 4)
	for i := range conns {
		if conns[i], err = grpc.NewClient(s.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(300<<20))); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	fill(ctx, t, conns[0])
	limit, err := strconv.Atoi(mib)
	if err != nil {
		t.Fatal(err)
	}
	limit += slack
	loads := []struct {
		name string
		run  func(context.Context, *testing.T, []*grpc.ClientConn) string
	}{{"2,000 stripped scans", scans}, {"16 reads of a row of 96 MiB", largeReads(nil)},
		{"16 reads of it behind a condition", largeReads(condition)}, {"16 MutateRows of 100 MiB", largeWrites},
		{"10,500 change streams", streams},
		// Last: it makes more than a change a microsecond, which puts commit times ahead of the
		// clock. A change stream that is enabled then has nothing of now.
		{"64 requests that decode to many times their bytes", hostile}}
	for _, l := range loads {
		resetPeak(t, s.Pid)
		stop := canary(t, s.Addr)
		time.Sleep(time.Second)
		start := time.Now()
		result := l.run(ctx, t, conns)
		took := time.Since(start)
		n, p99, worst := stop()
		peak := peak(t, s.Pid)
		t.Logf("%s: %d MiB resident at most (%d allowed); %d reads of the canary, p99 %v, worst %v; %v; %s", l.name, peak, limit, n, p99, worst, took.Round(time.Millisecond), result)
		if peak > limit {
			t.Errorf("%s: %d MiB resident, not %d", l.name, peak, limit)
		}
	}
}

func fill(ctx context.Context, t *testing.T, c *grpc.ClientConn) {
	if _, err := adminpb.NewBigtableTableAdminClient(c).CreateTable(ctx, &adminpb.CreateTableRequest{Parent: instance, TableId: "t",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
		t.Fatal(err)
	}
	value := bytes.Repeat([]byte("v"), 1000)
	for i := range 200 {
		var entries []*bigtablepb.MutateRowsRequest_Entry
		for j := range 500 {
			entries = append(entries, entry(fmt.Sprintf("s%03d%03d", i, j), "q", value))
		}
		if err := mutateRows(ctx, c, entries); err != nil {
			t.Fatal(err)
		}
	}
	large := bytes.Repeat([]byte("w"), 4<<20)
	for i := range 24 {
		if err := mutateRows(ctx, c, []*bigtablepb.MutateRowsRequest_Entry{entry("large", strconv.Itoa(i), large)}); err != nil {
			t.Fatal(err)
		}
	}
}

func entry(key, qualifier string, value []byte) *bigtablepb.MutateRowsRequest_Entry {
	return &bigtablepb.MutateRowsRequest_Entry{RowKey: []byte(key), Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{
		SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", ColumnQualifier: []byte(qualifier), TimestampMicros: 1000, Value: value}}}}}
}

func mutateRows(ctx context.Context, c *grpc.ClientConn, entries []*bigtablepb.MutateRowsRequest_Entry) error {
	s, err := bigtablepb.NewBigtableClient(c).MutateRows(ctx, &bigtablepb.MutateRowsRequest{TableName: table, Entries: entries})
	if err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range r.Entries {
			if c := codes.Code(e.Status.GetCode()); c != codes.OK {
				return status.Error(c, e.Status.GetMessage())
			}
		}
	}
}

// outcomes counts statuses.
type outcomes struct {
	sync.Mutex
	n map[string]int
}

func (o *outcomes) add(err error) {
	o.Lock()
	defer o.Unlock()
	if o.n == nil {
		o.n = map[string]int{}
	}
	o.n[status.Code(err).String()]++
}

func (o *outcomes) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(o.n)) {
		parts = append(parts, fmt.Sprintf("%d %s", o.n[k], k))
	}
	return strings.Join(parts, ", ")
}

// scans opens scans that nobody reads, and cancels them all at once.
func scans(ctx context.Context, t *testing.T, conns []*grpc.ClientConn) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out outcomes
	var wg sync.WaitGroup
	for i := range 2000 {
		wg.Go(func() {
			s, err := bigtablepb.NewBigtableClient(conns[i%len(conns)]).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: table,
				Rows:   &bigtablepb.RowSet{RowRanges: []*bigtablepb.RowRange{{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte("s")}}}},
				Filter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_StripValueTransformer{StripValueTransformer: true}}})
			if err == nil {
				_, err = s.Recv()
			}
			out.add(err)
		})
	}
	wg.Wait()
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	return out.String()
}

// streams opens more change streams than there may be. A third of the readers go away, a third
// read nothing, and meanwhile rows are written that all of them want. What is refused is refused
// by RESOURCE_EXHAUSTED, and a stream is served again once the others are gone.
func streams(ctx context.Context, t *testing.T, conns []*grpc.ClientConn) string {
	const most, more, each = 10_000, 500, 1000 // each: calls of a connection
	setStream(ctx, t, conns[0], durationpb.New(24*time.Hour))
	defer setStream(ctx, t, conns[0], nil)
	all := make([]bigtablepb.BigtableClient, (most+more)/each+1)
	for i := range all {
		c, err := grpc.NewClient(conns[0].Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all[i] = bigtablepb.NewBigtableClient(c)
	}
	req := &bigtablepb.ReadChangeStreamRequest{TableName: table, HeartbeatDuration: durationpb.New(time.Minute),
		StartFrom: &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.Now()}}
	write := func(key string, bytes int) {
		if err := mutateRows(ctx, conns[0], []*bigtablepb.MutateRowsRequest_Entry{entry(key, "q", make([]byte, bytes))}); err != nil {
			t.Errorf("write beside change streams: %v", err)
		}
	}
	write("c", 1) // what each stream begins with
	crowd, disperse := context.WithCancel(ctx)
	defer disperse()
	var out outcomes
	var open atomic.Int64
	var opened, reading sync.WaitGroup
	written := make(chan struct{})
	for i := range most + more {
		opened.Add(1)
		reading.Go(func() {
			ctx, leave := context.WithCancel(crowd)
			defer leave()
			s, err := all[i%len(all)].ReadChangeStream(ctx, req)
			if err == nil {
				_, err = s.Recv()
			}
			out.add(err)
			if err == nil {
				open.Add(1)
			}
			opened.Done()
			switch {
			case err != nil:
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("a change stream: %v", err)
				}
			case i%3 == 0:
				opened.Wait()
			case i%3 == 1:
				<-written
			default:
				for err == nil {
					_, err = s.Recv()
				}
			}
		})
	}
	opened.Wait()
	if n := open.Load(); n > most {
		t.Errorf("%d change streams are open, of %d that may be", n, most)
	}
	for i := range 5 {
		write(fmt.Sprint("c", i), 40_000)
	}
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	close(written)
	disperse()
	reading.Wait()
	// They are gone when the server has noticed.
	for ; ; time.Sleep(100 * time.Millisecond) {
		s, err := all[0].ReadChangeStream(ctx, req)
		if err == nil {
			_, err = s.Recv()
		}
		if err == nil {
			return out.String()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a change stream after the others: %v", err)
			return out.String()
		}
	}
}

// setStream turns the table's change stream on, or off.
func setStream(ctx context.Context, t *testing.T, c *grpc.ClientConn, retention *durationpb.Duration) {
	x := &adminpb.Table{Name: table}
	if retention != nil {
		x.ChangeStreamConfig = &adminpb.ChangeStreamConfig{RetentionPeriod: retention}
	}
	if _, err := adminpb.NewBigtableTableAdminClient(c).UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: x,
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"change_stream_config"}}}); err != nil {
		t.Errorf("set the change stream: %v", err)
	}
}

// condition is known at the end of a row only: all of the row is held back until then.
var condition = func() *bigtablepb.RowFilter {
	all := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{PassAllFilter: true}}
	return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{Condition: &bigtablepb.RowFilter_Condition{
		PredicateFilter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ValueRegexFilter{ValueRegexFilter: []byte("no such value")}},
		TrueFilter:      all, FalseFilter: all}}}
}()

func largeReads(filter *bigtablepb.RowFilter) func(context.Context, *testing.T, []*grpc.ClientConn) string {
	return func(ctx context.Context, _ *testing.T, conns []*grpc.ClientConn) string {
		return sixteen(conns, func(c *grpc.ClientConn) error {
			s, err := bigtablepb.NewBigtableClient(c).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: table, Filter: filter,
				Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("large")}}})
			for err == nil {
				_, err = s.Recv()
			}
			if err == io.EOF {
				return nil
			}
			return err
		})
	}
}

func largeWrites(ctx context.Context, t *testing.T, conns []*grpc.ClientConn) string {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	value := bytes.Repeat([]byte("x"), 1<<20)
	var entries []*bigtablepb.MutateRowsRequest_Entry
	for i := range 100 {
		entries = append(entries, entry(fmt.Sprintf("x%02d", i), "q", value))
	}
	return sixteen(conns, func(c *grpc.ClientConn) error { return mutateRows(ctx, c, entries) })
}

// raw is the codec of a client that sends bytes as they are and reads no answer.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// hostile sends requests of short fields, of which each becomes an object: 16 of each kind.
func hostile(ctx context.Context, t *testing.T, conns []*grpc.ClientConn) string {
	field := func(num protowire.Number, parts ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), slices.Concat(parts...))
	}
	name, key, deletion := field(1, []byte(table)), []byte("decoded"), field(4)
	var out []string
	for _, r := range []struct {
		method string
		body   []byte
	}{
		{adminpb.BigtableTableAdmin_CreateTable_FullMethodName, bytes.Repeat(field(4), 4<<20)},
		{bigtablepb.Bigtable_ReadRows_FullMethodName, slices.Concat(name, field(2, bytes.Repeat(field(2), 2<<20-100)))},
		{bigtablepb.Bigtable_MutateRow_FullMethodName, slices.Concat(name, field(2, key), bytes.Repeat(field(3, deletion), 100_000))},
		{bigtablepb.Bigtable_MutateRows_FullMethodName, slices.Concat(name, bytes.Repeat(field(2, field(1, key), field(2, deletion)), 100_000))},
	} {
		out = append(out, path.Base(r.method)+": "+sixteen(conns, func(c *grpc.ClientConn) error {
			s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, r.method, grpc.ForceCodecV2(raw{}))
			if err != nil {
				return err
			}
			if err := s.SendMsg(r.body); err != nil {
				return err
			}
			if err := s.CloseSend(); err != nil {
				return err
			}
			for err == nil {
				err = s.RecvMsg(nil)
			}
			if err == io.EOF {
				return nil
			}
			return err
		}))
	}
	return strings.Join(out, "; ")
}

func sixteen(conns []*grpc.ClientConn, f func(*grpc.ClientConn) error) string {
	var out outcomes
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() { out.add(f(conns[i%len(conns)])) })
	}
	wg.Wait()
	return out.String()
}

// canaryEnv names the server that a process of this binary reads from.
const canaryEnv = "TRESTLE_TEST_CANARY"

// TestMain is the canary's process: the memory and the processor time of the
// clients that abuse the server are not its own.
func TestMain(m *testing.M) {
	if addr := os.Getenv(canaryEnv); addr != "" {
		if err := sing(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// sing reads a small row every 10 ms until stdin ends, and prints the latencies.
func sing(addr string) error {
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for {
		start := time.Now()
		s, err := bigtablepb.NewBigtableClient(c).ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: table, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("s000000")}}})
		for err == nil {
			_, err = s.Recv()
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != io.EOF {
			return err
		}
		fmt.Println(time.Since(start).Nanoseconds())
		time.Sleep(10 * time.Millisecond)
	}
}

// canary runs sing until the returned function is called, which returns how many
// reads there were, and their latencies.
func canary(t *testing.T, addr string) func() (n int, p99, worst time.Duration) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), canaryEnv+"="+addr)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() (int, time.Duration, time.Duration) {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("canary: %v", err)
		}
		var all []time.Duration
		for line := range strings.Lines(out.String()) {
			n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Duration(n))
		}
		if len(all) == 0 {
			t.Fatal("the canary read nothing")
		}
		slices.Sort(all)
		return len(all), all[len(all)*99/100].Round(100 * time.Microsecond), all[len(all)-1].Round(100 * time.Microsecond)
	}
}

// resetPeak has the kernel count the peak of resident memory anew.
func resetPeak(t *testing.T, pid int) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Skip(err)
	}
}

// peak returns that peak in MiB.
func peak(t *testing.T, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n >> 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
