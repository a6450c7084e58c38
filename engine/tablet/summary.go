package tablet

import (
	"cmp"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// A Summary is the state of a server's tablets at one moment. What is called a
// count grows only, from 0 at the start.
type Summary struct {
	// Tables that are not deleted, and the tablets of all tables that are served.
	Tables, Tablets int
	// SSTables of all tablets and their bytes.
	SSTables, SSTableBytes int64
	// MemtableBytes is the memory of memtables, MemtableLimit where writes wait.
	// Stalled is how long they have waited in all, for that or for compactions.
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
	// Recovery is the time that the start took.
	Recovery time.Duration
}

// TableReads tells what is kept of a table, and what reads of it found in the caches.
type TableReads struct {
	Table string // full resource name
	CacheStats
	// Tablets that are served and their SSTables; the bytes of these, and RawBytes before
	// compression.
	Tablets, SSTables, Bytes, RawBytes int64
	// MemtableBytes is what the table has in memtables.
	MemtableBytes int64
}

// Summarize reads the counters of a server whose tables' tablets are in one Env
// and METADATA's in another. It costs a look at every tablet.
func Summarize(users, system *Env, tables []*schema.Table, tablets []*Tablet, cache *sstable.Cache, rows *rowcache.Cache) Summary {
	st := Summary{Tables: len(tables), Cache: cache.Metrics(), MemtableLimit: users.Memory.Limit() + system.Memory.Limit()}
	slices.SortFunc(tables, func(a, b *schema.Table) int { return cmp.Compare(a.ID, b.ID) })
	of := make(map[uint64]int, len(tables))
	for i, t := range tables {
		st.Reads = append(st.Reads, TableReads{Table: t.Name, CacheStats: users.CacheStats(t.ID)})
		of[t.ID] = i
	}
	if rows != nil {
		st.RowCacheRows, st.RowCacheBytes = rows.Rows(), rows.Bytes()
	}
	for _, t := range tablets {
		if t.env == users {
			st.Tablets++
		}
		row := t.Row()
		var bytes, raw int64
		for _, f := range row.Files {
			st.SSTables++
			st.SSTableBytes += f.Size
			bytes, raw = bytes+f.Size, raw+int64(f.RawBytes)
		}
		if i, ok := of[row.Table]; ok && t.env == users {
			r := &st.Reads[i]
			r.Tablets++
			r.SSTables += int64(len(row.Files))
			r.Bytes += bytes
			r.RawBytes += raw
			r.MemtableBytes += t.MemtableBytes()
		}
	}
	mems, stalled := users.Memory.Used()
	more, also := system.Memory.Used()
	c := &users.Stats
	st.MemtableBytes, st.Stalled = mems+more, stalled+also+time.Duration(c.Stalled.Load())
	st.Yielded = users.Pace.Yielded()
	st.LogBytes = users.Commit.Bytes() + system.Commit.Bytes()
	st.Flushes, st.FlushBytes = c.Flushes.Load(), c.FlushBytes.Load()
	st.Compactions, st.CompactionIn, st.CompactionOut = c.Compactions.Load(), c.CompactionIn.Load(), c.CompactionOut.Load()
	st.Moved, st.Collected = c.Moved.Load(), c.Collected.Load()
	st.ReadBytes = c.ReadBytes.Load() + system.Stats.ReadBytes.Load()
	st.InMemoryBytes, st.InMemoryLimit = users.Resident(), users.InMemoryBytes
	st.Corruptions = c.Corruptions.Load() + system.Stats.Corruptions.Load()
	return st
}
