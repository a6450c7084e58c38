package sweep

import (
	"os"
	"testing"

	"github.com/trestledb/trestle/conformance/target"
)

func TestThereAre84(t *testing.T) {
	n := 0
	for _, d := range Descriptors() {
		if d.Parent().FullName() != "google.longrunning.Operations" {
			n++
		}
	}
	if n != 84 {
		t.Errorf("the three Bigtable services have %d methods", n)
	}
}

func TestSweep(t *testing.T) {
	addr := target.Addr(t)
	c := newCanary(t, addr)
	r, err := Run(t.Context(), addr, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		if err := r.Write(os.Stdout); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range r.Problems() {
		t.Error(p)
	}
	if r.Lost > 0 {
		t.Errorf("%d connections were lost", r.Lost)
	}
	c.sing(t)
}
