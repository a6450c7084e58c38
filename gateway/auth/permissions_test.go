package auth_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/expr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/trestledb/trestle/gateway/auth"
)

func condition(e string) *expr.Expr { return &expr.Expr{Expression: e} }

// readerMay are the methods that roles/bigtable.reader on the project allows.
var readerMay = strings.Fields(`
	ReadRows SampleRowKeys PingAndWarm GenerateInitialChangeStreamPartitions ReadChangeStream PrepareQuery ExecuteQuery
	GetClientConfiguration OpenMaterializedView
	GetInstance ListInstances GetCluster ListClusters ListMemoryLayers GetMemoryLayer GetAppProfile ListAppProfiles ListHotTablets
	GetLogicalView ListLogicalViews GetMaterializedView ListMaterializedViews
	ListTables GetTable ListAuthorizedViews GetAuthorizedView GenerateConsistencyToken CheckConsistency
	GetSnapshot ListSnapshots GetBackup ListBackups GetSchemaBundle ListSchemaBundles
	ListOperations GetOperation WaitOperation
	TestIamPermissions ListRoles GetRole ServerReflectionInfo`)

// adminMayNot are those that roles/bigtable.admin on the project does not.
var adminMayNot = strings.Fields(`
	google.iam.admin.v1.IAM/ListServiceAccounts google.iam.admin.v1.IAM/GetServiceAccount google.iam.admin.v1.IAM/CreateServiceAccount
	google.iam.admin.v1.IAM/DeleteServiceAccount google.iam.admin.v1.IAM/PatchServiceAccount google.iam.admin.v1.IAM/EnableServiceAccount
	google.iam.admin.v1.IAM/DisableServiceAccount google.iam.admin.v1.IAM/ListServiceAccountKeys google.iam.admin.v1.IAM/GetServiceAccountKey
	google.iam.admin.v1.IAM/CreateServiceAccountKey google.iam.admin.v1.IAM/UploadServiceAccountKey google.iam.admin.v1.IAM/DeleteServiceAccountKey
	google.iam.v1.IAMPolicy/GetIamPolicy google.iam.v1.IAMPolicy/SetIamPolicy`)

// nobodyMay are methods that are off for everybody.
var nobodyMay = strings.Fields(`
	UpdateServiceAccount UndeleteServiceAccount DisableServiceAccountKey EnableServiceAccountKey
	SignBlob SignJwt QueryGrantableRoles CreateRole UpdateRole DeleteRole UndeleteRole QueryTestablePermissions
	QueryAuditableServices LintPolicy`)

// nameFor returns a name of a resource that is not there (but in an instance
// that is), as a field of a request expects it.
func nameFor(service, method, field string) string {
	last := field[strings.LastIndexByte(field, '.')+1:]
	switch {
	case service == "google.iam.v1.IAMPolicy":
		return project
	case service == "google.iam.admin.v1.IAM" && strings.HasSuffix(method, "Key") && (strings.HasPrefix(method, "Get") || strings.HasPrefix(method, "Delete")):
		return project + "/serviceAccounts/nobody@x/keys/k"
	case service == "google.iam.admin.v1.IAM" && method != "ListServiceAccounts" && method != "CreateServiceAccount":
		return project + "/serviceAccounts/nobody@x"
	case service == "google.iam.admin.v1.IAM":
		return project
	case field == "operation":
		return "operations/" + instance + "/operations/1"
	case last == "parent" && (method == "CreateInstance" || method == "ListInstances"):
		return project
	case last == "parent" && (strings.HasSuffix(method, "Backup") || strings.HasSuffix(method, "Backups") || strings.HasSuffix(method, "HotTablets") || method == "ListMemoryLayers"):
		return instance + "/clusters/nope"
	case last == "parent" && (strings.Contains(method, "AuthorizedView") || strings.Contains(method, "SchemaBundle")):
		return instance + "/tables/nope"
	case last == "parent":
		return instance
	case last == "instance_name":
		return instance
	case last == "source_backup" || last == "backup" || strings.Contains(method, "Backup") && last == "name":
		return instance + "/clusters/nope/backups/nope"
	case last == "source_snapshot":
		return instance + "/clusters/nope/snapshots/nope"
	case strings.Contains(method, "Snapshot") && method != "SnapshotTable":
		return instance + "/clusters/nope/snapshots/nope"
	case strings.Contains(method, "MemoryLayer"):
		return instance + "/clusters/nope/memoryLayer"
	case strings.Contains(method, "Cluster"), last == "cluster":
		return instance + "/clusters/nope"
	case strings.Contains(method, "AppProfile"):
		return instance + "/appProfiles/nope"
	case strings.Contains(method, "LogicalView"):
		return instance + "/logicalViews/nope"
	case strings.Contains(method, "MaterializedView"):
		return instance + "/materializedViews/nope"
	case strings.Contains(method, "AuthorizedView"):
		return instance + "/tables/nope/authorizedViews/nope"
	case strings.Contains(method, "SchemaBundle"):
		return instance + "/tables/nope/schemaBundles/nope"
	case strings.Contains(method, "Instance"), method == "PingAndWarm":
		return project + "/instances/nope-1"
	case service == "google.bigtable.admin.v2.BigtableInstanceAdmin" && field == "resource":
		return project + "/instances/nope-1"
	}
	return instance + "/tables/nope"
}

// fill sets the field at a path of a message.
func fill(m protoreflect.Message, path, value string) {
	name, rest, more := strings.Cut(path, ".")
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if more {
		fill(m.Mutable(f).Message(), rest, value)
		return
	}
	m.Set(f, protoreflect.ValueOfString(value))
}

// call calls a method with an almost empty request about a resource that is
// not there, and returns the code.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	service := string(m.Parent().FullName())
	full := "/" + service + "/" + string(m.Name())
	req := dynamicpb.NewMessage(m.Input())
	if m.Input().Name() == "SessionRequest" {
		// The three kinds of open request have the same fields.
		permission := bigtablepb.OpenTableRequest_PERMISSION_READ_WRITE
		if full == bigtablepb.Bigtable_OpenMaterializedView_FullMethodName {
			permission = bigtablepb.OpenTableRequest_PERMISSION_READ
		}
		payload, err := proto.Marshal(&bigtablepb.OpenTableRequest{TableName: nameFor(service, string(m.Name()), auth.Fields(full)[0]), Permission: permission})
		if err != nil {
			return err
		}
		proto.Merge(req, &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{Payload: payload}}})
	}
	for _, field := range auth.Fields(full) {
		set := field
		if field == "operation" {
			set = "name"
		}
		if m.Input().Name() == "SessionRequest" || field == "authorized_view_name" || field == "materialized_view_name" {
			continue // one of the names is enough
		}
		fill(req, set, nameFor(service, string(m.Name()), field))
	}
	if m.Name() == "TestIamPermissions" {
		fill(req, "resource", instance)
	}
	resp := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() && !m.IsStreamingClient() {
		return conn.Invoke(ctx, full, req, resp)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, full)
	if err == nil {
		err = s.SendMsg(req)
	}
	if err == nil || errors.Is(err, io.EOF) {
		if m.Name() == "Watch" {
			return s.RecvMsg(resp) // it does not end
		}
		_ = s.CloseSend()
		for err = s.RecvMsg(resp); err == nil; err = s.RecvMsg(resp) {
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// TestEveryMethod calls every method as somebody without credentials, as an
// account without grants, as a reader and as an administrator.
func TestEveryMethod(t *testing.T) {
	f := newFixture(t, auth.Options{})
	none, reader, admin := f.account("none-acc", false), f.account("reader-acc", false), f.account("admin-acc", false)
	f.grant(project, "roles/bigtable.reader "+reader.member(), "roles/bigtable.admin "+admin.member())
	conns := map[string]*grpc.ClientConn{
		"nobody": f.connect(""), "none": f.connect(none.token(nil)), "reader": f.connect(reader.token(nil)), "admin": f.connect(admin.token(nil)),
	}
	methods := 0
	for service := range auth.Methods() {
		if service == "grpc.reflection.v1alpha.ServerReflection" {
			continue // as v1
		}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			t.Fatal(err)
		}
		ms := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range ms.Len() {
			m := ms.Get(i)
			name := string(m.Name())
			methods++
			for who, conn := range conns {
				err := call(t.Context(), conn, m)
				code := status.Code(err)
				want := "" // allowed
				switch {
				case strings.HasPrefix(service, "grpc.health."):
				case who == "nobody":
					want = "Unauthenticated"
				case slices.Contains(nobodyMay, name) || service == "google.iam.admin.v1.IAM" && strings.Contains(name, "Iam"):
					want = "Unimplemented"
				case name == "TestIamPermissions", name == "ListRoles", name == "GetRole", name == "ServerReflectionInfo":
				case name == "PingAndWarm":
				case who == "none" && name == "GetClientConfiguration":
					want = "Unimplemented"
				case who == "none":
					want = "PermissionDenied"
				case who == "reader" && !slices.Contains(readerMay, name):
					want = "PermissionDenied"
				case who == "admin" && slices.Contains(adminMayNot, service+"/"+name):
					want = "PermissionDenied"
				}
				got := code.String()
				if want == "" {
					if code == codes.PermissionDenied || code == codes.Unauthenticated || code == codes.Internal || code == codes.Unknown {
						t.Errorf("%s: %s/%s: %v", who, service, name, err)
					}
				} else if got != want {
					t.Errorf("%s: %s/%s: got %v, want %s", who, service, name, err, want)
				}
			}
		}
	}
	if methods < 110 {
		t.Errorf("only %d methods", methods)
	}
	for _, r := range f.log.all("no rule for the request") {
		t.Error(r)
	}
}
