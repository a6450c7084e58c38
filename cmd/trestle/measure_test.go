package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/engine/request"
)

// A spanSink is a collector of traces that keeps their names.
type spanSink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names map[string]int
	texts strings.Builder
}

func (s *spanSink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, in := range of.GetScopeSpans() {
			for _, sp := range in.GetSpans() {
				s.names[sp.GetName()]++
			}
		}
	}
	s.texts.WriteString(r.String())
	return &collector.ExportTraceServiceResponse{}, nil
}

// What a server measures of its requests arrives where it is asked for: tables in the
// metrics, slow requests in the admin service, spans at the collector. A row key is nowhere
// but in slow requests, and there if it was asked for.
func TestMeasuredRequests(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sink, g := &spanSink{names: map[string]int{}}, grpc.NewServer()
	collector.RegisterTraceServiceServer(g, sink)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	for _, keys := range []string{"--slow-keys=false", "--slow-keys=true"} {
		p := startTrestle(t, "real", t.TempDir(), "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB",
			"--slow-request=1ms", "--slow-log", keys, "--otlp-endpoint=http://"+l.Addr().String(), "--trace-sample=100%")
		url := strings.Fields(p.line("metrics and health"))[0]
		admin, client := clients(t, p.line("export BIGTABLE_EMULATOR_HOST="))
		if err := admin.CreateTable(t.Context(), "measured"); err != nil {
			t.Fatal(err)
		}
		if err := admin.CreateColumnFamily(t.Context(), "measured", "f"); err != nil {
			t.Fatal(err)
		}
		tbl := client.Open("measured")
		const key = "row-secret"
		for range 50 {
			set(t, tbl, key, "value-secret")
		}
		if got := value(t, tbl, key); got != "value-secret" {
			t.Errorf("%q", got)
		}
		metrics := httpGet(t, url)
		for _, want := range []string{`method="MutateRow",table="projects/`, `/tables/measured"} 50`, `bigtable_table_tablets{table="projects/`, `bigtable_table_memtable_bytes{table="projects/`} {
			if !strings.Contains(metrics, want) {
				t.Errorf("the metrics lack %q", want)
			}
		}
		// Writes are under way while the process stands still.
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() {
				m := bigtable.NewMutation()
				m.Set("f", "q", 1000, []byte("value-secret"))
				for ctx.Err() == nil {
					_ = tbl.Apply(ctx, key, m)
				}
			})
		}
		for range 5 {
			time.Sleep(20 * time.Millisecond)
			p.signal(syscall.SIGSTOP)
			time.Sleep(20 * time.Millisecond)
			p.signal(syscall.SIGCONT)
		}
		cancel()
		writers.Wait()
		var slow struct {
			Requests []request.Slow `json:"requests"`
		}
		body := httpGet(t, strings.TrimSuffix(url, "/metrics")+"/admin/slow")
		if err := json.Unmarshal([]byte(body), &slow); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		found := false
		for _, s := range slow.Requests {
			if s.Method != "MutateRow" || s.Code != "OK" { // the last were cancelled
				continue
			}
			found = true
			if s.RowsWritten != 1 || s.Tablets < 1 || s.LogWait <= 0 || s.LogWait > s.Seconds || !strings.HasSuffix(s.Table, "/tables/measured") || s.Trace == "" || (s.Key == key) != (keys == "--slow-keys=true") {
				t.Errorf("%+v", s)
			}
		}
		if !found {
			t.Errorf("no write is there: %s", body)
		}
		p.signal(syscall.SIGTERM)
		p.exit()
		logged := p.stderr.String()
		if !strings.Contains(logged, "slow request") || strings.Contains(logged, key) != (keys == "--slow-keys=true") {
			t.Errorf("the log:\n%s", logged)
		}
		if strings.Contains(metrics, "secret") || strings.Contains(body, "value-secret") {
			t.Error("a value is told")
		}
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, name := range []string{"google.bigtable.v2.Bigtable/MutateRow", "google.bigtable.v2.Bigtable/ReadRows", "tablet", "commit log"} {
		if sink.names[name] == 0 {
			t.Errorf("no span %q among %v", name, sink.names)
		}
	}
	if strings.Contains(sink.texts.String(), "secret") {
		t.Error("a span has a row key or a value")
	}
}

// TestOnePrincipal: a caller has one name, whatever it speaks, and wherever it is told of.
func TestOnePrincipal(t *testing.T) {
	dir, zk, secure := t.TempDir(), loopback.Addr(t), loopback.Addr(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("secret-of-ann-at-work user:ann@example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB", "--data-dir=" + dir, "--token-file=" + tokens,
			"--hbase-listen=" + secure, "--hbase-advertise=" + plain.Addr().String(), "--hbase-zookeeper-listen=" + zk, "--hbase-instance=p/i", "--hbase-trust-users", "--audit-data", "--slow-request=1ms"}, flags...)...)
	}, dir)
	s.iam("policy", "add-binding", "projects/p/instances/i", "--role=roles/bigtable.user", "--member=user:ann@example.com")

	security, err := (&login{ca: s.ca}).tls()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(security)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const table = "projects/p/instances/i/tables/one"
	// The client speaks no TLS: it is led to who does it for it.
	go func() {
		for {
			from, err := plain.Accept()
			if err != nil {
				return
			}
			to, err := tls.Dial("tcp", secure, &tls.Config{RootCAs: security.RootCAs, ServerName: "localhost"})
			if err != nil {
				t.Error(err)
				from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); to.Close() }()
			go func() { _, _ = io.Copy(from, to); from.Close() }()
		}
	}()
	hbase := gohbase.NewClient(zk, gohbase.EffectiveUser("Ann@Example.com"))
	defer hbase.Close()
	// A request with so many cells takes some 10 ms, so it is slow on any machine.
	cells := make([]*bigtablepb.Mutation, 20_000)
	for i := range cells {
		set := &bigtablepb.Mutation_SetCell{FamilyName: "f", ColumnQualifier: fmt.Append(nil, i), TimestampMicros: 1000}
		cells[i] = &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: set}}
	}
	const bearer = "Bearer secret-of-ann-at-work"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	checked := &bigtablepb.CheckAndMutateRowRequest{TableName: table, RowKey: []byte("r"), FalseMutations: cells}
	if _, err := bigtablepb.NewBigtableClient(conn).CheckAndMutateRow(metadata.AppendToOutgoingContext(ctx, "authorization", bearer), checked); err != nil {
		t.Fatal(err)
	}
	write, err := protojson.Marshal(&bigtablepb.MutateRowRequest{RowKey: []byte("r"), Mutations: cells})
	if err != nil {
		t.Fatal(err)
	}
	rest := http.Header{"Authorization": {bearer}}
	if code, body, _ := s.ask("", http.MethodPost, "/v2/"+table+":mutateRow", string(write), rest); code != http.StatusOK {
		t.Fatal(code, body)
	}
	if code, body, _ := s.ask("", http.MethodGet, "/v2/"+table, "", rest); code != http.StatusOK {
		t.Fatal(code, body)
	}
	get, err := hrpc.NewGetStr(ctx, "one", "r")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hbase.Get(get); err != nil {
		t.Fatal(err)
	}
	_, body, _ := s.ask(s.root, http.MethodGet, "/admin/slow", "", nil)
	var slow struct{ Requests []request.Slow }
	if err := json.Unmarshal([]byte(body), &slow); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	const ann = "user:ann@example.com"
	by := map[string]string{}
	for _, r := range slow.Requests {
		if r.Principal != "" && !strings.HasPrefix(r.Principal, "serviceAccount:") {
			by[r.Face] = r.Principal
		}
	}
	if by["bigtable"] != ann || by["rest"] != ann || by["hbase"] != ann {
		t.Errorf("slow requests are of %v", by)
	}
	_, body, _ = s.ask(s.root, http.MethodGet, "/admin/principals", "", nil)
	var counted struct{ Principals []ops.PrincipalLoad }
	if err := json.Unmarshal([]byte(body), &counted); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	i := slices.IndexFunc(counted.Principals, func(p ops.PrincipalLoad) bool { return p.Principal == ann })
	if len(counted.Principals) != 2 || i < 0 || counted.Principals[i].Requests < 3 { // with root
		t.Errorf("%+v are counted", counted.Principals)
	}
	f, err := os.Open(s.audit)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	heard := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var line struct{ Principal, Method string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if line.Principal == ann {
			heard[line.Method[strings.LastIndexByte(line.Method, '/')+1:]] = true
		}
	}
	for _, method := range []string{"CheckAndMutateRow", "MutateRow", "GetTable", "ReadRows"} { // of gRPC, REST twice, and HBase's Get
		if !heard[method] {
			t.Errorf("the audit log tells no %s of %s, but %v", method, ann, heard)
		}
	}
}
