package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/metadata"
)

// observeMaster adds the metrics of a master.
func observeMaster(m *ops.Metrics, c *master.Counters) {
	one := func(n float64) float64 { return n }
	seconds := func(n float64) float64 { return n / 1e9 }
	for _, r := range []struct {
		name, help string
		labels     prometheus.Labels
		counter    *atomic.Int64
		of         func(float64) float64
	}{
		{"bigtable_master_terms_total", "Times that this process became the master.", nil, &c.Terms, one},
		{"bigtable_master_rounds_total", "Times that the master looked at everything.", nil, &c.Rounds, one},
		{"bigtable_master_rounds_failed_total", "Rounds that did not get to their end.", nil, &c.Failed, one},
		{"bigtable_master_round_seconds_total", "Time that rounds took.", nil, &c.RoundNanos, seconds},
		{"bigtable_master_assignments_total", "Tablets that were given to a server.", nil, &c.Assigned, one},
		{"bigtable_master_takeovers_total", "Tablets that were given to a server because theirs had died.", nil, &c.TakenOver, one},
		{"bigtable_master_given_up_total", "Tablet servers that had died, as far as the master could tell, and were given up before their session had ended.", nil, &c.GivenUp, one},
		{"bigtable_master_moves_total", "Moves of tablets that were begun.", prometheus.Labels{"why": "drain"}, &c.MovedAway, one},
		{"bigtable_master_moves_total", "Moves of tablets that were begun.", prometheus.Labels{"why": "wanted"}, &c.MovedWanted, one},
		{"bigtable_master_moves_total", "Moves of tablets that were begun.", prometheus.Labels{"why": "balance"}, &c.MovedEven, one},
		{"bigtable_master_moves_failed_total", "Moves whose tablet its server did not give up.", nil, &c.MovesFailed, one},
		{"bigtable_master_merges_total", "Merges of neighbours that had become small.", nil, &c.Merged, one},
		{"bigtable_master_balances_total", "Times that the master compared the load of the servers.", nil, &c.Balanced, one},
		{"bigtable_master_balances_skipped_total", "Comparisons that came to nothing: a server did not answer, or a tablet was on its way.", nil, &c.BalanceSkipped, one},
		{"bigtable_master_calls_total", "Calls to tablet servers.", nil, &c.Calls, one},
		{"bigtable_master_calls_failed_total", "Calls to tablet servers that failed.", nil, &c.CallsFailed, one},
		{"bigtable_master_metadata_scans_total", "Times that the master read all of METADATA.", nil, &c.Scans, one},
		{"bigtable_master_metadata_reads_total", "Reads of METADATA tablets.", nil, &c.MetadataReads, one},
		{"bigtable_master_root_reads_total", "Reads of the METADATA tablets' own rows in the lock service.", nil, &c.RootReads, one},
		{"bigtable_master_metadata_changes_total", "Attempts to change a METADATA row.", nil, &c.MetadataChanges, one},
		{"bigtable_master_metadata_conflicts_total", "Attempts to change a METADATA row that somebody else had changed.", nil, &c.MetadataConflicts, one},
	} {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: r.name, Help: r.help, ConstLabels: r.labels},
			func() float64 { return r.of(float64(r.counter.Load())) }))
	}
	for _, r := range []struct {
		name, help string
		gauge      *atomic.Int64
	}{
		{"bigtable_master_leading", "1 if this process is the master.", &c.Leading},
		{"bigtable_master_servers", "Tablet servers that live; 0 if this process is not the master.", &c.Servers},
		{"bigtable_master_tablets", "Tablets that the master knows of.", &c.Tablets},
		{"bigtable_master_tablets_waiting", "Tablets without a server.", &c.Waiting},
		{"bigtable_master_tablets_opening", "Tablets that their server has not opened yet.", &c.Opening},
	} {
		m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: r.name, Help: r.help}, func() float64 { return float64(r.gauge.Load()) }))
	}
}

// observeNode adds the metrics of a node, of its client, and of the way to other
// servers.
func observeNode(m *ops.Metrics, n *node.Node, c *client.Client) {
	m.Registry.MustRegister(damageCollector{n.DamagedLogs})
	for _, r := range []struct {
		name, help string
		get        func() int64
	}{
		{"bigtable_cluster_location_hits_total", "Requests whose tablet was at a remembered place.", c.Counters.Hits.Load},
		{"bigtable_cluster_location_lookups_total", "Requests that looked a tablet up in METADATA.", c.Counters.Lookups.Load},
		{"bigtable_cluster_location_wrong_total", "Requests that a server refused because the tablet had moved.", c.Counters.Wrong.Load},
		{"bigtable_cluster_metadata_reads_total", "Reads of METADATA tablets.", c.Metadata().Reads.Load},
		{"bigtable_cluster_root_reads_total", "Reads of the METADATA tablets' own rows in the lock service.", c.Metadata().RootReads.Load},
		{"bigtable_cluster_forwarded_total", "Calls to tablet servers in other processes.", n.Dialer.Forwarded.Load},
		{"bigtable_cluster_local_total", "Calls to the tablet server in this process.", n.Dialer.Local.Load},
		{"bigtable_cluster_lost_total", "Calls whose answer did not come.", n.Dialer.Lost.Load},
	} {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: r.name, Help: r.help}, func() float64 { return float64(r.get()) }))
	}
}

// A damageCollector is a metric with a time series for each tablet that waits for
// a damaged commit log.
type damageCollector struct{ logs func() []catalog.DamagedLog }

var damageDesc = prometheus.NewDesc("bigtable_cluster_tablet_waits_for_damaged_log",
	"1 for each tablet that is not served because a segment of the commit log of a server that is gone is damaged.", []string{"table", "tablet", "object"}, nil)

func (c damageCollector) Describe(ch chan<- *prometheus.Desc) { ch <- damageDesc }

func (c damageCollector) Collect(ch chan<- prometheus.Metric) {
	seen := map[metadata.TabletID]bool{}
	for _, d := range c.logs() {
		for _, t := range d.Tablets {
			if !seen[t.Tablet] {
				seen[t.Tablet] = true
				ch <- prometheus.MustNewConstMetric(damageDesc, prometheus.GaugeValue, 1, t.Table, t.Tablet.String(), t.Object)
			}
		}
	}
}

// damageWarnings has a line for each damaged segment that tablets wait for, and for each log
// that has more than are named. They are for
// everybody, so they name no rows.
func damageWarnings(logs []catalog.DamagedLog) (lines []string) {
	for _, d := range logs {
		byObject := map[string][]catalog.WaitingTablet{}
		for _, t := range d.Tablets {
			byObject[t.Object] = append(byObject[t.Object], t)
		}
		for _, object := range slices.Sorted(maps.Keys(byObject)) {
			waiting := byObject[object]
			line := fmt.Sprintf("commit log segment %s of %s is damaged (%s) since %s; not served without it: ", object, cmp.Or(d.Server, "a server that is gone"), waiting[0].Error, waiting[0].Since.UTC().Format(time.RFC3339))
			for i, t := range waiting {
				if i == 8 {
					line += fmt.Sprintf("; and %d tablets more", len(waiting)-i)
					break
				}
				if i > 0 {
					line += "; "
				}
				line += fmt.Sprintf("tablet %v of %s", t.Tablet, t.Table)
			}
			lines = append(lines, line)
		}
		if d.More {
			lines = append(lines, fmt.Sprintf("more tablets wait for commit log %v of %s than are counted here", d.Log, cmp.Or(d.Server, "a server that is gone")))
		}
	}
	return lines
}
