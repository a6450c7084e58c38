package master

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// known is what the master knows of the tablets of tables: their METADATA rows
// without what they hold, as they were when it read them last, or as it or a
// server has changed them since. It is a hint of what there is to do: a change
// is a compare-and-set of the row as it is. So METADATA, which is large in a
// large cluster, is read whole only now and then: when the term begins, when a
// server has died, whose tablets may have been split, and else so rarely that it
// takes a twentieth of the time.
type known struct {
	rows []*metadata.Row // by key, and slim, except in the round that reads them
	// scanned is when they were read, and took how long that took; servers and
	// tables are those that there were then.
	scanned time.Time
	took    time.Duration
	servers map[uint64]bool
	tables  map[uint64]bool

	mu sync.Mutex
	// doubtful are rows that are not as they are here.
	doubtful []rpc.TabletKey
	loaded   []rpc.TabletKey
}

func keyOf(r *metadata.Row) rpc.TabletKey { return rpc.TabletKey{Table: r.Table, End: r.End} }

// slimmed is the Redo of a slim row: no real one has it.
const slimmed = ^uint64(0)

// slim returns a row without what the tablet holds. It cannot be stored.
func slim(r *metadata.Row) *metadata.Row {
	s := &metadata.Row{Version: r.Version, Table: r.Table, Tablet: r.Tablet, Start: r.Start, End: r.End, Op: r.Op, Assignment: r.Assignment}
	s.Redo.Segment = slimmed
	return s
}

// slim leaves out of all rows what they hold.
func (k *known) slim() {
	for i, r := range k.rows {
		if !isSlim(r) {
			k.rows[i] = slim(r)
		}
	}
}

func isSlim(r *metadata.Row) bool { return r.Redo.Segment == slimmed }

// doubt makes the master read rows again. Those of METADATA tablets, which are
// not known but read in each round, it reads in any case.
func (k *known) doubt(keys ...rpc.TabletKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		if key.Table != cmeta.Table {
			k.doubtful = append(k.doubtful, key)
		}
	}
}

// opened notes that a server has opened tablets.
func (m *master) opened(keys []rpc.TabletKey) {
	m.tablets.mu.Lock()
	defer m.tablets.mu.Unlock()
	m.tablets.loaded = append(m.tablets.loaded, keys...)
}

// compareKeys is the order of METADATA rows.
func compareKeys(a, b rpc.TabletKey) int {
	switch {
	case a.Table < b.Table:
		return -1
	case a.Table > b.Table:
		return 1
	case len(a.End) == 0 || len(b.End) == 0:
		return len(b.End) - len(a.End)
	}
	return bytes.Compare(a.End, b.End)
}

func (k *known) find(key rpc.TabletKey) (int, bool) {
	return slices.BinarySearchFunc(k.rows, key, func(r *metadata.Row, key rpc.TabletKey) int { return compareKeys(keyOf(r), key) })
}

// know brings what is known up to date and tells whether it was all read.
func (m *master) know(ctx context.Context, v *view) (whole bool, err error) {
	k := &m.tablets
	k.mu.Lock()
	doubtful, loaded := k.doubtful, k.loaded
	k.doubtful, k.loaded = nil, nil
	k.mu.Unlock()
	due := k.scanned.IsZero() || time.Since(k.scanned) >= max(10*m.o.Interval, 20*k.took)
	for n := range k.servers {
		if _, ok := v.servers[n]; !ok {
			due = true // and before that what is known of it is seen to
		}
	}
	fresh := map[uint64]bool{}
	for id, live := range v.tables {
		if live && !k.tables[id] {
			fresh[id] = true
		}
	}
	if due || len(fresh) > 4 || len(doubtful) > 1000 {
		return true, m.scan(ctx, v)
	}
	for id := range fresh {
		if err := m.scanTable(ctx, id); err != nil {
			return false, err
		}
		k.tables[id] = true
	}
	for n := range v.servers {
		k.servers[n] = true
	}
	for _, key := range loaded {
		if i, ok := k.find(key); ok {
			if a := k.rows[i].Assignment; a != nil && a.State == metadata.Opening {
				open := *a
				open.State = metadata.Open
				r := *k.rows[i]
				r.Assignment = &open
				k.rows[i] = &r
			}
		}
	}
	for n, key := range doubtful {
		r, err := m.meta.Get(ctx, key)
		if err != nil && !errors.Is(err, fault.NotFound) {
			k.doubt(doubtful[n:]...)
			return false, err
		}
		i, ok := k.find(key)
		switch {
		case ok && err != nil:
			k.rows = slices.Delete(k.rows, i, i+1)
		case ok:
			k.rows[i] = slim(r)
		case err == nil:
			k.rows = slices.Insert(k.rows, i, slim(r))
		}
	}
	return false, nil
}

// scan reads METADATA whole.
func (m *master) scan(ctx context.Context, v *view) error {
	start := time.Now()
	m.o.Counters.Scans.Add(1)
	var rows []*metadata.Row
	err := m.meta.Scan(ctx, func(r *metadata.Row) error {
		if n := len(rows); n > 0 && rows[n-1].Table == r.Table && bytes.Equal(rows[n-1].End, r.End) {
			rows = rows[:n-1] // read twice: METADATA was split meanwhile
		}
		if m.needs(v, r) != needsServer { // which takes all of it
			r = slim(r)
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return err
	}
	k := &m.tablets
	k.rows, k.scanned, k.took = rows, time.Now(), time.Since(start)
	k.servers, k.tables = map[uint64]bool{}, map[uint64]bool{}
	for n := range v.servers {
		k.servers[n] = true
	}
	for id, live := range v.tables {
		if live {
			k.tables[id] = true
		}
	}
	return nil
}

// scanTable reads the rows of one table.
func (m *master) scanTable(ctx context.Context, table uint64) error {
	var rows []*metadata.Row
	err := m.meta.ScanTable(ctx, table, func(r *metadata.Row) error {
		if n := len(rows); n > 0 && bytes.Equal(rows[n-1].End, r.End) {
			rows = rows[:n-1]
		}
		rows = append(rows, slim(r))
		return nil
	})
	if err != nil {
		return err
	}
	k := &m.tablets
	from, _ := slices.BinarySearchFunc(k.rows, table, func(r *metadata.Row, id uint64) int { return cmpTable(r.Table, id) })
	to, _ := slices.BinarySearchFunc(k.rows, table+1, func(r *metadata.Row, id uint64) int { return cmpTable(r.Table, id) })
	k.rows = slices.Replace(k.rows, from, to, rows...)
	return nil
}

func cmpTable(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
