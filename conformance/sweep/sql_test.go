package sweep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/conformance/target"
)

// A querier asks SQL of a server that has a canary.
type querier struct {
	*canary
	addr string
	data bigtablepb.BigtableClient // its streams are checked
}

func newQuerier(t *testing.T, addr string) *querier {
	t.Helper()
	check := streamcheck.New()
	cc, err := dial(addr, check.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cc.Close()
		for _, v := range check.Violations() {
			t.Error(v)
		}
	})
	return &querier{newCanary(t, addr), addr, bigtablepb.NewBigtableClient(cc)}
}

// fill makes a table with the families f and g and n rows: f:n is their number, f:k one of
// seven words, g:wide a thousand bytes.
func (q *querier) fill(t *testing.T, table string, n int) {
	t.Helper()
	name := canaryParent + "/tables/" + table
	if _, err := q.admin.DeleteTable(soon(t), &adminpb.DeleteTableRequest{Name: name}); err != nil && status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	_, err := q.admin.CreateTable(soon(t), &adminpb.CreateTableRequest{Parent: canaryParent, TableId: table,
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}, "g": {}}}})
	if err != nil {
		t.Fatal(err)
	}
	wide := bytes.Repeat([]byte("w"), 1000)
	for from := 0; from < n; from += 2000 {
		req := &bigtablepb.MutateRowsRequest{TableName: name}
		for i := from; i < min(from+2000, n); i++ {
			set := func(family, qualifier string, value []byte) *bigtablepb.Mutation {
				return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
					FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: 1000, Value: value}}}
			}
			req.Entries = append(req.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: queryKey(i), Mutations: []*bigtablepb.Mutation{
				set("f", "n", fmt.Append(nil, i)), set("f", "k", fmt.Append(nil, "word", i%7)), set("g", "wide", wide)}})
		}
		st, err := q.canary.data.MutateRows(soon(t), req)
		for err == nil {
			var m *bigtablepb.MutateRowsResponse
			m, err = st.Recv()
			for _, e := range m.GetEntries() {
				if e.GetStatus().GetCode() != 0 {
					t.Fatal(e)
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

// unlessShort returns n, or a tenth of it for a short test.
func unlessShort(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

func queryKey(i int) []byte { return fmt.Appendf(nil, "row%06d", i) }

var bytesType = &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}}

func prepare(ctx context.Context, data bigtablepb.BigtableClient, text string, params ...string) ([]byte, error) {
	req := &bigtablepb.PrepareQueryRequest{InstanceName: canaryParent, Query: text, ParamTypes: map[string]*bigtablepb.Type{},
		DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}}
	for _, p := range params {
		req.ParamTypes[p] = bytesType
	}
	r, err := data.PrepareQuery(ctx, req)
	return r.GetPreparedQuery(), err
}

// An answer is a stream that is read.
type answer struct {
	bigtablepb.Bigtable_ExecuteQueryClient
	batch  []byte
	values []*bigtablepb.Value
}

func execute(ctx context.Context, data bigtablepb.BigtableClient, prepared []byte, params map[string]*bigtablepb.Value) (*answer, error) {
	st, err := data.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: canaryParent, PreparedQuery: prepared, Params: params})
	return &answer{Bigtable_ExecuteQueryClient: st}, err
}

// next reads a message, rest all that is left. A stream that ended well is no error of rest.
func (a *answer) next() error {
	m, err := a.Recv()
	if err != nil {
		return err
	}
	a.batch = append(a.batch, m.GetResults().GetProtoRowsBatch().GetBatchData()...)
	if m.GetResults().BatchChecksum != nil {
		rows := new(bigtablepb.ProtoRows)
		if err := proto.Unmarshal(a.batch, rows); err != nil {
			return err
		}
		a.values, a.batch = append(a.values, rows.GetValues()...), nil
	}
	return nil
}

func (a *answer) rest() error {
	for {
		if err := a.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// ask prepares and executes.
func (q *querier) ask(ctx context.Context, text string) ([]*bigtablepb.Value, error) {
	prepared, err := prepare(ctx, q.data, text)
	if err != nil {
		return nil, err
	}
	a, err := execute(ctx, q.data, prepared, nil)
	if err != nil {
		return nil, err
	}
	err = a.rest()
	return a.values, err
}

// TestAbuseQueries asks what cannot be answered, or only at a price that no query may have.
func TestAbuseQueries(t *testing.T) {
	q := newQuerier(t, target.Addr(t))
	q.fill(t, "queries", 2000)
	for _, tc := range []struct {
		name, text string
		want       codes.Code
		message    string
	}{
		{"1 MiB", "SELECT '" + strings.Repeat("x", 1<<20-9) + "'", codes.OK, ""},
		{"more than 1 MiB", "SELECT '" + strings.Repeat("x", 1<<20) + "'", codes.InvalidArgument, "1048576"},
		{"10,000 parentheses", "SELECT " + strings.Repeat("(", 10_000) + "1" + strings.Repeat(")", 10_000), codes.InvalidArgument, "[at 1:"},
		{"10,000 subqueries", "SELECT " + strings.Repeat("(SELECT ", 10_000) + "1" + strings.Repeat(")", 10_000), codes.InvalidArgument, "[at 1:"},
		{"10,000 NOTs", "SELECT " + strings.Repeat("NOT ", 10_000) + "TRUE", codes.InvalidArgument, "[at 1:"},
		{"10,000 types", "SELECT CAST(NULL AS " + strings.Repeat("STRUCT<a ", 10_000) + "INT64" + strings.Repeat(">", 10_000) + ")", codes.InvalidArgument, "[at 1:"},
		{"open string", "SELECT '''x", codes.InvalidArgument, "Unclosed triple-quoted string literal [at 1:8]"},
		{"open comment", "SELECT 1 /* x", codes.InvalidArgument, "Unclosed comment [at 1:10]"},
		{"NUL", "SELECT \x00", codes.InvalidArgument, "[at 1:8]"},
		{"array of a billion", "SELECT ARRAY_LENGTH(GENERATE_ARRAY(1, 1000000000))", codes.OutOfRange, ""},
		{"endless array", "SELECT ARRAY_LENGTH(GENERATE_ARRAY(1, 9223372036854775807))", codes.OutOfRange, ""},
		{"gigabytes of REPEAT", "SELECT LENGTH(REPEAT(REPEAT('x', 1000000), 1000000))", codes.OutOfRange, ""},
		{"gigabytes of LPAD", "SELECT LENGTH(LPAD('x', 9000000000))", codes.OutOfRange, ""},
		{"gigabytes of STRING_AGG", "SELECT LENGTH(STRING_AGG(REPEAT('x', 100000))) FROM queries AS a, queries AS b", codes.ResourceExhausted, ""},
		{"a pattern that is one of backtracking", "SELECT REGEXP_CONTAINS(REPEAT('a', 100000), '(a*)*b')", codes.OK, ""},
		{"a pattern of 10^9 states", "SELECT REGEXP_CONTAINS('a', '((a{1000}){1000}){1000}')", codes.OutOfRange, ""},
		{"a table that never ends", "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r", codes.ResourceExhausted, "10000 rounds"},
		{"sum beyond INT64", "SELECT SUM(9223372036854775807) FROM queries", codes.OutOfRange, "int64 overflow"},
		{"an empty key", "INSERT INTO queries (_key, f['n']) VALUES (b'bystander', b''), (b'', b'')", codes.OutOfRange, "_key"},
		{"a key over 4 KiB", "INSERT INTO queries (_key, f['n']) VALUES (b'bystander', b''), (REPEAT(b'k', 4097), b'')", codes.OutOfRange, "4096"},
		{"a qualifier over 16 KiB", "UPDATE queries SET f = MAP_FROM_ARRAY([(REPEAT(b'q', 16385), b'')]) WHERE _key = 'row000001'", codes.OutOfRange, "16384"},
		{"a cell that is no number", "SELECT SUM(TO_INT64(f['k'])) FROM queries", codes.OutOfRange, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := q.ask(soon(t), tc.text)
			if tc.want == codes.OK && err == nil {
				return
			}
			if refused(t, err, tc.want); !strings.Contains(status.Convert(err).Message(), tc.message) {
				t.Errorf("it says %q, not %q", status.Convert(err).Message(), tc.message)
			}
			if n := len(status.Convert(err).Message()); n > 10_000 {
				t.Errorf("a message of %d bytes", n)
			}
		})
	}
	t.Run("a join without end", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := q.ask(ctx, "SELECT COUNT(*) FROM queries AS a, queries AS b, queries AS c, queries AS d WHERE a.f['n'] < b.f['n']")
		if status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
	q.sing(t)
	if got, err := q.ask(soon(t), "SELECT COUNT(*) FROM queries"); err != nil || len(got) != 1 || got[0].GetIntValue() != 2000 {
		t.Error(got, err)
	}
}

// TestAbuseManyQueries has 2,000 callers ask at once (200 in a short test): each gets its answer, or is told that
// the server has no memory for it.
func TestAbuseManyQueries(t *testing.T) {
	q := newQuerier(t, target.Addr(t))
	q.fill(t, "queries", 2000)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	point, err := prepare(ctx, q.data, "SELECT f['n'] FROM queries WHERE _key = @k", "k")
	if err != nil {
		t.Fatal(err)
	}
	group, err := prepare(ctx, q.data, "SELECT f['k'], COUNT(*) FROM queries GROUP BY 1")
	if err != nil {
		t.Fatal(err)
	}
	sort, err := prepare(ctx, q.data, "SELECT _key, g FROM queries ORDER BY f['n'] DESC LIMIT 3")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var exhausted atomic.Int64
	ready := make(chan struct{})
	for range 20 {
		cc, err := dial(q.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Close()
		data := bigtablepb.NewBigtableClient(cc)
		for i := range unlessShort(100) {
			wg.Go(func() {
				<-ready
				statement, params, want := point, map[string]*bigtablepb.Value{"k": {Kind: &bigtablepb.Value_BytesValue{BytesValue: queryKey(i * 19)}}}, 1
				switch i % 10 {
				case 8:
					statement, params, want = group, nil, 2*7
				case 9:
					statement, params, want = sort, nil, 2*3
				}
				a, err := execute(ctx, data, statement, params)
				if err == nil {
					err = a.rest()
				}
				switch {
				case status.Code(err) == codes.ResourceExhausted:
					exhausted.Add(1)
				case err != nil:
					t.Error(err)
				case len(a.values) != want:
					t.Errorf("%d values in place of %d", len(a.values), want)
				case want == 1 && string(a.values[0].GetBytesValue()) != fmt.Sprint(i*19):
					t.Errorf("row %d is %v", i*19, a.values[0])
				}
			})
		}
	}
	close(ready)
	q.sing(t)
	wg.Wait()
	q.sing(t)
	if n := exhausted.Load(); n > 0 {
		t.Logf("%d were refused for lack of memory", n)
	}
	if _, err := q.ask(soon(t), "SELECT f['k'], COUNT(*) FROM queries GROUP BY 1"); err != nil {
		t.Error(err)
	}
}

// TestAbuseStalledQueries leaves results unread, of scans and of sorts: they hold up no
// other query, and what they had is free when they go.
func TestAbuseStalledQueries(t *testing.T) {
	q := newQuerier(t, target.Addr(t))
	rows := unlessShort(8000)
	q.fill(t, "queries", rows)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		var conns []*grpc.ClientConn
		for _, text := range []string{"SELECT * FROM queries", "SELECT _key, g FROM queries ORDER BY f['n']", "SELECT a._key, b.g FROM queries AS a JOIN queries AS b ON a.f['k'] = b.f['k']"} {
			prepared, err := prepare(soon(t), q.data, text)
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				cc, err := dial(q.addr)
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, cc)
				if _, err := execute(ctx, bigtablepb.NewBigtableClient(cc), prepared, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 5 {
			q.sing(t)
			if got, err := q.ask(soon(t), "SELECT COUNT(*) FROM queries WHERE f['k'] = b'word3'"); err != nil || len(got) != 1 || got[0].GetIntValue() != int64(rows+3)/7 {
				t.Error(got, err)
			}
		}
		cancel()
		for _, cc := range conns {
			_ = cc.Close()
		}
	}
	if got, err := q.ask(soon(t), "SELECT COUNT(*) FROM (SELECT g FROM queries ORDER BY f['n'])"); err != nil || got[0].GetIntValue() != int64(rows) {
		t.Error(got, err)
	}
}

// changing begins to read rows of _key and f['n'] of a new table, and changes something
// before it reads on. It returns how many rows came, which are the first ones in order
// whose numbers are right, or NULL if they may be gone.
func (q *querier) changing(t *testing.T, change func(), mayLack bool) (int, error) {
	t.Helper()
	const rows = 16_000
	q.fill(t, "changing", rows)
	ctx := soon(t)
	prepared, err := prepare(ctx, q.data, "SELECT _key, f['n'], g['wide'] FROM changing")
	if err != nil {
		t.Fatal(err)
	}
	a, err := execute(ctx, q.data, prepared, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.next(); err != nil {
		t.Fatal(err)
	}
	change()
	err = a.rest()
	if len(a.values)%3 != 0 {
		t.Fatalf("%d values", len(a.values))
	}
	for i := 0; i < len(a.values)/3; i++ {
		key, n := a.values[3*i], a.values[3*i+1]
		if !bytes.Equal(key.GetBytesValue(), queryKey(i)) || string(n.GetBytesValue()) != fmt.Sprint(i) && !(mayLack && n.GetKind() == nil) {
			t.Fatalf("row %d is %v %v", i, key, n)
		}
	}
	if err == nil && len(a.values) != 3*rows {
		t.Errorf("it ended well after %d of %d rows", len(a.values)/3, rows)
	}
	return len(a.values) / 3, err
}

// TestAbuseChangingTables changes tables that queries are reading.
func TestAbuseChangingTables(t *testing.T) {
	addr, rest := "", ""
	if os.Getenv(target.BinaryEnv) != "" && os.Getenv(target.AddrEnv) == "" {
		s, err := target.Start(t.Context(), target.Process{Binary: os.Getenv(target.BinaryEnv), Dir: t.TempDir(), HTTP: "127.0.0.1:0",
			Args: []string{"--emulator"}, Cluster: target.OnCluster()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(time.Minute); err != nil {
				t.Errorf("stop the server: %v\n%s", err, s.Log())
			}
		})
		addr, rest = s.Addr, strings.TrimSuffix(s.REST, "/v2/")
	} else {
		addr = target.Addr(t)
	}
	q := newQuerier(t, addr)
	const table = canaryParent + "/tables/changing"
	t.Run("table dropped", func(t *testing.T) {
		n, err := q.changing(t, func() {
			if _, err := q.admin.DeleteTable(soon(t), &adminpb.DeleteTableRequest{Name: table}); err != nil {
				t.Fatal(err)
			}
		}, false)
		t.Logf("%d rows, then %v", n, err)
		if err != nil {
			refused(t, err, codes.NotFound)
		}
		if _, err := q.ask(soon(t), "SELECT _key FROM changing"); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a table that is gone: %v", err)
		}
	})
	t.Run("family removed", func(t *testing.T) {
		n, err := q.changing(t, func() {
			if _, err := q.admin.ModifyColumnFamilies(soon(t), &adminpb.ModifyColumnFamiliesRequest{Name: table,
				Modifications: []*adminpb.ModifyColumnFamiliesRequest_Modification{{Id: "f", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{Drop: true}}}}); err != nil {
				t.Fatal(err)
			}
		}, true)
		t.Logf("%d rows, then %v", n, err)
		if err != nil {
			refused(t, err, codes.FailedPrecondition)
		}
		if _, err := q.ask(soon(t), "SELECT f FROM changing"); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a family that is gone: %v", err)
		}
	})
	t.Run("tablet split", func(t *testing.T) {
		if rest == "" {
			t.Skip(target.BinaryEnv + " is not set")
		}
		split := func(key []byte) {
			body, err := json.Marshal(map[string]string{"table": table, "key": string(key)})
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(soon(t), http.MethodPost, rest+"/admin/tablets/split", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
				t.Fatalf("split at %s: %s %s", key, resp.Status, got)
			}
		}
		if _, err := q.changing(t, func() {
			for _, i := range []int{12_000, 500, 4000} {
				split(queryKey(i))
			}
		}, false); err != nil {
			t.Error(err)
		}
		// Aggregates, whose parts are with the tablets.
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 40 {
				got, err := q.ask(soon(t), "SELECT COUNT(*), SUM(CAST(CAST(f['n'] AS STRING) AS INT64)) FROM changing")
				if err != nil || len(got) != 2 || got[0].GetIntValue() != 16_000 || got[1].GetIntValue() != 15_999*8000 {
					t.Error(got, err)
				}
			}
		}()
		for i := range 8 {
			split(queryKey(1000 + 1700*i))
		}
		<-done
	})
	q.sing(t)
}
