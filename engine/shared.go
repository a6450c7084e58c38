package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// The parts of Options.Objects.
const (
	sharedSST  = "sst"
	sharedName = "store-id" // an object with the store's name
)

// nameOf returns the name that a store was given when it was first used, giving
// it one if need be. A data directory keeps it, so that it is never opened with
// another store: all that is not flushed would seem never to have been written.
func nameOf(ctx context.Context, store objectstore.Store) (string, error) {
	for {
		b, err := store.Get(ctx, sharedName)
		if err == nil {
			if name := string(b); name != "" && !strings.ContainsAny(name, " \n") {
				return name, nil
			}
			return "", fault.New(fault.Corruption, "%s of the object store holds %.100q", sharedName, b)
		}
		if !errors.Is(err, fault.NotFound) {
			return "", err
		}
		if err := store.PutIfAbsent(ctx, sharedName, []byte(rand.Text())); err != nil && !errors.Is(err, fault.AlreadyExists) {
			return "", err
		}
	}
}

// openObjects opens where SSTables are kept.
func (s *Store) openObjects(ctx context.Context) (err error) {
	if s.o.Objects == nil {
		s.objects, err = objectstore.OpenLocal(s.o.FS, s.o.FS.PathJoin(s.o.Dir, "sst"), objectstore.LocalOptions{})
		return err
	}
	s.objects = objectstore.Sub(s.o.Objects, sharedSST)
	return s.o.Objects.Probe(ctx)
}

// openLog opens the log that goes by dir.
func (s *Store) openLog(ctx context.Context, dir string, segment int64, durability commitlog.Durability) (commitlog.Log, error) {
	if s.o.Objects != nil {
		l, err := commitlog.OpenSegments(ctx, objectstore.Sub(s.o.Objects, dir), commitlog.ID(s.root.Incarnation()), commitlog.SegmentOptions{
			CommitInterval: s.o.CommitInterval, Log: s.o.Log, Observe: s.o.OnCommit,
		})
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	l, err := commitlog.Open(s.o.FS, s.o.FS.PathJoin(s.o.Dir, dir), commitlog.Options{
		SegmentBytes: segment, Durability: durability, KeepFreeBytes: s.o.KeepFreeBytes, Log: s.o.Log, Observe: s.o.OnCommit,
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// checkSharedRoot is checkRoot for what is in a shared store.
func checkSharedRoot(ctx context.Context, fs vfs.FS, dir string, store objectstore.Store) error {
	if exists, err := exists(fs, fs.PathJoin(dir, "ROOT")); exists || err != nil {
		return err
	}
	for _, part := range []string{"log/", "ulog/", sharedSST + "/"} {
		found, err := store.List(ctx, part, "", 1)
		if err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
		if len(found) > 0 {
			return fault.New(fault.Corruption, "%s has no ROOT file but its object store is not new: it has %s", dir, found[0].Name)
		}
	}
	return nil
}

// covered fails if a log in a shared store lacks what rows have yet to replay. A
// log in files is a chain of segments that shows by itself what is missing. A
// redo point names a record that was durable, so its segment is there.
func covered(l commitlog.Log, rows ...*metadata.Row) error {
	segments, ok := l.(*commitlog.SegmentLog)
	if !ok {
		return nil
	}
	for _, r := range rows {
		if r.Redo != (commitlog.Pos{}) && !segments.Holds(r.Redo) {
			return fault.New(fault.Corruption, "tablet %v has the redo point %v, which the log does not hold", r.Tablet, r.Redo)
		}
	}
	return nil
}
