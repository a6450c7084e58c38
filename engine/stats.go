package engine

import (
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// Stats is the state of a Store at one moment.
type Stats = tablet.Summary

// Stats reads the counters. It costs a look at every tablet.
func (s *Store) Stats() Stats {
	s.catalog.RLock()
	tables := make([]*schema.Table, 0, len(s.catalog.byName))
	for _, t := range s.catalog.byName {
		tables = append(tables, t.schema.Load())
	}
	s.catalog.RUnlock()
	st := tablet.Summarize(s.env, s.metaEnv, tables, s.allTablets(), s.cache, s.rows)
	st.Recovery = s.recovered
	return st
}
