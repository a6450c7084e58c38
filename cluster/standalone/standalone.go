package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/local"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Name is the name of the only tablet server.
const Name = "local"

// Options are the settings of a Server. Dir is needed.
type Options struct {
	// Dir is the data directory; it is made if it does not exist.
	Dir string
	// FS is the file system. Default: the operating system's.
	FS vfs.FS
	// Log are the settings of the commit log of tables.
	Log commitlog.Options
	// TabletServer are the settings of the tablet server, without Name, Lock,
	// Dialer, Objects, Dropped and Private, which are set here.
	TabletServer tabletserver.Options
	// Master are the settings of the master, without those that are set here.
	Master master.Options
	// Views returns the settings of the workers of materialized views; Cluster is c if it is
	// not set. nil: none run.
	Views func(c *client.Client) views.Options
	// Logger takes what happens. Default: nothing.
	Logger *slog.Logger
	// NoReserve keeps no disk space for a start on a full disk (24 MiB): for a
	// directory that is not opened again.
	NoReserve bool

	metadataOnly bool
	// wrapLock comes between the lock service and its callers. Tests set it.
	wrapLock func(lock.Service) lock.Service
}

// A Server is a cluster of one process. Its Client is a gateway backend.
type Server struct {
	*client.Client
	local   *local.Service
	lock    lock.Service // local, as its callers see it
	objects objectstore.Store
	history objectstore.Store
	tablets *tabletserver.Server
	stop    context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
	closed  error
}

// A localDialer is the Dialer of a process that is the only one.
type localDialer struct{ s *tabletserver.Server }

// Dial implements rpc.Dialer.
func (h localDialer) Dial(string) rpc.TabletServer { return h.s }

// Parts are the parts of a data directory.
type Parts struct {
	Lock *local.Service
	// Objects keeps SSTables.
	Objects *objectstore.Local
	// Private says where the commit logs are.
	Private *tabletserver.Private
}

// Close lets go of the directory.
func (p *Parts) Close() error { return p.Lock.Close() }

// OpenParts opens a data directory for a caller that moves its tables to another place, or
// fills it. Nothing runs in it, and no other process can open it. It makes the directory
// if it is not there. Its errors are those of Open, but for a transfer that is under way.
func OpenParts(ctx context.Context, o Options) (*Parts, error) {
	o = o.withDefaults()
	return datadir.OpenWithReserve(o.FS, o.Dir, o.Logger, func() (*Parts, error) {
		if err := prepare(o.FS, o.Dir); err != nil {
			return nil, err
		}
		p, err := openParts(ctx, o)
		if err != nil {
			return nil, err
		}
		if err := p.Objects.RemoveUnfinished(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		// A start makes them too; until then a directory that is filled would look as if
		// it had lost its logs.
		for _, name := range []string{"mlog", "ulog"} {
			err = errors.Join(err, datadir.Make(o.FS, o.FS.PathJoin(o.Dir, name), 0o700))
		}
		if err = errors.Join(err, datadir.Sync(o.FS, o.Dir)); err != nil {
			return nil, errors.Join(fmt.Errorf("make the commit logs' directories: %w", err), p.Close())
		}
		return p, nil
	})
}

func openParts(ctx context.Context, o Options) (*Parts, error) {
	l, err := local.Open(ctx, local.Options{Dir: o.FS.PathJoin(o.Dir, LockDir), FS: o.FS, Log: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("open the lock service: %w", err)
	}
	objects, err := objectstore.OpenLocal(o.FS, o.FS.PathJoin(o.Dir, SSTablesDir), objectstore.LocalOptions{KeepUnfinished: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open SSTables: %w", err), l.Close())
	}
	return &Parts{l, objects, &tabletserver.Private{FS: o.FS, Dir: o.Dir, User: o.Log,
		Metadata: commitlog.Options{SegmentBytes: 4 << 20, Log: o.Logger}, MetadataOnly: o.metadataOnly}}, nil
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Open opens a data directory, and returns once the tables that are there are served. On a
// full disk it begins by using up the space that was kept for that; without any it is
// fault.Exhausted. It is fault.FailedPrecondition if another process has the directory
// open or another version wrote it. So it is if its tables are or were transferred
// (catalog.CheckTransfer). It is fault.Corruption if its files are not what was written.
func Open(ctx context.Context, o Options) (*Server, error) {
	o = o.withDefaults()
	return datadir.OpenWithReserve(o.FS, o.Dir, o.Logger, func() (*Server, error) {
		if err := prepare(o.FS, o.Dir); err != nil {
			return nil, err
		}
		s, err := open(ctx, o)
		if fault.KindOf(err) == fault.Corruption {
			err = fault.New(fault.Corruption, "%w; `trestle check %s` says what else is damaged, and what to do", err, o.Dir)
		}
		return s, err
	})
}

// prepare makes a directory that is not there, and refuses one that cannot be
// opened.
func prepare(fs vfs.FS, dir string) error {
	if err := datadir.Make(fs, dir, 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	fresh, err := CheckFormat(fs, dir)
	if err != nil {
		return err
	}
	if fresh {
		return writeFormat(fs, dir)
	}
	way, err := CheckRoot(fs, dir)
	if way != "" {
		err = fault.New(fault.Corruption, "%w; to go on %s", err, way)
	}
	if err != nil {
		return err
	}
	if err := checkLogs(fs, dir); err != nil {
		return err
	}
	return raiseFormat(fs, dir)
}

// OpenMetadata opens a data directory to look into it: the Server knows the lock service
// and METADATA, and serves no table. It changes nothing and takes no lock. Beside a
// process that serves the directory it may read a change half-way, and fail, or show an
// earlier state.
func OpenMetadata(ctx context.Context, fs vfs.FS, dir string) (*Server, error) {
	if there, err := exists(fs, dir, rootName); !there {
		return nil, errors.Join(err, fault.New(fault.NotFound, "%s has no %s: it is no data directory of this version of trestle", dir, rootName))
	}
	over := datadir.Overlay(fs)
	if err := over.RemoveAll(over.PathJoin(dir, "ulog")); err != nil {
		return nil, err
	}
	return open(ctx, Options{Dir: dir, FS: over, Logger: slog.New(slog.DiscardHandler), metadataOnly: true,
		TabletServer: tabletserver.Options{CacheBytes: 8 << 20, RowCacheBytes: -1}})
}

func open(ctx context.Context, o Options) (_ *Server, err error) {
	p, err := openParts(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &Server{local: p.Lock, lock: p.Lock}
	if o.wrapLock != nil {
		s.lock = o.wrapLock(s.lock)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.local.Close())
		}
	}()
	if !o.metadataOnly {
		if err := catalog.CheckTransfer(ctx, s.lock); err != nil {
			return nil, fmt.Errorf("the data directory %s is not served: %w", o.Dir, err)
		}
	}
	objects := p.Objects
	// What a process that was killed was writing goes once the tables are served, unless the
	// start needs its room.
	full := datadir.CheckFree(o.FS, o.Dir, 1<<30) != nil
	if full && !o.metadataOnly {
		if err := objects.RemoveUnfinished(); err != nil {
			return nil, err
		}
	}
	to := o.TabletServer
	s.objects = objects
	if s.history, err = objectstore.OpenLocal(o.FS, o.FS.PathJoin(o.Dir, HistoryDir), objectstore.LocalOptions{}); err != nil {
		return nil, fmt.Errorf("open the key visualizer's columns: %w", err)
	}
	to.Name, to.Lock, to.Objects, to.Log = Name, s.lock, objects, o.Logger
	garbage := make(chan struct{}, 1)
	to.Dropped = func(string) {
		select {
		case garbage <- struct{}{}:
		default:
		}
	}
	to.Private = p.Private
	if s.tablets, err = tabletserver.Start(ctx, to); err != nil {
		if fault.KindOf(err) == fault.Exhausted && !full { // a quota, of which the file system does not tell
			err = errors.Join(err, objects.RemoveUnfinished())
		}
		return nil, fmt.Errorf("start the tablet server: %w", err)
	}
	dialer := localDialer{s.tablets}
	s.Client = client.New(client.Options{Lock: s.lock, Dialer: dialer, Schemas: s.tablets.Schemas(), Near: true, Ended: s.tablets.Failed(), Now: to.Now})
	if s.stop = func() {}; o.metadataOnly {
		return s, nil
	}
	if o.Views != nil {
		vo := o.Views(s.Client)
		if vo.Cluster == nil {
			vo.Cluster = s.Client
		}
		s.tablets.FollowViews(vo)
	}
	mo := o.Master
	mo.Abandoned = s.tablets.Incarnation()
	mo.Attend = -1 // the server is where the master is
	mo.Garbage = garbage
	mo.Name, mo.Lock, mo.Dialer, mo.Objects, mo.Log = Name, s.lock, dialer, objects, o.Logger
	term, stop := context.WithCancel(context.Background())
	s.stop = stop
	if !o.NoReserve {
		s.running.Go(func() { datadir.KeepReserve(term, o.FS, o.Dir, o.Logger) })
	}
	if !full {
		s.running.Go(func() {
			if err := objects.RemoveUnfinished(); err != nil {
				o.Logger.Warn("unfinished SSTables stay until the next start", "error", err)
			}
		})
	}
	s.running.Go(func() {
		for term.Err() == nil {
			if err := master.Run(term, mo); term.Err() == nil {
				o.Logger.Warn("the master ended, and begins again", "error", err)
				select {
				case <-time.After(100 * time.Millisecond):
				case <-term.Done():
				}
			}
		}
	})
	return s, nil
}

// Lock returns the lock service.
func (s *Server) Lock() lock.Service { return s.lock }

// Objects returns the store of the SSTables.
func (s *Server) Objects() objectstore.Store { return s.objects }

// History returns a store for what is recorded of the tables' load.
func (s *Server) History() objectstore.Store { return s.history }

// TabletServer returns the tablet server.
func (s *Server) TabletServer() *tabletserver.Server { return s.tablets }

// Close flushes memtables to SSTables until ctx ends, and closes the directory. What was
// acknowledged is safe in any case. A second call waits for the first, and returns its
// result.
func (s *Server) Close(ctx context.Context) error {
	s.closing.Do(func() {
		s.stop()
		s.running.Wait()
		s.closed = errors.Join(s.tablets.Close(ctx), s.local.Close())
	})
	return s.closed
}
