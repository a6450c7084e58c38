package compaction

import (
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

func TestGarbage(t *testing.T) {
	hour := int64(time.Hour / time.Microsecond)
	now := 1000 * hour
	versions := func(n int32) *schema.GCRule { return &schema.GCRule{MaxVersions: n} }
	age := func(d time.Duration) *schema.GCRule { return &schema.GCRule{MaxAge: d} }
	// 100 cells of 10 columns with 10 versions each, of the last 10 hours.
	info := sstable.Info{Size: 500, RawBytes: 1000, Entries: 100, Families: []sstable.FamilyInfo{{
		ID: 1, Cells: 100, Bytes: 1000, MinTS: now - 10*hour, MaxTS: now - 1,
		Older: []uint64{90, 80, 70, 60, 50, 40, 30, 20, 10},
	}}}
	for _, c := range []struct {
		name string
		rule *schema.GCRule
		want int64
	}{
		{"none", nil, 0},
		{"1 version", versions(1), 450},
		{"3 versions", versions(3), 350},
		{"10 versions", versions(10), 0},
		{"11 versions", versions(11), 0},
		{"100 versions", versions(100), 0},
		{"10 h", age(10 * time.Hour), 0},
		{"5 h", age(5 * time.Hour), 250},
		{"1 µs", age(time.Microsecond), 500},
		{"either", &schema.GCRule{Union: []*schema.GCRule{versions(3), age(5 * time.Hour)}}, 350},
		{"both", &schema.GCRule{Intersection: []*schema.GCRule{versions(3), age(5 * time.Hour)}}, 250},
	} {
		got := Garbage(&info, map[cell.FamilyID]*schema.GCRule{1: c.rule}, 2, now)
		if got < c.want-1 || got > c.want+1 {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
		if c.want == 0 && got != 0 {
			t.Errorf("%s: %d bytes although there is nothing to collect", c.name, got)
		}
	}
	if got := Garbage(&info, nil, 2, now); got != 500 {
		t.Errorf("dropped family: %d bytes, want all 500", got)
	}
	if got := Garbage(&info, nil, 1, now); got != 0 {
		t.Errorf("a family that is not known yet: %d bytes, want none", got)
	}
	info.Ends, info.EndBytes, info.MinEnd, info.MaxEnd = 50, 500, now-hour, now+hour-1
	for until, want := range map[int64]int64{now - 2*hour: 0, now: 125, now + 2*hour: 250} {
		if got := Garbage(&info, map[cell.FamilyID]*schema.GCRule{1: nil}, 2, until); got < want || got > want+1 {
			t.Errorf("cells that end, at %d h: %d bytes, want %d", (until-now)/hour, got, want)
		}
	}
	info.EndBytes, info.MinEnd, info.MaxEnd = 0, 0, 0
	if got := Garbage(&info, map[cell.FamilyID]*schema.GCRule{1: nil}, 2, now); got != 1 {
		t.Errorf("cells whose ends were not noted: %d bytes, want 1: a rewrite, in its time", got)
	}
	info.Ends = 0
	info.Shadowed = 20
	if got := Garbage(&info, map[cell.FamilyID]*schema.GCRule{1: nil}, 2, now); got != 100 {
		t.Errorf("shadowed entries: %d bytes, want 100", got)
	}
	info.Families[0].ID = cell.TokenFamily
	info.Shadowed = 0
	if got := Garbage(&info, nil, 2, now); got < 480 || got >= 500 {
		t.Errorf("tokens: %d bytes, want nearly all 500", got)
	}
	if got := Garbage(&sstable.Info{}, nil, 2, now); got != 0 {
		t.Errorf("empty: %d", got)
	}
}
