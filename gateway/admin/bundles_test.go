package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

// protoSchema has one message with string fields of those names.
func protoSchema(fields ...string) *adminpb.SchemaBundle {
	m := &descriptorpb.DescriptorProto{Name: proto.String("M")}
	for i, f := range fields {
		m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{Name: proto.String(f), Number: proto.Int32(int32(i + 1)),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()})
	}
	b, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{{Name: proto.String("m.proto"), MessageType: []*descriptorpb.DescriptorProto{m}}}})
	if err != nil {
		panic(err)
	}
	return protoBundle(b)
}

func protoBundle(b []byte) *adminpb.SchemaBundle {
	return &adminpb.SchemaBundle{Type: &adminpb.SchemaBundle_ProtoSchema{ProtoSchema: &adminpb.ProtoSchema{ProtoDescriptors: b}}}
}

func avroSchema(schemas ...string) *adminpb.SchemaBundle {
	return &adminpb.SchemaBundle{Type: &adminpb.SchemaBundle_AvroSchema{AvroSchema: &adminpb.AvroSchema{JsonSchemas: schemas}}}
}

func bundleName(id string) string { return testTable + "/schemaBundles/" + id }

func (s *server) createBundle(t testing.TB, id string, b *adminpb.SchemaBundle) *adminpb.SchemaBundle {
	t.Helper()
	md := new(adminpb.CreateSchemaBundleMetadata)
	op := must(s.CreateSchemaBundle(t.Context(), &adminpb.CreateSchemaBundleRequest{Parent: testTable, SchemaBundleId: id, SchemaBundle: b}))(t)
	got := response(t, op, md, new(adminpb.SchemaBundle))
	if md.Name != bundleName(id) || md.StartTime == nil || md.EndTime == nil {
		t.Error(md)
	}
	return got
}

func TestSchemaBundles(t *testing.T) {
	s, ctx := strict(t), t.Context()
	in := protoSchema("a")
	in.Name, in.Etag = "ignored", "ignored"
	p := s.createBundle(t, "p", in)
	if p.Name != bundleName("p") || p.Etag == "" || p.Etag == "ignored" || !proto.Equal(p.GetProtoSchema(), in.GetProtoSchema()) {
		t.Fatal(p)
	}
	get := func(id string) *adminpb.SchemaBundle {
		t.Helper()
		return must(s.GetSchemaBundle(ctx, &adminpb.GetSchemaBundleRequest{Name: bundleName(id)}))(t)
	}
	if got := get("p"); !proto.Equal(got, p) {
		t.Error(got)
	}
	update := func(id string, b *adminpb.SchemaBundle, m *fieldmaskpb.FieldMask, ignore bool) (*adminpb.SchemaBundle, error) {
		b.Name = bundleName(id)
		op, err := s.UpdateSchemaBundle(ctx, &adminpb.UpdateSchemaBundleRequest{SchemaBundle: b, UpdateMask: m, IgnoreWarnings: ignore})
		if err != nil {
			return nil, err
		}
		got := response(t, op, new(adminpb.UpdateSchemaBundleMetadata), new(adminpb.SchemaBundle))
		if !proto.Equal(got, get(id)) {
			t.Errorf("got %v, stored %v", got, get(id))
		}
		return got, nil
	}
	fields := 1
	for _, m := range []*fieldmaskpb.FieldMask{nil, mask("*"), mask("proto_schema"), mask("proto_schema.proto_descriptors"), mask("name", "proto_schema", "etag")} {
		fields++
		next := protoSchema([]string{"a", "b", "c", "d", "e", "f"}[:fields]...)
		next.Etag = get("p").Etag
		got := must(update("p", next, m, false))(t)
		if got.Etag == next.Etag || !proto.Equal(got.GetProtoSchema(), next.GetProtoSchema()) {
			t.Error(m, got)
		}
	}
	must(update("p", protoSchema("z"), nil, true))(t)
	s.createBundle(t, "a", avroSchema(`{"type":"record","name":"R","fields":[]}`, `"int"`))
	must(update("a", avroSchema(`"long"`, `{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":0}]}`), nil, false))(t)

	for i := range 3 {
		s.createBundle(t, fmt.Sprint("b", i), avroSchema(fmt.Sprintf(`{"type":"fixed","name":"%s","size":1}`, strings.Repeat("x", 3<<20))))
	}
	var names []string
	var pages []int
	req := &adminpb.ListSchemaBundlesRequest{Parent: testTable}
	for {
		page := must(s.ListSchemaBundles(ctx, req))(t)
		pages = append(pages, len(page.SchemaBundles))
		for _, b := range page.SchemaBundles {
			names = append(names, strings.TrimPrefix(b.Name, bundleName("")))
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			break
		}
	}
	// Large bundles end a page early.
	if got := fmt.Sprint(names, pages); got != "[a b0 b1 b2 p] [2 1 2]" {
		t.Error(got)
	}
	if page := must(s.ListSchemaBundles(ctx, &adminpb.ListSchemaBundlesRequest{Parent: testTable, PageSize: 1}))(t); len(page.SchemaBundles) != 1 || page.NextPageToken == "" {
		t.Error("a page of one has ", len(page.SchemaBundles))
	}

	creating := func(id string, b *adminpb.SchemaBundle) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.CreateSchemaBundle(ctx, &adminpb.CreateSchemaBundleRequest{Parent: testTable, SchemaBundleId: id, SchemaBundle: b}))
		}
	}
	updating := func(id string, b *adminpb.SchemaBundle, paths ...string) func(context.Context, *server) error {
		return func(context.Context, *server) error { return drop(update(id, b, mask(paths...), false)) }
	}
	stale := protoSchema("z")
	stale.Etag = p.Etag
	checkRefusals(t, s, []refusal{
		{"taken", creating("p", protoSchema()), codes.AlreadyExists, "Schema bundle already exists: " + p.Name, ""},
		{"id", creating("", protoSchema()), codes.InvalidArgument, "collection schemaBundles", "schema_bundle_id"},
		{"no type", creating("x", nil), codes.InvalidArgument, "One of 'proto_schema' and 'avro_schema'", "schema_bundle.type"},
		{"proto", creating("x", protoBundle([]byte("x"))), codes.InvalidArgument, "not a google.protobuf.FileDescriptorSet", "schema_bundle.proto_schema.proto_descriptors"},
		{"no proto", creating("x", protoBundle(nil)), codes.InvalidArgument, "has no file", "schema_bundle.proto_schema.proto_descriptors"},
		{"avro", creating("x", avroSchema(`"int"`, `"nope"`)), codes.InvalidArgument, "Error in field 'json_schemas' : Error in element #1 : ", "schema_bundle.avro_schema.json_schemas"},
		{"no avro", creating("x", avroSchema()), codes.InvalidArgument, "there is no schema", "schema_bundle.avro_schema.json_schemas"},
		{"table", func(ctx context.Context, s *server) error {
			return drop(s.CreateSchemaBundle(ctx, &adminpb.CreateSchemaBundleRequest{Parent: testTable + "x", SchemaBundleId: "p", SchemaBundle: protoSchema()}))
		}, codes.NotFound, "Table not found", ""},
		{"get", func(ctx context.Context, s *server) error {
			return drop(s.GetSchemaBundle(ctx, &adminpb.GetSchemaBundleRequest{Name: bundleName("x")}))
		}, codes.NotFound, "Schema bundle not found", ""},
		{"list", func(ctx context.Context, s *server) error {
			return drop(s.ListSchemaBundles(ctx, &adminpb.ListSchemaBundlesRequest{Parent: testTable, PageToken: "x"}))
		}, codes.InvalidArgument, "Not a token of this listing", "page_token"},
		{"incompatible", updating("p", protoSchema("y"), "proto_schema"), codes.FailedPrecondition, "not backward compatible: M.z is now called y. Set 'ignore_warnings'", ""},
		{"incompatible avro", updating("a", avroSchema(`"int"`), "avro_schema"), codes.FailedPrecondition, "no schema reads what schema #0, of type long, wrote; R is gone", ""},
		{"kind", updating("p", avroSchema(`"int"`), "avro_schema"), codes.InvalidArgument, "cannot be changed", "schema_bundle.type"},
		{"kind unset", updating("p", &adminpb.SchemaBundle{}, "*"), codes.InvalidArgument, "One of", "schema_bundle.type"},
		{"mask", updating("p", protoSchema("z"), "colour"), codes.InvalidArgument, "Unknown field 'colour'", "update_mask"},
		{"etag", updating("p", stale, "proto_schema"), codes.Aborted, "changed since it was read", ""},
		{"delete etag", func(ctx context.Context, s *server) error {
			return drop(s.DeleteSchemaBundle(ctx, &adminpb.DeleteSchemaBundleRequest{Name: p.Name, Etag: p.Etag}))
		}, codes.Aborted, "changed since it was read", ""},
	})

	must(s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: p.Name, Policy: aPolicy()}))(t)
	if pol := must(s.admin.Policy(ctx, p.Name))(t); len(pol.Bindings) != 1 {
		t.Error(pol)
	}
	must(s.DeleteSchemaBundle(ctx, &adminpb.DeleteSchemaBundleRequest{Name: p.Name, Etag: get("p").Etag}))(t)
	for _, err := range []error{
		drop(s.GetSchemaBundle(ctx, &adminpb.GetSchemaBundleRequest{Name: p.Name})),
		drop(s.DeleteSchemaBundle(ctx, &adminpb.DeleteSchemaBundleRequest{Name: p.Name})),
		drop(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: p.Name})),
	} {
		if status.Code(err) != codes.NotFound {
			t.Error(err)
		}
	}
	s.createBundle(t, "p", protoSchema("q"))
	if pol := must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: p.Name}))(t); len(pol.Bindings) != 0 {
		t.Error(pol)
	}
}

// Bundles too large to be kept are refused; they do not fit in a message here.
func TestBundleSize(t *testing.T) {
	pb := avroSchema(`{"type":"fixed","name":"` + strings.Repeat("x", maxBundle) + `","size":1}`)
	if _, err := readBundle(pb); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "at most 4194304 bytes") {
		t.Error(err)
	}
	var many []string
	for i := range 9 {
		many = append(many, fmt.Sprint(i))
	}
	if got := some(many); got != "0; 1; 2; 3; 4; and 4 more" {
		t.Error(got)
	}
}

// smallRecords takes records as etcd takes items.
type smallRecords struct{ backend.Backend }

func (b *smallRecords) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	if len(value) > 1_500_000 {
		return 0, fault.New(fault.FailedPrecondition, "record %s is too large", key)
	}
	return b.Backend.PutRecord(ctx, key, value, version)
}

// TestLargeOperations: what can be stored is made, and its operation is there afterwards,
// however large both are together.
func TestLargeOperations(t *testing.T) {
	s, ctx := serve(t, &smallRecords{model.New(model.Options{})}, Options{}), t.Context()
	s.createInstance(t, "inst-one", "cluster-one")
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t", Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}))(t)

	large := func(n int) *adminpb.SchemaBundle {
		return avroSchema(`{"type":"record","name":"R","doc":"` + strings.Repeat("x", n) + `","fields":[]}`)
	}
	op := must(s.CreateSchemaBundle(ctx, &adminpb.CreateSchemaBundleRequest{Parent: testTable, SchemaBundleId: "b", SchemaBundle: large(1_120_000)}))(t)
	b := new(adminpb.SchemaBundle)
	response(t, op, new(adminpb.CreateSchemaBundleMetadata), b)
	if proto.Size(b) < 1_120_000 {
		t.Errorf("the answer has %d bytes", proto.Size(b))
	}
	op = must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}))(t)
	response(t, op, new(adminpb.CreateSchemaBundleMetadata), b)
	if b.Name != bundleName("b") || proto.Size(b) > 1000 {
		t.Errorf("the operation has %q of %d bytes", b.Name, proto.Size(b))
	}

	view := &adminpb.AuthorizedView_SubsetView{FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{"f": {}}}
	for i := range 64 {
		view.FamilySubsets["f"].Qualifiers = append(view.FamilySubsets["f"].Qualifiers, fmt.Appendf(nil, "%016000d", i))
	}
	op = must(s.CreateAuthorizedView(ctx, &adminpb.CreateAuthorizedViewRequest{Parent: testTable, AuthorizedViewId: "v",
		AuthorizedView: &adminpb.AuthorizedView{AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: view}}}))(t)
	must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}))(t)

	_, err := s.CreateSchemaBundle(ctx, &adminpb.CreateSchemaBundleRequest{Parent: testTable, SchemaBundleId: "c", SchemaBundle: large(1_130_000)})
	if status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if _, err := s.GetSchemaBundle(ctx, &adminpb.GetSchemaBundleRequest{Name: bundleName("c")}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}
