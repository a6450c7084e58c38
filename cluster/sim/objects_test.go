package sim

import (
	"testing"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func TestObjects(t *testing.T) {
	storetest.Run(t, func(*testing.T) objectstore.Store { return newObjects() })
}
