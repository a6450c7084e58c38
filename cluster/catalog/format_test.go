package catalog

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/local"
	"github.com/trestledb/trestle/engine/fault"
)

// TestRaiseFormat: a process raises the format of an earlier version, but not beneath
// tablet servers of it.
func TestRaiseFormat(t *testing.T) {
	ctx := context.Background()
	l, err := local.Open(ctx, local.Options{Dir: "lock", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server, err := json.Marshal(Registration{Name: "a", Addr: "a:1", Incarnation: 7})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{FormatKey: "2", IncarnationKey: "7", ServersPrefix + "a": string(server)} {
		if _, err := l.Put(ctx, key, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	format := func() string {
		i, err := l.Get(ctx, FormatKey)
		if err != nil {
			t.Fatal(err)
		}
		return string(i.Value)
	}
	if err := CheckFormat(ctx, l); err != nil {
		t.Fatal(err)
	}
	if n, err := ClaimIncarnation(ctx, l); fault.KindOf(err) != fault.FailedPrecondition || format() != "2" {
		t.Errorf("beside a server of format 2: incarnation %d, %v, format %s", n, err, format())
	}
	i, err := l.Get(ctx, ServersPrefix+"a")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Delete(ctx, i.Key, i.Version); err != nil {
		t.Fatal(err)
	}
	if n, err := ClaimIncarnation(ctx, l); err != nil || n != 8 || format() != "3" {
		t.Errorf("without one: incarnation %d, %v, format %s", n, err, format())
	}
}
