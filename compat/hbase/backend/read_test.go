package backend

import (
	"testing"

	"github.com/trestledb/trestle/engine/row"
)

// TestPanicOfRead: a panic of a read that has a goroutine of its own is that of
// the caller, who knows how to fail alone.
func TestPanicOfRead(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the caller goes on")
		}
	}()
	nowhere := new(scanner) // whose reads panic, as it has no client
	_, err := nowhere.points(t.Context(), []row.Range{row.Single([]byte("a")), row.Single([]byte("b"))}, new(fetched))
	t.Errorf("answered with %v", err)
}
