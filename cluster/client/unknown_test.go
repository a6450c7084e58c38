package client

import (
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
)

// TestUnknown: of tablets that overlap, as one was split and moved while servers were asked, a
// list has those of one time.
func TestUnknown(t *testing.T) {
	of := func(bounds ...string) (out []described) {
		for i := 0; i < len(bounds); i += 2 {
			out = append(out, described{TabletDetail: &rpc.TabletDetail{TabletStatus: rpc.TabletStatus{Start: []byte(bounds[i]), End: []byte(bounds[i+1])}, Kept: &rpc.Kept{}}})
		}
		return out
	}
	for _, x := range []struct {
		served      []described
		left, right int
		from, to    string
	}{
		{of(), 0, 0, "", ""},
		{of("", "m", "m", ""), 2, 2, "", ""},
		{of("", "c", "m", ""), 1, 1, "c", "m"},
		{of("", "c", "g", "m"), 1, 2, "c", ""},
		{of("", "m", "k", "m", "m", ""), 1, 2, "m", "m"},
	} {
		left, right, between := unknown(x.served)
		if left != x.left || right != x.right || string(between.Start) != x.from || string(between.End) != x.to {
			t.Errorf("%+v: %d, %d, %v", x, left, right, between)
		}
	}
}
