package master

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A tabletCache is what the master knows of the tablets of tables: hints, which are their
// METADATA rows without what they hold. They are as the master read them last, or as it or
// a server has changed them since. They only say what there is to do: each change is a
// compare-and-set of the row as it is. So the master can read all of METADATA, which is
// large in a large cluster, rarely. It does when its term begins and when a server has
// died, whose tablets may have been split. Else it reads so rarely that reading takes a
// twentieth of the time.
type tabletCache struct {
	rows []*tabletHint // by key
	// scanned is when they were read, and took how long that took; servers and
	// tables are those that there were then.
	scanned time.Time
	took    time.Duration
	servers map[uint64]bool
	tables  map[uint64]bool

	mu sync.Mutex
	// stale are rows that are not as they are here.
	stale  []rpc.TabletKey
	loaded []rpc.TabletKey
}

func keyOf(r *tabletHint) rpc.TabletKey { return rpc.TabletKey{Table: r.Table, End: r.End} }

// A tabletHint is what the master goes by of a METADATA row: whose the tablet is, and
// not what it holds. It is not a metadata.Row, so it cannot be stored as one.
type tabletHint struct {
	Version    uint64
	Table      uint64
	Tablet     metadata.TabletID
	Start, End []byte
	Op         *metadata.Op
	Assignment *metadata.Assignment
	// Stream says that changes of the tablet are kept.
	Stream bool
	// row is the whole row of a METADATA tablet, and of any other that has no server
	// in the round that reads it; else nil.
	row *metadata.Row
}

// hintOf returns the hint of a row, without the row.
func hintOf(r *metadata.Row) *tabletHint {
	return &tabletHint{Version: r.Version, Table: r.Table, Tablet: r.Tablet, Start: r.Start, End: r.End, Op: r.Op, Assignment: r.Assignment, Stream: r.Stream != nil}
}

// wholeHint returns the hint of a row, with the row.
func wholeHint(r *metadata.Row) *tabletHint {
	h := hintOf(r)
	h.row = r
	return h
}

// shrink drops the rows of all hints. Hints are shared with calls under way, so it
// replaces them.
func (k *tabletCache) shrink() {
	for i, h := range k.rows {
		if h.row != nil {
			next := *h
			next.row = nil
			k.rows[i] = &next
		}
	}
}

// invalidate makes the master read rows again. Those of METADATA tablets are not
// cached: each round reads them.
func (k *tabletCache) invalidate(keys ...rpc.TabletKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		if key.Table != metastore.Table {
			k.stale = append(k.stale, key)
		}
	}
}

// noteOpened notes that a server has opened tablets.
func (m *master) noteOpened(keys []rpc.TabletKey) {
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

func (k *tabletCache) find(key rpc.TabletKey) (int, bool) {
	return slices.BinarySearchFunc(k.rows, key, func(r *tabletHint, key rpc.TabletKey) int { return compareKeys(keyOf(r), key) })
}

// refresh brings the cache up to date and tells whether all of METADATA was read. It gives up
// when no row comes for as long as patience.
func (m *master) refresh(ctx context.Context, patience time.Duration, v *view) (whole bool, err error) {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	idle := time.AfterFunc(patience, giveUp)
	defer idle.Stop()
	came := func() { idle.Reset(patience) }
	k := &m.tablets
	k.mu.Lock()
	stale, loaded := k.stale, k.loaded
	k.stale, k.loaded = nil, nil
	k.mu.Unlock()
	defer func() {
		if err != nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.stale, k.loaded = append(stale, k.stale...), append(loaded, k.loaded...)
		}
	}()
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
	if due || len(fresh) > 4 || len(stale) > 1000 {
		return true, m.scan(ctx, v, came)
	}
	for id := range fresh {
		if err := m.scanTable(ctx, id, came); err != nil {
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
				r.Assignment, r.row = &open, nil
				k.rows[i] = &r
			}
		}
	}
	loaded = nil
	for len(stale) > 0 {
		came()
		key := stale[0]
		r, err := m.meta.Get(ctx, key)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return false, err
		}
		stale = stale[1:]
		i, ok := k.find(key)
		switch {
		case ok && err != nil:
			k.rows = slices.Delete(k.rows, i, i+1)
		case ok:
			k.rows[i] = hintOf(r)
		case err == nil:
			k.rows = slices.Insert(k.rows, i, hintOf(r))
		}
	}
	return false, nil
}

// scan reads METADATA whole. It calls came with each row.
func (m *master) scan(ctx context.Context, v *view, came func()) error {
	start := time.Now()
	m.o.Counters.Scans.Add(1)
	var rows []*tabletHint
	err := m.meta.Scan(ctx, func(r *metadata.Row) error {
		came()
		h := hintOf(r)
		if m.needs(v, h) == needsServer {
			h.row = r // to change it
		}
		rows = append(rows, h)
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

// scanTable reads the rows of one table. It calls came with each.
func (m *master) scanTable(ctx context.Context, table uint64, came func()) error {
	var rows []*tabletHint
	err := m.meta.ScanTable(ctx, table, func(r *metadata.Row) error {
		came()
		rows = append(rows, hintOf(r))
		return nil
	})
	if err != nil {
		return err
	}
	k := &m.tablets
	from, _ := slices.BinarySearchFunc(k.rows, table, func(r *tabletHint, id uint64) int { return cmpTable(r.Table, id) })
	to, _ := slices.BinarySearchFunc(k.rows, table+1, func(r *tabletHint, id uint64) int { return cmpTable(r.Table, id) })
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
