package master

import (
	"cmp"
	"maps"
	"slices"

	"github.com/trestledb/trestle/engine/metadata"
)

// name returns the name of the tablet of a hint. If the table is gone it has the table's
// id in place of its name.
func (v *view) name(r *tabletHint) metadata.TabletName {
	table := cmp.Or(v.names[r.Table], metadata.TabletID(r.Table).String())
	return metadata.TabletName{Table: table, Tablet: r.Tablet, Start: r.Start, End: r.End}
}

// tellServers logs which servers have come and gone since the last round, and
// which of them are drained from now on, or no more.
func (m *master) tellServers(v *view) {
	t := &m.toldOf
	for _, n := range slices.Sorted(maps.Keys(v.servers)) {
		if s := v.servers[n]; t.servers[n].Name == "" {
			m.o.Log.Info("tablet server is there", "server", s.ServerName(), "addr", s.Addr)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(t.servers)) {
		if _, ok := v.servers[n]; !ok {
			m.o.Log.Info("tablet server is gone", "server", t.servers[n].ServerName())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.drained)) {
		if !t.drained[name] {
			m.o.Log.Info("tablet server is drained", "name", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.drained)) {
		if !v.drained[name] {
			m.o.Log.Info("tablet server is drained no more", "name", name)
		}
	}
	t.servers, t.drained = v.servers, v.drained
}

// tellDrained logs which drained servers have no tablet left, when v.load has all.
func (m *master) tellDrained(v *view) {
	emptied := map[string]bool{}
	for n, s := range v.servers {
		if v.drained[s.Name] && v.load[n] == 0 {
			if emptied[s.Name] = true; !m.toldOf.emptied[s.Name] {
				m.o.Log.Info("tablet server is drained: it has no tablet left", "server", s.ServerName())
			}
		}
	}
	m.toldOf.emptied = emptied
}
