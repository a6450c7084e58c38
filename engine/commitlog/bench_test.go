package commitlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/hdfs"
	"github.com/trestledb/trestle/engine/objectstore/hdfs/hdfstest"
	"github.com/trestledb/trestle/engine/objectstore/s3"
	"github.com/trestledb/trestle/engine/objectstore/s3/s3test"
)

type nopSink struct{ last uint64 }

func (s *nopSink) Durable(seq uint64) { s.last = seq }

// BenchmarkAppendWait is one durable record of 1,060 bytes per operation, by
// so many callers at a time, on the disk of the temporary directory.
func BenchmarkAppendWait(b *testing.B) {
	for _, durability := range []Durability{Sync, Async} {
		for _, callers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", []string{"sync", "async"}[durability], callers), func(b *testing.B) {
				l := open(b, vfs.Default, b.TempDir(), Options{Durability: durability})
				w := start(b, l)
				value := make([]byte, 1060)
				for i := range value {
					value[i] = byte(rand.Uint32())
				}
				sinks := make([]nopSink, 4)
				var seq, commits atomic.Int64
				w.opts.Observe = func(Commit) { commits.Add(1) }
				b.ReportAllocs()
				b.SetBytes(int64(len(value)))
				b.ResetTimer()
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						ctx := context.Background()
						sink := &sinks[i%len(sinks)]
						for {
							s := seq.Add(1)
							if s > int64(b.N) {
								return
							}
							r, err := w.Reserve(ctx, len(value))
							if err != nil {
								b.Error(err)
								return
							}
							pos := w.Append(r, 1, uint64(s), record(func(dst []byte) []byte { return append(dst, value...) }), sink)
							if err := w.Wait(ctx, pos); err != nil {
								b.Error(err)
								return
							}
							if s%10000 == 0 {
								w.Trim(pos) // as flushes do; keeps the disk small
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(b.N)/float64(max(1, commits.Load())), "records/commit")
			})
		}
	}
}

// BenchmarkDurable is one durable record of 1,060 bytes per operation, by so many
// callers at a time, in each form of the log: files and segment objects in the
// temporary directory, segment objects in an S3 server in this process, in
// MinIO if TRESTLE_TEST_MINIO names it, and in an HDFS if TRESTLE_TEST_HDFS does.
func BenchmarkDurable(b *testing.B) {
	ctx := context.Background()
	segments := func(b *testing.B, store objectstore.Store, observe func(Commit)) Writer {
		w, err := CreateSegments(ctx, store, 1, SegmentOptions{Observe: observe})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { w.Close() })
		return w
	}
	onS3 := func(b *testing.B, o s3.Options) objectstore.Store {
		store, err := s3.Open(ctx, o)
		if err != nil {
			b.Fatal(err)
		}
		return store
	}
	outer, logs := b, 0
	onHDFS := sync.OnceValue(func() *hdfstest.Cluster { return hdfstest.Real(outer, hdfstest.FastClose...) })
	forms := []struct {
		name string
		open func(b *testing.B, observe func(Commit)) Writer
	}{
		{"files", func(b *testing.B, observe func(Commit)) Writer {
			return start(b, open(b, vfs.Default, b.TempDir(), Options{Observe: observe}))
		}},
		{"posix-segments", func(b *testing.B, observe func(Commit)) Writer {
			store, err := objectstore.OpenLocal(vfs.Default, b.TempDir(), objectstore.LocalOptions{Owner: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			return segments(b, store, observe)
		}},
		{"gofakes3-segments", func(b *testing.B, observe func(Commit)) Writer {
			return segments(b, onS3(b, s3test.Fake(b, nil)), observe)
		}},
		{"minio-segments", func(b *testing.B, observe func(Commit)) Writer {
			return segments(b, onS3(b, s3test.MinIO(b)), observe)
		}},
		{"hdfs-segments", func(b *testing.B, observe func(Commit)) Writer {
			if os.Getenv(hdfstest.Jars) == "" {
				b.Skip("no HDFS")
			}
			logs++
			store, err := hdfs.Open(ctx, onHDFS().Options(fmt.Sprint("/log", logs)))
			if err != nil {
				b.Fatal(err)
			}
			return segments(b, store, observe)
		}},
	}
	value := make([]byte, 1060)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	for _, form := range forms {
		for _, callers := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/callers=%d", form.name, callers), func(b *testing.B) {
				var seq, commits, written atomic.Int64
				w := form.open(b, func(c Commit) { commits.Add(1); written.Add(int64(c.Bytes)) })
				b.ReportAllocs()
				b.ResetTimer()
				before := cputime.Used()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for s := seq.Add(1); s <= int64(b.N); s = seq.Add(1) {
							r, err := w.Reserve(ctx, len(value))
							if err != nil {
								b.Error(err)
								return
							}
							pos := w.Append(r, uint64(s%4), uint64(s), record(func(dst []byte) []byte { return append(dst, value...) }), nil)
							if err := w.Wait(ctx, pos); err != nil {
								b.Error(err)
								return
							}
							if s%4096 == 0 { // as flushes do
								if err := w.Trim(pos); err != nil {
									b.Error(err)
									return
								}
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				b.ReportMetric(float64((cputime.Used()-before).Microseconds())/float64(max(1, commits.Load())), "cpu-µs/commit")
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(b.N)/float64(max(1, commits.Load())), "records/commit")
			})
		}
	}
}

// discardFS forgets what is written.
type discardFS struct{ vfs.FS }

type discardFile struct{ vfs.File }

func (fs discardFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return discardFile{f}, err
}

func (discardFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

// BenchmarkAppend is the cost of Reserve and Append with the flusher's
// checksum, without a disk.
func BenchmarkAppend(b *testing.B) {
	l := open(b, discardFS{vfs.NewMem()}, "log", Options{})
	w := start(b, l)
	value := make([]byte, 1060)
	sink := &nopSink{}
	b.ReportAllocs()
	b.SetBytes(int64(len(value)))
	for i := 0; b.Loop(); i++ {
		r, err := w.Reserve(context.Background(), len(value))
		if err != nil {
			b.Fatal(err)
		}
		pos := w.Append(r, 1, uint64(i), record(func(dst []byte) []byte { return append(dst, value...) }), sink)
		if i%50000 == 0 {
			w.Trim(pos)
		}
	}
}

// BenchmarkReplay reads a log from the page cache.
func BenchmarkReplay(b *testing.B) {
	dir := b.TempDir()
	l := open(b, vfs.Default, dir, Options{})
	w := start(b, l)
	value := make([]byte, 1060)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	const n = 200_000
	for i := range n {
		r, err := w.Reserve(context.Background(), len(value))
		if err != nil {
			b.Fatal(err)
		}
		w.Append(r, 1, uint64(i), record(func(dst []byte) []byte { return append(dst, value...) }), nil)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	l = open(b, vfs.Default, dir, Options{})
	b.SetBytes(n * int64(len(value)+recordHeaderLen))
	for b.Loop() {
		count := 0
		if err := l.Replay(Pos{}, func(Record) error { count++; return nil }); err != nil || count != n {
			b.Fatal(count, err)
		}
	}
}
