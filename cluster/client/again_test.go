package client

import (
	"errors"
	"fmt"
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
)

// TestAgain: what a server refuses to relieve itself is not asked for again, which
// would make it worse.
func TestAgain(t *testing.T) {
	gone := fault.New(fault.Unavailable, "the server is gone")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{rpc.ErrNotServing, true},
		{gone, true},
		{fmt.Errorf("read METADATA: %w", gone), true},
		{errFinal{gone}, false},
		{errors.Join(rpc.ErrUnknown, gone), false},
		{budget.ReadsBusy("a row"), false},
		{fmt.Errorf("tablet 1: %w", budget.ReadsBusy("a row")), false},
		{budget.Busy(), false},
		{fault.New(fault.NotFound, "no table"), false},
	} {
		if got := isRetryable(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}
