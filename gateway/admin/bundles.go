package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/bundle"
	"github.com/trestledb/trestle/gateway/wire"
)

// bundles are the schema bundles of tables.
var bundles = &collection[*adminpb.SchemaBundle]{
	form:   form{"Schema bundle", []string{"projects", "instances", "tables", "schemaBundles"}},
	prefix: "bundles/",
	new:    func() *adminpb.SchemaBundle { return new(adminpb.SchemaBundle) },
}

const (
	// maxBundle bounds the schemas of one bundle, in bytes. They are kept with
	// what the store reads at its start. In a cluster etcd's limit of an item comes
	// first: some 1.1 MB, since records are base64. The backend refuses what is more.
	maxBundle = 4 << 20
	// bundlePage bounds the bytes of a page with more than one bundle. Many
	// clients take messages up to 4 MiB only.
	bundlePage = maxBundle - 64<<10
)

// A schemas is what a bundle holds, read: one of the two.
type schemas struct {
	proto *bundle.Proto
	avro  *bundle.Avro
}

// readBundle reads the schemas of a bundle, or refuses them.
func readBundle(pb *adminpb.SchemaBundle) (s schemas, err error) {
	if n := proto.Size(pb); n > maxBundle {
		return s, refuse(fault.Invalid, "type", "Error in field 'type' : Schemas must be at most %d bytes, but found %d", maxBundle, n)
	}
	switch t := pb.GetType().(type) {
	case *adminpb.SchemaBundle_ProtoSchema:
		s.proto, err = bundle.ParseProto(t.ProtoSchema.GetProtoDescriptors())
		if err != nil {
			return s, within("proto_schema", -1, refuse(fault.Invalid, "proto_descriptors", "Error in field 'proto_descriptors' : %v", err))
		}
	case *adminpb.SchemaBundle_AvroSchema:
		s.avro, err = bundle.ParseAvro(t.AvroSchema.GetJsonSchemas())
		if err != nil {
			return s, within("avro_schema", -1, refuse(fault.Invalid, "json_schemas", "Error in field 'json_schemas' : %v", err))
		}
	default:
		return s, refuse(fault.Invalid, "type", "One of 'proto_schema' and 'avro_schema' must be specified")
	}
	return s, nil
}

// breaks returns what of s next does not understand any more. Both are of one
// kind.
func (s schemas) breaks(next schemas) []string {
	if s.proto != nil {
		return s.proto.Breaks(next.proto)
	}
	return s.avro.Breaks(next.avro)
}

// some names the first few of many.
func some(list []string) string {
	const most = 5
	if n := len(list); n > most {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:most], "; "), n-most)
	}
	return strings.Join(list, "; ")
}

// CreateSchemaBundle implements T31.
func (s *tableServer) CreateSchemaBundle(ctx context.Context, req *adminpb.CreateSchemaBundleRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	t, err := s.tableForChild(ctx, req.GetParent())
	if err != nil {
		return nil, err
	}
	id := req.GetSchemaBundleId()
	if err := newID("schema_bundle_id", "schemaBundles", id, tableIDPattern, wire.TableID, 1, maxChildID); err != nil {
		return nil, err
	}
	pb := &adminpb.SchemaBundle{Name: t.Name + "/schemaBundles/" + id, Etag: randomText(), Type: req.GetSchemaBundle().GetType()}
	if _, err := readBundle(pb); err != nil {
		return nil, within("schema_bundle", -1, err)
	}
	ch := &child[*adminpb.SchemaBundle]{pb: pb, incarnation: randomText(), key: bundles.prefixOf(t) + id}
	if err := bundles.put(ctx, s.Admin, "schema_bundle_id", ch); err != nil {
		return nil, err
	}
	return s.finished(ctx, pb.Name, &adminpb.CreateSchemaBundleMetadata{
		Name: pb.Name, StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, pb)
}

var bundleMask = maskRule{allowed: []string{"proto_schema", "avro_schema"}, ignored: []string{"name", "etag"}}

// UpdateSchemaBundle implements T32.
func (s *tableServer) UpdateSchemaBundle(ctx context.Context, req *adminpb.UpdateSchemaBundleRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetSchemaBundle()
	mask, err := optionalMask(req.GetUpdateMask(), in, bundleMask)
	if err != nil {
		return nil, err
	}
	pb, err := bundles.change(ctx, s.Admin, "schema_bundle.name", in.GetName(), func(pb *adminpb.SchemaBundle, _ *schema.Table) error {
		if err := bundles.checkETag("schema_bundle.etag", in.GetEtag(), pb); err != nil {
			return err
		}
		old, err := readBundle(pb)
		if err != nil {
			return fault.New(fault.Corruption, "read schema bundle %s: %w", pb.GetName(), err)
		}
		applyMask(pb, in, mask, bundleMask)
		now, err := readBundle(pb)
		switch {
		case err != nil:
			return within("schema_bundle", -1, err)
		case (old.proto == nil) != (now.proto == nil):
			return refuse(fault.Invalid, "schema_bundle.type", "Error in field 'type' : The kind of a schema bundle cannot be changed")
		case !req.GetIgnoreWarnings():
			if b := old.breaks(now); len(b) > 0 {
				return refuse(fault.FailedPrecondition, "schema_bundle", "The update of schema bundle %s is not backward compatible: %s. Set 'ignore_warnings' to do it anyway.", pb.GetName(), some(b))
			}
		}
		pb.Etag = randomText()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, pb.GetName(), &adminpb.UpdateSchemaBundleMetadata{
		Name: pb.GetName(), StartTime: start, EndTime: timestamppb.New(s.o.Now()),
	}, pb)
}

// GetSchemaBundle implements T33.
func (s *tableServer) GetSchemaBundle(ctx context.Context, req *adminpb.GetSchemaBundleRequest) (*adminpb.SchemaBundle, error) {
	c, _, err := bundles.at(ctx, s.Admin, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	return c.pb, nil
}

// ListSchemaBundles implements T34. A page may have fewer than were asked for.
func (s *tableServer) ListSchemaBundles(ctx context.Context, req *adminpb.ListSchemaBundlesRequest) (*adminpb.ListSchemaBundlesResponse, error) {
	p, err := s.newPage(ctx, "schemaBundles "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	t, _, err := s.tableAt(ctx, "parent", req.GetParent())
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListSchemaBundlesResponse)
	size, last := 0, ""
	err = s.b.ListRecords(ctx, bundles.prefixOf(t), func(key string, b []byte, version uint64) error {
		if key <= p.after {
			return nil
		}
		c, err := bundles.decode(key, b, version)
		if err != nil {
			return err
		}
		size += proto.Size(c.pb)
		if n := len(resp.SchemaBundles); n > 0 && size > bundlePage || p.size > 0 && n == int(p.size) {
			return errPageFull
		}
		resp.SchemaBundles = append(resp.SchemaBundles, c.pb)
		last = key
		return nil
	})
	if errors.Is(err, errPageFull) {
		resp.NextPageToken, err = p.next(ctx, s.Admin, last)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// DeleteSchemaBundle implements T35.
func (s *tableServer) DeleteSchemaBundle(ctx context.Context, req *adminpb.DeleteSchemaBundleRequest) (*emptypb.Empty, error) {
	err := bundles.remove(ctx, s.Admin, "name", req.GetName(), req.GetEtag(), func(*adminpb.SchemaBundle) error { return nil })
	if err != nil {
		return nil, err
	}
	return new(emptypb.Empty), nil
}
