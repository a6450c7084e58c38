package admin

import (
	"context"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/sql"
)

var _ sql.Resources = (*Admin)(nil)

// Settings implements sql.Resources: see the function of that name.
func (a *Admin) Settings(t *schema.Table) (*adminpb.Table, error) { return tableExtra(t) }

// ValueType implements sql.Resources.
func (a *Admin) ValueType(f schema.Family) (*adminpb.Type, error) { return TableTypes{}.ValueType(f) }

// TableTypes is sql.Settings: all that it says is in the schema.
type TableTypes struct{}

// Settings implements sql.Settings.
func (TableTypes) Settings(t *schema.Table) (*adminpb.Table, error) { return tableExtra(t) }

// ValueType implements sql.Settings.
func (TableTypes) ValueType(f schema.Family) (*adminpb.Type, error) {
	t := new(adminpb.Type)
	if err := proto.Unmarshal(f.Extra, t); err != nil {
		return nil, fault.New(fault.Corruption, "read value type of family %s: %w", f.Name, err)
	}
	return t, nil
}

func (a *Admin) bundle(ctx context.Context, t *schema.Table, id string) (*adminpb.SchemaBundle, error) {
	key := bundles.prefixOf(t) + id
	b, version, err := a.b.GetRecord(ctx, key)
	if err != nil {
		return nil, orMissing(err, "", bundles.form.kind, t.Name+"/schemaBundles/"+id)
	}
	ch, err := bundles.decode(key, b, version)
	if err != nil {
		return nil, err
	}
	return ch.pb, nil
}

// BundleETag implements sql.Resources.
func (a *Admin) BundleETag(ctx context.Context, t *schema.Table, id string) (string, error) {
	pb, err := a.bundle(ctx, t, id)
	return pb.GetEtag(), err
}

// BundleDescriptors implements sql.Resources.
func (a *Admin) BundleDescriptors(ctx context.Context, t *schema.Table, id string) ([]byte, error) {
	pb, err := a.bundle(ctx, t, id)
	return pb.GetProtoSchema().GetProtoDescriptors(), err
}

// MAC signs what clients carry for one purpose.
func (a *Admin) MAC(ctx context.Context, purpose string, body []byte) ([]byte, error) {
	key, err := a.signingKey(ctx)
	if err != nil {
		return nil, err
	}
	return tokenMAC(key, purpose, body), nil
}
