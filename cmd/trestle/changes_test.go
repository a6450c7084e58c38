package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestChangesKept: what an operator sees of change streams, and what becomes of them when there
// are more changes than the disk may hold.
func TestChangesKept(t *testing.T) {
	o := operate(t)
	if err := o.admin.UpdateTableWithChangeStream(t.Context(), "users", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	set(t, o.table, "user00001", "a change")
	if out, code := o.tablets("flush", "--table=users", "--all"); code != exitOK {
		t.Fatal(out)
	}
	if out, code := o.tablets("list", "--changes"); code != exitOK || !regexp.MustCompile(`(?s)^[^\n]*tables/users: 1 tablet, [0-9]+ B\n  TABLET .*\n  [0-9a-f]+ +\[ +\) +[0-9]+ B +1 +20[-0-9]+ [0-9:]+Z +20[-0-9]+ [0-9:]+Z\n$`).MatchString(out) {
		t.Errorf("tablet list --changes:\n%s", out)
	}
	read := func(from time.Time, until func(*bigtablepb.ReadChangeStreamResponse) bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		conn, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s, err := bigtablepb.NewBigtableClient(conn).ReadChangeStream(ctx, &bigtablepb.ReadChangeStreamRequest{TableName: "projects/project/instances/instance/tables/users",
			StartFrom:         &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(from)},
			HeartbeatDuration: durationpb.New(200 * time.Millisecond)})
		for err == nil {
			var r *bigtablepb.ReadChangeStreamResponse
			if r, err = s.Recv(); err == nil && until(r) {
				return nil
			}
		}
		return err
	}
	metric := func(patterns ...string) {
		t.Helper()
		for tries := 0; ; tries++ {
			all, missing := httpGet(t, o.url+"/metrics"), ""
			for _, p := range patterns {
				if !regexp.MustCompile(`(?m)^` + p + `$`).MatchString(all) {
					missing = p
				}
			}
			if missing == "" {
				return
			}
			if tries == 200 {
				t.Fatalf("the metrics lack %s", missing)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	seen := false
	if err := read(begin, func(r *bigtablepb.ReadChangeStreamResponse) bool {
		if d := r.GetDataChange(); d != nil && string(d.RowKey) == "user00001" {
			seen = true
			metric(`bigtable_change_stream_readers 1`, `bigtable_change_stream_watermark_lag_seconds [0-9.e-]+`)
		}
		return seen
	}); err != nil {
		t.Fatal(err)
	}
	const users = `\{table="projects/project/instances/instance/tables/users"\}`
	metric(`bigtable_change_stream_readers 0`, `bigtable_change_stream_ends_total\{reason="cancelled"\} 1`, `bigtable_change_stream_ends_total\{reason="expired"\} 0`,
		`bigtable_change_stream_files`+users+` 1`, `bigtable_change_stream_bytes`+users+` [1-9][0-9]*`, `bigtable_change_stream_oldest_commit_seconds`+users+` 1\.[0-9]+e\+09`,
		`bigtable_change_stream_newest_commit_seconds`+users+` 1\.[0-9]+e\+09`, `bigtable_change_stream_delivery_seconds_count 1`, `bigtable_change_stream_limit_bytes 0`, `bigtable_clock_ahead_seconds 0`)

	out, errs, code := tool(t, o.dir, "inspect", "changes", filepath.Join(o.dir, "trestle-data", "nothing.chg"))
	if code != exitFailure || !strings.Contains(errs, "no such file") {
		t.Errorf("inspect of no file: %d\n%s%s", code, out, errs)
	}
	files, err := filepath.Glob(filepath.Join(o.dir, "trestle-data", "sst", "*.chg"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if out, errs, code := tool(t, o.dir, "inspect", "changes", files[0]); code != exitOK || !strings.Contains(out, ": 1 records in 1 chunks, ") || !strings.Contains(out, `"user00001" `) || !strings.Contains(out, "set family 0 ") {
		t.Errorf("inspect: %d\n%s%s", code, out, errs)
	}

	// There is room for none of it.
	o.stop(syscall.SIGTERM)
	o.flags = []string{"--change-stream-max=1"}
	o.start()
	metric(`bigtable_change_stream_files`+users+` 0`, `bigtable_change_stream_dropped_bytes_total [1-9][0-9]*`, `bigtable_change_stream_limit_bytes 1`)
	if log := o.proc.stderr.String(); !strings.Contains(log, "dropped changes before their retention ended") || !strings.Contains(log, "level=ERROR") {
		t.Errorf("it is not said:\n%s", log)
	}
	if err := read(begin, func(*bigtablepb.ReadChangeStreamResponse) bool { return false }); status.Code(err) != codes.OutOfRange {
		t.Errorf("a reader that is behind: %v", err)
	}
	metric(`bigtable_change_stream_ends_total\{reason="expired"\} 1`)
	o.stop(syscall.SIGTERM)
}
