package catalog

import (
	"context"
	"fmt"
	"testing"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/schema"
)

// TestNameReader: whoever reads all names again and again decodes each once for a version, and
// sees them as they are.
func TestNameReader(t *testing.T) {
	const names, rounds = 60, 20
	ctx, l := t.Context(), memory.New().Client(nil, nil)
	versions := map[string]int64{}
	put := func(i int, version uint64) {
		name := fmt.Sprintf("t%02d", i)
		item, err := WriteName(ctx, l, name, Name{{Table: &schema.Table{Name: name, ID: uint64(i), Version: version}}}, versions[name])
		if err != nil {
			t.Fatal(err)
		}
		versions[name] = item.Version
	}
	var r NameReader
	read := func() map[string]uint64 {
		got := map[string]uint64{}
		if err := r.Names(ctx, l, func(_ lock.Item, n Name) error {
			got[n[0].Name] = n[0].Version
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return got
	}
	for i := range names {
		put(i, 1)
		read()
	}
	for round := range rounds {
		put(round, 2)
		got := read()
		if len(got) != names || got[fmt.Sprintf("t%02d", round)] != 2 || got["t59"] != 1 {
			t.Errorf("round %d: %v", round, got)
		}
	}
	if r.parsed != names+rounds {
		t.Errorf("%d of %d versions were decoded", r.parsed, names+rounds)
	}
	if err := l.Delete(context.Background(), TablesPrefix+"t00", versions["t00"]); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != names-1 || len(r.known) != names-1 {
		t.Errorf("%d names, %d are kept", len(got), len(r.known))
	}
}
