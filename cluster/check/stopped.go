package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Stopped is Cluster of a cluster of which no process lives. METADATA is recovered
// as the next servers would, in memory: neither lock service nor store is changed.
// Without a lock service it goes by the newest copy in copies, as recover does.
func Stopped(ctx context.Context, o ClusterOptions, copies objectstore.Store, report func(Finding)) (Summary, error) {
	cp, err := o.items(ctx, copies)
	if err != nil {
		return Summary{}, err
	}
	l := memory.New().Client(nil, nil)
	none, err := objectstore.OpenLocal(vfs.NewMem(), "copies", objectstore.LocalOptions{})
	if err != nil {
		return Summary{}, err
	}
	if err := (&catalog.Copier{Lock: l, Store: none}).Restore(ctx, cp); err != nil {
		return Summary{}, fmt.Errorf("read the lock service: %w", err)
	}
	if err := catalog.CheckFormat(ctx, l); err != nil {
		return Summary{}, err
	}
	o.Lock, o.stopped = l, true
	if o.roots, err = metastore.RootsOf(cp.Items); err != nil {
		return Summary{}, err
	}
	if o.Objects, err = objectstore.Overlay(o.Objects); err != nil {
		return Summary{}, err
	}
	if o.Logs, err = objectstore.Overlay(o.Logs); err != nil {
		return Summary{}, err
	}
	d := new(singleDialer)
	o.Dialer = d
	s, err := tabletserver.Start(ctx, tabletserver.Options{Name: "check", Addr: "check", Lock: l, Dialer: d, Objects: o.Objects, Logs: o.Logs,
		TTL: 24 * time.Hour, NoBackground: true, CacheBytes: 8 << 20, RowCacheBytes: -1})
	if err != nil {
		return Summary{}, fmt.Errorf("recover METADATA: %w", err)
	}
	d.TabletServer = s
	defer s.Kill()
	broken := serveMetadata(ctx, o, s)
	if ctx.Err() != nil {
		return Summary{}, ctx.Err()
	}
	if broken != nil {
		o.broken = broken.Error()
	}
	return Cluster(ctx, o, report)
}

// items returns the content of the lock service, or its newest copy.
func (o ClusterOptions) items(ctx context.Context, copies objectstore.Store) (*catalog.Copy, error) {
	if o.Lock == nil {
		cp, err := (&catalog.Copier{Store: copies}).Newest(ctx)
		if err == nil {
			err = cp.Amend(ctx, o.Objects, o.Logs)
		}
		if err != nil {
			err = fmt.Errorf("read the newest copy of the lock service: %w", err)
		}
		return cp, err
	}
	servers, _, err := catalog.Servers(ctx, o.Lock)
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		return nil, fault.New(fault.FailedPrecondition, "tablet server %s lives: check what serves with --online, or stop all servers", s.ServerName())
	}
	return catalog.NewCopy(ctx, o.Lock)
}

// serveMetadata has a server open all METADATA tablets, which are not served. To open one
// whose split was under way leaves the left child to be opened.
func serveMetadata(ctx context.Context, o ClusterOptions, s *tabletserver.Server) error {
	meta := metastore.New(o.Lock, o.Dialer)
	for range maxLoads {
		roots, err := meta.Roots(ctx)
		if err != nil {
			return err
		}
		var keys []rpc.TabletKey
		for _, r := range roots {
			if a := r.Assignment; a.State == metadata.Open && a.Incarnation == s.Incarnation() {
				continue
			}
			r = r.Clone()
			r.Assignment = &metadata.Assignment{State: metadata.Opening, Epoch: r.Assignment.Epoch + 1, Server: "check", Addr: "check",
				Incarnation: s.Incarnation(), Log: r.Assignment.Log, Master: r.Assignment.Master}
			if err := meta.CAS(ctx, r); err != nil {
				return err
			}
			keys = append(keys, rpc.TabletKey{Table: metastore.Table, End: r.End})
		}
		if len(keys) == 0 {
			return nil
		}
		if err := s.Load(ctx, keys); err != nil {
			return err
		}
	}
	return errors.New("not all of its tablets can be opened")
}

// maxLoads is how often METADATA tablets are loaded: once, and once for what splits
// have left.
const maxLoads = 10

// singleDialer is the Dialer of one server.
type singleDialer struct{ rpc.TabletServer }

// Dial implements rpc.Dialer.
func (o *singleDialer) Dial(string) rpc.TabletServer { return o.TabletServer }
