package ops

import "github.com/prometheus/client_golang/prometheus"

// Stats is the state of the engine at one moment. Counters only grow while the
// process lives.
type Stats struct {
	Tables, Tablets          int64
	TableBytes               int64 // of SSTables, approximately
	Reads, Writes            int64 // rows, by the tablets
	CellsDropped             int64 // by garbage collection
	LogBytes, LogSyncs       int64
	LogSyncErrors            int64
	LogSyncSeconds           float64 // sum over LogSyncs
	MemtableBytes            int64
	Memtables                int64
	SSTables                 int64
	MinorCompactions         int64
	MergingCompactions       int64
	MajorCompactions         int64
	CompactionBytesRead      int64
	CompactionBytesWritten   int64
	CompactionPendingBytes   int64
	CompactionSeconds        float64
	CompactionErrors         int64
	WriteStallSeconds        float64
	BlockCacheHits           int64
	BlockCacheMisses         int64
	BlockCacheBytes          int64
	FilterHits, FilterMisses int64 // Bloom filter: tables skipped, tables read
	Corruptions              int64
	RecoverySeconds          float64
	RecoveredLogBytes        int64
	DiskFree, DiskUsed       int64 // of the file system with the data directory
	DeletedTables, OpenFiles int64
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
	{"bigtable_tables", "Live tables.", gauge, func(s *Stats) float64 { return n(s.Tables) }},
	{"bigtable_tables_deleted", "Deleted tables that can still be undeleted.", gauge, func(s *Stats) float64 { return n(s.DeletedTables) }},
	{"bigtable_tablet_count", "Tablets served.", gauge, func(s *Stats) float64 { return n(s.Tablets) }},
	{"bigtable_tablet_bytes", "Approximate bytes of the SSTables of all tablets.", gauge, func(s *Stats) float64 { return n(s.TableBytes) }},
	{"bigtable_tablet_reads_total", "Rows read from tablets.", counter, func(s *Stats) float64 { return n(s.Reads) }},
	{"bigtable_tablet_writes_total", "Rows written to tablets.", counter, func(s *Stats) float64 { return n(s.Writes) }},
	{"bigtable_wal_bytes_total", "Bytes appended to the commit log.", counter, func(s *Stats) float64 { return n(s.LogBytes) }},
	{"bigtable_wal_syncs_total", "Syncs of the commit log.", counter, func(s *Stats) float64 { return n(s.LogSyncs) }},
	{"bigtable_wal_sync_seconds_total", "Time spent in syncs of the commit log.", counter, func(s *Stats) float64 { return s.LogSyncSeconds }},
	{"bigtable_wal_sync_errors_total", "Failed syncs of the commit log. Nothing in them was acknowledged.", counter, func(s *Stats) float64 { return n(s.LogSyncErrors) }},
	{"bigtable_memtables", "Memtables, frozen ones included.", gauge, func(s *Stats) float64 { return n(s.Memtables) }},
	{"bigtable_memtable_bytes", "Bytes in memtables.", gauge, func(s *Stats) float64 { return n(s.MemtableBytes) }},
	{"bigtable_sstables", "SSTables in use.", gauge, func(s *Stats) float64 { return n(s.SSTables) }},
	{"bigtable_open_files", "Open SSTable files.", gauge, func(s *Stats) float64 { return n(s.OpenFiles) }},
	{"bigtable_minor_compactions_total", "Memtables written to SSTables.", counter, func(s *Stats) float64 { return n(s.MinorCompactions) }},
	{"bigtable_merging_compactions_total", "Merging compactions.", counter, func(s *Stats) float64 { return n(s.MergingCompactions) }},
	{"bigtable_major_compactions_total", "Major compactions.", counter, func(s *Stats) float64 { return n(s.MajorCompactions) }},
	{"bigtable_compaction_read_bytes_total", "Bytes read by compactions.", counter, func(s *Stats) float64 { return n(s.CompactionBytesRead) }},
	{"bigtable_compaction_bytes_total", "Bytes written by compactions.", counter, func(s *Stats) float64 { return n(s.CompactionBytesWritten) }},
	{"bigtable_compaction_pending_bytes", "Bytes that wait to be compacted.", gauge, func(s *Stats) float64 { return n(s.CompactionPendingBytes) }},
	{"bigtable_compaction_seconds_total", "Time spent in compactions.", counter, func(s *Stats) float64 { return s.CompactionSeconds }},
	{"bigtable_compaction_errors_total", "Failed compactions. Each is tried again.", counter, func(s *Stats) float64 { return n(s.CompactionErrors) }},
	{"bigtable_write_stall_seconds_total", "Time that writes waited for compactions.", counter, func(s *Stats) float64 { return s.WriteStallSeconds }},
	{"bigtable_block_cache_hits_total", "Blocks found in the block cache.", counter, func(s *Stats) float64 { return n(s.BlockCacheHits) }},
	{"bigtable_block_cache_misses_total", "Blocks read from storage.", counter, func(s *Stats) float64 { return n(s.BlockCacheMisses) }},
	{"bigtable_block_cache_bytes", "Bytes in the block cache.", gauge, func(s *Stats) float64 { return n(s.BlockCacheBytes) }},
	{"bigtable_bloom_filter_hits_total", "SSTables that a Bloom filter spared a read.", counter, func(s *Stats) float64 { return n(s.FilterHits) }},
	{"bigtable_bloom_filter_misses_total", "SSTables read although a Bloom filter was asked.", counter, func(s *Stats) float64 { return n(s.FilterMisses) }},
	{"bigtable_gc_cells_dropped_total", "Cells dropped by garbage collection.", counter, func(s *Stats) float64 { return n(s.CellsDropped) }},
	{"bigtable_corruption_total", "Times that bytes on disk were not what was written.", counter, func(s *Stats) float64 { return n(s.Corruptions) }},
	{"bigtable_recovery_seconds", "Time that the last start took to recover.", gauge, func(s *Stats) float64 { return s.RecoverySeconds }},
	{"bigtable_recovery_log_bytes", "Bytes of commit log replayed by the last start.", gauge, func(s *Stats) float64 { return n(s.RecoveredLogBytes) }},
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
