package ops

import "github.com/prometheus/client_golang/prometheus"

// Stats is the state of the store at one moment. What is called a count only
// grows while the process lives.
type Stats struct {
	Tables, Tablets int64
	// SSTables and their bytes.
	SSTables, SSTableBytes int64
	// MemtableBytes is the memory of memtables, frozen ones included, and
	// MemtableLimit where writes start to wait.
	MemtableBytes, MemtableLimit int64
	// StallSeconds is how long writes have waited there.
	StallSeconds float64
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
	// FileOpens counts openings of SSTables, OpenFiles are open now.
	FileOpens, OpenFiles int64
	// BloomSkips counts lookups that a Bloom filter ended, BloomPasses those that
	// it let through.
	BloomSkips, BloomPasses int64
	RecoverySeconds         float64
	// Of the file system with the data directory.
	DiskFree, DiskUsed int64
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
	{"bigtable_write_stall_seconds_total", "Time that writes waited for memtables to be written out.", counter, func(s *Stats) float64 { return s.StallSeconds }},
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
	read  func() Stats
	descs []*prometheus.Desc
}

// ObserveStats adds the metrics of Stats; read is called at each scrape and
// must be quick.
func (m *Metrics) ObserveStats(read func() Stats) {
	c := &statCollector{read: read}
	for i := range statRows {
		c.descs = append(c.descs, prometheus.NewDesc(statRows[i].name, statRows[i].help, nil, nil))
	}
	m.Registry.MustRegister(c)
}

func (c *statCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

func (c *statCollector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	for i := range statRows {
		out <- prometheus.MustNewConstMetric(c.descs[i], statRows[i].kind, statRows[i].get(&s))
	}
}
