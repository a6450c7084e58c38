package lock

import (
	"errors"

	"github.com/trestledb/trestle/engine/fault"
)

var errFree = errors.New("the item is gone")

func isAborted(err error) bool { return errors.Is(err, fault.Aborted) }
