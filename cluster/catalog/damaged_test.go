package catalog

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// strictLock takes items as long as etcd does.
type strictLock struct {
	lock.Service
	puts int
}

func (l *strictLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	l.puts++
	if len(value) > 1_500_000 {
		return 0, fault.New(fault.Unavailable, "request is too large")
	}
	return l.Service.Put(ctx, key, value, version)
}

// TestManyTabletsWait: however many tablets wait for a log, it is noted that some do, for each of
// its damaged segments, and that there are more.
func TestManyTabletsWait(t *testing.T) {
	const log = commitlog.ID(7)
	ctx, l := t.Context(), &strictLock{Service: memory.New().Client(nil, nil)}
	var all []WaitingTablet
	rows := map[metadata.TabletID]*metadata.Row{}
	for i := range 5000 {
		w := WaitingTablet{Table: "projects/p/instances/i/tables/t", Tablet: metadata.TabletID(i + 1), Start: bytes.Repeat([]byte("k"), 1000),
			End: bytes.Repeat([]byte("l"), 1000), Object: "a", Error: "damaged index", Since: time.Now()}
		if i >= 4997 {
			w.Object = fmt.Sprint("b", i)
		}
		all = append(all, w)
		rows[w.Tablet] = &metadata.Row{Tablet: w.Tablet, Assignment: &metadata.Assignment{State: metadata.Opening, Log: uint64(log)}}
	}
	note := func(ts []WaitingTablet) DamagedLog {
		t.Helper()
		if err := NoteWaiting(ctx, l, log, ts); err != nil {
			t.Fatal(err)
		}
		logs, err := DamagedLogs(ctx, l)
		if err != nil || len(logs) != 1 {
			t.Fatal(logs, err)
		}
		return logs[0]
	}
	first := note(all)
	objects := map[string]bool{}
	var named []metadata.TabletID
	for _, w := range first.Tablets {
		objects[w.Object] = true
		named = append(named, w.Tablet)
	}
	if len(named) < 50 || len(objects) != 4 || !first.More {
		t.Errorf("%d tablets are noted, of segments %v; more: %v", len(named), objects, first.More)
	}
	// Servers find the same again and again.
	if puts := l.puts; len(note(all).Tablets) != len(named) || l.puts != puts {
		t.Error("the item changes though nothing has")
	}
	if got := StillWaiting([]DamagedLog{first}, rows); len(got) != 1 || !got[0].More || len(got[0].Tablets) != len(named) {
		t.Errorf("METADATA leaves %d logs", len(got))
	}
	// When those that are named are opened, others are.
	if err := NoteOpened(ctx, l, log, named[1:]...); err != nil {
		t.Fatal(err)
	}
	for _, id := range named[1:] {
		rows[id].Assignment.State = metadata.Open
	}
	left := slices.DeleteFunc(slices.Clone(all), func(w WaitingTablet) bool { return slices.Contains(named[1:], w.Tablet) })
	if again := note(left); len(again.Tablets) < 50 || !again.More {
		t.Errorf("then %d tablets are noted; more: %v", len(again.Tablets), again.More)
	}
	// More goes by the rows where they are known.
	for id, r := range rows {
		if id != named[0] {
			r.Assignment.State = metadata.Open
		}
	}
	if got := StillWaiting([]DamagedLog{first}, rows); len(got) != 1 || got[0].More || len(got[0].Tablets) != 1 {
		t.Errorf("METADATA leaves %d logs though one tablet waits", len(got))
	}
	if err := NoteOpened(ctx, l, log); err != nil {
		t.Fatal(err)
	}
	if logs, err := DamagedLogs(ctx, l); err != nil || len(logs) > 0 {
		t.Error(logs, err)
	}
}
