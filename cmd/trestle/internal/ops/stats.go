package ops

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats is the state of the store at one moment. What is called a count only
// grows while the process lives.
type Stats struct {
	Tables, Tablets int64
	// SSTables and their bytes.
	SSTables, SSTableBytes int64
	// MemtableBytes is the memory of memtables, frozen ones included, and
	// MemtableLimit where writes start to wait.
	MemtableBytes, MemtableLimit int64
	// StallSeconds is how long writes have waited there, or for compactions, and
	// YieldSeconds how long compactions have waited for requests.
	StallSeconds, YieldSeconds float64
	// LogBytes is the size of the commit log.
	LogBytes int64
	// Flushes counts minor compactions, FlushBytes what they wrote.
	Flushes, FlushBytes int64
	// Compactions counts merging and major compactions, CompactionIn and
	// CompactionOut the bytes they read and wrote.
	Compactions, CompactionIn, CompactionOut int64
	// Moved counts SSTables that a compaction carried over without a copy.
	Moved int64
	// Collected counts cells dropped by garbage collection.
	Collected int64
	// Corruptions counts reads that met bytes that were not what was written.
	Corruptions int64
	// Of the block cache.
	CacheHits, CacheMisses, CacheBlocks, CacheBytes int64
	// Of the row cache.
	RowCacheRows, RowCacheBytes int64
	// Reads has the tables in an order that stays.
	Reads []TableReads
	// ReadBytes is what was read of SSTables from storage.
	ReadBytes int64
	// InMemoryBytes is the length of the SSTables that locality groups keep in
	// memory, InMemoryLimit where that ends.
	InMemoryBytes, InMemoryLimit int64
	// FileOpens counts openings of SSTables, OpenFiles are open now.
	FileOpens, OpenFiles int64
	// BloomSkips counts lookups that a Bloom filter ended, BloomPasses those that
	// it let through.
	BloomSkips, BloomPasses int64
	RecoverySeconds         float64
	// Of the file system with the data directory.
	DiskFree, DiskUsed int64
}

// TableReads tells what is kept of one table, and what reads of it found in the caches.
type TableReads struct {
	Table string
	// Tablets and SSTables of the table, the bytes of these, and what they would be without
	// compression.
	Tablets, SSTables, Bytes, RawBytes int64
	// MemtableBytes is what the table has in memtables, CacheBytes what of it is in the block
	// cache.
	MemtableBytes, CacheBytes int64
	// BloomSkips and BloomPasses are those of Stats.
	BloomSkips, BloomPasses int64
	// RowHits and RowMisses count reads of single rows.
	RowHits, RowMisses int64
	// BlockBytes are the bytes of blocks read, CachedBytes those of them that
	// were in the block cache.
	BlockBytes, CachedBytes int64
}

// bounded returns no more than maxTables of reads, and the sum of the others. Those with
// requests of their own in named come first, then those with most bytes.
func bounded(reads []TableReads, named map[string]bool) []TableReads {
	if len(reads) <= maxTables {
		return reads
	}
	out := slices.Clone(reads)
	rank := func(r *TableReads) int64 {
		if named[r.Table] {
			return math.MaxInt64
		}
		return r.Bytes + r.MemtableBytes
	}
	slices.SortStableFunc(out, func(a, b TableReads) int { return cmp.Compare(rank(&b), rank(&a)) })
	other := TableReads{Table: otherTables}
	for _, r := range out[maxTables:] {
		other.RowHits += r.RowHits
		other.RowMisses += r.RowMisses
		other.BlockBytes += r.BlockBytes
		other.CachedBytes += r.CachedBytes
		other.Tablets += r.Tablets
		other.SSTables += r.SSTables
		other.Bytes += r.Bytes
		other.RawBytes += r.RawBytes
		other.MemtableBytes += r.MemtableBytes
		other.CacheBytes += r.CacheBytes
		other.BloomSkips += r.BloomSkips
		other.BloomPasses += r.BloomPasses
	}
	return append(out[:maxTables:maxTables], other)
}

// tableRow is one metric of TableReads.
type tableRow struct {
	name, help string
	kind       prometheus.ValueType
	get        func(*TableReads) float64
}

var tableRows = []tableRow{
	{"bigtable_row_cache_hits_total", "Reads of single rows that found the row in the row cache, per table.", counter, func(r *TableReads) float64 { return n(r.RowHits) }},
	{"bigtable_row_cache_misses_total", "Reads of single rows that did not find the row in the row cache, per table.", counter, func(r *TableReads) float64 { return n(r.RowMisses) }},
	{"bigtable_read_block_bytes_total", "Bytes of data and index blocks of SSTables that were read, from cache or storage, per table.", counter, func(r *TableReads) float64 { return n(r.BlockBytes) }},
	{"bigtable_read_block_cached_bytes_total", "Bytes of data and index blocks of SSTables that were found in the block cache, per table.", counter, func(r *TableReads) float64 { return n(r.CachedBytes) }},
	{"bigtable_table_bloom_filter_skips_total", "Lookups in an SSTable that its Bloom filter spared, per table.", counter, func(r *TableReads) float64 { return n(r.BloomSkips) }},
	{"bigtable_table_bloom_filter_passes_total", "Lookups in an SSTable that its Bloom filter let through, per table.", counter, func(r *TableReads) float64 { return n(r.BloomPasses) }},
	{"bigtable_table_tablets", "Tablets served, per table.", gauge, func(r *TableReads) float64 { return n(r.Tablets) }},
	{"bigtable_table_sstables", "SSTables of the tablets served, per table.", gauge, func(r *TableReads) float64 { return n(r.SSTables) }},
	{"bigtable_table_bytes", "Bytes of the SSTables of the tablets served, per table.", gauge, func(r *TableReads) float64 { return n(r.Bytes) }},
	{"bigtable_table_raw_bytes", "Bytes of all keys and values in SSTables before compression, per table.", gauge, func(r *TableReads) float64 { return n(r.RawBytes) }},
	{"bigtable_table_compression_ratio", "Bytes before compression for each byte of an SSTable, per table; 0 without SSTables.", gauge, func(r *TableReads) float64 { return float64(r.RawBytes) / float64(max(r.Bytes, 1)) }},
	{"bigtable_table_memtable_bytes", "Bytes in memtables, per table.", gauge, func(r *TableReads) float64 { return n(r.MemtableBytes) }},
	{"bigtable_table_block_cache_bytes", "Bytes of blocks in the block cache, per table. It is estimated by what reads of the table brought there.", gauge, func(r *TableReads) float64 { return n(r.CacheBytes) }},
}

// statRow is one metric of Stats.
type statRow struct {
	name, help string
	kind       prometheus.ValueType
	get        func(*Stats) float64
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

func n(v int64) float64 { return float64(v) }

var statRows = []statRow{
	{"bigtable_tables", "Tables that are not deleted.", gauge, func(s *Stats) float64 { return n(s.Tables) }},
	{"bigtable_tablet_count", "Tablets served.", gauge, func(s *Stats) float64 { return n(s.Tablets) }},
	{"bigtable_tablet_bytes", "Bytes of the SSTables of all tablets.", gauge, func(s *Stats) float64 { return n(s.SSTableBytes) }},
	{"bigtable_sstables", "SSTables of all tablets.", gauge, func(s *Stats) float64 { return n(s.SSTables) }},
	{"bigtable_memtable_bytes", "Bytes in memtables, those being written out included.", gauge, func(s *Stats) float64 { return n(s.MemtableBytes) }},
	{"bigtable_memtable_limit_bytes", "Bytes in memtables at which writes wait.", gauge, func(s *Stats) float64 { return n(s.MemtableLimit) }},
	{"bigtable_write_stall_seconds_total", "Time that writes waited for memtables to be written out, or for compactions.", counter, func(s *Stats) float64 { return s.StallSeconds }},
	{"bigtable_compaction_yield_seconds_total", "Time that compactions gave to requests.", counter, func(s *Stats) float64 { return s.YieldSeconds }},
	{"bigtable_wal_size_bytes", "Size of the commit log.", gauge, func(s *Stats) float64 { return n(s.LogBytes) }},
	{"bigtable_minor_compactions_total", "Memtables written to SSTables.", counter, func(s *Stats) float64 { return n(s.Flushes) }},
	{"bigtable_minor_compaction_bytes_total", "Bytes written from memtables to SSTables.", counter, func(s *Stats) float64 { return n(s.FlushBytes) }},
	{"bigtable_compactions_total", "Merging and major compactions.", counter, func(s *Stats) float64 { return n(s.Compactions) }},
	{"bigtable_compaction_read_bytes_total", "Bytes read by merging and major compactions.", counter, func(s *Stats) float64 { return n(s.CompactionIn) }},
	{"bigtable_compaction_bytes_total", "Bytes written by merging and major compactions.", counter, func(s *Stats) float64 { return n(s.CompactionOut) }},
	{"bigtable_compaction_moved_files_total", "SSTables that a compaction carried over without a copy.", counter, func(s *Stats) float64 { return n(s.Moved) }},
	{"bigtable_gc_cells_dropped_total", "Cells dropped by garbage collection.", counter, func(s *Stats) float64 { return n(s.Collected) }},
	{"bigtable_corruption_total", "Reads that met bytes that were not what was written.", counter, func(s *Stats) float64 { return n(s.Corruptions) }},
	{"bigtable_block_cache_hits_total", "Blocks found in the block cache.", counter, func(s *Stats) float64 { return n(s.CacheHits) }},
	{"bigtable_block_cache_misses_total", "Blocks read from storage.", counter, func(s *Stats) float64 { return n(s.CacheMisses) }},
	{"bigtable_block_cache_blocks", "Blocks in the block cache.", gauge, func(s *Stats) float64 { return n(s.CacheBlocks) }},
	{"bigtable_block_cache_bytes", "Bytes in the block cache.", gauge, func(s *Stats) float64 { return n(s.CacheBytes) }},
	{"bigtable_row_cache_rows", "Rows in the row cache.", gauge, func(s *Stats) float64 { return n(s.RowCacheRows) }},
	{"bigtable_row_cache_bytes", "Bytes that the row cache takes from the block cache.", gauge, func(s *Stats) float64 { return n(s.RowCacheBytes) }},
	{"bigtable_sstable_read_bytes_total", "Bytes of SSTables read from storage, by reads and compactions.", counter, func(s *Stats) float64 { return n(s.ReadBytes) }},
	{"bigtable_in_memory_bytes", "Bytes of the SSTables that locality groups keep in memory.", gauge, func(s *Stats) float64 { return n(s.InMemoryBytes) }},
	{"bigtable_in_memory_limit_bytes", "Bytes of SSTables that locality groups can keep in memory.", gauge, func(s *Stats) float64 { return n(s.InMemoryLimit) }},
	{"bigtable_sstable_opens_total", "SSTables opened.", counter, func(s *Stats) float64 { return n(s.FileOpens) }},
	{"bigtable_sstable_open_files", "SSTables open now.", gauge, func(s *Stats) float64 { return n(s.OpenFiles) }},
	{"bigtable_bloom_filter_skips_total", "Lookups in an SSTable that its Bloom filter spared.", counter, func(s *Stats) float64 { return n(s.BloomSkips) }},
	{"bigtable_bloom_filter_passes_total", "Lookups in an SSTable that its Bloom filter let through.", counter, func(s *Stats) float64 { return n(s.BloomPasses) }},
	{"bigtable_recovery_seconds", "Time that the start took to recover.", gauge, func(s *Stats) float64 { return s.RecoverySeconds }},
	{"bigtable_disk_free_bytes", "Free bytes of the file system with the data directory.", gauge, func(s *Stats) float64 { return n(s.DiskFree) }},
	{"bigtable_disk_used_bytes", "Used bytes of the file system with the data directory.", gauge, func(s *Stats) float64 { return n(s.DiskUsed) }},
}

// statCollector gives one reading of Stats per scrape.
type statCollector struct {
	read   func() Stats
	named  func() map[string]bool
	mu     sync.Mutex
	shares cacheShares
	descs  []*prometheus.Desc
	// tables are those of tableRows.
	tables []*prometheus.Desc
}

// ObserveStats adds the metrics of Stats; read is called at each scrape and
// must be quick.
func (m *Metrics) ObserveStats(read func() Stats) {
	c := &statCollector{read: read, named: m.loads.names}
	for i := range statRows {
		c.descs = append(c.descs, prometheus.NewDesc(statRows[i].name, statRows[i].help, nil, nil))
	}
	for i := range tableRows {
		c.tables = append(c.tables, prometheus.NewDesc(tableRows[i].name, tableRows[i].help, []string{"table"}, nil))
	}
	m.Registry.MustRegister(c)
}

func (c *statCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	for _, d := range c.tables {
		out <- d
	}
}

func (c *statCollector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	c.mu.Lock()
	c.shares.estimate(s.Reads, s.CacheBytes-s.RowCacheBytes)
	c.mu.Unlock()
	for i := range statRows {
		out <- prometheus.MustNewConstMetric(c.descs[i], statRows[i].kind, statRows[i].get(&s))
	}
	for _, r := range bounded(s.Reads, c.named()) {
		for i := range tableRows {
			out <- prometheus.MustNewConstMetric(c.tables[i], tableRows[i].kind, tableRows[i].get(&r), r.Table)
		}
	}
}
