package main

import (
	"regexp"
	"syscall"
	"testing"

	"cloud.google.com/go/bigtable"
)

// TestTableGroups: locality groups of a running server's table are made, used,
// and there after a restart.
func TestTableGroups(t *testing.T) {
	o := operate(t)
	want := func(code int, pattern string, args ...string) {
		t.Helper()
		out, errs, got := tool(t, o.dir, append(append([]string{"table"}, args...), "--admin", o.url)...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	all := func() {
		t.Helper()
		n := 0
		err := o.table.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if r.Key() != rowOf(n) || string(r["f"][0].Value) != valueOf(n) {
				t.Errorf("row %d is %q", n, r.Key())
			}
			n++
			return true
		})
		if n != 400 || err != nil {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	if err := o.admin.CreateColumnFamily(t.Context(), "users", "g"); err != nil {
		t.Fatal(err)
	}
	if out, code := o.tablets("flush", "--table=users", "--all"); code != exitOK {
		t.Fatal(out)
	}
	want(exitOK, `tables/users\n  GROUP +FAMILIES .*\n  default +f,g +default +default +default +- +[0-9.]+ KiB +1 +1\n$`, "describe", "--table=users")
	want(exitOK, `big +f +16.0 KiB +zstd +off +- `, "create-group", "--table=users", "--group=big", "--families=f", "--block-size=16KiB", "--compression=zstd", "--bloom=off")
	all()
	want(exitFailure, `has a locality group big already`, "create-group", "--table=users", "--group=big")
	want(exitFailure, `unknown compression`, "set-group", "--table=users", "--group=big", "--compression=rar")
	want(exitFailure, `no locality group none`, "assign", "--table=users", "--group=none", "--families=g")
	want(exitFailure, `still has the families`, "delete-group", "--table=users", "--group=big")
	want(exitUsage, `takes settings`, "set-group", "--table=users", "--group=big")
	want(exitUsage, `takes a verb`, "frobnicate")
	want(exitUsage, `give --table`, "describe")
	want(exitOK, `big +f +16.0 KiB +default +12 bits +[0-9]`, "set-group", "--table=users", "--group=big", "--compression=default", "--bloom=12", "--in-memory")
	if out, code := o.tablets("compact", "--table=users", "--all"); code != exitOK {
		t.Fatal(out)
	}
	all()
	o.stop(syscall.SIGTERM)
	o.start()
	defer o.stop(syscall.SIGTERM)
	all()
	want(exitOK, `default +g .* 0 +0\n  big +f +16.0 KiB +default +12 bits +[0-9.]+ [KM]?i?B +[0-9.]+ KiB +1 +1\n$`, "describe", "--table=users")
	want(exitOK, `"in_memory": true`, "describe", "--table=users", "--json")
}
