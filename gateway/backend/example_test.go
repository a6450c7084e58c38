package backend_test

import (
	"context"
	"fmt"
	"log"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// readOnly is a Backend that refuses to change rows, and passes on all else.
type readOnly struct{ backend.Backend }

func (readOnly) MutateRow(context.Context, string, *row.Entry) error {
	return fault.New(fault.PermissionDenied, "rows are read-only here")
}

// What wraps a Backend embeds it. A fault's kind becomes the gRPC code that
// clients see.
func ExampleBackend() {
	ctx := context.Background()
	var store backend.Backend = readOnly{model.New(model.Options{})}

	const name = "projects/p/instances/i/tables/t"
	if _, err := store.CreateTable(ctx, &schema.Table{Name: name}, nil); err != nil {
		log.Fatal(err)
	}
	err := store.MutateRow(ctx, name, &row.Entry{Key: []byte("r")})
	fmt.Println(err, fault.KindOf(err) == fault.PermissionDenied)
	// Output: rows are read-only here true
}
