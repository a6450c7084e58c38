package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
)

// TestRestoreToTime: a table as it was at a time, by the command and by the header of a REST
// request; what cannot be had is refused with what can be.
func TestRestoreToTime(t *testing.T) {
	p := startTrestle(t, "real", t.TempDir(), "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB")
	url := strings.TrimSuffix(strings.Fields(p.line("metrics and health"))[0], "/metrics")
	addr := p.line("export BIGTABLE_EMULATOR_HOST=")
	admin, client := clients(t, addr)
	ctx := t.Context()
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy()}, ChangeStreamRetention: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	tbl := client.Open("t")
	set(t, tbl, "r", "in the backup")
	if err := admin.CreateBackup(ctx, "t", "cluster", "b", time.Now().Add(24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	var at []time.Time
	for i := range 3 {
		set(t, tbl, "r", fmt.Sprint("after change ", i))
		at = append(at, time.Now())
		time.Sleep(time.Millisecond)
	}
	command := func(want int, text string, args ...string) {
		t.Helper()
		c := startTrestle(t, "real", t.TempDir(), append([]string{"restore", "--plaintext", "--server=" + addr}, args...)...)
		out, code, _ := c.exit()
		if out += c.stderr.String(); code != want || !strings.Contains(out, text) {
			t.Errorf("%v: exit code %d\n%s\nwanted %d with %q", args, code, out, want, text)
		}
	}
	backup := "project/instance/cluster/b"
	for i, when := range at {
		name := fmt.Sprint("at", i)
		command(exitOK, "restored projects/project/instances/instance/tables/"+name, backup, "project/instance/"+name, "--to-time="+when.Format(time.RFC3339Nano))
		if got, want := value(t, client.Open(name), "r"), fmt.Sprint("after change ", i); got != want {
			t.Errorf("restored to after change %d it is %q", i, got)
		}
	}
	command(exitOK, "restored", backup, "projects/project/instances/instance/tables/whole")
	if got := value(t, client.Open("whole"), "r"); got != "in the backup" {
		t.Errorf("restored without a time it is %q", got)
	}
	command(exitFailure, "use one that was made before", backup, "project/instance/x", "--to-time=1h")
	command(exitFailure, "is not over yet", backup, "project/instance/x", "--to-time="+time.Now().Add(time.Hour).Format(time.RFC3339))
	command(exitFailure, "neither a time", backup, "project/instance/x", "--to-time=yesterday")
	command(exitFailure, "is not of the form", "b", "project/instance/x")
	command(exitFailure, "already exists", backup, "project/instance/t", "--to-time="+at[0].Format(time.RFC3339Nano))

	rest := func(when string) int {
		t.Helper()
		body := `{"tableId": "rest", "backup": "projects/project/instances/instance/clusters/cluster/backups/b"}`
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v2/projects/project/instances/instance/tables:restore", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Trestle-Restore-Time", when)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := rest("noon"); code != http.StatusBadRequest {
		t.Errorf("a time that is none answers %d", code)
	}
	if code := rest(at[1].Format(time.RFC3339Nano)); code != http.StatusOK {
		t.Errorf("REST answers %d", code)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := admin.TableInfo(ctx, "rest"); err == nil {
			break
		} else if time.Since(begin) > time.Minute {
			t.Fatal(err)
		}
	}
	if got := value(t, client.Open("rest"), "r"); got != "after change 1" {
		t.Errorf("by REST it is %q", got)
	}
	p.signal(syscall.SIGTERM)
	if _, code, _ := p.exit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
}
