package sim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// A lossyLock loses the answer to one change of a table's name, which is made. between
// runs before its caller is told.
type lossyLock struct {
	lock.Service
	left    int // changes before that
	between func(lock.Service)
}

func (l *lossyLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	next, err := l.Service.Put(ctx, key, value, version)
	if err != nil || !strings.HasPrefix(key, catalog.TablesPrefix) {
		return next, err
	}
	if l.left--; l.left != -1 {
		return next, nil
	}
	l.between(l.Service)
	return 0, fault.New(fault.Unavailable, "the answer is lost")
}

// TestCreateTableTwice: a client that makes a table and does not learn that one of its two
// changes of the name was made, while another client changes the name, makes the table once.
func TestCreateTableTwice(t *testing.T) {
	for left, name := range []string{"pending", "live"} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			var changed catalog.Name
			between := func(l lock.Service) {
				n, version, err := catalog.ReadName(ctx, l, upkeepTable)
				if err != nil {
					t.Error(err)
				}
				if n = slices.Clone(n); name == "pending" {
					n = append(n, catalog.NewPending(&schema.Table{ID: 1 << 40, Name: upkeepTable}, time.Now()))
				} else {
					live := n[0].Clone()
					live.Version++
					live.AddFamily(schema.Family{Name: "added"})
					n[0] = catalog.Entry{Table: live}
				}
				if _, err := catalog.WriteName(ctx, l, upkeepTable, n, version); err != nil {
					t.Error(err)
				}
				changed = n
			}
			c := start(t, Options{WrapLock: func(node string, l lock.Service) lock.Service {
				if node == "first" {
					return &lossyLock{Service: l, left: left, between: between}
				}
				return l
			}}, 1)
			defer c.Close()
			first, other := clientOf(t, c, "first"), clientOf(t, c, "other")
			create(t, first, upkeepTable)
			if changed == nil {
				t.Fatal("no answer was lost")
			}
			put(t, other, upkeepTable, "a", "v")
			got, err := other.Table(ctx, upkeepTable)
			if err != nil {
				t.Fatal(err)
			}
			if live := changed.Live(); live != nil && got.Version != live.Version {
				t.Errorf("the table has version %d, not %d: what another client did is undone", got.Version, live.Version)
			}
		})
	}
}
