package schema

import (
	"encoding/json"
	"slices"
	"time"
)

// A Backup is a table as it was at one instant, kept under a name of its own.
// Treat one that was handed out as read-only: the engine shares it between
// requests.
type Backup struct {
	// Name is a full resource name, such as
	// projects/P/instances/I/clusters/C/backups/B. The engine only compares it.
	Name string
	// ID never changes and is never reused.
	ID uint64
	// Table is the schema that the table had.
	Table *Table
	// CreateTime is when this backup was asked for. The rows are those of an
	// instant between StartTime and EndTime; of a copy, the source's.
	CreateTime, StartTime, EndTime time.Time
	// ExpireTime is when the backup ceases to exist, zero for never.
	ExpireTime time.Time
	// Bytes is the size of the SSTables. They are shared with the table, as long
	// as it uses them, and with other backups.
	Bytes int64
	// Extra is what the gateway keeps with a backup and the engine does not read.
	Extra []byte `json:",omitempty"`
}

// Clone returns a copy that can be changed, but for Table.
func (b *Backup) Clone() *Backup {
	c := *b
	c.Extra = slices.Clone(b.Extra)
	return &c
}

// Expired tells whether the backup has ceased to exist.
func (b *Backup) Expired(now time.Time) bool {
	return !b.ExpireTime.IsZero() && !now.Before(b.ExpireTime)
}

// Marshal encodes b for storage.
func (b *Backup) Marshal() []byte {
	out, err := json.Marshal(b)
	if err != nil {
		panic(err) // no field of Backup can fail to encode
	}
	return out
}

// UnmarshalBackup decodes what Marshal wrote.
func UnmarshalBackup(in []byte) (*Backup, error) {
	b := &Backup{Table: new(Table)}
	if err := json.Unmarshal(in, b); err != nil {
		return nil, err
	}
	if b.Table == nil {
		b.Table = new(Table)
	}
	if b.Table.Families == nil {
		b.Table.Families = map[string]Family{}
	}
	return b, nil
}
