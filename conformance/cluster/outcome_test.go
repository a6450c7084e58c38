package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// reason returns the reason in the details of a call's error.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.Reason
		}
	}
	return ""
}

// writing tells whether a tablet server is about to write a row.
func writing(t *testing.T, c *Cluster, p *Process) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.HTTP(p)+"/admin/debug", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	type process struct {
		Name  string
		Files map[string][]byte
	}
	var all struct{ Processes []process }
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		t.Fatal(resp.Status, err)
	}
	i := slices.IndexFunc(all.Processes, func(q process) bool { return q.Name == p.Name })
	if i < 0 {
		t.Fatalf("%s tells nothing of itself: %d processes", p.Name, len(all.Processes))
	}
	stacks := all.Processes[i].Files["stacks.txt"]
	if !bytes.Contains(stacks, []byte("tabletserver.(*Server).")) {
		t.Fatalf("no stacks of %s:\n%s", p.Name, stacks)
	}
	return bytes.Contains(stacks, []byte("tabletserver.(*Server).MutateRow("))
}

// TestStoreHangs: while the store does not answer, writes wait until their
// deadline; one whose server ends meanwhile answers OUTCOME_UNKNOWN. Whether they
// were made shows once the store answers: a row holds what was acknowledged, or
// what was tried after it, and everything goes on by itself.
func TestStoreHangs(t *testing.T) {
	c := start(t, Options{TTL: 5 * time.Second})
	p := probeOf(t, c, 50*time.Millisecond)
	conn, err := grpc.NewClient(c.API(c.Gateway), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data := bigtablepb.NewBigtableClient(conn)
	name := "projects/project/instances/instance/tables/" + p.Table
	write := func(key, value string, within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: name, RowKey: []byte(key), Mutations: []*bigtablepb.Mutation{{
			Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", ColumnQualifier: []byte("outcome"), TimestampMicros: 1000, Value: []byte(value)}}}}})
		return err
	}
	st, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tables := st.Tablets(p.Table)
	keys := map[string]string{} // a row of each server
	for i, tb := range tables {
		keys[tb.Server] = fmt.Sprint(probeKey(i), "x")
	}
	for _, key := range keys {
		if err := write(key, "acknowledged", 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p.Stop()
	victim := c.Servers[0]
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("not in a minute: %s", what)
			}
		}
	}
	eventually("nobody writes to the victim", func() bool { return !writing(t, c, victim) })
	if err := c.Store.Freeze(); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		server string
		err    error
	}
	answers := make(chan answer)
	for server, key := range keys {
		within := 5 * time.Second
		if server == victim.Name {
			within = 5 * time.Minute
		}
		go func() { answers <- answer{server, write(key, "tried", within)} }()
	}
	eventually("the victim's write is under way", func() bool { return writing(t, c, victim) })
	if _, err := victim.End(syscall.SIGKILL, time.Minute); err != nil {
		t.Fatal(err)
	}
	for range keys {
		a := <-answers
		t.Logf("%s: %v %s", a.server, a.err, reason(a.err))
		switch {
		case a.server == victim.Name && (status.Code(a.err) != codes.Unavailable || reason(a.err) != "OUTCOME_UNKNOWN"):
			t.Errorf("a write to a server that was killed while the store hung: %v", a.err)
		case a.server != victim.Name && status.Code(a.err) != codes.DeadlineExceeded && reason(a.err) != "OUTCOME_UNKNOWN":
			t.Errorf("a write while the store hangs: %v", a.err)
		}
	}
	if err := c.Store.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	for server, key := range keys {
		deadline := time.Now().Add(time.Minute)
		for {
			if err = write(key+"y", "after", 10*time.Second); err == nil || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			t.Errorf("a write to a tablet of %s when the store answers: %v", server, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		rows, err := data.ReadRows(ctx, &bigtablepb.ReadRowsRequest{TableName: name, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{[]byte(key)}}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := rows.Recv()
		if err != nil || len(r.Chunks) != 1 {
			t.Fatal(r, err)
		}
		if got := string(r.Chunks[0].Value); got != "acknowledged" && got != "tried" {
			t.Errorf("row %s holds %q", key, got)
		} else {
			t.Logf("row of %s: %s", server, got)
		}
	}
}
