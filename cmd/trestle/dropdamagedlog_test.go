package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cloud.google.com/go/bigtable"
)

// TestDropDamagedLog: a server is killed and its commit log is damaged. It does not
// start, says why and what to do; given up, the damage costs one batch, which
// was told of before.
func TestDropDamagedLog(t *testing.T) {
	o := operate(t) // 400 rows in one batch
	for i := range 20 {
		set(t, o.table, fmt.Sprintf("later%02d", i), "value")
	}
	o.stop(syscall.SIGKILL)
	dir := filepath.Join(o.dir, "trestle-data")
	logs, err := filepath.Glob(filepath.Join(dir, "ulog", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	slices.Sort(logs)
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	b[1000] ^= 1 // in the first record
	if err := os.WriteFile(logs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	want := func(code int, pattern string, args ...string) {
		t.Helper()
		out, errs, got := tool(t, o.dir, args...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	serve := []string{"serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=off", "--memory=64MiB"}
	want(exitFailure, `trestle-data/ulog: corruption in 000000000001.log at offset \d+: .*trestle check .*trestle-data. says`, serve...)
	want(exitFailure, `damage +ulog: .*000000000001.log at offset \d+.*trestle log drop-damaged trestle-data`, "check", "trestle-data")
	want(exitUsage, `trestle drop-damaged-log is trestle log drop-damaged now`, "drop-damaged-log", "trestle-data", "--yes")
	want(exitUsage, `takes DIR`, "log", "drop-damaged")
	want(exitUsage, `takes one data directory`, "log", "drop-damaged", "a", "b")
	const told = `(?s)\d+ records of it can be read, and are kept\n000000000001.log, bytes \d+ to \d+: .*lost: what was committed and before 20\S+Z of tablet [0-9a-f]+ of projects/project/instances/instance/tables/users, rows \[, \)`
	want(exitFailure, told+`.*give --yes.\ntrestle: nothing was changed`, "log", "drop-damaged", "trestle-data")
	if now, err := os.ReadFile(logs[0]); err != nil || string(now) != string(b) {
		t.Error("it was changed")
	}
	want(exitOK, told+`.*kept as trestle-data/ulog.damaged-1\n`, "log", "drop-damaged", "trestle-data", "--yes")
	want(exitFailure, `nothing is damaged`, "log", "drop-damaged", "trestle-data", "--yes")
	want(exitOK, `no damage`, "check", "trestle-data")
	o.start()
	rows := 0
	err = o.table.ReadRows(t.Context(), bigtable.PrefixRange("later"), func(r bigtable.Row) bool {
		rows++
		return string(r["f"][0].Value) == "value"
	})
	if err != nil || rows != 20 {
		t.Errorf("%d rows that were written after the damage, %v", rows, err)
	}
	want(exitFailure, `stop the server first`, "log", "drop-damaged", "trestle-data", "--yes")
	o.stop(syscall.SIGTERM)
	if aside, err := os.ReadFile(strings.Replace(logs[0], "ulog", "ulog.damaged-1", 1)); err != nil || string(aside) != string(b) {
		t.Errorf("the damaged log is not kept: %v", err)
	}
}
