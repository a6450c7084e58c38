package catalog

import (
	"context"

	"github.com/trestledb/trestle/cluster/lock"
)

// A NameReader reads all names again and again, and decodes the item of a name once for each
// version of it: with thousands of tables that is most of what it costs. The zero NameReader is
// ready. It serves one goroutine.
type NameReader struct {
	known  map[string]readName // by key
	parsed int64
}

type readName struct {
	version int64
	name    Name
}

// Names is the function of the same name. What each gets is given again: it is not to be
// changed.
func (r *NameReader) Names(ctx context.Context, l lock.Service, each func(i lock.Item, n Name) error) error {
	items, _, err := l.List(ctx, TablesPrefix)
	if err != nil {
		return err
	}
	// Names that are gone are forgotten.
	known := make(map[string]readName, len(items))
	for _, i := range items {
		k := r.known[i.Key]
		if k.version != i.Version {
			r.parsed++
			if k.name, err = ParseName(i); err != nil {
				return err
			}
			k.version = i.Version
		}
		known[i.Key] = k
		if err := each(i, k.name); err != nil {
			return err
		}
	}
	r.known = known
	return nil
}
