package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	transferInstance = "projects/project/instances/instance"
	transferCluster  = transferInstance + "/clusters/cluster"
	transferTable    = transferInstance + "/tables/big"
	transferView     = transferTable + "/authorizedViews/part"
)

// awaited waits for an operation.
func awaited(t *testing.T, conn *grpc.ClientConn) func(*longrunningpb.Operation, error) {
	return func(op *longrunningpb.Operation, err error) {
		t.Helper()
		for err == nil && !op.Done {
			time.Sleep(20 * time.Millisecond)
			op, err = longrunningpb.NewOperationsClient(conn).GetOperation(t.Context(), &longrunningpb.GetOperationRequest{Name: op.Name})
		}
		if err == nil && op.GetError() != nil {
			err = status.ErrorProto(op.GetError())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fillTransfer makes one of everything that a transfer is to take along.
func fillTransfer(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wait := awaited(t, conn)
	tables, instances := adminpb.NewBigtableTableAdminClient(conn), adminpb.NewBigtableInstanceAdminClient(conn)
	wait(instances.CreateInstance(ctx, &adminpb.CreateInstanceRequest{Parent: "projects/project", InstanceId: "instance", Instance: &adminpb.Instance{DisplayName: "An instance"},
		Clusters: map[string]*adminpb.Cluster{"cluster": {Location: "projects/project/locations/here", ServeNodes: 1}}}))
	must(instances.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: transferInstance, AppProfileId: "profile", AppProfile: &adminpb.AppProfile{
		Description:   "A profile",
		RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "cluster", AllowTransactionalWrites: true}}}}))
	families := map[string]*adminpb.ColumnFamily{
		"f": {GcRule: &adminpb.GcRule{Rule: &adminpb.GcRule_MaxNumVersions{MaxNumVersions: 3}}},
		"g": {},
	}
	for _, id := range []string{"big", "gone", "kept"} {
		must(tables.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: transferInstance, TableId: id, Table: &adminpb.Table{ColumnFamilies: families},
			InitialSplits: []*adminpb.CreateTableRequest_Split{{Key: []byte("row-3")}, {Key: []byte("row-6")}}}))
		writeTransfer(t, conn, transferInstance+"/tables/"+id, 0, 200)
	}
	wait(tables.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: transferTable, AuthorizedViewId: "part", AuthorizedView: &adminpb.AuthorizedView{
		AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: &adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{[]byte("row-5")},
			FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{"g": {QualifierPrefixes: [][]byte{{}}}}}}}}))
	must(tables.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: transferTable, Policy: &iampb.Policy{Bindings: []*iampb.Binding{
		{Role: "roles/bigtable.reader", Members: []string{"user:reader@example.com"}}}}}))
	wait(tables.CreateBackup(ctx, &adminpb.CreateBackupRequest{Parent: transferCluster, BackupId: "backup", Backup: &adminpb.Backup{
		SourceTable: transferTable, ExpireTime: timestamppb.New(time.Now().Add(48 * time.Hour))}}))
	data := bigtablepb.NewBigtableClient(conn)
	must(data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: transferTable, RowKey: []byte("row-101"), Mutations: []*bigtablepb.Mutation{
		{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}}}}))
	must(data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: transferTable, RowKey: []byte("row-102"), Mutations: []*bigtablepb.Mutation{
		{Mutation: &bigtablepb.Mutation_DeleteFromFamily_{DeleteFromFamily: &bigtablepb.Mutation_DeleteFromFamily{FamilyName: "f"}}}}}))
	must(tables.DropRowRange(ctx, &adminpb.DropRowRangeRequest{Name: transferTable, Target: &adminpb.DropRowRangeRequest_RowKeyPrefix{RowKeyPrefix: []byte("row-7")}}))
	must(tables.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: transferInstance + "/tables/gone"}))
	writeTransfer(t, conn, transferTable, 1000, 50)
}

// writeTransfer writes five versions of n rows.
func writeTransfer(t *testing.T, conn *grpc.ClientConn, table string, at int64, n int) {
	t.Helper()
	var entries []*bigtablepb.MutateRowsRequest_Entry
	for i := range n {
		e := &bigtablepb.MutateRowsRequest_Entry{RowKey: fmt.Appendf(nil, "row-%d", i)}
		for v := range int64(5) {
			for _, family := range []string{"f", "g"} {
				e.Mutations = append(e.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
					FamilyName: family, ColumnQualifier: []byte("q"), TimestampMicros: (at + v + 1) * 1000, Value: fmt.Appendf(nil, "%s %d at %d", table, i, at+v)}}})
			}
		}
		entries = append(entries, e)
	}
	s, err := bigtablepb.NewBigtableClient(conn).MutateRows(t.Context(), &bigtablepb.MutateRowsRequest{TableName: table, Entries: entries})
	for err == nil {
		var r *bigtablepb.MutateRowsResponse
		if r, err = s.Recv(); err == nil {
			for _, e := range r.Entries {
				if e.Status.GetCode() != 0 {
					t.Fatal(status.ErrorProto(e.Status))
				}
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

var etags = regexp.MustCompile(`"etag": *"[^"]*",?`)

// seenTransfer is all that clients see of it: a line for each message.
func seenTransfer(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out []string
	tell := func(m proto.Message, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.ReplaceAll(etags.ReplaceAllString(string(b), ""), " ", ""))
	}
	tables, instances := adminpb.NewBigtableTableAdminClient(conn), adminpb.NewBigtableInstanceAdminClient(conn)
	tell(instances.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: transferInstance}))
	tell(instances.ListAppProfiles(ctx, &adminpb.ListAppProfilesRequest{Parent: transferInstance}))
	list, err := tables.ListTables(ctx, &adminpb.ListTablesRequest{Parent: transferInstance})
	tell(list, err)
	tell(tables.ListBackups(ctx, &adminpb.ListBackupsRequest{Parent: transferCluster}))
	tell(tables.GetAuthorizedView(ctx, &adminpb.GetAuthorizedViewRequest{Name: transferView, View: adminpb.AuthorizedView_FULL}))
	tell(tables.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: transferTable}))
	tell(longrunningpb.NewOperationsClient(conn).ListOperations(ctx, &longrunningpb.ListOperationsRequest{Name: "operations/projects/project"}))
	requests := []*bigtablepb.ReadRowsRequest{{AuthorizedViewName: transferView}}
	for _, table := range list.GetTables() {
		tell(tables.GetTable(ctx, &adminpb.GetTableRequest{Name: table.Name, View: adminpb.Table_SCHEMA_VIEW}))
		// Of f no more than its rule keeps: a flush collects the others.
		family := func(name string) *bigtablepb.RowFilter {
			return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: name}}
		}
		newest := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Chain_{Chain: &bigtablepb.RowFilter_Chain{Filters: []*bigtablepb.RowFilter{
			family("f"), {Filter: &bigtablepb.RowFilter_CellsPerColumnLimitFilter{CellsPerColumnLimitFilter: 3}}}}}}
		requests = append(requests, &bigtablepb.ReadRowsRequest{TableName: table.Name, AppProfileId: "profile", Filter: &bigtablepb.RowFilter{
			Filter: &bigtablepb.RowFilter_Interleave_{Interleave: &bigtablepb.RowFilter_Interleave{Filters: []*bigtablepb.RowFilter{newest, family("g")}}}}})
	}
	for _, r := range requests {
		s, err := bigtablepb.NewBigtableClient(conn).ReadRows(ctx, r)
		for err == nil {
			var m *bigtablepb.ReadRowsResponse
			if m, err = s.Recv(); err == nil {
				for _, c := range m.Chunks {
					out = append(out, fmt.Sprintf("%s %s %s %d %s", c.RowKey, c.FamilyName.GetValue(), c.Qualifier.GetValue(), c.TimestampMicros, c.Value))
				}
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(r, err)
		}
	}
	return strings.Join(out, "\n")
}

func sameTransfer(t *testing.T, what, got, want string) {
	t.Helper()
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("%s: line %d of %d\n%s\nwant\n%s", what, i, len(g), g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Fatalf("%s: %d lines, want %d", what, len(g), len(w))
	}
}

// TestClusterAdopt: the directory of a server that was killed becomes a cluster, and
// that, once it was killed, another directory. Clients see the same before and after
// each, and whoever is not to serve says why.
func TestClusterAdopt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a dozen processes")
	}
	c := newCluster(t)
	mortal(c)
	first, second := filepath.Join(c.dir, "first"), filepath.Join(c.dir, "second")
	serve := func(dir string) *proc {
		return startTrestle(t, "real", c.dir, "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=off", "--memory=128MiB", "--data-dir="+dir)
	}
	checkDir := func(dir string) {
		t.Helper()
		p := startTrestle(t, "real", c.dir, "check", dir)
		if out, code, _ := p.exit(); code != 0 || !strings.Contains(out, "no damage") {
			t.Fatalf("check %s: exit code %d\n%s%s", dir, code, out, p.stderr)
		}
	}
	p := serve(first)
	conn := dial(t, p.line("export BIGTABLE_EMULATOR_HOST="))
	fillTransfer(t, conn)
	want := seenTransfer(t, conn)
	c.again(filepath.Join(c.dir, "etcd"))
	adopt := []string{"adopt", "--data-dir=" + first, "--store=" + c.store}
	tried := func(code int, text string, args ...string) {
		t.Helper()
		if out, got := c.try(append([]string{"cluster"}, args...)...); got != code || !strings.Contains(out, text) {
			t.Fatalf("%v: exit code %d\n%s\nwant %d and %q", args, got, out, code, text)
		}
	}
	tried(1, "is open in another process", adopt...)
	tried(1, "adopt needs --store", "adopt", "--data-dir="+first)
	tried(1, "--data-dir DIR", "adopt", "--store="+c.store)
	tried(1, "is no data directory", "adopt", "--data-dir="+second, "--store="+c.store)
	tried(1, "knows of no cluster", "release", "--data-dir="+second, "--store="+c.store)
	tried(2, "exclude each other", append(adopt, "--done", "--abandon")...)
	p.signal(os.Kill)
	p.exit()
	checkDir(first)

	// A damaged SSTable breaks it off: nobody serves either side.
	p = serve(first) // flushes
	p.line("export BIGTABLE_EMULATOR_HOST=")
	p.signal(os.Interrupt)
	p.exit()
	damaged, undo := damageLargest(t, filepath.Join(first, "sst"))
	tried(1, "SSTable "+damaged+" is damaged in data directory "+first, adopt...)
	refused(t, "serve", serve(first), "is not served: it is being copied to cluster test (etcd "+c.etcd+")")
	c.startMaster("master-1")
	refused(t, "a master", c.masters["master-1"], "cluster test is not served: it is being filled from data directory "+first)
	delete(c.masters, "master-1")
	c.launch("server-1")
	refused(t, "a server", c.servers["server-1"], "run `trestle cluster adopt --data-dir "+first)
	delete(c.servers, "server-1")
	refused(t, "a gateway", c.gateway(c.etcd), "is being filled from data directory")
	tried(1, "does not have everything", append(adopt, "--done")...)
	undo()
	// One that is killed is begun again; etcd takes it for alive at first.
	half := startTrestle(t, "real", c.dir, append(append([]string{"cluster"}, adopt...), "--etcd="+c.etcd, "--cluster=test")...)
	eventually(t, func() string {
		if files, err := filepath.Glob(filepath.Join(c.dir, "store", "sst", "*.sst")); len(files) == 0 {
			return fmt.Sprint("nothing is copied: ", err)
		}
		return ""
	})
	half.signal(os.Kill)
	half.exit()
	tried(0, " of data directory "+first, adopt...)
	tried(0, " has everything of data directory "+first, adopt...)
	tried(0, `"state": "complete"`, append(adopt, "--json")...)
	refused(t, "serve", serve(first), "is not served: it was copied to cluster test (etcd "+c.etcd+"), complete at ")
	checkDir(first)

	servers := []string{"server-1", "server-2"}
	startAll := func() {
		c.startMaster("master-1")
		for _, name := range servers {
			c.launch(name)
		}
		for _, name := range servers {
			c.ready(name)
		}
	}
	startAll()
	conn = dial(t, c.addrs["server-2"])
	sameTransfer(t, "the cluster", seenTransfer(t, conn), want)
	if out, code := c.check("--blocks", "--rate=0", "--store="+c.store); code != 0 {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
	writeTransfer(t, conn, transferTable, 2000, 300)
	tables := adminpb.NewBigtableTableAdminClient(conn)
	wait := awaited(t, conn)
	wait(tables.UndeleteTable(t.Context(), &adminpb.UndeleteTableRequest{Name: transferInstance + "/tables/gone"}))
	wait(tables.RestoreTable(t.Context(), &adminpb.RestoreTableRequest{Parent: transferInstance, TableId: "restored",
		Source: &adminpb.RestoreTableRequest_Backup{Backup: transferCluster + "/backups/backup"}}))
	want = seenTransfer(t, conn)
	release := []string{"release", "--data-dir=" + second, "--store=" + c.store}
	tried(1, "has a master: stop all its processes first", release...)
	gateway := c.gateway(c.etcd)
	gateway.line("export BIGTABLE_EMULATOR_HOST=")
	c.kill()
	tried(0, "each of which was read back", release...)
	refused(t, "a gateway that was left running", gateway, "cluster test is not served: it ")
	tried(0, "has everything of cluster test", release...)
	refused(t, "a server", func() *proc { c.launch("server-1"); return c.servers["server-1"] }(), "cluster test is not served: it was copied to data directory "+second)
	checkDir(second)
	p = serve(second)
	conn = dial(t, p.line("export BIGTABLE_EMULATOR_HOST="))
	sameTransfer(t, "the second directory", seenTransfer(t, conn), want)
	writeTransfer(t, conn, transferTable, 3000, 20)
	p.signal(os.Interrupt)
	p.exit()
	checkDir(second)

	// What was left behind is not served again by mistake, and this is no place for
	// another copy.
	tried(0, "is never served again", append(release, "--done")...)
	tried(1, "for good", append(release, "--abandon")...)
	tried(1, "for good", release...)
	tried(1, "does not know of that transfer", adopt...)
	tried(1, "is not empty", "adopt", "--data-dir="+second, "--store="+c.store)
	tried(0, first+" can be served again. cluster test", "adopt", "--data-dir="+first, "--abandon", "--etcd=http://127.0.0.1:1")
	p = serve(first)
	p.line("export BIGTABLE_EMULATOR_HOST=")
	p.signal(os.Interrupt)
	p.exit()
}

// damageLargest flips a bit in the largest SSTable of a directory, and returns its
// name and what undoes that.
func damageLargest(t *testing.T, dir string) (string, func()) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	size := func(name string) int64 {
		i, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return i.Size()
	}
	name := slices.MaxFunc(files, func(a, b string) int { return int(size(a) - size(b)) })
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(good)
	bad[len(bad)/3] ^= 1
	write := func(b []byte) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(bad)
	return filepath.Base(name), func() { write(good) }
}
