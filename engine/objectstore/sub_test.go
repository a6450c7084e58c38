package objectstore_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func TestSub(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objectstore.Store {
		l, err := objectstore.OpenLocal(vfs.NewMem(), "d", objectstore.LocalOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "sub0", "subs/x", "zz"} {
			if err := l.PutIfAbsent(t.Context(), name, nil); err != nil {
				t.Fatal(err)
			}
		}
		return objectstore.Sub(objectstore.Sub(l, "sub"), "b")
	})
}
