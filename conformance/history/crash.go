package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/conformance/views"
	"github.com/trestledb/trestle/engine/loopback"
)

// CrashOptions configures Crash.
type CrashOptions struct {
	// Process is the server. Each round dials it anew: Listen may be empty.
	Process target.Process
	// Rounds of load, kill, restart and check. Zero means 20.
	Rounds int
	// Clients at once, each with keys of its own. Zero means 8.
	Clients int
	// Keys of each client. Zero means 200.
	Keys int
	// MinLoad and MaxLoad bound the time from the start of the load to the
	// kill. Zero means 50 ms and 1.5 s.
	MinLoad, MaxLoad time.Duration
	Seed             uint64
	// Views is how many materialized views of the rows there are, 3 at most. Each has to equal
	// its query's result after each restart.
	Views int
	// Log is told of each round.
	Log io.Writer
}

// A CrashReport is what Crash found.
type CrashReport struct {
	Rounds int
	// Acked counts acknowledged changes of rows, Unknown those without answer.
	Acked, Unknown int64
	// Checked counts rows read after restarts.
	Checked int64
	// ViewRows counts rows of views that were compared, and CaughtUp is the longest time
	// from the first answer until a view had caught up.
	ViewRows int64
	CaughtUp time.Duration
	// Lost are rows that miss an acknowledged change or hold what an
	// acknowledged one had removed; Torn are rows with a part of a change.
	// Of each, the first few are described in Violations.
	Lost, Torn int
	Violations []string
	// Restart is the longest time from exec to the first answer.
	Restart time.Duration
}

// crashFamilies hold the same value in every row, or else it is torn.
var crashFamilies = []string{"a", "b", "c"}

// crashViews are a sum by group, a secondary index, and a minimum and a number of distinct
// values by group.
var crashViews = []views.View{
	{ID: "sums", Columns: "_key, n, total",
		Query: "SELECT SUBSTR(a['v'], 1, 1) AS _key, COUNT(*) AS n, SUM(TO_INT64(a['n'])) AS total FROM crash WHERE a['v'] IS NOT NULL GROUP BY _key"},
	{ID: "by-value", Columns: "value, source, n",
		Query: "SELECT SUBSTR(b['v'], 1, 24) AS value, _key AS source, LENGTH(b['v']) AS n FROM crash WHERE b['v'] IS NOT NULL ORDER BY value, source"},
	{ID: "distinct", Columns: "n, least, sketch",
		Query: "SELECT LENGTH(c['v']) AS n, MIN(SUBSTR(c['v'], 1, 24)) AS least, HLL_COUNT.INIT(SUBSTR(c['v'], 1, 24)) AS sketch FROM crash WHERE c['v'] IS NOT NULL GROUP BY n"},
}

// A shape is what a row should hold.
type shape struct {
	value   string // of a:v, b:v and c:v; empty means none
	counter int64  // of a:n and c:n; 0 means none
}

// An owned row is one that a single client changes, one request at a time.
type owned struct {
	key   string
	acked shape
	// maybe is what the row may hold besides, as the last change went without
	// an answer.
	maybe *shape
}

// A crasher is the state of a run.
type crasher struct {
	CrashOptions
	report         CrashReport
	acked, unknown atomic.Int64
	clients        [][]*owned
	tables         []string // acknowledged creations
	tableMaybe     string
}

// Crash kills the server with SIGKILL again and again and checks, after each
// restart, every row of every client against what was acknowledged. An error
// means that the run could not go on, such as when the server does not start.
func Crash(ctx context.Context, o CrashOptions) (*CrashReport, error) {
	o.Rounds, o.Clients, o.Keys = cmp.Or(o.Rounds, 20), cmp.Or(o.Clients, 8), cmp.Or(o.Keys, 200)
	o.MinLoad, o.MaxLoad = cmp.Or(o.MinLoad, 50*time.Millisecond), cmp.Or(o.MaxLoad, 1500*time.Millisecond)
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Views > 0 && !o.Process.Cluster && o.Process.HTTP == "" {
		host, err := loopback.Take()
		if err != nil {
			return nil, err
		}
		defer host.Close()
		if o.Process.HTTP, err = host.Addr(); err != nil {
			return nil, err
		}
	}
	c := &crasher{CrashOptions: o, clients: make([][]*owned, o.Clients)}
	for i := range c.clients {
		for k := range o.Keys {
			c.clients[i] = append(c.clients[i], &owned{key: fmt.Sprintf("c%02d/%05d", i, k)})
		}
	}
	r := rand.New(rand.NewPCG(o.Seed, 0))
	for round := range o.Rounds {
		if err := c.round(ctx, round, r); err != nil {
			return &c.report, fmt.Errorf("round %d: %w", round, err)
		}
	}
	return &c.report, nil
}

func (c *crasher) round(ctx context.Context, round int, r *rand.Rand) error {
	start := time.Now()
	s, err := target.Start(ctx, c.Process)
	if err != nil {
		return err
	}
	defer func() { _ = s.Kill() }()
	// Calls would wait for ever for a server that has ended.
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	go func() {
		select {
		case <-s.Dead():
			ended(errors.New("the server ended"))
		case <-ctx.Done():
		}
	}()
	cl, err := dial(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer cl.close()
	if round == 0 {
		if _, err := cl.table(ctx, "crash", crashFamilies...); err != nil {
			return err
		}
	}
	t := cl.data.Open("crash")
	if _, err := t.ReadRow(ctx, "c00/00000"); err != nil {
		return fmt.Errorf("first read after the start: %w\n%s", err, s.Log())
	}
	restart := time.Since(start)
	c.report.Restart = max(c.report.Restart, restart)
	if err := c.checkViews(ctx, round, s, cl); err != nil {
		return fmt.Errorf("%w\n%s", err, s.Log())
	}
	if err := c.check(ctx, cl, t); err != nil {
		return fmt.Errorf("check: %w\n%s", err, s.Log())
	}
	if round == c.Rounds-1 {
		c.finish(round+1, restart)
		return nil
	}

	var wg sync.WaitGroup
	for i, rows := range c.clients {
		wg.Go(func() { c.load(ctx, t, rows, rand.New(rand.NewPCG(c.Seed+uint64(round), uint64(i)+1))) })
	}
	wg.Go(func() { c.adminLoad(ctx, cl, round) })
	time.Sleep(c.MinLoad + time.Duration(r.Int64N(int64(c.MaxLoad-c.MinLoad)+1)))
	select {
	case <-s.Dead():
		return fmt.Errorf("the server ended by itself\n%s", s.Log())
	default:
	}
	if s.Cluster != nil {
		if err := s.Cluster.Ended(); err != nil {
			return fmt.Errorf("of the cluster %w\n%s", err, s.Log())
		}
	}
	if err := s.Kill(); err != nil {
		return err
	}
	ended(nil)
	wg.Wait()
	c.finish(round+1, restart)
	return nil
}

// checkViews makes the views in the first round, and compares them in all.
func (c *crasher) checkViews(ctx context.Context, round int, s *target.Server, cl *cluster) error {
	const parent = "projects/" + project + "/instances/" + instance
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	at, start := c.Process.HTTP, time.Now()
	if s.Cluster != nil {
		at = s.Cluster.HTTP[0]
	}
	for i := range crashViews[:c.Views] {
		v := &crashViews[i]
		if round == 0 {
			if err := v.Create(ctx, cl.cc, parent); err != nil {
				return err
			}
		}
		if err := v.Wait(ctx, at, parent); err != nil {
			return err
		}
	}
	c.report.CaughtUp = max(c.report.CaughtUp, time.Since(start))
	for i := range crashViews[:c.Views] {
		n, err := crashViews[i].Check(ctx, cl.data)
		if err != nil {
			c.report.Torn++
			c.violation("%v", err)
		}
		c.report.ViewRows += int64(n)
	}
	return nil
}

func (c *crasher) finish(rounds int, restart time.Duration) {
	c.report.Rounds = rounds
	c.report.Acked, c.report.Unknown = c.acked.Load(), c.unknown.Load()
	fmt.Fprintf(c.Log, "round %d: %d acked, %d unknown, %d rows checked, %d lost, %d torn, restart %v\n",
		rounds, c.report.Acked, c.report.Unknown, c.report.Checked, c.report.Lost, c.report.Torn, restart.Round(time.Millisecond))
}

// load changes rows until ctx ends or a request goes without an answer.
func (c *crasher) load(ctx context.Context, t *bigtable.Table, rows []*owned, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		row := rows[r.IntN(len(rows))]
		next := shape{value: fmt.Sprintf("%x:", r.Uint64()) + strings.Repeat("x", size(r))}
		var err error
		octx, cancel := context.WithTimeout(once(ctx), 10*time.Second)
		switch k := r.IntN(100); {
		case k < 50: // replace the values, keep the counter
			next.counter = row.acked.counter
			err = t.Apply(octx, row.key, put(next.value))
		case k < 60:
			next = shape{}
			m := bigtable.NewMutation()
			m.DeleteRow()
			err = t.Apply(octx, row.key, m)
		case k < 65: // delete and write at once
			m := bigtable.NewMutation()
			m.DeleteRow()
			for _, f := range crashFamilies {
				m.Set(f, "v", 0, []byte(next.value))
			}
			err = t.Apply(octx, row.key, m)
		case k < 80:
			next = row.acked
			next.counter++
			m := bigtable.NewReadModifyWrite()
			m.Increment("a", "n", 1)
			m.Increment("c", "n", 1)
			_, err = t.ApplyReadModifyWrite(octx, row.key, m)
		case k < 90: // compare the value, then set
			next.counter = row.acked.counter
			cond := bigtable.NewCondMutation(bigtable.ChainFilters(bigtable.ColumnFilter("v"), bigtable.LatestNFilter(1)), put(next.value), put(next.value))
			err = t.Apply(octx, row.key, cond)
		default: // many rows in one request
			var batch []*owned
			var keys []string
			var muts []*bigtable.Mutation
			for _, i := range r.Perm(len(rows))[:min(20, len(rows))] {
				batch = append(batch, rows[i])
				keys = append(keys, rows[i].key)
				muts = append(muts, put(next.value))
			}
			var errs []error
			// Retries of a batch write the same values again: harmless.
			errs, err = t.ApplyBulk(octx, keys, muts)
			for i, b := range batch {
				one := shape{value: next.value, counter: b.acked.counter}
				if e := err; e == nil && (len(errs) == 0 || errs[i] == nil) {
					b.acked = one
					c.acked.Add(1)
				} else {
					b.maybe = &one
					c.unknown.Add(1)
				}
			}
			cancel()
			if err != nil || len(errs) > 0 {
				return
			}
			continue
		}
		cancel()
		if err != nil {
			row.maybe = &next
			c.unknown.Add(1)
			return
		}
		row.acked = next
		c.acked.Add(1)
	}
}

// size is mostly small, at times large enough for several blocks.
func size(r *rand.Rand) int {
	switch r.IntN(20) {
	case 0:
		return 20_000 + r.IntN(60_000)
	case 1, 2, 3:
		return r.IntN(4000)
	}
	return r.IntN(100)
}

func put(value string) *bigtable.Mutation {
	m := bigtable.NewMutation()
	for _, f := range crashFamilies {
		m.Set(f, "v", 0, []byte(value))
	}
	return m
}

// adminLoad creates tables: an acknowledged one must be there afterwards.
func (c *crasher) adminLoad(ctx context.Context, cl *cluster, round int) {
	for n := 0; n < 5 && ctx.Err() == nil; n++ {
		name := fmt.Sprintf("t-%d-%d", round, n)
		if _, err := cl.table(once(ctx), name, "f"); err != nil {
			c.tableMaybe = name
			return
		}
		c.tables = append(c.tables, name)
	}
}

// check reads everything and settles what went without an answer.
func (c *crasher) check(ctx context.Context, cl *cluster, t *bigtable.Table) error {
	got := map[string]bigtable.Row{}
	if err := t.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		got[r.Key()] = r
		return true
	}, bigtable.RowFilter(bigtable.LatestNFilter(1))); err != nil {
		return err
	}
	for _, rows := range c.clients {
		for _, o := range rows {
			c.report.Checked++
			have, torn := shapeOf(got[o.key])
			delete(got, o.key)
			switch {
			case torn != "":
				c.report.Torn++
				c.violation("row %s is torn: %s", o.key, torn)
			case have != o.acked && (o.maybe == nil || have != *o.maybe):
				c.report.Lost++
				c.violation("row %s holds %v, acknowledged was %v, perhaps %v", o.key, have, o.acked, o.maybe)
			}
			o.acked, o.maybe = have, nil
		}
	}
	for k := range got {
		c.report.Torn++
		c.violation("row %s was never written", k)
	}
	list, err := cl.admin.Tables(ctx)
	if err != nil {
		return err
	}
	for _, name := range c.tables {
		if !slices.Contains(list, name) {
			c.report.Lost++
			c.violation("table %s is gone", name)
		}
	}
	if slices.Contains(list, c.tableMaybe) {
		c.tables = append(c.tables, c.tableMaybe)
	}
	c.tableMaybe = ""
	return nil
}

func (c *crasher) violation(format string, args ...any) {
	if len(c.report.Violations) < 20 {
		c.report.Violations = append(c.report.Violations, fmt.Sprintf(format, args...))
	}
}

func (s shape) String() string {
	v := s.value
	if len(v) > 24 {
		v = fmt.Sprintf("%s…(%d)", v[:24], len(v))
	}
	return fmt.Sprintf("{%q n=%d}", v, s.counter)
}

// shapeOf decodes a row, or says how it is torn.
func shapeOf(r bigtable.Row) (s shape, torn string) {
	values, counters := map[string][]byte{}, map[string][]byte{}
	for f, items := range r {
		for _, it := range items {
			switch it.Column {
			case f + ":v":
				values[f] = it.Value
			case f + ":n":
				counters[f] = it.Value
			default:
				return s, "it has a column " + it.Column
			}
		}
	}
	if len(values) > 0 {
		for _, f := range crashFamilies {
			if values[f] == nil || !bytes.Equal(values[f], values[crashFamilies[0]]) {
				return s, fmt.Sprintf("the values of its families differ: %d of %d are there", len(values), len(crashFamilies))
			}
		}
		s.value = string(values[crashFamilies[0]])
	}
	if len(counters) > 0 {
		if !bytes.Equal(counters["a"], counters["c"]) || len(counters["a"]) != 8 {
			return s, fmt.Sprintf("its counters differ: %x", counters)
		}
		s.counter = int64(binary.BigEndian.Uint64(counters["a"]))
	}
	return s, ""
}

// Err returns nil if nothing was lost or torn.
func (r *CrashReport) Err() error {
	if r.Lost == 0 && r.Torn == 0 {
		return nil
	}
	return fmt.Errorf("%d lost, %d torn:\n%s", r.Lost, r.Torn, strings.Join(r.Violations, "\n"))
}
