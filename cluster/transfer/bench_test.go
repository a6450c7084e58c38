package transfer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// BenchmarkRun transfers a directory of 512 MiB of cells, on a disk, and compares
// its rate, in bytes that are copied per second, with that of `cp -r` and sync of the
// directory, each in turn first. The source is in the page cache for both; the target
// is read back from the disk by Run alone.
func BenchmarkRun(b *testing.B) {
	const rows, value = 128 << 10, 4 << 10
	fs, dir := vfs.Default, b.TempDir()
	data := filepath.Join(dir, "data")
	s, err := standalone.Open(b.Context(), standalone.Options{Dir: data, FS: fs, TabletServer: tabletserver.Options{SplitBytes: 128 << 20, SplitCheck: 100 * time.Millisecond}})
	must(b, err)
	_, err = s.CreateTable(b.Context(), &schema.Table{Name: parent + "a", Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil)
	must(b, err)
	rng := rand.NewChaCha8([32]byte{})
	for i := 0; i < rows; i += 64 {
		var entries []row.Entry
		for k := range 64 {
			v := make([]byte, value)
			_, _ = rng.Read(v)
			entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "row%09d", (i+k)*7919%rows), Mutations: []row.Mutation{
				{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: v}}})
		}
		must(b, s.MutateRows(b.Context(), parent+"a", entries, func(_ int, err error) { must(b, err) }))
	}
	end(b, s, false)
	var run, cp time.Duration
	var bytes, all int64 // that Run copies, and cp, which copies commit logs too
	must(b, filepath.WalkDir(data, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info os.FileInfo
			if info, err = d.Info(); err == nil {
				all += info.Size()
			}
		}
		return err
	}))
	for i := range b.N {
		copied := func() {
			begun := time.Now()
			to := filepath.Join(dir, fmt.Sprint("cp", i))
			for _, c := range [][]string{{"cp", "-r", data, to}, {"sync", "-f", to}} {
				if out, err := exec.CommandContext(b.Context(), c[0], c[1:]...).CombinedOutput(); err != nil {
					b.Fatalf("%v: %v\n%s", c, err, out)
				}
			}
			cp += time.Since(begun)
			must(b, fs.RemoveAll(to))
		}
		transferred := func() {
			begun := time.Now()
			from, release := directory(b, fs, data)
			store := filepath.Join(dir, fmt.Sprint("store", i))
			from.TTL = 5 * time.Second
			to := clusterOf(b, fs, store, memory.New().Client(nil, nil))
			to.TTL = 5 * time.Second
			r, err := Run(b.Context(), from, to, Options{Command: again})
			must(b, err)
			run += time.Since(begun)
			bytes = r.Bytes
			_, err = Abandon(b.Context(), from)
			must(b, err)
			release()
			must(b, fs.RemoveAll(store))
		}
		if i%2 == 0 {
			copied()
			transferred()
		} else {
			transferred()
			copied()
		}
	}
	b.ReportMetric(run.Seconds()/float64(b.N), "s/transfer")
	b.ReportMetric(cp.Seconds()/float64(b.N), "s/cp")
	b.ReportMetric(float64(bytes)/1e6, "MB")
	b.ReportMetric(float64(all)/1e6, "MB/cp")
	b.ReportMetric(float64(bytes)/run.Seconds()/(float64(all)/cp.Seconds()), "of-cp's-rate")
	b.ReportMetric(0, "ns/op")
}
