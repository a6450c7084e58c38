package hbase

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/conformance/views"
)

var (
	phoenixRows  = flag.Int("phoenix.rows", 0, "rows of TestPhoenix, which is skipped if there are none")
	phoenixTurns = flag.Int("phoenix.turns", 7, "how often TestPhoenix asks each query of each server")
)

// TestPhoenix asks the same queries of the same rows of a server and of Phoenix on HBase, in
// turns. It tells how long each takes, and what processor time the servers had.
func TestPhoenix(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if *phoenixRows == 0 || bin == "" {
		t.Skip("-phoenix.rows or " + target.BinaryEnv + " is not set")
	}
	path := jars(t, "phoenix")
	zookeeper, pid := startHBaseOf(t, path, map[string]string{"hbase.regionserver.wal.codec": "org.apache.hadoop.hbase.regionserver.wal.IndexedWALEditCodec"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "java", slices.Concat(javaFlags, []string{"-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", path + "/*",
		"Phoenix.java", zookeeper, fmt.Sprint(*phoenixRows)})...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(out)
	// answer is the next line that Phoenix prints.
	answer := func() string {
		t.Helper()
		if !answers.Scan() {
			said := complaints.String()
			t.Fatalf("Phoenix ended: %v, %s", cmd.Wait(), said[max(len(said)-4000, 0):])
		}
		return answers.Text()
	}
	s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: filepath.Join(t.TempDir(), "data"), HTTP: "127.0.0.1:0", Args: []string{"--emulator"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(30 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	client, admin := connect(t, s.Addr)
	loadPhoenixRows(t, client, admin)
	out2, err := exec.CommandContext(t.Context(), bin, "tablet", "compact", "--admin", strings.TrimSuffix(s.REST, "/v2/"), "--table", "t", "--all").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out2)
	}
	if line := answer(); line != "ready" {
		t.Fatal(line)
	}
	half := *phoenixRows / 2
	for _, q := range []struct{ name, phoenix, ours string }{
		{"COUNT(*)", "SELECT COUNT(*) FROM T", "SELECT COUNT(*) FROM t"},
		{"filtered GROUP BY", fmt.Sprintf("SELECT G, COUNT(*), SUM(N) FROM T WHERE N < %d GROUP BY G ORDER BY G", half),
			fmt.Sprintf("SELECT f['g'], COUNT(*), SUM(TO_INT64(f['n'])) FROM t WHERE TO_INT64(f['n']) < %d GROUP BY 1 ORDER BY 1", half)},
	} {
		var took, cpu [2][]time.Duration
		for turn := range *phoenixTurns + 2 {
			used := processor(pid)
			if _, err := io.WriteString(in, q.phoenix+"\n"); err != nil {
				t.Fatal(err)
			}
			of := strings.Split(answer(), "\t")
			theirs := processor(pid) - used
			var micros int64
			if _, err := fmt.Sscan(of[len(of)-1], &micros); err != nil {
				t.Fatal(of, err)
			}
			used = processor(s.Pid)
			began, rows, first := time.Now(), 0, ""
			if err := views.Rows(t.Context(), client, q.ours, func(row string) {
				if rows++; rows == 1 {
					first = row
				}
			}); err != nil {
				t.Fatal(err)
			}
			since, mine := time.Since(began), processor(s.Pid)-used
			// The key of the group is text in Phoenix.
			if want := strings.ReplaceAll(of[0], "group 0", "x"+fmt.Sprintf("%x", "group 0")); fmt.Sprint(rows) != of[1] || strings.ReplaceAll(first, ", ", " ") != want {
				t.Fatalf("%s: Phoenix has %q, we %d rows, %s", q.name, of, rows, first)
			}
			if turn < 2 {
				continue // to warm both
			}
			took[0], cpu[0] = append(took[0], time.Duration(micros)*time.Microsecond), append(cpu[0], theirs)
			took[1], cpu[1] = append(took[1], since), append(cpu[1], mine)
		}
		t.Logf("%-18s Phoenix %v, %v of the server's processor; Trestle %v, %v; ratio %.1f, processor %.1f", q.name, median(took[0]), median(cpu[0]), median(took[1]), median(cpu[1]),
			float64(median(took[0]))/float64(median(took[1])), float64(median(cpu[0]))/float64(median(cpu[1])))
	}
}

// loadPhoenixRows writes the rows that Phoenix.java writes.
func loadPhoenixRows(t *testing.T, client *bigtable.Client, admin *bigtable.AdminClient) {
	t.Helper()
	if err := admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "t", ColumnFamilies: map[string]bigtable.Family{"f": {}}}); err != nil {
		t.Fatal(err)
	}
	payload := []byte(strings.Repeat("p", 68))
	for from := 0; from < *phoenixRows; from += 10_000 {
		var keys []string
		var muts []*bigtable.Mutation
		for i := from; i < min(from+10_000, *phoenixRows); i++ {
			m := bigtable.NewMutation()
			m.Set("f", "g", 1000, fmt.Append(nil, "group ", i%10))
			m.Set("f", "n", 1000, binary.BigEndian.AppendUint64(nil, uint64(i)))
			m.Set("f", "p", 1000, payload)
			keys, muts = append(keys, fmt.Sprintf("row%09d", i)), append(muts, m)
		}
		if errs, err := client.Open("t").ApplyBulk(t.Context(), keys, muts); err != nil || errs != nil {
			t.Fatal(err, errs)
		}
	}
}
