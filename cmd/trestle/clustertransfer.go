package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/transfer"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
)

// adopt makes a cluster of a data directory.
func (o *operator) adopt(ctx context.Context, _ []string) error {
	if o.n != nil && o.cfg.Store == "" {
		return errors.New("adopt needs --store: where the cluster's data is to be, as in --store file:///srv/trestle")
	}
	dir, closeDir, err := o.directory(ctx, true)
	if err != nil {
		return err
	}
	defer closeDir()
	if o.abandon { // asks no etcd, which may be gone
		return o.abandonTransfer(ctx, dir)
	}
	store, err := o.n.OpenStore(ctx, node.StoreOptions{URL: o.cfg.Store, Cluster: o.cfg.Cluster, Owner: "transfer", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return o.transfer(ctx, dir, o.cluster(store), "start masters and tablet servers, and then run `trestle check --online --blocks`")
}

// release makes a data directory of a cluster.
func (o *operator) release(ctx context.Context, _ []string) error {
	store, err := o.openStore(ctx, "release")
	if err != nil {
		return err
	}
	from := o.cluster(store)
	if o.abandon {
		return o.abandonTransfer(ctx, from)
	}
	dir, closeDir, err := o.directory(ctx, false)
	if err != nil {
		return err
	}
	defer closeDir()
	return o.transfer(ctx, from, dir, "run `trestle check` on it, and then `trestle serve`")
}

// cluster returns the side of the cluster, whose store it is.
func (o *operator) cluster(store *node.Store) transfer.Side {
	return transfer.Side{Name: fmt.Sprintf("cluster %s (etcd %s)", o.cfg.Cluster, o.cfg.Etcd), Lock: o.n.Lock,
		Objects: store.SSTables, Logs: store.Logs, Copies: store.Copies}
}

// directory opens the side of the data directory, which has to be there if it is the
// source.
func (o *operator) directory(ctx context.Context, source bool) (transfer.Side, func(), error) {
	if o.dataDir == "" {
		return transfer.Side{}, nil, errors.New("say which data directory is meant: --data-dir DIR")
	}
	path, err := filepath.Abs(o.dataDir)
	if err != nil {
		return transfer.Side{}, nil, err
	}
	if source {
		if err := checkStopped(path); err != nil {
			return transfer.Side{}, nil, err
		}
	} else if err := checkOwner(path, os.Geteuid()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return transfer.Side{}, nil, err
	}
	free, used := datadir.Space(vfs.Default, path)
	disk := free + used
	segment := int64(64 << 20)
	if disk > 0 {
		segment = max(1<<20, min(segment, disk/64))
	}
	p, err := standalone.OpenParts(ctx, standalone.Options{Dir: path, Log: commitlog.Options{SegmentBytes: segment, KeepFreeBytes: datadir.KeepFree(disk)}})
	if err != nil {
		return transfer.Side{}, nil, fmt.Errorf("open the data directory: %w", err)
	}
	return transfer.Side{Name: "data directory " + path, Lock: p.Lock, Objects: p.Objects, Private: p.Private},
		func() {
			if err := p.Close(); err != nil {
				fmt.Fprintf(o.p.stderr, "close %s: %v\n", path, err)
			}
		}, nil
}

// transfer copies everything, or, with --done, ends the source.
func (o *operator) transfer(ctx context.Context, from, to transfer.Side, next string) error {
	if o.done {
		if err := transfer.Done(ctx, from, to); err != nil {
			return err
		}
		return o.told(transferred{State: "done", From: from.Name, To: to.Name}, "%s is never served again: delete it when you like\n", from.Name)
	}
	begun := time.Now()
	var r transfer.Result
	err := o.p.telling("copy", func(g *progress) (err error) {
		r, err = transfer.Run(ctx, from, to, transfer.Options{Command: o.command, Progress: g.bytes})
		return err
	})
	if err != nil {
		return err
	}
	has := fmt.Sprintf("everything of %s", from.Name)
	if !r.Again {
		has = fmt.Sprintf("%d tables, %d tablets, %d backups and %d SSTables (%s) of %s, each of which was read back, after %s",
			r.Tables, r.Tablets, r.Backups, r.SSTables, byteSize(r.Bytes), from.Name, time.Since(begun).Round(10*time.Millisecond))
	}
	return o.told(transferred{State: "complete", From: from.Name, To: to.Name, Again: r.Again, Tables: r.Tables, Tablets: r.Tablets, Backups: r.Backups,
		SSTables: r.SSTables, Bytes: r.Bytes, Seconds: time.Since(begun).Seconds()},
		"%s has %s: %s. %s is not served any more. Say --done when you need it no longer, or --abandon to go back to it, without what was written since\n", to.Name, has, next, from.Name)
}

// A transferred is what --json prints of adopt and release.
type transferred struct {
	State    string  `json:"state"` // complete, done or abandoned
	From     string  `json:"from"`
	To       string  `json:"to"`
	Again    bool    `json:"again,omitempty"` // it was complete already, and nothing was counted
	Tables   int     `json:"tables,omitempty"`
	Tablets  int     `json:"tablets,omitempty"`
	Backups  int     `json:"backups,omitempty"`
	SSTables int     `json:"sstables,omitempty"`
	Bytes    int64   `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
}

// told prints how a transfer ended: v with --json, else the text.
func (o *operator) told(v transferred, format string, args ...any) error {
	if o.json {
		return o.print(v)
	}
	_, err := fmt.Fprintf(o.p.stdout, format, args...)
	return err
}

// abandonTransfer lets the source be served again.
func (o *operator) abandonTransfer(ctx context.Context, from transfer.Side) error {
	was, err := transfer.Abandon(ctx, from)
	if err != nil {
		return err
	}
	v := transferred{State: "abandoned", From: from.Name, To: was.Peer}
	if was.State == catalog.TransferComplete {
		return o.told(v, "%s can be served again. %s can be, too, since %s: stop it, or the two go apart\n", from.Name, was.Peer, was.Ended.Format(time.RFC3339))
	}
	return o.told(v, "%s can be served again. %s has a part of it, and is not served: empty it before it is used for something else\n", from.Name, was.Peer)
}
