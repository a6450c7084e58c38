package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writeWithin sets a row; the client repeats what may be repeated until the time is
// over.
func writeWithin(t *testing.T, tbl *bigtable.Table, row, value string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, []byte(value))
	return tbl.Apply(ctx, row, m)
}

// rowWithin reads a row.
func rowWithin(t *testing.T, tbl *bigtable.Table, row string, within time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	r, err := tbl.ReadRow(ctx, row)
	if err != nil || len(r["f"]) == 0 {
		return "", err
	}
	return string(r["f"][0].Value), nil
}

// eventually waits until check returns "".
func eventually(t *testing.T, check func() string) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(why)
		}
	}
}

// TestClusterStoreFull: while the store has no room writes are refused, reads are
// answered and no server ends; once there is room writes go on by themselves.
func TestClusterStoreFull(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	mounted := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=96m", "none", mounted).CombinedOutput(); err != nil {
		t.Skipf("a file system of 96 MiB cannot be mounted: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", mounted).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	c := startCluster(t, 2, func(c *testCluster) {
		c.store = "file://" + filepath.Join(mounted, "store")
		c.extra = func(string) []string { return []string{"--http-listen=127.0.0.1:0"} }
	})
	ready := func(want bool, lines ...string) {
		t.Helper()
		for name, at := range c.addrsHTTP {
			url := strings.Replace(strings.Fields(at)[0], "/metrics", "/readyz", 1)
			eventually(t, func() string {
				body := httpGet(t, url)
				ok := strings.HasSuffix(body, "not ready\n") != want
				for _, l := range lines {
					ok = ok && strings.Contains(body, l)
				}
				if !ok {
					return fmt.Sprintf("%s: want %v and %q:\n%s", name, want, lines, body)
				}
				return ""
			})
		}
	}
	ready(true, "[+] shared store: ok", "[+] commit log: ok")
	tbl := c.table(c.addrs["server-1"])
	acked := map[string]string{}
	put := func(i int, v string, within time.Duration) error {
		row := fmt.Sprintf("%c%03d", 'a'+i%26, i)
		err := writeWithin(t, tbl, row, v, within)
		if err == nil {
			acked[row] = v
		}
		return err
	}
	for i := range 52 {
		if err := put(i, "before", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	filler := filepath.Join(mounted, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(zeros)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var first error
	direct := bigtablepb.NewBigtableClient(dial(t, c.addrs["server-1"]))
	request := &bigtablepb.MutateRowRequest{TableName: "projects/project/instances/instance/tables/table-of-test", RowKey: []byte("x"),
		Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
			FamilyName: "f", TimestampMicros: 1000, Value: make([]byte, 200<<10)}}}}}
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		// The client library would go on trying.
		if _, first = direct.MutateRow(ctx, request); status.Code(first) != codes.ResourceExhausted {
			return fmt.Sprintf("a write to a full store: %v", first)
		}
		return ""
	})
	t.Logf("a write to a full store: %v", first)
	ready(false, "[-] shared store: ", "bytes free in")
	for row, v := range acked {
		if got, err := rowWithin(t, tbl, row, time.Minute); err != nil || got != v {
			t.Fatalf("row %s: %.20q, %v", row, got, err)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		for i := range 52 {
			if err := put(i, "after", 5*time.Second); err != nil {
				return fmt.Sprintf("a write when there is room: %v", err)
			}
		}
		return ""
	})
	for row, v := range acked {
		if got, err := rowWithin(t, tbl, row, time.Minute); err != nil || got != v {
			t.Fatalf("row %s: %.20q, %v", row, got, err)
		}
	}
	ready(true, "[+] shared store: ok", "[+] commit log: ok")
	for name, p := range c.servers {
		if strings.Contains(p.stderr.String(), "the tablet server has failed") {
			t.Errorf("%s has failed:\n%s", name, p.stderr)
		}
	}
}

// TestClusterDamage: a block that is not what was written costs its rows
// DATA_LOSS, and no others; a commit log of which a segment is gone keeps the
// tablets of a dead server from being opened, which is told. With the object
// back both are well again, without a restart.
func TestClusterDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	c := startCluster(t, 2, mortal)
	dir, store := strings.TrimPrefix(c.store, "file://"), "--store="+c.store
	tbl := c.table(c.addrs["server-1"])
	for i := range 26 {
		if err := writeWithin(t, tbl, string(rune('a'+i)), "in an SSTable", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	c.run("tablet", "flush", "--table=table-of-test", "--all")
	tables, err := filepath.Glob(filepath.Join(dir, "sst", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	// Nobody has the block in memory.
	restart := func(name string, sig os.Signal) {
		t.Helper()
		c.servers[name].signal(sig)
		c.servers[name].exit()
		c.launch(name)
		c.ready(name)
	}
	undo := damage(t, tables[0])
	restart("server-1", os.Interrupt)
	restart("server-2", os.Interrupt)
	_, client := clients(t, c.addrs["server-1"])
	tbl = client.Open("table-of-test")
	var lost []string
	for i := range 26 {
		row := string(rune('a' + i))
		switch got, err := rowWithin(t, tbl, row, time.Minute); {
		case status.Code(err) == codes.DataLoss:
			lost = append(lost, row)
		case err != nil || got != "in an SSTable":
			t.Fatalf("row %s: %q, %v", row, got, err)
		}
	}
	if len(lost) == 0 || len(lost) > 4 {
		t.Fatalf("rows %v answer DATA_LOSS", lost)
	}
	if out, code := c.check("--blocks", store); code != 1 || !strings.Contains(out, filepath.Base(tables[0])) {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	if err := writeWithin(t, tbl, lost[0], "new", time.Minute); err != nil {
		t.Errorf("a write to a damaged tablet: %v", err)
	}
	undo()
	for _, row := range lost {
		eventually(t, func() string {
			if got, err := rowWithin(t, tbl, row, time.Minute); err != nil || got == "" {
				return fmt.Sprintf("row %s of an SSTable that is back: %q, %v", row, got, err)
			}
			return ""
		})
	}

	// server-1, which has got all tablets, dies, and a segment of its log with it.
	for i := range 26 {
		if err := writeWithin(t, tbl, string(rune('a'+i)), "in a log", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	var segment string
	for _, line := range strings.Split(c.run("cluster", "status", "--json"), "\n") {
		var n uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(line), `"incarnation": %d`, &n); err == nil && segment == "" { // the first is of server-1
			segment = fmt.Sprintf("%016x", 2*n)
		}
	}
	logged := segments(t, dir, segment)
	if len(logged) < 2 {
		t.Fatal(segment, logged)
	}
	segment = logged[len(logged)-2] // the newest may not have been stored, if it is not whole
	c.servers["server-1"].signal(os.Kill)
	c.servers["server-1"].exit()
	undo = damageSegment(t, dir, segment)
	eventually(t, func() string {
		if !strings.Contains(c.servers["server-2"].stderr.String(), "corruption") && !strings.Contains(c.masters["master-1"].stderr.String()+c.masters["master-2"].stderr.String(), "corruption") {
			return "nobody tells of the damaged segment"
		}
		return ""
	})
	out, code := c.check("--blocks", store)
	if code != 1 || !strings.Contains(out, "is not served") || !strings.Contains(out, filepath.Base(segment)) {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	undo()
	_, client = clients(t, c.addrs["server-2"])
	tbl = client.Open("table-of-test")
	for i := range 26 {
		if got, err := rowWithin(t, tbl, string(rune('a'+i)), 90*time.Second); err != nil || got != "in a log" {
			t.Errorf("row %c: %q, %v", 'a'+i, got, err)
		}
	}
}
