package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/diskcache"
	"github.com/trestledb/trestle/engine/objectstore/hdfs"
	"github.com/trestledb/trestle/engine/objectstore/s3"
)

// The parts of a cluster's store, the object that says of which cluster it is, and the one
// that tells it from all other stores, those of clusters of that name among them.
const (
	sstablesDir = "sst"
	logsDir     = "log"
	copiesDir   = "etcd"
	historyDir  = "keyvis"
	markName    = "cluster"
	idName      = "id"
)

// A Store is the object store that the processes of a cluster share.
type Store struct {
	// SSTables and Logs have the tablets, Copies has what the lock service held
	// (catalog.Copier), and History what was recorded of the tables' load.
	SSTables, Logs, Copies, History objectstore.Store
	// Cached is SSTables behind the disk cache; SSTables itself if there is none.
	Cached objectstore.Store

	o     StoreOptions
	whole objectstore.Store
	close func() error
}

// StoreOptions say where the store of a cluster is.
type StoreOptions struct {
	// URL is as OpenURL takes it, Cluster the name of the cluster.
	URL, Cluster string
	// Owner tells apart who writes to the store. It is the same after a restart.
	Owner string
	// CacheDir is the directory of the disk cache, empty for none; CacheBytes bounds
	// that, 0 for diskcache's default.
	CacheDir   string
	CacheBytes int64
	// Log is for OpenStore.
	Log *slog.Logger
}

// OpenStore opens the store for a process that serves. It marks a store that is
// empty as the cluster's, if the cluster is new. It refuses the store of another
// cluster, an empty one of a cluster that has tables, as a share is that was not
// mounted, and one that does not keep its promises (objectstore.Store.Probe).
func (n *Node) OpenStore(ctx context.Context, o StoreOptions) (*Store, error) {
	// The first master marks the store before it makes METADATA: a process that sees
	// METADATA sees the mark.
	roots, err := metastore.New(n.Lock, n.Dialer).Roots(ctx)
	if err != nil {
		return nil, fmt.Errorf("look whether cluster %s is new: %w", o.Cluster, err)
	}
	s, err := open(ctx, o)
	if err == nil && len(roots) > 0 {
		err = s.checkMark(ctx)
		if errors.Is(err, fault.NotFound) {
			err = fault.New(fault.FailedPrecondition, "it has no object %q that says so, and cluster %s has tables: mount the share, or correct --store", markName, o.Cluster)
		}
	}
	if err == nil {
		err = s.whole.Probe(ctx)
	}
	if err == nil && len(roots) == 0 {
		err = s.mark(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", o.URL, err)
	}
	if dir, ok := o.dir(); ok {
		if err := datadir.MakePrivate(dir, []string{markName, idName, sstablesDir, logsDir, copiesDir, historyDir, ".tmp"}); err != nil {
			o.Log.Warn("the store is open to others", "error", err)
		}
	}
	if o.CacheDir == "" {
		return s, nil
	}
	id, err := s.id(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", o.URL, err)
	}
	cache, err := diskcache.Open(s.whole, vfs.Default, o.CacheDir, diskcache.Options{Store: id, Bytes: o.CacheBytes, Log: o.Log})
	if err != nil {
		return nil, err
	}
	s.Cached, s.close = objectstore.Sub(cache, sstablesDir), cache.Close
	if entries, err := os.ReadDir(o.CacheDir); err == nil {
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if err := datadir.MakePrivate(o.CacheDir, names); err != nil {
			o.Log.Warn("the disk cache is open to others", "error", err)
		}
	}
	return s, nil
}

// OpenMarkedStore opens the store for a command: it has to be there, and marked as
// the cluster's.
func OpenMarkedStore(ctx context.Context, o StoreOptions) (*Store, error) {
	if dir, ok := o.dir(); ok {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("the store %s: %w", o.URL, err)
		}
	}
	s, err := open(ctx, o)
	if err == nil {
		err = s.checkMark(ctx)
	}
	return s, err
}

func open(ctx context.Context, o StoreOptions) (*Store, error) {
	whole, err := OpenURL(ctx, o.URL, o.Owner)
	if err != nil {
		return nil, err
	}
	s := &Store{SSTables: objectstore.Sub(whole, sstablesDir), Logs: objectstore.Sub(whole, logsDir), Copies: objectstore.Sub(whole, copiesDir), History: objectstore.Sub(whole, historyDir),
		o: o, whole: whole, close: func() error { return nil }}
	s.Cached = s.SSTables
	return s, nil
}

// FileURL returns the URL of the object store in a directory, whatever its path has in it:
// a "#" would end it.
func FileURL(dir string) string { return (&url.URL{Scheme: "file", Path: dir}).String() }

// OpenURL opens the object store at a URL: file:///DIR, hdfs://NAMENODE/DIR or
// s3://BUCKET/PREFIX. owner is StoreOptions.Owner.
func OpenURL(ctx context.Context, at, owner string) (objectstore.Store, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	switch u.Scheme {
	case "file":
		return objectstore.OpenLocal(vfs.Default, u.Path, objectstore.LocalOptions{Owner: owner})
	case "hdfs":
		return hdfs.Open(ctx, hdfs.Options{NameNodes: append([]string{u.Host}, q["namenode"]...), Insecure: q.Get("insecure") == "true",
			User: q.Get("user"), Dir: u.Path, Owner: owner})
	}
	return s3.Open(ctx, s3.Options{Endpoint: q.Get("endpoint"), Insecure: q.Get("insecure") == "true", Region: q.Get("region"),
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")})
}

// dir returns the directory that the store is, if it is one.
func (o *StoreOptions) dir() (dir string, ok bool) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return u.Path, true
}

// mark says in the store that it is of the cluster, unless it is of another.
func (s *Store) mark(ctx context.Context) error {
	if err := s.whole.PutIfAbsent(ctx, markName, []byte(s.o.Cluster)); !errors.Is(err, fault.AlreadyExists) {
		return err
	}
	return s.checkMark(ctx)
}

// checkMark returns an error unless the store is there and is that of the cluster: a
// share that is not mounted is an empty directory.
func (s *Store) checkMark(ctx context.Context) error {
	b, err := s.whole.Get(ctx, markName)
	if err != nil {
		return fmt.Errorf("the store does not say that it is of cluster %s: %w", s.o.Cluster, err)
	}
	if string(b) != s.o.Cluster {
		return fmt.Errorf("the store is of cluster %q, not of %q", b, s.o.Cluster)
	}
	return nil
}

// id returns what tells the store from all others, those before it at the same place
// included. It gives the store one if it has none: only processes that keep copies need it.
func (s *Store) id(ctx context.Context) (string, error) {
	b, err := s.whole.Get(ctx, idName)
	if errors.Is(err, fault.NotFound) {
		if err = s.whole.PutIfAbsent(ctx, idName, []byte(rand.Text())); err == nil || errors.Is(err, fault.AlreadyExists) {
			b, err = s.whole.Get(ctx, idName)
		}
	}
	if err == nil && len(b) == 0 {
		err = fault.New(fault.Corruption, "object %q is empty", idName)
	}
	return string(b), err
}

// check is what MonitorStore asks.
func (s *Store) check(ctx context.Context) error {
	if err := s.checkMark(ctx); err != nil {
		return err
	}
	dir, ok := s.o.dir()
	if !ok {
		return nil
	}
	free, used := datadir.Space(vfs.Default, dir)
	return datadir.CheckFree(vfs.Default, dir, datadir.KeepFree(free+used))
}

// Close ends the disk cache.
func (s *Store) Close() error { return s.close() }
