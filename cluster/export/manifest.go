package export

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
)

// Format is the version of exports that this program writes and reads. It changes when a
// program that knows the earlier one would misread the new one. A field that is only added
// needs no new format: earlier programs refuse it as unknown.
const Format = 1

const (
	beginName    = "BEGUN.json"
	manifestName = "MANIFEST.json"
	filesPrefix  = "sst/"
)

// A Manifest is everything in an export beside SSTables.
type Manifest struct {
	Format int
	// Program wrote the export, for people to read.
	Program string
	// Exported is when the export was completed.
	Exported time.Time
	// Backup is the store's description of the backup. It has its name and id there, the
	// schema of its table, and the times between which its rows are as they were.
	Backup *schema.Backup
	// Tablets are the METADATA rows, which tile the key space.
	Tablets []*metadata.Row
	// Files are the SSTables that Tablets name, each once.
	Files []File
}

// A File is an SSTable of an export.
type File struct {
	Object string // its name in Tablets
	Size   int64  // in bytes
	SHA256 string // in hexadecimal
}

// Bytes is the size of all SSTables.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// checkedJSON is JSON with its checksum, for files that people can read.
type checkedJSON struct {
	SHA256  string
	Content json.RawMessage
}

func encodeChecked(v any) ([]byte, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	return json.Marshal(checkedJSON{hex.EncodeToString(sum[:]), content})
}

// decodeChecked decodes the object name into v. It is fault.Corruption if its bytes are
// not those that were written, and fault.FailedPrecondition if they are of an unknown
// format.
func decodeChecked(b []byte, name string, v any) error {
	var s checkedJSON
	if err := json.Unmarshal(b, &s); err != nil {
		return fault.New(fault.Corruption, "%s of the export is damaged: %w", name, err)
	}
	if sum := sha256.Sum256(s.Content); hex.EncodeToString(sum[:]) != s.SHA256 {
		return fault.New(fault.Corruption, "%s of the export is damaged: its SHA-256 is %x, and it says %s", name, sum, s.SHA256)
	}
	var of struct{ Format int }
	if err := json.Unmarshal(s.Content, &of); err != nil || of.Format != Format {
		return fault.New(fault.FailedPrecondition, "the export has format %d, this program reads format %d: import it with a version of trestle that wrote such", of.Format, Format)
	}
	d := json.NewDecoder(bytes.NewReader(s.Content))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.FailedPrecondition, "%s of the export says what this program does not understand (%w): import it with the version of trestle that wrote it, or a later one", name, err)
	}
	return nil
}

// beginMark names the backup of an unfinished export. Backups of two stores may have one
// id, but were not made at one instant too.
type beginMark struct {
	Format  int
	Backup  string
	ID      uint64
	Created time.Time
}

func (b *beginMark) same(other *beginMark) bool {
	return b.Backup == other.Backup && b.ID == other.ID && b.Created.Equal(other.Created)
}

// readBeginMark returns nil if no export was ever begun.
func readBeginMark(ctx context.Context, s objectstore.Store) (*beginMark, error) {
	b, err := s.Get(ctx, beginName)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := new(beginMark)
	return v, decodeChecked(b, beginName, v)
}

// Read returns the manifest of an export. It is fault.NotFound if there is none and
// fault.Corruption if the manifest is damaged. It is fault.FailedPrecondition if the
// export is incomplete or of a format that this program does not know.
func Read(ctx context.Context, s objectstore.Store) (*Manifest, error) {
	b, err := s.Get(ctx, manifestName)
	if errors.Is(err, fault.NotFound) {
		was, err := readBeginMark(ctx, s)
		if err != nil {
			return nil, err
		}
		if was == nil {
			return nil, fault.New(fault.NotFound, "there is no export: neither %s nor %s is there", manifestName, beginName)
		}
		return nil, fault.New(fault.FailedPrecondition, "the export of %s is incomplete: %s, which is written last, is not there; export the backup again, to the same place", was.Backup, manifestName)
	}
	if err != nil {
		return nil, err
	}
	m := new(Manifest)
	if err := decodeChecked(b, manifestName, m); err != nil {
		return nil, err
	}
	return m, m.check()
}

// check reports what no program writes.
func (m *Manifest) check() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Corruption, "%s of the export: %s", manifestName, fmt.Sprintf(format, args...))
	}
	if m.Backup == nil || m.Backup.Table == nil {
		return bad("it names no backup, or no table")
	}
	if !metadata.Tile(m.Tablets) {
		return bad("its %d tablets do not tile the key space", len(m.Tablets))
	}
	sizes := map[string]int64{}
	for _, f := range m.Files {
		if err := objectstore.CheckName(filesPrefix + f.Object); err != nil {
			return bad("%v", err)
		}
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size {
			return bad("SSTable %s has no SHA-256", f.Object)
		}
		if _, twice := sizes[f.Object]; twice {
			return bad("SSTable %s is there twice", f.Object)
		}
		sizes[f.Object] = f.Size
	}
	for _, r := range m.Tablets {
		if err := r.Check(); err != nil {
			return bad("%v", err)
		}
		if r.Op != nil || r.Assignment != nil || r.Redo != (commitlog.Pos{}) {
			return bad("tablet %v is not one of a backup, but one that is served", r.Tablet)
		}
		for _, f := range r.Files {
			if size, ok := sizes[f.Object]; !ok || size != f.Size {
				return bad("SSTable %s of tablet %v is not among the files with %d bytes", f.Object, r.Tablet, f.Size)
			}
		}
	}
	return nil
}
