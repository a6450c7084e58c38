package tabletserver_test

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/gateway/backend"
)

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestBackend(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		return open(t, Options{FS: vfs.NewMem(), Dir: "data"})
	})
}

func TestBackendSmallMemtables(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		o := Options{FS: vfs.NewMem(), Dir: "data", MemtableBytes: 1 << 20}
		o.Tablet.MemtableBytes = 64 << 10
		o.Tablet.FileBytes = 64 << 10
		return open(t, o)
	})
}
