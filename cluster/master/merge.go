package master

import (
	"bytes"
	"context"
	"time"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
)

// mergesAtOnce is how many merges are begun each time that servers are evened
// out.
const mergesAtOnce = 8

// small is the share of a server's split limits, in bytes and in rows per second, that two
// neighbours may have together to be merged. A merged tablet has to grow fourfold before
// it is split, and one that was split to shrink to half before it is merged. So nothing is
// split and merged by turns.
const small = 0.25

// streamMerge is how long tablets whose changes are kept must have been idle to be merged:
// each merge and split makes the readers of their changes begin anew, which costs a client
// as Beam two conditional writes and some seconds.
const streamMerge = 24 * time.Hour

// A pair are two neighbours that are to be one.
type pair struct{ left, right metadata.TabletID }

// pairs chooses up to most pairs of neighbours, of rows in the order of their keys, for
// which fit returns true. A tablet is in one pair at most.
func pairs(rows []*tabletHint, fit func(left, right *tabletHint) bool, most int) (out []pair) {
	for i := 0; i+1 < len(rows) && len(out) < most; i++ {
		a, b := rows[i], rows[i+1]
		if a.Table == b.Table && len(a.End) > 0 && bytes.Equal(a.End, b.Start) && fit(a, b) {
			out = append(out, pair{a.Tablet, b.Tablet})
			i++
		}
	}
	return out
}

// merge asks servers to merge neighbours that have become small, and returns the
// moves that bring such together that are on two servers. It takes out of
// movable what is to stay.
func (m *master) merge(v *view, rows []*tabletHint, movable map[metadata.TabletID]*tabletHint, statuses map[uint64]*rpc.Status) (moves []move) {
	for id, until := range m.merging {
		if time.Now().After(until) {
			delete(m.merging, id)
		}
	}
	if m.o.Merge < 0 {
		return nil
	}
	type where struct {
		rpc.TabletStatus
		server uint64
	}
	at := map[metadata.TabletID]where{}
	var bytes, system int64 // beyond which a server splits, one of METADATA, and rows per second; 0: never
	var rate float64
	least := func(to *int64, n int64) {
		if n > 0 && (*to == 0 || n < *to) {
			*to = n
		}
	}
	for n, s := range statuses {
		least(&bytes, s.SplitBytes)
		least(&system, s.MetadataSplitBytes)
		if s.SplitRate > 0 && (rate == 0 || s.SplitRate < rate) {
			rate = s.SplitRate
		}
		for _, t := range s.Tablets {
			at[t.Tablet] = where{t, n}
		}
	}
	ready := func(r *tabletHint) (where, bool) {
		t, ok := at[r.Tablet]
		idle := m.o.Merge
		if r.Stream {
			idle = max(idle, streamMerge)
		}
		return t, ok && movable[r.Tablet] != nil && (idle <= time.Since(t.Since) || m.together(r.Tablet))
	}
	chosen := pairs(rows, func(l, r *tabletHint) bool {
		a, ok := ready(l)
		b, both := ready(r)
		most := bytes
		if l.Table == metastore.Table {
			most = system
		}
		// Those that are being brought together are left and right of one another.
		return ok && both && m.together(l.Tablet) == m.together(r.Tablet) && float64(a.Bytes+b.Bytes) <= small*float64(most) &&
			(rate == 0 || a.Reads+a.Writes+b.Reads+b.Writes <= small*rate)
	}, mergesAtOnce)
	for _, p := range chosen {
		a, b := at[p.left], at[p.right]
		l, r := movable[p.left], movable[p.right]
		delete(movable, p.left)
		delete(movable, p.right)
		if a.server != b.server {
			if m.together(p.left) {
				continue // on its way
			}
			until := time.Now().Add(6 * m.o.Balance)
			m.merging[p.left], m.merging[p.right] = until, until
			if a.Bytes > b.Bytes {
				moves = append(moves, move{tablet: p.right, row: r, from: b.server, to: a.server})
			} else {
				moves = append(moves, move{tablet: p.left, row: l, from: a.server, to: b.server})
			}
			continue
		}
		s := v.servers[a.server]
		m.call("merge "+s.Addr, func(ctx context.Context) error {
			defer m.tablets.invalidate(keyOf(l), keyOf(r))
			m.o.Log.Info("tablets are merged", "left", v.name(l), "right", v.name(r), "server", s.ServerName())
			err := m.o.Dialer.Dial(s.Addr).Merge(ctx, p.left, p.right)
			if err == nil {
				m.o.Counters.Merged.Add(1)
			}
			return err
		})
	}
	return moves
}

// together tells whether a tablet is being brought to a neighbour.
func (m *master) together(id metadata.TabletID) bool {
	_, ok := m.merging[id]
	return ok
}
