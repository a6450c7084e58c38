package lock

import (
	"errors"

	"github.com/trestledb/trestle/engine/fault"
)

// ErrEnded is wrapped by the errors of a service that was closed or has failed,
// and will not answer again. It is fault.Unavailable.
var ErrEnded = fault.New(fault.Unavailable, "the lock service has ended")

var errFree = errors.New("the item is gone")

func isAborted(err error) bool { return errors.Is(err, fault.Aborted) }
