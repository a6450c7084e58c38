package metastore

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// Table is the id of the METADATA table, whose own rows are in the lock
// service. Tables of users have larger ids.
const Table uint64 = 1

// Schema is that of the METADATA table.
var Schema = &schema.Table{
	Name: "METADATA", ID: Table, Granularity: 1, NextFamily: 1, Version: 1,
	Families: map[string]schema.Family{family: {Name: family, ID: 0, GC: &schema.GCRule{MaxVersions: 1}}},
}

const family = "m"

// The columns of a row.
var (
	columnRow     = []byte("r") // metadata.Row, marshalled
	columnVersion = []byte("v") // its Version, for the predicate of a compare-and-set
)

// Key returns the key of a METADATA row. Keys sort by table and end,
// so the tablet that holds a row is that of the first Key after the row's own.
func Key(k rpc.TabletKey) []byte {
	b := binary.BigEndian.AppendUint64(nil, k.Table)
	if len(k.End) == 0 {
		return append(b, 1)
	}
	return append(append(b, 0), k.End...)
}

// after returns the key that is just before those of the tablets of a table
// that end after the row key.
func after(table uint64, key []byte) []byte {
	b := append(binary.BigEndian.AppendUint64(nil, table), 0)
	return append(append(b, key...), 0)
}

// RootPrefix is where the lock service has the rows of the METADATA tablets.
const RootPrefix = "root/"

func rootKey(k rpc.TabletKey) string { return RootPrefix + hex.EncodeToString(Key(k)) }

func versionValue(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func corrupt(format string, args ...any) error { return fault.New(fault.Corruption, format, args...) }
