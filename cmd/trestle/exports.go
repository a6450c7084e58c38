package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/export"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/gateway"
)

// exports copies backups between the store of a process and export-store.
type exports struct {
	tables  *client.Client
	objects objectstore.Store // the SSTables; nil if the process has no store
	front   *gateway.Server
	at      string // export-store
	owner   string // of what is written there

	mu    sync.Mutex
	store objectstore.Store // once it was opened
}

// newExports returns the exports of a process. Export-store is opened when it is
// needed: a share that is not mounted keeps no server from its start.
func newExports(cfg *settings.Serve, tables *client.Client, objects objectstore.Store, front *gateway.Server) *exports {
	host, _ := os.Hostname()
	_, port, _ := net.SplitHostPort(cfg.Listen)
	return &exports{tables: tables, objects: objects, front: front, at: cfg.ExportStore, owner: plainName(host) + "-" + port}
}

// open returns the part of export-store that is for an export.
func (e *exports) open(ctx context.Context, name string) (objectstore.Store, error) {
	if e.objects == nil {
		return nil, fault.New(fault.FailedPrecondition, "a gateway does not have the SSTables: ask a tablet server (--admin)")
	}
	if e.at == "" {
		return nil, fault.New(fault.FailedPrecondition, "the server has no place for exports: start it with --export-store")
	}
	if err := objectstore.CheckName(name); err != nil || strings.Contains(name, "/") {
		return nil, fault.New(fault.Invalid, "%q cannot name an export: it is one part of a path below export-store, of letters, digits, '.', '_' and '-'", name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store == nil {
		var s objectstore.Store
		var err error
		if u, _ := url.Parse(e.at); u != nil && u.Scheme == "file" {
			_, err = os.Stat(u.Path) // it may not be mounted: it is not made
		}
		if err == nil {
			s, err = node.OpenURL(ctx, e.at, e.owner)
		}
		if err == nil {
			err = s.Probe(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("open export-store %s: %w", e.at, err)
		}
		e.store = s
	}
	return objectstore.Sub(e.store, name), nil
}

func (e *exports) copier(report func(done, total int64)) *export.Copier {
	version, _, revision := ops.BuildInfo()
	return &export.Copier{Tables: e.tables, Objects: e.objects, Program: version + " " + revision, Report: report}
}

// ExportBackup implements ops.Exporter.
func (e *exports) ExportBackup(ctx context.Context, backup, name string, report func(done, total int64)) error {
	to, err := e.open(ctx, name)
	if err == nil {
		_, err = e.copier(report).Export(ctx, backup, to)
	}
	return e.in(name, err)
}

// in says of which export an error is.
func (e *exports) in(name string, err error) error {
	if err == nil || e.objects == nil || e.at == "" {
		return err
	}
	return fmt.Errorf("%s in %s: %w", name, e.at, err)
}

// An exported is an export whose manifest was read.
type exported struct {
	e    *exports
	name string
	from objectstore.Store
	m    *export.Manifest
}

// OpenExport implements ops.Exporter.
func (e *exports) OpenExport(ctx context.Context, name string) (ops.Export, error) {
	from, err := e.open(ctx, name)
	if err != nil {
		return nil, err
	}
	m, err := export.Read(ctx, from)
	return &exported{e, name, from, m}, e.in(name, err)
}

// Source implements ops.Export.
func (x *exported) Source() string { return x.m.Backup.Name }

// Import implements ops.Export.
func (x *exported) Import(ctx context.Context, backup string, life time.Duration, report func(done, total int64)) error {
	want, release, err := x.e.front.ImportedBackup(ctx, backup, x.m.Backup, life)
	if err != nil {
		return err
	}
	defer release()
	_, err = x.e.copier(report).Import(ctx, x.from, x.m, want)
	return x.e.in(x.name, err)
}
