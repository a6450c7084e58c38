package main

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/request"
)

// sound is a process of which there is nothing to say.
func sound(name string, now time.Time) ops.Process {
	return ops.Process{Name: name, Version: "1", Revision: "a", Now: now, WaitSeconds: 0.001, OpenFiles: 10, MaxFiles: 1 << 20, MemoryBytes: 1 << 20, MemorySetting: 1 << 30,
		Syncs: 1000, SyncSeconds: 1, DiskFreeBytes: 9, DiskUsedBytes: 1, Ready: true, Certificates: []ops.Certificate{{File: "c.pem", NotAfter: now.Add(100 * 24 * time.Hour)}}}
}

// TestDoctorJudges plants each flaw, and expects its finding alone.
func TestDoctorJudges(t *testing.T) {
	now := time.Now()
	for _, x := range []struct {
		want, severity string
		plant          func(p *ops.Process, l *ops.ProcessList)
	}{
		{"", "", func(*ops.Process, *ops.ProcessList) {}},
		{"servers", problem, func(p *ops.Process, _ *ops.ProcessList) { p.Error = "away" }},
		{"clock", warning, func(p *ops.Process, _ *ops.ProcessList) { p.OffSeconds = -2 }},
		{"", "", func(p *ops.Process, _ *ops.ProcessList) { p.OffSeconds, p.WaitSeconds = 2, 2 }},
		{"files", problem, func(p *ops.Process, _ *ops.ProcessList) { p.OpenFiles = 1 << 20 }},
		{"files", warning, func(p *ops.Process, _ *ops.ProcessList) { p.MaxFiles = 1024 }},
		{"sync", warning, func(p *ops.Process, _ *ops.ProcessList) { p.SyncSeconds = 100 }},
		{"sync", problem, func(p *ops.Process, _ *ops.ProcessList) { p.SyncSeconds = 1000 }},
		{"memory", warning, func(p *ops.Process, _ *ops.ProcessList) { p.MemoryBytes = 4 << 30 }},
		{"disk", problem, func(p *ops.Process, _ *ops.ProcessList) { p.DiskUsedBytes = 1000 }},
		{"certificate", warning, func(p *ops.Process, _ *ops.ProcessList) { p.Certificates[0].NotAfter = now.Add(10 * 24 * time.Hour) }},
		{"certificate", problem, func(p *ops.Process, _ *ops.ProcessList) { p.Certificates[0].NotAfter = now.Add(-time.Hour) }},
		{"certificate", warning, func(p *ops.Process, _ *ops.ProcessList) { p.Certificates[0].Error = "unreadable" }},
		{"damage", problem, func(p *ops.Process, _ *ops.ProcessList) { p.Corruptions = 1 }},
		{"health", problem, func(p *ops.Process, _ *ops.ProcessList) { p.Health = []string{"[-] disk: full"} }},
		{"health", warning, func(p *ops.Process, _ *ops.ProcessList) { p.Health = []string{"[!] something"} }},
		{"versions", warning, func(p *ops.Process, _ *ops.ProcessList) { p.Revision = "b" }},
		{"etcd", warning, func(_ *ops.Process, l *ops.ProcessList) { l.LockSeconds = 1 }},
		{"etcd", problem, func(_ *ops.Process, l *ops.ProcessList) { l.LockError = "away" }},
		{"master", problem, func(_ *ops.Process, l *ops.ProcessList) { l.Master = new(string) }},
		{"", "", func(_ *ops.Process, l *ops.ProcessList) { name := "m"; l.Master = &name }},
	} {
		l := &ops.ProcessList{Processes: []ops.Process{sound("a", now), sound("b", now)}}
		x.plant(&l.Processes[1], l)
		got := judgeProcesses(l, now, now)
		if x.want == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || got[0].Check != x.want || got[0].Severity != x.severity || got[0].Do == "" {
			t.Errorf("%s: %+v", x.want, got)
		}
	}
	if got := judgeServers([]ops.TabletServer{{Name: "a", RowsReadPerSecond: 9900}, {Name: "b", RowsReadPerSecond: 50}}); len(got) != 1 || got[0].Where != "a" {
		t.Errorf("imbalance: %+v", got)
	}
	if got := judgeServers([]ops.TabletServer{{Name: "a", RowsReadPerSecond: 9900}, {Name: "b", RowsReadPerSecond: 7000}}); len(got) != 0 {
		t.Errorf("no imbalance: %+v", got)
	}
}

// TestDebugZipKeys: keys are hashed, the same key to the same hash, and a file that is
// there is not written over.
func TestDebugZipKeys(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out.zip")
	z, err := newDebugZip(name, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := z.close(z.tablets([]ops.Tablet{{Table: "t", End: "secret"}, {Table: "t", Start: "secret"}})); err != nil {
		t.Fatal(err)
	}
	if _, err := newDebugZip(name, false); err == nil {
		t.Error("a file that is there was written over")
	}
	r, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := readZipFile(r.File[0])
	if err != nil || strings.Contains(string(b), "secret") || strings.Count(string(b), z.key("secret")) != 2 {
		t.Errorf("%v %s", err, b)
	}
	var out bytes.Buffer
	if err := showDebugZip(&out, name); err != nil || !strings.Contains(out.String(), "tablets.json") {
		t.Errorf("%v %s", err, out.String())
	}
	bad := filepath.Join(t.TempDir(), "bad.zip")
	if err := os.WriteFile(bad, []byte("no zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := showDebugZip(&out, bad); err == nil {
		t.Error("a file that is none was shown")
	}
}

// TestTopAddsUp: tablets are added up by table, requests by principal.
func TestTopAddsUp(t *testing.T) {
	now := time.Now()
	got := principalsOf([]ops.PrincipalLoad{{Principal: "c", PerSecond: 7}, {Principal: "a", PerSecond: 2}, {Principal: "idle"}}, []request.Slow{{Principal: "a", Time: now, Seconds: 1}, {Principal: "b", Time: now, Seconds: 3}, {Principal: "a", Time: now, Seconds: 1.5},
		{Principal: "a", Time: now.Add(-time.Hour), Seconds: 100}, {Time: now, Seconds: 100}}, now.Add(-slowSpan), 10)
	if want := []principalLoad{{"c", 7, 0, 0}, {"a", 2, 2, 2.5}, {"b", 0, 1, 3}}; !slices.Equal(got, want) {
		t.Errorf("principals %+v, want %+v", got, want)
	}
	tables := tablesOf([]ops.Tablet{{Table: "a", Bytes: 1, RowsReadPerSecond: 1}, {Table: "b", Bytes: 5, RowsWrittenPerSecond: 7, BytesPerSecond: 9}, {Table: "a", Bytes: 2, RowsWrittenPerSecond: 2}})
	if want := []tableLoad{{"b", 1, 5, 0, 7, 9}, {"a", 2, 3, 1, 2, 0}}; !slices.Equal(tables, want) {
		t.Errorf("tables %+v, want %+v", tables, want)
	}
	series := func(name, quantile string, v float64) ops.HistorySeries {
		return ops.HistorySeries{Name: name, Labels: map[string]string{"method": "M", "quantile": quantile}, Points: [][2]float64{{1, 99}, {2, v}}}
	}
	methods := methodsOf(ops.HistoryList{Series: []ops.HistorySeries{series("latency", "0.5", 0.1), series("latency", "0.99", 0.2), series("requests", "", 5)}}, 10)
	if want := []methodLoad{{"M", 5, 0.1, 0.2}}; !slices.Equal(methods, want) {
		t.Errorf("methods %+v, want %+v", methods, want)
	}
	var out bytes.Buffer
	if err := printTop(&out, &topList{Tables: tables, Methods: methods, Principals: got}); err != nil || !strings.Contains(out.String(), "b          0           1              3s") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	if err := printTop(&out, &topList{Principals: []principalLoad{{Principal: "a\x1b[2J\n", Requests: 1}}}); err != nil || !strings.Contains(out.String(), "\n"+`a\x1b[2J\x0a `) {
		t.Errorf("a name moves the terminal's cursor: %v %q", err, out.String())
	}
}
