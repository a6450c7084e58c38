package main

import (
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// completion returns what a shell is offered for the last of some words, which may be
// empty, without descriptions. Files never are.
func completion(t *testing.T, line string) (words []string) {
	t.Helper()
	was := completeLimit
	completeLimit = time.Minute
	defer func() { completeLimit = was }()
	out, _, code := typed(append([]string{"__completeNoDesc"}, strings.Split(line, " ")...)...)
	words = strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if last := words[len(words)-1]; code != exitOK || last != ":4" {
		t.Errorf("%s: exit code %d and %s, not :4", line, code, last)
	}
	return words[:len(words)-1]
}

// TestComplete: a shell is offered what the server has that the line leads to.
func TestComplete(t *testing.T) {
	o := operate(t)
	defer o.stop(syscall.SIGTERM)
	conn := dial(t, o.addr)
	const instance = "projects/project/instances/instance"
	tables, instances, wait := adminpb.NewBigtableTableAdminClient(conn), adminpb.NewBigtableInstanceAdminClient(conn), awaited(t, conn)
	for parent, id := range map[string]string{"projects/other/instances/second": "users", instance: "people"} {
		if _, err := tables.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: parent, TableId: id,
			Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
			t.Fatal(err)
		}
	}
	clusters, err := instances.ListClusters(t.Context(), &adminpb.ListClustersRequest{Parent: instance})
	if err != nil {
		t.Fatal(err)
	}
	cluster := clusters.Clusters[0].Name
	short := strings.NewReplacer("projects/", "", "instances/", "", "clusters/", "").Replace(cluster)
	wait(tables.CreateBackup(t.Context(), &adminpb.CreateBackupRequest{Parent: cluster, BackupId: "nightly", Backup: &adminpb.Backup{
		SourceTable: instance + "/tables/users", ExpireTime: timestamppb.New(time.Now().Add(48 * time.Hour))}}))
	wait(instances.CreateMaterializedView(t.Context(), &adminpb.CreateMaterializedViewRequest{Parent: instance, MaterializedViewId: "by-length",
		MaterializedView: &adminpb.MaterializedView{Query: "SELECT LENGTH(f['q']) AS n, COUNT(*) AS c FROM users GROUP BY n"}}))
	if out, errs, code := tool(t, o.dir, "table", "create-group", "--table="+instance+"/tables/users", "--group=big", "--admin", o.url); code != exitOK {
		t.Fatal(out, errs)
	}
	admin, server := "--admin "+o.url+" ", "--plaintext --server "+o.addr+" "
	for line, want := range map[string]string{
		"table describe " + admin + "--table pe":                                       "people",
		"table describe " + admin + "--table u":                                        "", // there are two
		"table describe " + admin + "--table projects/o":                               "projects/other/instances/second/tables/users",
		"table describe " + admin + "--table=M":                                        "METADATA",
		"table set-group " + admin + "--table people --group ":                         "default",
		"table set-group " + admin + "--table " + instance + "/tables/users --group b": "big",
		"table create-group " + admin + "--table people --group ":                      "",
		"tablet move " + admin + "--table people --key a l":                            "local",
		"tablet move " + admin + "1f l":                                                "local",
		"tablet move " + admin + "1f local ":                                           "",
		"server drain " + admin:                                                        "local",
		"views wait " + admin + "by":                                                   "by-length",
		"views wait " + admin:                                                          "by-length " + instance + "/materializedViews/by-length",
		"views list " + admin:                                                          "",
		"backup export " + admin:                                                       cluster + "/backups/nightly",
		"backup export " + admin + "b ":                                                "",
		"backup import " + admin + "e ":                                                "",
		"stream " + server + "p":                                                       "project/instance/people project/instance/users projects/other/instances/second/tables/users " + instance + "/tables/people " + instance + "/tables/users",
		"stream " + server + "o":                                                       "other/second/users",
		"restore " + server + "project/":                                               short + "/nightly",
		"restore " + server + "x ":                                                     "",
		"iam policy get " + server + "projects/other":                                  "projects/other projects/other/instances/second projects/other/instances/second/tables/users",
		"iam policy get " + server + "--data-dir " + o.dir + " projects/other":         "",
		"sql -e " + o.addr + " --project project --instance i":                         "instance",
		"sql -e " + o.addr + " --project project --instance projects/o":                "projects/other/instances/second",
		"table describe --admin http://127.0.0.1:1 --table ":                           "",
		"table describe --http-listen off --table ":                                    "",
		"stream --plaintext --server 127.0.0.1:1 ":                                     "",
	} {
		got := completion(t, line)
		slices.Sort(got)
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %q, want %q", line, s, want)
		}
	}
	var ids []string
	out, _ := o.tablets("list")
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  ") && !strings.Contains(line, "TABLET") {
			ids = append(ids, strings.Fields(line)[0])
		}
	}
	slices.Sort(ids)
	got := completion(t, "tablet compact "+admin)
	if slices.Sort(got); len(ids) < 4 || !slices.Equal(got, ids) {
		t.Errorf("tablets %v, want %v", got, ids)
	}
	if out, _, _ := typed("__complete", "tablet", "flush", "--admin", o.url, ids[0]); !strings.HasPrefix(out, ids[0]+"\t") {
		t.Errorf("a tablet without its table: %s", out)
	}
}

// TestCompleteInTime: a server that does not answer keeps no shell waiting.
func TestCompleteInTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // in whose queue connections wait
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, line := range []string{"server drain --admin http://" + l.Addr().String() + " ", "stream --plaintext --server " + l.Addr().String() + " ",
		"server drain --etcd http://" + l.Addr().String() + " "} {
		begun := time.Now()
		out, _, code := typed(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if code != exitOK || out != ":4\n" || time.Since(begun) >= reachLimit {
			t.Errorf("%s: exit code %d after %v\n%s", line, code, time.Since(begun), out)
		}
	}
}
