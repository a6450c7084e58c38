package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// DumpMetadata prints what the METADATA tablet of a data directory holds:
// tables, the METADATA rows of tablets, and the gateway's records. It takes no
// lock and changes nothing: it works on a copy of the METADATA tablet in
// memory. Beside a running server the copy may catch a change half-way; what
// it then complains about is gone in the next try.
func DumpMetadata(ctx context.Context, w io.Writer, fs vfs.FS, dir string) (err error) {
	root, err := metadata.ReadRoot(fs, dir)
	if err != nil {
		return err
	}
	if err := checkFormatFile(fs, dir); errors.Is(err, fault.FailedPrecondition) {
		return err
	}
	s, err := copyOfMetadata(ctx, fs, dir, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	row, err := json.Marshal(root.Row)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "incarnation %d\nMETADATA tablet %s\n", root.Incarnation, row)
	return s.list(ctx, nil, func(key, value []byte) error {
		line, err := describeRow(key, value)
		if err != nil {
			line = fmt.Sprintf("%q: %v", key, err)
		}
		_, err = fmt.Fprintln(w, line)
		return err
	})
}

// copyOfMetadata returns a Store of nothing but the METADATA tablet of a data
// directory, on a copy in memory. Its caller stops it.
func copyOfMetadata(ctx context.Context, fs vfs.FS, dir string, root *metadata.Root) (_ *Store, err error) {
	mem := vfs.NewMem()
	if err := copyMetadata(fs, mem, dir, root); err != nil {
		return nil, fmt.Errorf("copy METADATA of %s: %w", dir, err)
	}
	s := &Store{o: Options{Dir: dir, FS: mem, NoBackground: true, Durability: commitlog.Async}.WithDefaults(), failed: make(chan struct{}), removes: make(chan string, 1)}
	s.o.Log = slog.New(slog.DiscardHandler)
	if s.root, err = metadata.OpenRoot(mem, dir, root.Row); err != nil {
		return nil, err
	}
	if s.objects, err = objectstore.OpenLocal(mem, mem.PathJoin(dir, "sst"), objectstore.LocalOptions{}); err != nil {
		return nil, err
	}
	s.cache = sstable.NewCache(4<<20, 0)
	s.removing.Add(1)
	go s.remover()
	s.closing.Store(true)
	if err := s.openMeta(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// describeRow makes a line of a row of the METADATA tablet.
func describeRow(key, value []byte) (string, error) {
	switch {
	case len(key) == 9 && key[0] == 's':
		t, err := schema.Unmarshal(value)
		if err != nil {
			return "", fault.New(fault.Corruption, "decode schema: %w", err)
		}
		return fmt.Sprintf("table %x %s", t.ID, value), nil
	case len(key) >= 10 && key[0] == 't':
		r, err := metadata.Unmarshal(value)
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(r)
		return fmt.Sprintf("tablet %v of table %x [%q, %q) %s", r.Tablet, binary.BigEndian.Uint64(key[1:]), r.Start, r.End, b), err
	case len(key) == 9 && key[0] == 'b':
		b, err := schema.UnmarshalBackup(value)
		if err != nil {
			return "", fault.New(fault.Corruption, "decode backup: %w", err)
		}
		return fmt.Sprintf("backup %x %s", b.ID, value), nil
	case len(key) >= 10 && key[0] == 'b':
		r, err := metadata.Unmarshal(value)
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(r)
		return fmt.Sprintf("tablet %v of backup %x [%q, %q) %s", r.Tablet, binary.BigEndian.Uint64(key[1:]), r.Start, r.End, b), err
	case len(key) > 0 && key[0] == 'r':
		v, version, err := splitRecord(string(key[1:]), value)
		if err != nil {
			return "", err
		}
		text := printable(v)
		if bytes.HasPrefix(key[1:], []byte("secrets/")) {
			text = "(secret)" // what is printed is shown to others
		}
		return fmt.Sprintf("record %s version %d, %d bytes %s", key[1:], version, len(v), text), nil
	}
	return "", fault.New(fault.Corruption, "no such kind of row")
}

// printable shows JSON as it is and quotes all else, cut to a line's length.
func printable(v []byte) string {
	if json.Valid(v) && !bytes.ContainsAny(v, "\r\n") {
		return string(v)
	}
	if len(v) > 200 {
		return fmt.Sprintf("%q…", v[:200])
	}
	return fmt.Sprintf("%q", v)
}

// copyMetadata copies what openMeta reads.
func copyMetadata(from, to vfs.FS, dir string, root *metadata.Root) error {
	names := []string{"ROOT"}
	logs, err := from.List(from.PathJoin(dir, "log"))
	if err != nil {
		return err
	}
	for _, l := range logs {
		names = append(names, from.PathJoin("log", l))
	}
	for _, f := range root.Row.Files {
		names = append(names, from.PathJoin("sst", f.Object))
	}
	for _, name := range names {
		if err := copyFile(from, to, from.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to vfs.FS, name string) error {
	in, err := from.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := to.MkdirAll(to.PathDir(name), 0o755); err != nil {
		return err
	}
	out, err := to.Create(name, "trestle-metadata")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
