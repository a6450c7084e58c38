package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
)

// Stats is the state of a Store at one moment. What is called a count grows
// only, from 0 at Open.
type Stats struct {
	// Tables that are not deleted, and the tablets of all tables.
	Tables, Tablets int
	// SSTables of all tablets and their bytes.
	SSTables, SSTableBytes int64
	// MemtableBytes is the memory of memtables, MemtableLimit where writes wait,
	// and Stalled how long they have waited in all, for that or for compactions;
	// Yielded is how long compactions have waited for requests.
	MemtableBytes, MemtableLimit int64
	Stalled, Yielded             time.Duration
	// LogBytes is the size of the commit logs.
	LogBytes int64
	// Flushes counts minor compactions, Compactions all others; the bytes are
	// what they wrote, and for CompactionIn what they read.
	Flushes, FlushBytes                      int64
	Compactions, CompactionIn, CompactionOut int64
	// Moved counts files that a compaction carried over without a copy.
	Moved int64
	// Collected counts cells that garbage collection dropped.
	Collected int64
	// Corruptions counts reads that met bytes that were not what was written.
	Corruptions int64
	// RowCacheRows and RowCacheBytes are what the row cache holds.
	RowCacheRows, RowCacheBytes int64
	// Reads has every table that is not deleted, in the order they were made.
	Reads []TableReads
	// ReadBytes is what reads and compactions took of SSTables from storage.
	ReadBytes int64
	// InMemoryBytes is the length of the SSTables that locality groups keep in
	// memory, InMemoryLimit where that ends.
	InMemoryBytes, InMemoryLimit int64
	Cache                        sstable.Metrics
	// Recovery is the time that Open took.
	Recovery time.Duration
}

// TableReads tells what reads of a table found in the caches.
type TableReads struct {
	Table string // full resource name
	tablet.CacheStats
}

// Stats reads the counters. It costs a look at every tablet.
func (s *Store) Stats() Stats {
	st := Stats{Cache: s.cache.Metrics(), Recovery: s.recovered, MemtableLimit: s.env.Memory.Limit() + s.metaEnv.Memory.Limit()}
	s.catalog.RLock()
	st.Tables, st.Tablets = len(s.catalog.byName), len(s.catalog.tablets)
	tables := make([]*schema.Table, 0, st.Tables)
	for _, t := range s.catalog.byName {
		tables = append(tables, t.schema.Load())
	}
	s.catalog.RUnlock()
	slices.SortFunc(tables, func(a, b *schema.Table) int { return cmp.Compare(a.ID, b.ID) })
	for _, t := range tables {
		st.Reads = append(st.Reads, TableReads{t.Name, s.env.CacheStats(t.ID)})
	}
	if s.rows != nil {
		st.RowCacheRows, st.RowCacheBytes = s.rows.Rows(), s.rows.Bytes()
	}
	for _, t := range s.allTablets() {
		for _, f := range t.Row().Files {
			st.SSTables++
			st.SSTableBytes += f.Size
		}
	}
	user, stalled := s.env.Memory.Used()
	meta, metaStalled := s.metaEnv.Memory.Used()
	st.MemtableBytes, st.Stalled = user+meta, stalled+metaStalled+time.Duration(s.env.Stats.Stalled.Load())
	st.Yielded = s.env.Pace.Yielded()
	st.LogBytes = s.env.Commit.Bytes() + s.metaEnv.Commit.Bytes()
	c := &s.env.Stats
	st.Flushes, st.FlushBytes = c.Flushes.Load(), c.FlushBytes.Load()
	st.Compactions, st.CompactionIn, st.CompactionOut = c.Compactions.Load(), c.CompactionIn.Load(), c.CompactionOut.Load()
	st.Moved, st.Collected = c.Moved.Load(), c.Collected.Load()
	st.ReadBytes = c.ReadBytes.Load() + s.metaEnv.Stats.ReadBytes.Load()
	st.InMemoryBytes, st.InMemoryLimit = s.env.Resident(), s.env.InMemoryBytes
	st.Corruptions = c.Corruptions.Load() + s.metaEnv.Stats.Corruptions.Load()
	return st
}
