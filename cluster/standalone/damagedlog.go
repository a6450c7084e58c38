package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/stamp"
)

// The commit logs of a data directory.
const (
	itemsLog    = LockDir + "/log"
	metadataLog = "mlog"
	tablesLog   = "ulog"
	// newTablesLog is what DropDamagedLog makes and then puts in the place of
	// tablesLog. While that is not there a start is refused.
	newTablesLog = "ulog.new"
	// partialTablesLog is where newTablesLog is written, so that half of a log is never
	// taken for a whole one.
	partialTablesLog = "ulog.part"
	damagedLogPrefix = "ulog.damaged-"
)

// Served tells whether a directory was ever served: its commit logs, which are all
// made before, have been begun.
func Served(fs vfs.FS, dir string) bool {
	for _, log := range []string{metadataLog, tablesLog} {
		names, err := fs.List(fs.PathJoin(dir, log))
		if err == nil && slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".log") }) {
			return true
		}
	}
	return false
}

// checkLogs is fault.Corruption if a directory that was served lacks one of its commit
// logs. A start would begin an empty one, without what was acknowledged.
func checkLogs(fs vfs.FS, dir string) error {
	if !Served(fs, dir) {
		return nil
	}
	for _, l := range []struct{ name, of, way string }{
		{itemsLog, "the lock service", "restore all of the directory from a copy"},
		{metadataLog, "METADATA", "restore all of the directory from a copy"},
		{tablesLog, "all tables", DropLog + dir},
	} {
		if there, err := exists(fs, dir, l.name); err != nil {
			return err
		} else if !there {
			return fault.New(fault.Corruption, "%s has no %s, the commit log of %s, but is not new: bring it back, or %s", dir, l.name, l.of, l.way)
		}
	}
	return nil
}

// DropLog says, followed by the directory, how to go on when the commit log of all
// tables is damaged.
const DropLog = "see what it costs to go on without: trestle log drop-damaged "

// A DamagedLog describes the damage of the commit log of all tables, and what it costs to
// go on without.
type DamagedLog struct {
	// Log is the directory.
	Log string
	// Gaps are the parts that cannot be read.
	Gaps []commitlog.Gap
	// Kept is the number of records that can be read, before gaps and after.
	Kept int
	// Lost are the tablets of which there are records behind a gap, and the time in
	// which each may have had others in it. How many, if any, is not known; nor is it
	// known what others had in a gap.
	Lost []LostChanges
	// Interrupted says that a call of DropDamagedLog has put the damaged log aside
	// and did not come to its end.
	Interrupted bool
	// promised bounds what readers of changes were promised.
	promised cell.Seq
}

// LostChanges are those that one tablet may have lost: they were committed after After
// and before Before. After is the zero time if all that was committed before has
// no time, being of format 2.
type LostChanges struct {
	Tablet        metadata.TabletName
	After, Before time.Time
}

// FindDamagedLog looks at the commit log of all tables of a directory that no process has
// open, and changes nothing. It is fault.NotFound if nothing is damaged. It is
// fault.FailedPrecondition if the directory is in use, or if METADATA or the lock service
// cannot be read: they say what the log is about.
func FindDamagedLog(ctx context.Context, fs vfs.FS, dir string) (*DamagedLog, error) {
	held, err := holdDir(fs, dir)
	if err != nil {
		return nil, err
	}
	d, err := findDamagedLog(ctx, fs, dir)
	return d, errors.Join(err, held.Close())
}

// holdDir takes the lock of a data directory.
func holdDir(fs vfs.FS, dir string) (io.Closer, error) {
	if there, err := exists(fs, dir, rootName); err != nil || !there {
		return nil, errors.Join(err, fault.New(fault.FailedPrecondition, "%s has no %s: it is no data directory, or that is lost (trestle check)", dir, rootName))
	}
	if fresh, err := CheckFormat(fs, dir); err != nil || fresh {
		return nil, errors.Join(err, fault.New(fault.FailedPrecondition, "%s cannot be judged without its format (trestle check)", dir))
	}
	held, err := fs.Lock(fs.PathJoin(dir, LockDir, "LOCK"))
	if err != nil {
		return nil, fault.New(fault.FailedPrecondition, "data directory %s is open in another process, or cannot be locked: %w; stop the server first", dir, err)
	}
	return held, nil
}

func findDamagedLog(ctx context.Context, fs vfs.FS, dir string) (*DamagedLog, error) {
	needed := func(err error) error {
		return fault.New(fault.FailedPrecondition, "what the commit log of all tables is about cannot be told: %w. Without the newest of METADATA and of the lock service nobody knows which SSTables are whose: "+
			"restore all of the directory from a copy, or import exported backups into a new one", errors.New(err.Error()))
	}
	for _, name := range []string{itemsLog, metadataLog} {
		if there, err := exists(fs, dir, name); err != nil {
			return nil, err
		} else if !there {
			return nil, needed(fmt.Errorf("%s is missing", name))
		}
	}
	s, err := OpenMetadata(ctx, fs, dir)
	if fault.KindOf(err) == fault.Corruption {
		return nil, needed(err)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // what it wrote was in memory only
	}()
	names, rows := map[uint64]string{}, map[uint64]*metadata.Row{}
	err = catalog.Names(ctx, s.Lock(), func(_ lock.Item, n catalog.Name) error {
		for _, t := range n {
			names[t.ID] = t.Name
		}
		return nil
	})
	if err == nil {
		err = s.Rows(ctx, func(r *metadata.Row) error {
			if names[r.Table] != "" {
				rows[uint64(r.Tablet)] = r
			}
			return nil
		})
	}
	if fault.KindOf(err) == fault.Corruption {
		return nil, needed(err)
	}
	if err != nil {
		return nil, err
	}
	d := &DamagedLog{Log: fs.PathJoin(dir, tablesLog)}
	if d.promised, _, err = catalog.ReadPromised(ctx, s.Lock()); fault.KindOf(err) == fault.Corruption {
		return nil, needed(err)
	} else if err != nil {
		return nil, err
	}
	if there, err := exists(fs, dir, tablesLog); err != nil {
		return nil, err
	} else if !there {
		d.Gaps = []commitlog.Gap{{File: tablesLog, Why: "is missing, with all changes that are in no SSTable"}}
		d.Interrupted, err = exists(fs, dir, newTablesLog)
		return d, err
	}
	last, lost := map[uint64]cell.Seq{}, map[uint64]LostChanges{}
	gaps := map[uint64]int{} // how many there were before the last record
	for id, r := range rows {
		last[id] = r.FlushedSeq
	}
	err = commitlog.Salvage(fs, d.Log, func(rec commitlog.Record) error {
		d.Kept++
		first := cell.Seq(rec.FirstSeq)
		end := stamp.Last(first, rec.N)
		if rows[rec.Tablet] == nil || end <= last[rec.Tablet] {
			return nil // of a tablet that is gone, or in SSTables already
		}
		// A counter of format 2 that follows the last one tells that nothing is lost.
		follows := first < stamp.Least && first == last[rec.Tablet]+1
		if len(d.Gaps) > gaps[rec.Tablet] && !follows {
			l, again := lost[rec.Tablet]
			if l.Before = stamp.Time(first); !again && last[rec.Tablet] >= stamp.Least {
				l.After = stamp.Time(last[rec.Tablet])
			}
			lost[rec.Tablet] = l
		}
		last[rec.Tablet], gaps[rec.Tablet] = end, len(d.Gaps)
		return ctx.Err()
	}, func(g commitlog.Gap) { d.Gaps = append(d.Gaps, g) })
	if err != nil {
		return nil, err
	}
	if len(d.Gaps) == 0 {
		return nil, fault.New(fault.NotFound, "nothing is damaged in commit log %s: it stays", d.Log)
	}
	for id, l := range lost {
		l.Tablet = rows[id].Name(names[rows[id].Table])
		d.Lost = append(d.Lost, l)
	}
	slices.SortFunc(d.Lost, func(a, b LostChanges) int { return strings.Compare(a.Tablet.String(), b.Tablet.String()) })
	return d, nil
}

// DropDamagedLog gives up what FindDamagedLog finds. The log is written anew, with
// everything readable. What readers of changes may have been promised holds, also if the
// records of that cannot be read. The damaged one is kept, under the name that is returned, "" if
// there is none. After a crash at any point either the damaged log is in its place, or a
// start is refused until this is called again.
func DropDamagedLog(ctx context.Context, fs vfs.FS, dir string) (aside string, err error) {
	held, err := holdDir(fs, dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	d, err := findDamagedLog(ctx, fs, dir)
	if err != nil {
		return "", err
	}
	log, next := fs.PathJoin(dir, tablesLog), fs.PathJoin(dir, newTablesLog)
	there, err := exists(fs, dir, tablesLog)
	if err != nil {
		return "", err
	}
	if !d.Interrupted {
		part := fs.PathJoin(dir, partialTablesLog)
		if err := errors.Join(fs.RemoveAll(next), fs.RemoveAll(part)); err != nil {
			return "", err
		}
		var last []commitlog.Record
		if d.promised > 0 {
			last = append(last, tabletserver.ClockRecord(d.promised))
		}
		if err := commitlog.Rewrite(fs, log, part, last...); err != nil {
			return "", errors.Join(err, fs.RemoveAll(part)) // on a full disk it is in the way
		}
		if err := fs.Rename(part, next); err != nil {
			return "", err
		}
	}
	if there {
		for n := 1; ; n++ {
			aside = fs.PathJoin(dir, fmt.Sprintf("%s%d", damagedLogPrefix, n))
			if taken, err := exists(fs, aside); err != nil {
				return "", err
			} else if !taken {
				break
			}
		}
		if err := fs.Rename(log, aside); err != nil {
			return "", err
		}
		if err := datadir.Sync(fs, dir); err != nil {
			return "", err
		}
	}
	if err := fs.Rename(next, log); err != nil {
		return "", err
	}
	return aside, datadir.Sync(fs, dir)
}
