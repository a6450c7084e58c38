package transfer

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// TestChangeFiles: the change files that a table's index objects name go along to a cluster,
// and back.
func TestChangeFiles(t *testing.T) {
	fs := vfs.NewMem()
	s, err := serve(t, fs, "a")
	must(t, err)
	sch, err := s.CreateTable(t.Context(), &schema.Table{Name: parent + "a", Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, nil)
	must(t, err)
	const n = 66
	for i := range n {
		put(t, s.Client, "a", fmt.Sprint(i), "f", "q", "value", 1000)
		must(t, s.Metadata().Scan(t.Context(), func(r *metadata.Row) error {
			if r.Table != sch.ID {
				return nil
			}
			return s.TabletServer().Flush(t.Context(), []metadata.TabletID{r.Tablet})
		}))
	}
	end(t, s, true)
	service := memory.New()
	from, release := directory(t, fs, "a")
	to := clusterOf(t, fs, "c", service.Client(nil, nil))
	_, err = Run(t.Context(), from, to, Options{Command: again})
	must(t, err)
	release()
	back, release := directory(t, fs, "b")
	_, err = runShort(t, to, back)
	must(t, err)
	release()
	if sum := checked(t, fs, "b"); sum.ChangeFiles != n {
		t.Errorf("%d change files are there: %+v", sum.ChangeFiles, sum)
	}
}
