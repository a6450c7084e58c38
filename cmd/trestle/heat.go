package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/keyvis"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

// recordHeat records the load of a server's tablets in a store of its own, until stop is
// called.
func recordHeat(store objectstore.Store, server string, ts *tabletserver.Server, splitRate float64, log *slog.Logger) (read ops.HeatReader, stop func()) {
	h := keyvis.OpenHistory(store, nil)
	return heatOf(h, ts.Schemas(), splitRate), startRecorder(h, server, ts, log)
}

// heatOf returns heat maps of a history. splitRate is tabletserver.Options.SplitRate.
func heatOf(h *keyvis.History, schemas *catalog.Schemas, splitRate float64) ops.HeatReader {
	return func(ctx context.Context, q keyvis.Query) (*keyvis.Matrix, error) {
		if q.SplitRate = splitRate; splitRate == 0 {
			q.SplitRate = tabletserver.Options{}.WithDefaults().SplitRate
		}
		name, id := q.Table, metastore.Table
		if name != metastore.Schema.Name {
			t, err := schemas.Named(ctx, name)
			if err != nil {
				return nil, err
			}
			id = t.Schema().ID
		}
		q.Table = recordedTable(id)
		m, err := h.Read(ctx, q)
		if err == nil {
			m.Table = name
		}
		return m, err
	}
}

// recordedTable is what a history calls a table. An id is never used again, as a name may
// be when its table was deleted.
func recordedTable(id uint64) string { return strconv.FormatUint(id, 16) }

// startRecorder records the load of a server's tablets until the function that it returns
// is called.
func startRecorder(h *keyvis.History, server string, ts *tabletserver.Server, log *slog.Logger) (stop func()) {
	r := keyvis.NewRecorder(h, keyvis.Options{Process: server + "-" + rand.Text(), Log: log, Tablets: func(each func(keyvis.Tablet, string)) {
		ts.Loaded(func(t *tablet.Tablet, table uint64) { each(t, recordedTable(table)) })
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// recordHistory records what the process does, for admin, until stop is called.
func recordHistory(m *ops.Metrics, admin *ops.Admin) (stop func()) {
	h := ops.NewHistory(m)
	admin.ShowHistory(h)
	ctx, cancel := context.WithCancel(context.Background())
	go h.Run(ctx)
	return cancel
}
