package standalone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// DumpMetadata prints what the lock service and METADATA of a data directory hold. These
// are the items, which are schemas of tables, backups and the gateway's records, and the
// METADATA rows of tablets. It takes no lock and changes nothing: see OpenMetadata.
func DumpMetadata(ctx context.Context, w io.Writer, fs vfs.FS, dir string) (err error) {
	if _, err := CheckFormat(fs, dir); errors.Is(err, fault.FailedPrecondition) {
		return err
	}
	s, err := OpenMetadata(ctx, fs, dir)
	if err != nil {
		return err
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		err = errors.Join(err, s.Close(now))
	}()
	items, _, err := s.lock.List(ctx, "")
	if err != nil {
		return err
	}
	names := map[uint64]string{metastore.Table: metastore.Schema.Name}
	for _, i := range items {
		if strings.HasPrefix(i.Key, catalog.ServersPrefix) || strings.HasPrefix(i.Key, catalog.AppliedPrefix) {
			continue // those of this look
		}
		if strings.HasPrefix(i.Key, metastore.RootPrefix) {
			continue // printed as a row
		}
		if err := addNames(names, i); err != nil {
			return err
		}
		text := printable(i.Value)
		if strings.HasPrefix(i.Key, catalog.SecretsPrefix) {
			text = "(secret)" // what is printed is shown to others
		}
		if _, err := fmt.Fprintf(w, "item %s version %d, %d bytes %s\n", i.Key, i.Version, len(i.Value), text); err != nil {
			return err
		}
	}
	return s.Rows(ctx, func(r *metadata.Row) error {
		name := names[r.Table]
		if name == "" {
			name = fmt.Sprintf("table %x, which does not exist", r.Table)
		}
		b, err := json.Marshal(r)
		if err == nil {
			_, err = fmt.Fprintf(w, "tablet %v of %s [%q, %q) %s\n", r.Tablet, name, r.Start, r.End, b)
		}
		return err
	})
}

// addNames adds the names of the tables or of the backup of an item.
func addNames(names map[uint64]string, i lock.Item) error {
	switch {
	case strings.HasPrefix(i.Key, catalog.TablesPrefix):
		n, err := catalog.ParseName(i)
		for _, t := range n {
			names[t.ID] = t.Name
		}
		return err
	case strings.HasPrefix(i.Key, catalog.BackupsPrefix):
		b, err := catalog.ParseBackup(i)
		if err == nil {
			names[catalog.BackupTable(b.ID)] = "backup " + b.Name
		}
		return err
	}
	return nil
}

// printable returns JSON as it is and quotes all else, cut to a line's length.
func printable(v []byte) string {
	if json.Valid(v) && !bytes.ContainsAny(v, "\r\n") {
		return string(v)
	}
	if len(v) > 200 {
		return fmt.Sprintf("%q…", v[:200])
	}
	return fmt.Sprintf("%q", v)
}
