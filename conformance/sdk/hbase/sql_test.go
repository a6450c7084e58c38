package hbase

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/conformance/views"
)

// connect returns official clients of a server, whose answers to queries are checked.
func connect(t *testing.T, addr string) (*bigtable.Client, *bigtable.AdminClient) {
	t.Helper()
	check := streamcheck.New()
	conn, err := grpc.NewClient(addr, append(check.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		for _, v := range check.Violations() {
			t.Error(v)
		}
	})
	client, err := bigtable.NewClientWithConfig(t.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return client, admin
}

// startGateway runs a gateway over a real HBase, and returns where it serves gRPC.
func startGateway(t *testing.T, bin, zookeeper string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), bin, "gateway", "--backend", "hbase://"+zookeeper, "--hbase-instance", "p/i", "--emulator",
		"--listen", "127.0.0.1:0", "--http-listen", "off", "--data-dir", t.TempDir(), "--log-level", "warn")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the gateway ended: %v\n%s", err, log.String())
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if at, ok := strings.CutPrefix(lines.Text(), "Bigtable gRPC API"); ok {
			return strings.TrimSpace(at)
		}
	}
	t.Fatalf("the gateway does not serve:\n%s", log.String())
	return ""
}

// TestSQL asks the same statements of a gateway over a real HBase, of one process, and of
// neither the answers differ.
func TestSQL(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" || target.OnCluster() {
		t.Skip(target.BinaryEnv + " is not set, or there is nothing to do with a cluster")
	}
	zookeeper, _ := startHBase(t)
	s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: filepath.Join(t.TempDir(), "data"), Args: []string{"--emulator"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	type side struct {
		client *bigtable.Client
		admin  *bigtable.AdminClient
	}
	var sides []side
	for _, addr := range []string{startGateway(t, bin, zookeeper), s.Addr} {
		client, admin := connect(t, addr)
		if err := admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "t", SplitKeys: []string{"row01000", "row02000"},
			ColumnFamilies: map[string]bigtable.Family{"f": {}, "g": {}}}); err != nil {
			t.Fatal(err)
		}
		var keys []string
		var muts []*bigtable.Mutation
		for i := range 3000 {
			m := bigtable.NewMutation()
			m.Set("f", "n", 1_000_000, binary.BigEndian.AppendUint64(nil, uint64(i)))
			m.Set("f", "word", 1_000_000, fmt.Append(nil, "word", i%7))
			if i%10 == 0 {
				m.Set("f", "word", 2_000_000, []byte("newer"))
				m.Set("g", fmt.Sprint("q", i%3), 1_000_000, []byte("x"))
			}
			keys, muts = append(keys, fmt.Sprintf("row%05d", i)), append(muts, m)
		}
		if errs, err := client.Open("t").ApplyBulk(t.Context(), keys, muts); err != nil || errs != nil {
			t.Fatal(err, errs)
		}
		sides = append(sides, side{client, admin})
	}
	for _, q := range []string{
		"SELECT COUNT(*) FROM t",
		"SELECT * FROM t WHERE _key IN ('row00010', 'row02999', 'none')",
		"SELECT _key, f['word'] AS word, f['none'] AS none FROM t WHERE _key >= 'row00990' AND _key < 'row01010'",
		"SELECT _key FROM t WHERE STARTS_WITH(_key, 'row0012') ORDER BY _key DESC LIMIT 3 OFFSET 1",
		"SELECT MIN(_key), MAX(_key) FROM t",
		"SELECT f['word'], COUNT(*), SUM(TO_INT64(f['n'])) FROM t GROUP BY 1 ORDER BY 1",
		"SELECT COUNT(*) FROM t WHERE TO_INT64(f['n']) BETWEEN 500 AND 1499 AND f['word'] != b'word3'",
		"SELECT COUNT(DISTINCT f['word']), APPROX_COUNT_DISTINCT(f['word']) FROM t",
		"SELECT _key, g FROM t WHERE g['q1'] IS NOT NULL ORDER BY TO_INT64(f['n']) DESC LIMIT 5",
		"SELECT _key, ARRAY_LENGTH(f['word']) FROM t(with_history => TRUE) WHERE _key < 'row00012'",
		"SELECT _key, f['word'] FROM t(as_of => TIMESTAMP '1970-01-01 00:00:01.5+00') WHERE _key < 'row00012'",
		"SELECT _key, ARRAY_LENGTH(f['word']) FROM t(with_history => TRUE, after => TIMESTAMP '1970-01-01 00:00:01+00') WHERE _key < 'row00021' AND f['word'] IS NOT NULL",
		"SELECT UNIX_MICROS(WRITE_TIMESTAMP(f, 'word')) FROM t WHERE _key IN ('row00010', 'row00011')",
		"SELECT _key, CAST(e.key AS STRING), e.value FROM t, UNNEST(MAP_ENTRIES(g)) AS e WHERE _key < 'row00050'",
		"SELECT a._key, b._key FROM t AS a JOIN t AS b ON a.f['n'] = b.f['n'] WHERE a._key < 'row00005' AND b._key > 'row00001'",
		"WITH w AS (SELECT f['word'] AS word, COUNT(*) AS n FROM t GROUP BY 1) SELECT word, n FROM w WHERE n = (SELECT MAX(n) FROM w)",
		"SELECT _key, ROW_NUMBER() OVER (PARTITION BY f['word'] ORDER BY _key) FROM t WHERE _key < 'row00030'",
		"SELECT _key FROM t WHERE _key < 'row00002' UNION ALL SELECT _key FROM t WHERE _key > 'row02997'",
		"SELECT _key FROM t WHERE _key = 'a' AND _key = 'b'",
		"INSERT INTO t (_key, f['word']) VALUES ('sql1', b'a'), ('sql2', b'b')",
		"UPDATE t SET f['word'] = CONCAT(f['word'], b'!') WHERE STARTS_WITH(_key, 'sql')",
		"SELECT _key, f FROM t WHERE _key > 'row99999'",
		"DELETE FROM t WHERE _key = 'sql1'",
		"SELECT COUNT(*) FROM t WHERE _key > 'row99999'",
		// Errors, those of rows among them.
		"SELECT nothing FROM t", "SELECT _key FROM tt", "SELECT h['x'] FROM t", "SELECT TO_INT64(f['word']) FROM t", "SELECT 1 / (TO_INT64(f['n']) - 5) FROM t", "INSERT INTO t (_key, f['q']) VALUES (b'', b'a')",
		"SELECT SUM(9223372036854775807 - TO_INT64(f['n'])) FROM t",
	} {
		var answers [2][]string
		for i, s := range sides {
			if err := views.Rows(t.Context(), s.client, q, func(row string) { answers[i] = append(answers[i], row) }); err != nil {
				answers[i] = []string{fmt.Sprint(status.Code(err), " ", status.Convert(err).Message())}
			}
			if !strings.Contains(q, "ORDER BY") {
				slices.Sort(answers[i])
			}
		}
		if len(answers[1]) == 0 && !strings.Contains(q, "= 'b'") {
			t.Errorf("%s: no rows", q)
		}
		if !slices.Equal(answers[0], answers[1]) {
			t.Errorf("%s:\nover HBase %q\none process %q", q, answers[0], answers[1])
		}
	}
}
