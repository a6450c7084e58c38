package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/tempfs"
	"github.com/trestledb/trestle/gateway"
)

// openStack opens the data directory with the gateway over it. Tests of the
// server's life replace it.
var openStack opener = func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
	free, used := datadir.Space(vfs.Default, cfg.DataDir)
	o := storeOptions(cfg, free+used, m, log)
	o.Views = func(c *client.Client) views.Options { return viewOptions(cfg, c) }
	store, err := standalone.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	below.addStop(store.Close)
	heat, stopRecorder := recordHeat(store.History(), standalone.Name, store.TabletServer(), o.TabletServer.SplitRate, log)
	below.add(stopRecorder)
	st, front, err := gatewayOver(ctx, cfg, hbaseTables{Backend: store, tablets: store, backups: store}, m, log, below)
	if err != nil {
		return nil, err
	}
	if st.hints, err = front.Hints(ctx, cbtFor(cfg)); err != nil {
		return nil, errors.Join(err, st.drain(ctx))
	}
	if cfg.AuthOn() && !cfg.TLS() {
		st.hints = append(st.hints, "cbt and Google's client libraries send a key over TLS only: start with --tls-auto too, or behind a proxy that speaks TLS.")
	}
	tablets := store.TabletServer()
	st.heat = heat
	st.failed, st.ready, st.minFree = tablets.Failed(), tablets.Err, o.Log.KeepFreeBytes
	st.operator = soleOperator{clusterOperator{store.Client, newExports(cfg, store.Client, store.Objects(), front), tablets.Damage}}
	st.stats, st.tablets = func() ops.Stats { return statsOf(tablets.Stats()) }, tablets.Infos
	st.changes = func() ops.ChangeStats { return changesOf(tablets.Changes()) }
	st.views = func() []ops.ViewStats { return viewsOf(tablets.Views()) }
	return st, nil
}

// The parts of the memory setting. Go's heap holds memtables, the SSTables that
// locality groups keep in memory, requests and answers; the garbage collector is
// told to keep it within heapShare, twice what lives there under load. Heap and
// cache are all of the setting; the program itself comes on top.
const (
	cacheShare    = 0.4
	largeShare    = 0.3 // of the cache's: cells above 256 KiB that are being read
	memtableShare = 0.2
	residentShare = 0.1
	callShare     = 0.2    // requests and answers: see budgetOf
	hbaseShare    = 0.0625 // HBase's responses, which requests wait for
	unaskedShare  = 0.1    // requests of 64 KiB and less, which nobody asks for
	viewShare     = 0.0625 // materialized views: a half for evaluations
	queryShare    = 0.25   // queries, which spill what is more to the data directory
	heapShare     = 1 - cacheShare
)

// limitMemory tells the garbage collector what it may use.
func limitMemory(cfg *settings.Serve) {
	share := heapShare
	if !cacheOutsideHeap {
		share += cacheShare
	}
	debug.SetMemoryLimit(int64(share * float64(cfg.Memory)))
}

// tabletServerOptions gives a tablet server its parts of the memory: memtables no
// more than what a restart can replay in less than a second.
func tabletServerOptions(cfg *settings.Serve) tabletserver.Options {
	return tabletserver.Options{
		ChangeStreamMax: cfg.ChangesMax,
		CacheBytes:      int64(cacheShare * float64(cfg.Memory)),
		LargeBlockBytes: int64(largeShare * float64(cfg.Memory)),
		MemtableBytes:   min(int64(memtableShare*float64(cfg.Memory)), 256<<20),
		InMemoryBytes:   int64(residentShare * float64(cfg.Memory)),
	}
}

// storeOptions returns the settings of a single process. disk is the size of the
// file system, 0 if that is not known: on a small one the commit log takes an
// eighth at most, and a twentieth is left to flushes, without which the log could
// never be trimmed.
func storeOptions(cfg *settings.Serve, disk int64, m *ops.Metrics, log *slog.Logger) standalone.Options {
	o := standalone.Options{
		Dir: cfg.DataDir, Logger: log, TabletServer: tabletServerOptions(cfg),
		Log: commitlog.Options{SegmentBytes: 64 << 20, KeepFreeBytes: datadir.KeepFree(disk), Log: log,
			Observe: func(c commitlog.Commit) { m.Committed(c.Records, c.Bytes, c.Write, c.Sync) }},
	}
	o.TabletServer.LogBytes, o.TabletServer.SplitRate = 512<<20, float64(cfg.SplitRate)
	if cfg.Temporary {
		o.Log.SegmentBytes = 8 << 20 // a test run starts many of them
		o.FS, o.NoReserve = tempfs.New(vfs.Default), true
	}
	if disk > 0 {
		o.Log.SegmentBytes = max(1<<20, min(o.Log.SegmentBytes, disk/64))
		o.TabletServer.LogBytes = max(4*o.Log.SegmentBytes, min(o.TabletServer.LogBytes, disk/8))
	}
	if cfg.Durability == settings.Async {
		o.Log.Durability = commitlog.Async
	}
	return o
}

// budgetOf returns the budget of requests and answers.
func budgetOf(cfg *settings.Serve) *budget.Budget {
	return budget.New(int64(callShare * float64(cfg.Memory)))
}

// queryOptions bounds what queries hold before they spill, each and all together, and
// what of the disk they leave to the tables: four times what these keep for flushes.
func queryOptions(cfg *settings.Serve) query.Options {
	all := int64(queryShare * float64(cfg.Memory))
	free := func() int64 {
		free, _ := datadir.Space(vfs.Default, cmp.Or(cfg.DataDir, os.TempDir()))
		return free
	}
	size, used := datadir.Space(vfs.Default, cmp.Or(cfg.DataDir, os.TempDir()))
	return query.Options{QueryMemory: min(64<<20, all), Memory: all, Dir: cfg.DataDir, DiskFree: free, KeepFree: 4 * datadir.KeepFree(size+used)}
}

// viewOptions returns what evaluates materialized views, and bounds what keeps them up to
// date, within viewShare of the memory.
func viewOptions(cfg *settings.Serve, c *client.Client) views.Options {
	all := int64(viewShare * float64(cfg.Memory))
	return views.Options{Evaluators: gateway.ViewEvaluators(c, all/2, cfg.DataDir), Memory: views.NewMemory(min(all/2, 64<<20))}
}

func statsOf(s tablet.Summary) ops.Stats {
	reads := make([]ops.TableReads, len(s.Reads))
	for i, r := range s.Reads {
		reads[i] = ops.TableReads{Table: r.Table, RowHits: r.RowHits, RowMisses: r.RowMisses, BlockBytes: r.BlockBytes, CachedBytes: r.CachedBytes,
			Tablets: r.Tablets, SSTables: r.SSTables, Bytes: r.Bytes, RawBytes: r.RawBytes, MemtableBytes: r.MemtableBytes,
			BloomSkips: r.BloomSkips, BloomPasses: r.BloomPasses}
	}
	return ops.Stats{
		Tables: int64(s.Tables), Tablets: int64(s.Tablets), SSTables: s.SSTables, SSTableBytes: s.SSTableBytes,
		MemtableBytes: s.MemtableBytes, MemtableLimit: s.MemtableLimit, StallSeconds: s.Stalled.Seconds(), YieldSeconds: s.Yielded.Seconds(), LogBytes: s.LogBytes,
		Flushes: s.Flushes, FlushBytes: s.FlushBytes,
		Compactions: s.Compactions, CompactionIn: s.CompactionIn, CompactionOut: s.CompactionOut,
		Moved: s.Moved, Collected: s.Collected, Corruptions: s.Corruptions,
		CacheHits: s.Cache.Hits, CacheMisses: s.Cache.Misses, CacheBlocks: s.Cache.Blocks, CacheBytes: s.Cache.Bytes,
		RowCacheRows: s.RowCacheRows, RowCacheBytes: s.RowCacheBytes, Reads: reads,
		ReadBytes: s.ReadBytes, InMemoryBytes: s.InMemoryBytes, InMemoryLimit: s.InMemoryLimit,
		FileOpens: s.Cache.Opens, OpenFiles: int64(s.Cache.OpenFiles),
		BloomSkips: s.Cache.BloomSkips, BloomPasses: s.Cache.BloomPasses,
		RecoverySeconds: s.Recovery.Seconds(),
	}
}

func changesOf(s tabletserver.Changes) ops.ChangeStats {
	out := ops.ChangeStats{Max: s.Max, Dropped: s.Dropped, ClockAhead: s.ClockAhead}
	for _, t := range s.Tables {
		out.Tables = append(out.Tables, ops.TableChanges{Table: t.Table, Files: int64(t.Files), Bytes: t.Bytes, Since: t.Since, Newest: t.Newest})
	}
	return out
}

func viewsOf(vs []tabletserver.ViewStats) []ops.ViewStats {
	out := make([]ops.ViewStats, len(vs))
	for i, v := range vs {
		out[i] = ops.ViewStats{View: v.View, MaxDelay: v.Lag, Storage: v.RowBytes, Intermediate: v.StateBytes, UserErrors: v.Failed, SystemErrors: v.Errors}
	}
	return out
}

// dumpLog prints the commit log in the directory path, such as DATA/ulog.
func dumpLog(w io.Writer, path string) error {
	return commitlog.Dump(w, vfs.Default, path, commitlog.DumpOptions{Records: true})
}

// dumpSSTable prints the SSTable at path.
func dumpSSTable(w io.Writer, path string) error {
	ctx := context.Background()
	f, err := openFile(path)
	if err != nil {
		return err
	}
	c := sstable.NewCache(1<<20, 1)
	defer c.Close()
	r, err := sstable.Open(ctx, c, f, filepath.Base(path))
	if err != nil {
		return err
	}
	return errors.Join(r.Dump(ctx, w, true), r.VerifyChecksums(ctx), r.Close())
}

// dumpChanges prints the change file, or the index object, at path.
func dumpChanges(w io.Writer, path string) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	if changes.IsIndex(path) {
		return changes.DumpIndex(context.Background(), w, f, filepath.Base(path))
	}
	return changes.Dump(context.Background(), w, f, filepath.Base(path))
}

func openFile(path string) (osFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return osFile{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return osFile{}, errors.Join(err, f.Close())
	}
	return osFile{f, info.Size()}, nil
}

// An osFile is a file as an sstable.Readable.
type osFile struct {
	*os.File
	size int64
}

func (f osFile) Size() int64 { return f.size }

func (f osFile) ReadAt(_ context.Context, p []byte, off int64) error {
	if n, err := f.File.ReadAt(p, off); n < len(p) {
		return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
	}
	return nil
}

var _ sstable.Readable = osFile{}
