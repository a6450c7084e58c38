package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/engine/objectstore/s3/s3test"
)

const inCluster = "projects/project/instances/instance/clusters/"

// fill makes a table of six tablets, with cells and deletions in SSTables of their
// own, and its backup.
func fill(t *testing.T, admin *bigtable.AdminClient, client *bigtable.Client, table, cluster, backup string) {
	t.Helper()
	ctx := t.Context()
	conf := &bigtable.TableConf{TableID: table, SplitKeys: []string{rowOf(50), rowOf(100), rowOf(150), rowOf(200), rowOf(250)},
		Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy(), "gc": bigtable.MaxVersionsPolicy(2)}}
	if err := admin.CreateTableFromConf(ctx, conf); err != nil {
		t.Fatal(err)
	}
	apply := func(change func(i int) *bigtable.Mutation) {
		var rows []string
		var muts []*bigtable.Mutation
		for i := range 300 {
			if m := change(i); m != nil {
				rows, muts = append(rows, rowOf(i)), append(muts, m)
			}
		}
		if errs, err := client.Open(table).ApplyBulk(ctx, rows, muts); err != nil || errs != nil {
			t.Fatal(err, errs)
		}
	}
	apply(func(i int) *bigtable.Mutation {
		m := bigtable.NewMutation()
		for n := range 3 {
			m.Set("f", fmt.Sprint(n), bigtable.Timestamp(1000*(n+1)), []byte(valueOf(i)))
			m.Set("gc", "q", bigtable.Timestamp(1000*(n+1)), []byte{byte(n), 0, 0xFF})
		}
		return m
	})
	backUp := func(name string) {
		if err := admin.CreateBackup(ctx, table, cluster, name, time.Now().Add(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	backUp(backup + "-before") // which flushes
	apply(func(i int) *bigtable.Mutation {
		m := bigtable.NewMutation()
		switch i % 5 {
		case 0:
			m.DeleteRow()
		case 1:
			m.DeleteCellsInColumn("f", "1")
		case 2:
			m.DeleteTimestampRange("f", "2", 0, 4000)
		default:
			return nil
		}
		return m
	})
	backUp(backup)
	apply(func(int) *bigtable.Mutation {
		m := bigtable.NewMutation()
		m.Set("f", "later", 1000, []byte("not in the backup"))
		return m
	})
}

// cells returns every cell of a table, and its families.
func cells(t *testing.T, admin *bigtable.AdminClient, client *bigtable.Client, table string) string {
	t.Helper()
	var out strings.Builder
	err := client.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		for _, family := range []string{"f", "gc"} {
			for _, c := range r[family] {
				fmt.Fprintf(&out, "%q %q %d %x %q\n", c.Row, c.Column, c.Timestamp, c.Value, c.Labels)
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := admin.TableInfo(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(info.FamilyInfos, func(a, b bigtable.FamilyInfo) int { return strings.Compare(a.Name, b.Name) })
	for _, f := range info.FamilyInfos {
		fmt.Fprintln(&out, f.Name, f.GCPolicy)
	}
	return out.String()
}

// restoredFrom returns the cells of a table that the official client restores.
func restoredFrom(t *testing.T, addr, table, cluster, backup string) string {
	t.Helper()
	admin, client := clients(t, addr)
	if err := admin.RestoreTable(t.Context(), table, cluster, backup); err != nil {
		t.Fatal(err)
	}
	return cells(t, admin, client, table)
}

// TestBackupExport: a backup of a single process is exported, imported into
// another one and into a cluster, and back; what the official client restores of
// each is what it restores of the first.
func TestBackupExport(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	exports := t.TempDir()
	flag := "--export-store=file://" + exports
	start := func(flags ...string) *operated {
		o := &operated{t: t, dir: t.TempDir(), flags: flags}
		o.start()
		return o
	}
	a := start(flag)
	admin, client := clients(t, a.addr)
	fill(t, admin, client, "users", "c1", "b")
	want := restoredFrom(t, a.addr, "here", "c1", "b")
	if n := strings.Count(want, "\n"); n < 1000 || strings.Contains(want, "later") {
		t.Fatalf("%d cells", n)
	}
	do := func(code int, pattern, url string, args ...string) {
		t.Helper()
		out, errs, got := tool(t, t.TempDir(), append(append([]string{"backup"}, args...), "--admin", url)...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	do(exitOK, `^export .*/backups/b to nightly: done, [0-9.]+ [KM]iB in`, a.url, "export", inCluster+"c1/backups/b", "nightly")
	do(exitOK, `done`, a.url, "export", inCluster+"c1/backups/b", "nightly")
	do(exitFailure, `nightly in file:.* has an export of another backup: choose another`, a.url, "export", inCluster+"c1/backups/b-before", "nightly")
	do(exitFailure, `Backup not found: .*/backups/none`, a.url, "export", inCluster+"c1/backups/none", "none")
	do(exitFailure, `give the full name of the backup`, a.url, "export", "b", "nightly")
	for _, bad := range []string{"../secret", "a/b", "/etc", ".hidden", ".."} {
		do(exitFailure, `cannot name an export`, a.url, "export", inCluster+"c1/backups/b", bad)
		do(exitFailure, `cannot name an export`, a.url, "import", bad, "c")
	}
	do(exitFailure, `there is no export`, a.url, "import", "none", "c")
	do(exitFailure, `Backup already exists: .*c1/backups/b\n`, a.url, "import", "nightly", "b")
	do(exitFailure, `Must be between 6h0m0s and 2160h0m0s`, a.url, "import", "nightly", "c", "--expire=9000h")
	do(exitFailure, `backups`, a.url, "import", "nightly", "not/a/name")
	do(exitUsage, `takes BACKUP EXPORT`, a.url, "export", "nightly")
	do(exitUsage, `takes EXPORT BACKUP`, a.url, "import", "nightly")
	do(exitUsage, `--expire is not a flag of trestle backup export`, a.url, "export", "x", "y", "--expire=7h")
	do(exitUsage, `takes a verb`, a.url, "restore")
	a.stop(syscall.SIGTERM)

	none := start()
	do(exitFailure, `start it with --export-store`, none.url, "export", inCluster+"c1/backups/b", "nightly")
	do(exitFailure, `start it with --export-store`, none.url, "import", "nightly", "b")
	none.stop(syscall.SIGTERM)
	away := start("--export-store=file://" + filepath.Join(exports, "not", "mounted"))
	do(exitFailure, `export-store .*not/mounted.*no such file`, away.url, "import", "nightly", "b")
	away.stop(syscall.SIGTERM)

	b := start(flag)
	do(exitOK, `import nightly to imported: done, [0-9.]+ [KM]iB in`, b.url, "import", "nightly", "imported", "--expire=12h")
	admin, _ = clients(t, b.addr)
	info, err := admin.BackupInfo(t.Context(), "c1", "imported")
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(info.ExpireTime); info.SourceTable != "users" || info.State != "READY" || left < 11*time.Hour || left > 12*time.Hour {
		t.Errorf("imported as %+v", info)
	}
	if got := restoredFrom(t, b.addr, "there", "c1", "imported"); got != want {
		t.Errorf("restored in another process:\n%.2000s\ninstead of\n%.2000s", got, want)
	}
	b.stop(syscall.SIGKILL)
	b.start()
	admin, client = clients(t, b.addr)
	if got := cells(t, admin, client, "there"); got != want {
		t.Error("after a kill the restored table is another")
	}

	c := startCluster(t, 2, func(c *testCluster) {
		c.extra = func(string) []string { return []string{"--http-listen=127.0.0.1:0", flag} }
	})
	url := strings.TrimSuffix(strings.Fields(c.addrsHTTP["server-2"])[0], "/metrics")
	do(exitOK, `done`, url, "import", "nightly", inCluster+"other/backups/imported")
	if got := restoredFrom(t, c.addrs["server-1"], "there", "other", "imported"); got != want {
		t.Errorf("restored in a cluster:\n%.2000s\ninstead of\n%.2000s", got, want)
	}
	gateway := startTrestle(t, "real", c.dir, "gateway", "--etcd="+c.etcd, "--cluster=test", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
		"--memory=64MiB", "--data-dir="+filepath.Join(c.dir, "gateway"))
	do(exitFailure, `ask a tablet server`, strings.TrimSuffix(strings.Fields(gateway.line("metrics and health"))[0], "/metrics"), "import", "nightly", "b")

	// And back, of a backup that a cluster made.
	admin, client = clients(t, c.addrs["server-1"])
	fill(t, admin, client, "users", "other", "b")
	do(exitOK, `done`, url, "export", inCluster+"other/backups/b", "of-cluster")
	do(exitOK, `done`, b.url, "import", "of-cluster", "of-cluster")
	if got := restoredFrom(t, b.addr, "back", "other", "of-cluster"); got != want {
		t.Errorf("restored from a cluster's:\n%.2000s\ninstead of\n%.2000s", got, want)
	}
	b.stop(syscall.SIGTERM)

	// And by no server at all: the command copies.
	for _, args := range [][]string{{"export", inCluster + "other/backups/b", "of-command"}, {"import", "of-command", "of-command"}} {
		if out, errs, code := tool(t, c.dir, append(append([]string{"backup"}, args...), "--etcd="+c.etcd, "--cluster=test", "--store="+c.store, "--emulator", flag)...); code != exitOK || !strings.Contains(out, ": done, ") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	if got := restoredFrom(t, c.addrs["server-2"], "of-command", "other", "of-command"); got != want {
		t.Errorf("restored of what a command exported and imported:\n%.2000s\ninstead of\n%.2000s", got, want)
	}
	if out, code := c.check("--store="+c.store, "--blocks"); code != 0 {
		t.Error(out)
	}
	if out, _, code := tool(t, b.dir, "check", filepath.Join(b.dir, "trestle-data")); code != exitOK {
		t.Error(out)
	}
}

// TestBackupExportKilled: a server that is killed while it exports to a bucket
// leaves no export. Asked again it puts what is missing, and no more.
func TestBackupExportKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts several processes")
	}
	var mu sync.Mutex
	puts, held := map[string]int{}, 3 // the third SSTable does not come to its end
	var stored sync.WaitGroup         // the first two
	stored.Add(2)
	reached, killed := make(chan struct{}), make(chan struct{})
	o := s3test.Fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/exports/") && !strings.Contains(r.URL.Path, "/probe/") {
				mu.Lock()
				puts[filepath.Base(r.URL.Path)]++
				first, stop := false, false
				if strings.Contains(r.URL.Path, "/sst/") && held >= 0 {
					if held--; held == 0 {
						go func() {
							stored.Wait()
							close(reached)
						}()
					}
					first, stop = held > 0, held <= 0
				}
				mu.Unlock()
				if stop {
					<-killed
					return
				}
				if first {
					defer stored.Done()
				}
			}
			h.ServeHTTP(w, r)
		})
	})
	t.Setenv("AWS_ACCESS_KEY_ID", o.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", o.SecretKey)
	a := &operated{t: t, dir: t.TempDir(), flags: []string{fmt.Sprintf("--export-store=s3://%s/exports?endpoint=%s&insecure=true", o.Bucket, o.Endpoint)}}
	a.start()
	admin, client := clients(t, a.addr)
	fill(t, admin, client, "users", "c1", "b")
	want := restoredFrom(t, a.addr, "here", "c1", "b")
	const name = inCluster + "c1/backups/b"
	export := startTrestle(t, "real", a.dir, "backup", "export", name, "nightly", "--admin", a.url)
	select {
	case <-reached:
	case <-time.After(time.Minute):
		t.Fatal("the third SSTable is not put")
	}
	a.stop(syscall.SIGKILL)
	close(killed)
	if out, code, _ := export.exit(); code == exitOK {
		t.Errorf("the export that was killed: %s", out)
	}
	mu.Lock()
	held = -1
	clear(puts)
	mu.Unlock()
	a.start()
	out, errs, code := tool(t, a.dir, "backup", "import", "nightly", "too-early", "--admin", a.url)
	if code == exitOK || !strings.Contains(errs, "the export of "+name+" is incomplete") {
		t.Errorf("an incomplete export is imported: %s%s", out, errs)
	}
	if out, errs, code := tool(t, a.dir, "backup", "export", name, "nightly", "--admin", a.url); code != exitOK {
		t.Fatal(out, errs)
	}
	second := func() (sstables int) {
		mu.Lock()
		defer mu.Unlock()
		for n, times := range puts {
			if times != 1 && n != "BEGUN.json" {
				t.Errorf("%s was put %d times", n, times)
			}
			if strings.HasSuffix(n, ".sst") {
				sstables++
			}
		}
		if puts["MANIFEST.json"] != 1 {
			t.Error("there is no manifest")
		}
		clear(puts)
		return sstables
	}()
	if out, errs, code := tool(t, a.dir, "backup", "export", name, "whole", "--admin", a.url); code != exitOK {
		t.Fatal(out, errs)
	}
	mu.Lock()
	if whole := len(puts) - 2; second != whole-2 {
		t.Errorf("of %d SSTables of which 2 were there %d were put", whole, second)
	}
	mu.Unlock()
	if out, errs, code := tool(t, a.dir, "backup", "import", "nightly", "imported", "--admin", a.url); code != exitOK {
		t.Fatal(out, errs)
	}
	if got := restoredFrom(t, a.addr, "again", "c1", "imported"); got != want {
		t.Error("restored of the bucket the table is another")
	}
	a.stop(syscall.SIGTERM)
}

// TestBackupPermissions: exports are for who may copy the backup, and imports for
// who may copy what was exported, too.
func TestBackupPermissions(t *testing.T) {
	dir := t.TempDir()
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB", "--data-dir=" + dir,
			"--export-store=file://" + t.TempDir()}, flags...)...)
	}, dir)
	l := login{ca: s.ca, creds: s.root}
	security, err := l.tls()
	if err != nil {
		t.Fatal(err)
	}
	key, err := l.key(false)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(security)), grpc.WithPerRPCCredentials(key))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(t.Context(), "p", "i", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateBackup(t.Context(), "one", "c", "b", time.Now().Add(24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	keyOf := func(name, project string) string {
		file := filepath.Join(s.dir, name+".json")
		email := s.iam("service-accounts", "create", name, "--project="+project)
		s.iam("keys", "create", "--service-account="+email, "--out="+file)
		s.iam("policy", "add-binding", "projects/"+project, "--role=roles/bigtable.admin", "--member=serviceAccount:"+email)
		return file
	}
	mine, other := keyOf("admin-p", "p"), keyOf("admin-q", "q")
	const name = "projects/p/instances/i/clusters/c/backups/b"
	for _, key := range []string{s.onlooker, other} {
		s.want(exitFailure, "'bigtable.backups.create' denied", key, "backup", "export", name, "x")
		s.want(exitFailure, "(or it may not exist)", key, "backup", "export", name+"-none", "x")
	}
	s.want(exitFailure, "--credentials", "", "backup", "export", name, "x")
	// A list leaves out what its reader may not know of.
	for key, seen := range map[string]bool{s.root: true, mine: true, other: false, s.onlooker: false} {
		if out, code := s.tool(key, "backup", "list", "--json"); code != exitOK || strings.Contains(out, `"`+name+`"`) != seen {
			t.Errorf("%s lists, with exit code %d:\n%s", filepath.Base(key), code, out)
		}
	}
	s.want(exitOK, "done", mine, "backup", "export", name, "x")
	// Who may do everything in his project may not take another's rows there.
	s.want(exitFailure, "denied", other, "backup", "import", "x", "projects/q/instances/i/clusters/c/backups/b")
	s.want(exitFailure, "denied", other, "backup", "import", "x", "b2")
	s.want(exitFailure, "denied", s.onlooker, "backup", "import", "x", "b2")
	s.want(exitFailure, "denied", mine, "backup", "import", "x", "projects/q/instances/i/clusters/c/backups/b")
	s.want(exitOK, "done", mine, "backup", "import", "x", "b2")
	s.want(exitOK, "done", s.root, "backup", "import", "x", "projects/q/instances/i/clusters/c/backups/b")
	s.proc.signal(syscall.SIGTERM)
	s.proc.exit()
	lines := auditLines(t, s.audit)
	for _, want := range []string{
		"serviceAccount:admin-p@p.iam.trestle.internal POST /admin/backups/export " + name + " OK",
		"serviceAccount:admin-q@q.iam.trestle.internal POST /admin/backups/import projects/q/instances/i/clusters/c/backups/b PermissionDenied",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the audit log has no %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}
