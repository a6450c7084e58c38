package admin

import (
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
)

// bundles are the schema bundles of tables.
var bundles = &collection[*adminpb.SchemaBundle]{
	form:   form{"Schema bundle", []string{"projects", "instances", "tables", "schemaBundles"}},
	prefix: "bundles/",
	new:    func() *adminpb.SchemaBundle { return new(adminpb.SchemaBundle) },
}
