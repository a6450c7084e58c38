package admin

import (
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/conformance/model"
)

// TestHints: who starts a server without an instance is told how to make one, and
// who leaves emulator mode why tables are not found. Who has made instances is
// told nothing.
func TestHints(t *testing.T) {
	b := model.New(model.Options{})
	want := func(when string, a *Admin, parts ...string) {
		t.Helper()
		got, err := a.Hints(t.Context(), "cbt -creds x")
		if err != nil {
			t.Fatal(err)
		}
		ok := len(got) == len(parts)
		for i := range min(len(got), len(parts)) {
			ok = ok && strings.Contains(got[i], parts[i])
		}
		if !ok {
			t.Errorf("%s: %q", when, got)
		}
	}
	const none = "No instance has been created yet. Make one:\n  cbt -creds x -project my-project createinstance "
	want("at first", New(b, Options{}), none)
	emulator := serve(t, b, Options{Emulator: true})
	must(emulator.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	want("in emulator mode", emulator.admin)
	want("after emulator mode", New(b, Options{}), "nobody created: 1, such as "+testInstance+"/tables/t", none)
	emulator.createInstance(t, "other-one", "cluster-one")
	want("with another instance", New(b, Options{}), "nobody created: 1")
	emulator.createInstance(t, "inst-one", "cluster-one")
	want("with its instance", New(b, Options{}))
}
