package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/stamp"
)

// TestInspectMetadata: all that a METADATA row can say is printed so that a person can read
// it, keys as they are typed for --key.
func TestInspectMetadata(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	seq := stamp.At(at)
	tables, err := json.Marshal([]schema.Table{{Name: "projects/p/instances/i/tables/t", ID: 0x20, CreateTime: at, DeleteTime: at.Add(time.Hour), Groups: []schema.Group{{ID: 1, Name: "text"}},
		Families: map[string]schema.Family{"f": {Name: "f"}, "g": {Name: "g", ID: 1, Group: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	file := func(id uint64, group uint16, first, last string) metadata.FileRef {
		return metadata.FileRef{Object: metadata.ObjectName(id), Run: 7, Group: group, Info: sstable.Info{Size: 2048, Entries: 30, Tombstones: 4,
			Lo: cell.AppendRow(nil, []byte(first)), Hi: cell.AppendRow(nil, []byte(last)), MinSeq: seq, MaxSeq: seq}}
	}
	stored := &standalone.Stored{
		Items: []lock.Item{
			{Key: "format", Version: 1, Value: []byte("3")},
			{Key: "records/blob", Version: 2, Value: []byte("\n\xff\\")},
			{Key: catalog.TablesPrefix + "projects/p/instances/i/tables/t", Version: 3, Value: tables},
		},
		Rows: []*metadata.Row{
			{Table: metastore.Table, Tablet: 1, Version: 5},
			{Table: 0x20, Tablet: 0xA, Version: 6, End: []byte("m\x00\xff"), FlushedSeq: seq, Redo: commitlog.Pos{Segment: 2, Offset: 64}, MajorTime: at.Unix(),
				Assignment: &metadata.Assignment{State: metadata.Open, Server: "local", Epoch: 3, Incarnation: 9, Log: 0x1F},
				Files:      []metadata.FileRef{file(1, 0, "a", "b\x00"), file(2, 1, "user00000001", "user00000001234567890")},
				RangeDel:   []metadata.RangeTombstone{{Start: []byte("c"), End: []byte("d"), Seq: seq}},
				Op:         &metadata.Op{Kind: metadata.Split, At: []byte("k"), Left: 0xB, Right: 0xC},
				Stream: &metadata.StreamState{Since: seq, Files: []changes.Ref{{Object: "3.chg", Lo: seq, Hi: seq, Rows: row.Range{End: []byte("m")}, Bytes: 10}},
					Indexes: []changes.IndexRef{{Object: "4.chx", Lo: seq, Hi: seq, Files: 70, Size: 5000}}},
			},
			{Table: 0x20, Tablet: 0xD, Version: 7, Start: []byte("m\x00\xff"), Op: &metadata.Op{Kind: metadata.Merge, Start: []byte("e"), At: []byte("m"), Left: 0xE}},
			{Table: 0x30, Tablet: 0xF, Partly: &metadata.Followed{Through: seq, Before: []byte("x")}, Op: &metadata.Op{Kind: metadata.Leave, Right: 0x10}},
		},
	}
	got, err := describeStored(stored)
	if err != nil {
		t.Fatal(err)
	}
	show := func(wide bool) string {
		t.Helper()
		var out bytes.Buffer
		if err := got.print(&out, wide); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const want = `format: 3
records/blob: \x0a\xff\\

METADATA: 1 tablet, 0 B in SSTables
  id 1
  tablet 1 [, )

projects/p/instances/i/tables/t: 2 tablets, 4.0 KiB in SSTables
  id 20, created 2026-11-28 09:00:00Z, deleted 2026-11-28 10:00:00Z
  family f: f0, locality group default
  family g: f1, locality group text
  tablet a [, m\x00\xff): open on local
    is being split at k into b and c
    rows [c, d) deleted up to 2026-11-28 09:00:00Z
    SSTABLE               FIRST         LAST                   SIZE     ENTRIES  RUN
    0000000000000001.sst  a             b\x00                  2.0 KiB  30       7
    0000000000000002.sst  user00000001  user00000001234567890  2.0 KiB  30       7
    changes kept since 2026-11-28 09:00:00Z
    CHANGE FILE  FROM  TO  SIZE     FILES
    4.chx        [     )   4.9 KiB  70
    3.chg        [     m)  10 B     -
  tablet d [m\x00\xff, )
    was merged with e, which had the rows [e, m)

table 30, which does not exist: 1 tablet, 0 B in SSTables
  id 30
  tablet f [, )
    is about to be merged into 10
    knows the changes of its view's source up to 2026-11-28 09:00:00Z, of rows before x
`
	if out := show(false); out != want {
		t.Errorf("it prints\n%s\nwant\n%s", out, want)
	}
	wide := show(true)
	for _, want := range []string{
		"tables/projects/p/instances/i/tables/t: [{", "    version 6, epoch 3, incarnation 9\n", "    log 000000000000001f, redo from 2:64, in SSTables up to 2026-11-28 09:00:00Z\n",
		"    last major compaction 2026-11-28 09:00:00Z\n", "4           text     2026-11-28 09:00:00Z  2026-11-28 09:00:00Z\n",
	} {
		if !strings.Contains(wide, want) {
			t.Errorf("--wide lacks %q:\n%s", want, wide)
		}
	}
	// A line of a terminal that has 80 columns is no longer, whatever the keys are.
	var narrow bytes.Buffer
	short := func(key string) string { return shortKey(key, keyMost) }
	got.Tables[1].print(&narrow, short, false)
	if !strings.Contains(narrow.String(), "\tuser00000001\tuser0…567890\t") {
		t.Errorf("keys are not shortened:\n%s", narrow.String())
	}
	var out bytes.Buffer
	if err := printJSON(&out, got); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"item": "format",`, `"value": 3`, `"value": "\\x0a\\xff\\\\"`, `"end": "m\\x00\\xff"`, `"first": "a"`, `"group": "text"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("--json lacks %s:\n%s", want, out.String())
		}
	}
	// What cannot be decoded is told, and the rest is there.
	stored.Items[2].Value = []byte("{")
	if got, err := describeStored(stored); err == nil || len(got.Items) != 3 || len(got.Tables) != 3 {
		t.Errorf("%v: %d items, %d tables", err, len(got.Items), len(got.Tables))
	}
}
