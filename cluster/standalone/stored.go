package standalone

import (
	"context"
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Stored is what the lock service and METADATA of a data directory hold.
type Stored struct {
	// Items are schemas of tables, backups and the gateway's records. "(secret)" stands for the
	// value of a secret: what is printed is shown to others.
	Items []lock.Item
	// Rows are the METADATA rows of all tablets, METADATA's own first.
	Rows []*metadata.Row
}

// ReadMetadata returns what a data directory holds; if it returns an error, what could be
// read. It takes no lock and changes nothing: see OpenMetadata.
func ReadMetadata(ctx context.Context, fs vfs.FS, dir string) (out *Stored, err error) {
	out = &Stored{}
	if _, err := CheckFormat(fs, dir); errors.Is(err, fault.FailedPrecondition) {
		return out, err
	}
	s, err := OpenMetadata(ctx, fs, dir)
	if err != nil {
		return out, err
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		err = errors.Join(err, s.Close(now))
	}()
	items, _, err := s.lock.List(ctx, "")
	if err != nil {
		return out, err
	}
	for _, i := range items {
		switch {
		case strings.HasPrefix(i.Key, catalog.ServersPrefix), strings.HasPrefix(i.Key, catalog.AppliedPrefix):
			continue // those of this look
		case strings.HasPrefix(i.Key, metastore.RootPrefix):
			continue // among the rows
		case strings.HasPrefix(i.Key, catalog.SecretsPrefix):
			i.Value = []byte("(secret)")
		}
		out.Items = append(out.Items, i)
	}
	return out, s.Rows(ctx, func(r *metadata.Row) error {
		out.Rows = append(out.Rows, r)
		return nil
	})
}
