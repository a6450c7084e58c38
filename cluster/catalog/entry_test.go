package catalog

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// TestEntries: a table is stored as its schema, a pending one as a deleted table of
// version 0, and what is neither is not stored.
func TestEntries(t *testing.T) {
	live := &schema.Table{Name: "t", ID: 5, Version: 3}
	at := time.Unix(1e9, 0).UTC()
	b, err := json.Marshal(Name{{Table: live}, NewPending(live, at)})
	if err != nil {
		t.Fatal(err)
	}
	var stored []schema.Table
	if err := json.Unmarshal(b, &stored); err != nil {
		t.Fatal(err)
	}
	if len(stored) != 2 || stored[0].Version != 3 || !stored[0].DeleteTime.IsZero() || stored[1].Version != 0 || !stored[1].DeleteTime.Equal(at) {
		t.Errorf("stored: %s", b)
	}
	var n Name
	if err := json.Unmarshal(b, &n); err != nil {
		t.Fatal(err)
	}
	if len(n) != 2 || n[0].Pending || !n[1].Pending || n[1].ID != 5 || n.Live() != n[0].Table {
		t.Errorf("read back: %+v", n)
	}
	for _, bad := range []Entry{{Table: live, Pending: true}, {Table: &schema.Table{Name: "t"}}} {
		if _, err := json.Marshal(bad); err == nil || !strings.Contains(err.Error(), "pending") {
			t.Errorf("stored version %d, pending: %t (%v)", bad.Version, bad.Pending, err)
		}
	}
}

// TestLaterVersion: a backup whose schema a later version has written is refused as such, and
// is not taken for damaged.
func TestLaterVersion(t *testing.T) {
	const stored = `{"Name":"b","Made":true,"Table":{"Name":"t","ID":5,"Version":3,"Families":{}}}`
	if b, err := ParseBackup(lock.Item{Key: "backups/b", Value: []byte(stored)}); err != nil || b.Table.ID != 5 || !b.Made {
		t.Fatalf("%+v, %v", b, err)
	}
	for value, want := range map[string]fault.Kind{
		strings.Replace(stored, `"ID":5`, `"ID":5,"Later":1`, 1): fault.FailedPrecondition,
		strings.Replace(stored, `"ID":5`, `"ID":"5"`, 1):         fault.Corruption,
	} {
		if _, err := ParseBackup(lock.Item{Key: "backups/b", Value: []byte(value)}); fault.KindOf(err) != want || !strings.Contains(err.Error(), "backups/b") {
			t.Errorf("%s: %v", value, err)
		}
	}
}
