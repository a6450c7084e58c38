package tablet

import (
	"sync"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/sstable"
)

// CacheStats tells what reads of one table found in the caches. The counts only
// grow while the server runs.
type CacheStats struct {
	// RowHits and RowMisses count reads of single rows that found, or did not
	// find, what the SSTables have of the row in the row cache.
	RowHits, RowMisses int64
	// BlockBytes are the bytes of the data and index blocks that were read, as
	// they are in the files; CachedBytes those of them that were in the block
	// cache. Compactions do not count.
	BlockBytes, CachedBytes int64
	// BloomSkips counts lookups in an SSTable that its Bloom filter ended, BloomPasses
	// those that it let through.
	BloomSkips, BloomPasses int64
}

// reads counts what CacheStats has.
type reads struct {
	rowHits, rowMisses, blockBytes, cachedBytes, bloomSkips, bloomPasses atomic.Int64
}

func (r *reads) bloom(s *sstable.BloomStats) {
	if s.Skips > 0 {
		r.bloomSkips.Add(s.Skips)
	}
	if s.Passes > 0 {
		r.bloomPasses.Add(s.Passes)
	}
}

func (r *reads) blocks(s *sstable.BlockStats) {
	if s.BlockBytes > 0 {
		r.blockBytes.Add(int64(s.BlockBytes))
		r.cachedBytes.Add(int64(s.BlockBytesInCache))
	}
}

// tableReads are the counts of every table that the server has had tablets of.
type tableReads struct {
	sync.Mutex
	m map[uint64]*reads
}

// of returns the counts of a table.
func (t *tableReads) of(table uint64) *reads {
	t.Lock()
	defer t.Unlock()
	r := t.m[table]
	if r == nil {
		if t.m == nil {
			t.m = map[uint64]*reads{}
		}
		r = new(reads)
		t.m[table] = r
	}
	return r
}

// CacheStats returns the counts of a table.
func (e *Env) CacheStats(table uint64) CacheStats {
	r := e.reads.of(table)
	return CacheStats{
		RowHits: r.rowHits.Load(), RowMisses: r.rowMisses.Load(),
		BlockBytes: r.blockBytes.Load(), CachedBytes: r.cachedBytes.Load(),
		BloomSkips: r.bloomSkips.Load(), BloomPasses: r.bloomPasses.Load(),
	}
}
