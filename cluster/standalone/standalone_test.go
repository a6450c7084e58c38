package standalone

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/gateway/backend"
)

func TestBackend(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		s, err := Open(t.Context(), Options{Dir: "d", FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
