package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// stoppedMemory bounds the memtables of a server that DirectoryViews runs. Nothing is written
// to files, so they hold what the commit log has (512 MiB by default), and what views still
// have to do.
const stoppedMemory = 1 << 30

// DirectoryViews is Views.CheckAll of a data directory that no process has open. It serves the
// directory in memory. There the views catch up with what the log has for them; the directory
// stays as it is. A view that is still being built is reported as harmless, and is not
// checked. evaluators makes what evaluates queries over the tables of a client.
//
// It fails as Directory does, and with fault.Corruption if the directory cannot be served.
func DirectoryViews(ctx context.Context, fs vfs.FS, dir string, evaluators func(*client.Client) matview.Evaluators, report func(Finding)) (sum ViewSummary, err error) {
	lock, err := (&checker{fs: fs, dir: dir}).lock()
	if err != nil {
		return sum, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	s, err := standalone.Open(ctx, standalone.Options{Dir: dir, FS: datadir.Overlay(fs), NoReserve: true, Log: commitlog.Options{SegmentBytes: 4 << 20},
		TabletServer: tabletserver.Options{NoBackground: true, CacheBytes: 64 << 20, RowCacheBytes: -1, MemtableBytes: stoppedMemory},
		Master:       master.Options{Sweep: -1, Merge: -1, Balance: -1}})
	if err != nil {
		return sum, fmt.Errorf("serve the directory in memory: %w", err)
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // what it wrote was in memory only
	}()
	unbuilt, err := unbuiltViews(ctx, s)
	if err != nil {
		return sum, err
	}
	all, err := s.ListViews(ctx, "projects")
	if err != nil {
		return sum, err
	}
	all = slices.DeleteFunc(all, func(t *schema.Table) bool {
		skip := slices.Contains(unbuilt, t.View.Life)
		if skip {
			report(Finding{Harmless: true, Where: "materialized view " + t.Name, What: "was being built when the server ended", Do: "nothing: the next start goes on with it"})
		}
		return skip
	})
	evals := built{evaluators(s.Client), unbuilt}
	s.TabletServer().FollowViews(views.Options{Cluster: s.Client, Evaluators: evals, Memory: views.NewMemory(64 << 20)})
	// Cells that have ended since the server did leave the view within some seconds.
	v := Views{Read: s.ReadRows, Wait: s.WaitView, Evaluators: evals, Attempts: 6, Pause: 500 * time.Millisecond}
	return v.CheckAll(ctx, all, report)
}

// unbuiltViews returns the lives of views of which a part has not looked at all rows yet, or has
// to look at them again.
func unbuiltViews(ctx context.Context, s *standalone.Server) (lives []uint64, err error) {
	err = s.Rows(ctx, func(r *metadata.Row) error {
		t, err := s.TabletServer().Schemas().ByID(r.Table)
		if errors.Is(err, fault.NotFound) {
			return nil // METADATA, a backup's, or of a table that is gone
		}
		if err != nil {
			return err
		}
		v := t.Schema().View
		if v == nil || !v.State {
			return nil
		}
		source, err := s.TabletServer().Schemas().ByID(v.SourceID)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		if r.Followed == nil || err == nil && r.Followed.Life != source.Schema().ViewLife() {
			lives = append(lives, v.Life)
		}
		return nil
	})
	return lives, err
}

// built evaluates views that are built: others would be built in memory.
type built struct {
	matview.Evaluators
	unbuilt []uint64
}

// Evaluator implements matview.Evaluators.
func (b built) Evaluator(ctx context.Context, v *schema.View) (matview.Evaluator, error) {
	if slices.Contains(b.unbuilt, v.Life) {
		return nil, fault.New(fault.Unavailable, "%s is not built yet", v.Name)
	}
	return b.Evaluators.Evaluator(ctx, v)
}
