package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/trestletest"
)

func TestHistogram(t *testing.T) {
	for v := uint64(1); v < histMax; v = v*5/4 + 1 {
		if u := histUpper(histIndex(v)); u < v || float64(u-v) > float64(v)/128 {
			t.Fatalf("%d is in the bucket up to %d", v, u)
		}
	}
	var h, half Histogram
	if h.Quantile(.5) != 0 || h.Mean() != 0 {
		t.Error("an empty histogram")
	}
	var all []time.Duration
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 10_000 {
		d := time.Duration(rng.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		if i%2 == 0 {
			h.Record(d)
		} else {
			half.Record(d)
		}
	}
	h.Merge(&half)
	slices.Sort(all)
	for _, q := range []float64{.001, .5, .95, .99, .999, 1} {
		exact := all[max(0, int(q*10_000)-1)]
		if got := h.Quantile(q); got < exact || float64(got-exact) > float64(exact)/64 {
			t.Errorf("quantile %v is %v, exactly %v", q, got, exact)
		}
	}
	h.Record(-time.Second)
	h.Record(time.Hour)
	if h.Max() != time.Hour || h.Quantile(1) != time.Hour || h.Count() != 10_002 {
		t.Errorf("max %v, count %d", h.Max(), h.Count())
	}
}

func TestValue(t *testing.T) {
	for size := minValue; size < 60; size++ {
		v := appendValue([]byte("x"), 5, 77, size)[1:]
		if version, err := checkValue(v, 5, size); version != 77 || err != nil {
			t.Fatalf("size %d: version %d, %v", size, version, err)
		}
		for i := range v {
			v[i] ^= 1
			if _, err := checkValue(v, 5, size); err == nil {
				t.Fatalf("size %d: a flipped bit in byte %d is not noticed", size, i)
			}
			v[i] ^= 1
		}
		if _, err := checkValue(v, 6, size); err == nil {
			t.Fatal("the value of another column is not noticed")
		}
		if _, err := checkValue(v, 5, size+1); err == nil {
			t.Fatal("a short value is not noticed")
		}
	}
}

func TestKeys(t *testing.T) {
	for _, d := range []*dataset{{rows: 1000}, {rows: 1000, scattered: true}} {
		for _, n := range []uint64{0, 1, 2, 10, 999} {
			key := d.appendKey(nil, n)
			if got, ok := d.number(key); got != n || !ok {
				t.Errorf("row %d has key %q, number %d, %v", n, key, got, ok)
			}
		}
		for _, key := range []string{"", "row", "user", "row00000000a1", "row0000001000", "row-000000001", "row00000000001"} {
			if n, ok := d.number([]byte(key)); ok {
				t.Errorf("key %q is row %d", key, n)
			}
		}
	}
}

func TestZipf(t *testing.T) {
	z := newZipf(1000)
	rng := rand.New(rand.NewPCG(1, 2))
	counts := make([]int, 1000)
	for range 100_000 {
		counts[z.at(rng.Float64())]++
	}
	// The share of the first is 1/zeta(1000, 0.99) = 13 %.
	if counts[0] < 12_500 || counts[0] > 14_000 || counts[1] < counts[10] || counts[10] < counts[500] {
		t.Errorf("%d, %d, %d, %d", counts[0], counts[1], counts[10], counts[500])
	}
	if z := newZipf(1); z.at(0) != 0 || z.at(0.999) != 0 {
		t.Error("zipf of one")
	}
}

// emulator starts Google's emulator.
func emulator(t *testing.T, opts ...grpc.ServerOption) string {
	t.Helper()
	s, err := bttest.NewServer("127.0.0.1:0", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Addr
}

func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- ServeEcho(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// small ends each workload after some operations: of those that a span of time holds, a busy
// machine may leave none.
func small(addr string, names ...string) Options {
	return Options{Endpoint: addr, Workloads: names, Duration: time.Minute, Ops: 48, Warmup: 20 * time.Millisecond,
		Concurrency: 8, Connections: 2, Rows: 300, ScanRows: 50, Batch: 7}
}

// onEmulator are the workloads that Google's emulator can run.
func onEmulator() (names []string) {
	for _, w := range workloads {
		if w.group != "sql" && w.group != "stream" {
			names = append(names, w.name)
		}
	}
	return names
}

// Those of SQL and of change streams find nothing wrong, the rows of each read back.
func TestWorkloadsOnTrestle(t *testing.T) {
	s, err := trestletest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o := small(s.Addr, "sql", "stream")
	o.Ceiling = echo(t)
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := rep.Err(); err != nil {
		t.Error(err)
	}
	for _, r := range rep.Results {
		if r.Rows == 0 && r.Server != labelCeiling || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// Every other workload runs against a server that is known to be right, and finds
// nothing wrong.
func TestWorkloadsOnEmulator(t *testing.T) {
	names := onEmulator()
	o := small(emulator(t), names...)
	o.Ceiling = echo(t)
	o.Slices = 2
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := rep.Err(); err != nil {
		t.Error(err)
	}
	if len(rep.Results) != 2*len(names) || len(rep.Ratios) != len(names) {
		t.Errorf("%d results, %d ratios for %d workloads", len(rep.Results), len(rep.Ratios), len(names))
	}
	for _, r := range rep.Results {
		if r.Rows == 0 && r.Server != labelCeiling || r.P50Micros <= 0 || r.P999Micros < r.P50Micros || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
	}
	var text, js bytes.Buffer
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	if err := rep.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(js.Bytes(), &again); err != nil || len(again.Results) != len(rep.Results) {
		t.Errorf("JSON: %v", err)
	}
}

// TestLoadsOnce: a table is loaded for all workloads that read it, and the first that writes to
// it, and no table is left behind.
func TestLoadsOnce(t *testing.T) {
	o := small(emulator(t))
	for _, c := range []struct {
		workloads []string
		loads     int
	}{
		{[]string{"random-read", "scan", "sequential-read"}, 1},
		{[]string{"random-read", "scan", "overwrite"}, 1},
		{[]string{"overwrite", "rows-limit-1"}, 2},
		{[]string{"scan", "ycsb-c", "rows-limit-1"}, 3},
	} {
		var progress bytes.Buffer
		o.Workloads, o.Progress = c.workloads, &progress
		rep, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := rep.Err(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(progress.String(), ": load "); n != c.loads || len(rep.Results) != len(c.workloads) {
			t.Errorf("%v: %d loads, want %d:\n%s", c.workloads, n, c.loads, &progress)
		}
	}
	conn, err := grpc.NewClient(o.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	left, err := btapb.NewBigtableTableAdminClient(conn).ListTables(t.Context(), &btapb.ListTablesRequest{Parent: "projects/bench/instances/benchmark"})
	if err != nil || len(left.Tables) > 0 {
		t.Errorf("left behind: %v, %v", left.GetTables(), err)
	}
}

// The echo server is asked for the same messages as the server it is compared
// with.
func TestCeilingShape(t *testing.T) {
	o := small(emulator(t), "scan", "ycsb-f")
	o.Ceiling = echo(t)
	for {
		rep, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		// The messages are those of the warm-up, in which a busy machine may do nothing.
		if o.Warmup *= 2; o.Warmup < time.Minute && slices.ContainsFunc(rep.Results, func(r Result) bool { return r.MBPerSec == 0 }) {
			continue
		}
		for i := 0; i < len(rep.Results); i += 2 {
			a, c := rep.Results[i], rep.Results[i+1]
			perOp := func(r Result) float64 { return r.MBPerSec * r.Seconds / float64(r.Operations) }
			if q := perOp(c) / perOp(a); q < 0.9 || q > 1.1 {
				t.Errorf("%s: the echo server handled %.2f times the bytes per operation", a.Workload, q)
			}
		}
		return
	}
}

// In place of an echo the client checks what the measured server answered, as it
// would check that answer.
func TestCeilingChecks(t *testing.T) {
	d := (&dataset{rows: 10, loaded: 10, valueSize: 100}).init()
	w := newWorker(nil, 1, 1)
	w.samples = new(samples)
	d.version.Store(1)
	for n := range uint64(3) {
		w.check = check{d: d, single: true, n: n, column: -1}
		key := d.appendKey(nil, n)
		chunk := appendBytes(nil, 1, key)
		chunk = appendBytes(chunk, 3, appendBytes(nil, 1, d.qualifiers[0]))
		chunk = appendVarint(chunk, 4, uint64(micros(0)))
		chunk = appendBytes(chunk, 6, appendValue(nil, hashKey(key, 0), 0, 100))
		chunk = appendVarint(chunk, 9, 1)
		w.samples.begin(&w.check)
		w.samples.message(appendBytes(nil, 1, chunk))
		w.samples.end()
	}
	for range 20 {
		if err := w.samples.recheck(w); err != nil {
			t.Fatal(err)
		}
		if w.check.rows != 1 {
			t.Fatalf("%d rows", w.check.rows)
		}
	}
	m := w.samples.reads[1].messages[0]
	m[len(m)-20] ^= 1
	for range 100 {
		if errors.Is(w.samples.recheck(w), errWrong) {
			return
		}
	}
	t.Error("a changed answer passes")
}

func TestOpsBound(t *testing.T) {
	o := small(emulator(t), "random-read")
	o.Ops, o.Slices = 101, 4
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := rep.Results[0].Operations; n != 101 {
		t.Errorf("%d operations, want 101", n)
	}
}

func TestRate(t *testing.T) {
	o := small(emulator(t), "random-read")
	o.Rate, o.Ops = 200, 100
	for end := time.Now().Add(time.Minute); ; {
		rep, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		// The last is due after 495 ms.
		r := rep.Results[0]
		if r.Operations != 100 || r.Seconds < 0.495 {
			t.Fatalf("%d operations in %.3f s at 200 a second", r.Operations, r.Seconds)
		}
		if r.Seconds < 0.8 { // on a busy machine not each time
			return
		}
		if time.Now().After(end) {
			t.Fatalf("100 operations at 200 a second always take longer, lately %.3f s", r.Seconds)
		}
	}
}

// tamper changes what ReadRows answers.
type tamper struct {
	grpc.ServerStream
	change func(*btpb.ReadRowsResponse)
}

func (s tamper) SendMsg(m any) error {
	if r, ok := m.(*btpb.ReadRowsResponse); ok {
		s.change(r)
	}
	return s.ServerStream.SendMsg(m)
}

// Servers that lie are found out.
func TestWrongAnswersAreFound(t *testing.T) {
	changeReads := func(change func(*btpb.ReadRowsResponse)) grpc.ServerOption {
		return grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return h(srv, tamper{s, change})
		})
	}
	var count atomic.Uint64
	// dropSome acknowledges every other request of a method without doing it: a busy
	// machine makes few, and only the last write of a row is missed.
	dropSome := func(method string, answer func(req any) any) grpc.ServerOption {
		return grpc.UnaryInterceptor(func(ctx context.Context, req any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if i.FullMethod == method && count.Add(1)%2 == 0 {
				return answer(req), nil
			}
			return h(ctx, req)
		})
	}
	for _, c := range []struct {
		name, workload, want string
		opt                  grpc.ServerOption
	}{
		{"flipped bit", "random-read", "not one that was written there", changeReads(func(r *btpb.ReadRowsResponse) {
			for _, c := range r.Chunks {
				if len(c.Value) > 100 {
					c.Value = bytes.Clone(c.Value)
					c.Value[100] ^= 4
				}
			}
		})},
		{"missing row", "scan", "was expected", changeReads(func(r *btpb.ReadRowsResponse) {
			for i, c := range r.Chunks {
				if string(c.RowKey) == "row0000000033" {
					r.Chunks = slices.Delete(r.Chunks, i, i+1)
					return
				}
			}
		})},
		{"empty answer", "random-read", "0 rows for row", changeReads(func(r *btpb.ReadRowsResponse) { r.Chunks = nil })},
		{"other row", "random-read", "was expected", changeReads(func(r *btpb.ReadRowsResponse) {
			for _, c := range r.Chunks {
				if len(c.RowKey) > 0 {
					c.RowKey = []byte("row0000000007")
				}
			}
		})},
		{"lost write", "random-write", "", dropSome(methodMutate, func(any) any { return new(btpb.MutateRowResponse) })},
		{"stale read", "ycsb-a", "acknowledged before", dropSome(methodMutate, func(any) any { return new(btpb.MutateRowResponse) })},
		{"lost increment", "hot-counter", "", dropSome(methodRMW, func(req any) any {
			return &btpb.ReadModifyWriteRowResponse{Row: &btpb.Row{Families: []*btpb.Family{{Columns: []*btpb.Column{{Cells: []*btpb.Cell{{Value: make([]byte, 8)}}}}}}}}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := small(emulator(t, c.opt), c.workload)
			o.Rows, o.Ops = 50, 1000
			rep, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := rep.Err(); err == nil || !strings.Contains(err.Error(), "wrong answer") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want a wrong answer: %q", err, c.want)
			}
		})
	}
}

// Refusals are counted, not taken for wrong answers.
func TestErrorsAreCounted(t *testing.T) {
	var n atomic.Uint64
	o := small(emulator(t, grpc.UnaryInterceptor(func(ctx context.Context, req any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if i.FullMethod == methodMutate && n.Add(1)%10 == 0 {
			return nil, status.Error(codes.ResourceExhausted, "not now")
		}
		return h(ctx, req)
	})), "random-write")
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := rep.Results[0]
	if rep.Err() != nil || r.Errors["ResourceExhausted"] == 0 || !strings.Contains(r.FirstError, "not now") || r.Operations == 0 {
		t.Errorf("%v, %+v", rep.Err(), r)
	}
}

func TestOptions(t *testing.T) {
	if _, err := Run(t.Context(), Options{Workloads: []string{"random-raed"}, ValueBytes: 3, Batch: -1}); err == nil ||
		!strings.Contains(err.Error(), `"random-raed" is not a workload`) || !strings.Contains(err.Error(), "no endpoint") ||
		!strings.Contains(err.Error(), "value of 3 bytes") || !strings.Contains(err.Error(), "batch of -1") {
		t.Errorf("%v", err)
	}
	o := small("127.0.0.1:1", "paper")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, o); err == nil {
		t.Error("no error without a server")
	}
	sel, err := selectWorkloads([]string{"scan", "paper", "scan"})
	if err != nil || len(sel) != 6 || sel[0].name != "scan" {
		t.Errorf("%d workloads, %v", len(sel), err)
	}
	help := Help(func(text string, _ int) []string { return []string{text, "more"} })
	if !strings.Contains(help, "\n  ycsb-f                  ycsb    half reads,") || strings.Count(help, "\n"+strings.Repeat(" ", 34)+"more\n") != len(workloads) {
		t.Error(help)
	}
}

func BenchmarkAppendValue(b *testing.B) {
	var v []byte
	b.SetBytes(1000)
	for i := range b.N {
		v = appendValue(v[:0], 5, uint64(i), 1000)
	}
}

func BenchmarkCheckValue(b *testing.B) {
	v := appendValue(nil, 5, 6, 1000)
	b.SetBytes(1000)
	for range b.N {
		if _, err := checkValue(v, 5, 1000); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEchoUnary(b *testing.B) {
	addr := ""
	{
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		addr = l.Addr().String()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { _ = ServeEcho(ctx, l) }()
	}
	conns, err := dialAll(addr, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer closeAll(conns)
	w := newWorker(conns[0], 1, 1)
	s := &shape{ops: 1, unary: traffic{calls: 1, messages: 1, sentBytes: 1000, recvdBytes: 10}}
	b.ReportAllocs()
	for range b.N {
		if err := s.op(context.Background(), w); err != nil {
			b.Fatal(err)
		}
	}
}
