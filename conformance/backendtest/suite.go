package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// An OpenFunc returns an empty Backend, and closes it with t.Cleanup.
type OpenFunc func(t testing.TB) backend.Backend

// Run runs the suite. Every test gets a Backend of its own.
func Run(t *testing.T, open OpenFunc) {
	t.Helper()
	RunExcept(t, open, nil)
}

// RunExcept is Run without the tests, written Group/Name, of what a Backend is
// known and said not to do; each with the reason.
func RunExcept(t *testing.T, open OpenFunc, except map[string]string) {
	t.Helper()
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Tables", tableTests},
		{"Read", readTests},
		{"Filter", filterTests},
		{"Mutate", mutateTests},
		{"Aggregate", aggregateTests},
		{"CheckAndMutate", casTests},
		{"ReadModifyWrite", rmwTests},
		{"Concurrent", concurrentTests},
		{"Records", recordTests},
		{"Backups", backupTests},
		{"Changes", changeTests},
		{"Context", contextTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, tc := range group.tests {
				t.Run(tc.name, func(t *testing.T) {
					if why := except[group.name+"/"+tc.name]; why != "" {
						t.Skip(why)
					}
					tc.run(&suite{T: t, ctx: t.Context(), Backend: open(t)})
				})
			}
		})
	}
	t.Run("Random", func(t *testing.T) { Random(t, open) })
}

type test struct {
	name string
	run  func(*suite)
}

// A suite is one test with its Backend.
type suite struct {
	*testing.T
	backend.Backend
	ctx context.Context
}

const parent = "projects/p/instances/i"

// create makes a MILLIS table with ordinary families. It returns the full name.
func (s *suite) create(id string, families ...string) string {
	s.Helper()
	return s.createTable(id, 1000, nil, families...)
}

// createTable makes a table. A family written "name=sum", "name=min",
// "name=max", "name=hll" is an aggregate.
func (s *suite) createTable(id string, granularity int64, splits [][]byte, families ...string) string {
	s.Helper()
	t, err := s.CreateTable(s.ctx, newTable(id, granularity, families...), splits)
	s.ok(err)
	return t.Name
}

func newTable(id string, granularity int64, families ...string) *schema.Table {
	t := &schema.Table{Name: parent + "/tables/" + id, Granularity: granularity, Families: map[string]schema.Family{}}
	for _, f := range families {
		name, agg, _ := strings.Cut(f, "=")
		t.Families[name] = schema.Family{Name: name, Aggregate: map[string]schema.Aggregate{
			"": schema.NotAggregate, "sum": schema.Sum, "min": schema.Min, "max": schema.Max, "hll": schema.HLL}[agg]}
	}
	return t
}

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("unexpected error: %v", err)
	}
}

func (s *suite) fails(err error, want fault.Kind) {
	s.Helper()
	if got := fault.KindOf(err); got != want {
		s.Fatalf("got error %v (kind %v), want kind %v", err, got, want)
	}
}

func (s *suite) failsWith(err error, want fault.Kind, text string) {
	s.Helper()
	s.fails(err, want)
	if !strings.Contains(err.Error(), text) {
		s.Errorf("error %q does not contain %q", err, text)
	}
}

// lacks checks that err is the refusal of what names a family that is not there.
func (s *suite) lacks(err error, family string) {
	s.Helper()
	s.failsWith(err, fault.NotFound, "Requested column family not found")
	if e := new(fault.Error); !errors.As(err, &e) || e.Metadata[schema.FamilyKey] != family {
		s.Errorf("%v: names the family %q, not %q", err, e.Metadata[schema.FamilyKey], family)
	}
}

// put writes cells to one row: put(table, row, set(…), del…(…)).
func (s *suite) put(table, key string, muts ...row.Mutation) {
	s.Helper()
	s.ok(s.MutateRow(s.ctx, table, &row.Entry{Key: []byte(key), Mutations: muts}))
}

func (s *suite) try(table, key string, muts ...row.Mutation) error {
	return s.MutateRow(s.ctx, table, &row.Entry{Key: []byte(key), Mutations: muts})
}

func set(family, qualifier string, ts int64, value string) row.Mutation {
	return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: ts, Value: []byte(value)}
}

func deleteColumn(family, qualifier string) row.Mutation {
	return deleteTimes(family, qualifier, cell.AllTime.Start, cell.AllTime.End)
}

func deleteTimes(family, qualifier string, start, end int64) row.Mutation {
	return row.Mutation{Op: row.DeleteColumn, Family: family, Qualifier: []byte(qualifier), Times: cell.TimeRange{Start: start, End: end}}
}

func deleteFamily(family string) row.Mutation {
	return row.Mutation{Op: row.DeleteFamily, Family: family}
}

func deleteRow() row.Mutation { return row.Mutation{Op: row.DeleteRow} }

func keyRange(start, end string) row.Range {
	return row.Range{Start: []byte(start), End: []byte(end)}
}

// read returns the rows of req, one line a cell, as render writes them.
func (s *suite) read(req *scan.Request) string {
	s.Helper()
	got, _, err := s.scan(req)
	s.ok(err)
	return got
}

func (s *suite) scan(req *scan.Request) (string, scan.Stats, error) {
	s.Helper()
	w := &Collector{Reversed: req.Reversed, FullEvery: 3}
	st, err := s.ReadRows(s.ctx, req, w)
	if werr := w.Check(); werr != nil {
		s.Fatalf("the reader broke scan.Writer's protocol: %v", werr)
	}
	return render(w.Rows), st, err
}

// all returns the whole table.
func (s *suite) all(table string) string {
	s.Helper()
	return s.read(&scan.Request{Table: table, Ranges: []row.Range{row.All}})
}

// want compares the whole table with lines such as "r1 f:q@1000=value".
func (s *suite) want(table string, lines ...string) {
	s.Helper()
	same(s.T, s.all(table), lines...)
}

func same(t testing.TB, got string, lines ...string) {
	t.Helper()
	want := strings.Join(lines, "\n")
	if want != "" {
		want += "\n"
	}
	if got != want {
		t.Fatalf("got:\n%swant:\n%s", got, want)
	}
}

// A Row is what a read returned of a row.
type Row struct {
	Key   string
	Cells []row.Cell
}

// A Collector is a scan.Writer that keeps rows and checks how it is called.
type Collector struct {
	// Reversed is that of the request.
	Reversed bool
	// FullEvery asks for a Flush after that many rows. 0 means never.
	FullEvery int
	// Fail, if set, is what the next EndRow or Flush returns.
	Fail error
	// Each, if set, is called at the end of every row.
	Each func(*Row)

	Rows    []Row
	Flushes int

	open      bool
	mustFlush bool
	behind    []byte // the last key that StartRow or Scanned named
	started   bool
	err       error
}

// Check returns the first way in which the protocol of scan.Writer was broken.
func (w *Collector) Check() error {
	if w.err == nil && w.open {
		return fmt.Errorf("row %q was not ended", w.Rows[len(w.Rows)-1].Key)
	}
	return w.err
}

func (w *Collector) broken(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// passes tells whether key comes behind what has been seen.
func (w *Collector) passes(key []byte, again bool) bool {
	if !w.started {
		return true
	}
	c := bytes.Compare(key, w.behind)
	if w.Reversed {
		c = -c
	}
	return c > 0 || again && c == 0
}

// StartRow implements scan.Writer.
func (w *Collector) StartRow(key []byte) {
	switch {
	case w.open:
		w.broken("StartRow(%q) inside a row", key)
	case w.mustFlush:
		w.broken("StartRow(%q) without a Flush after EndRow returned full", key)
	case !w.passes(key, false):
		w.broken("StartRow(%q) after %q", key, w.behind)
	}
	w.open, w.started, w.behind = true, true, bytes.Clone(key)
	w.Rows = append(w.Rows, Row{Key: string(key)})
}

// Cell implements scan.Writer.
func (w *Collector) Cell(c *row.Cell) {
	if !w.open {
		w.broken("Cell outside a row")
		return
	}
	r := &w.Rows[len(w.Rows)-1]
	if n := len(r.Cells); n > 0 {
		last := &r.Cells[n-1]
		order := strings.Compare(last.Family, c.Family)
		if order == 0 {
			order = bytes.Compare(last.Qualifier, c.Qualifier)
		}
		if order > 0 || order == 0 && last.Timestamp < c.Timestamp {
			w.broken("row %q: cell %s:%s@%d after %s:%s@%d", r.Key,
				c.Family, c.Qualifier, c.Timestamp, last.Family, last.Qualifier, last.Timestamp)
		}
	}
	r.Cells = append(r.Cells, c.Clone())
}

// EndRow implements scan.Writer.
func (w *Collector) EndRow() (full bool, err error) {
	if !w.open {
		w.broken("EndRow outside a row")
	}
	w.open = false
	r := &w.Rows[len(w.Rows)-1]
	if w.Each != nil {
		w.Each(r)
	}
	if len(r.Cells) == 0 {
		w.Rows = w.Rows[:len(w.Rows)-1]
	}
	w.mustFlush = w.FullEvery > 0 && len(w.Rows)%w.FullEvery == 0 && len(w.Rows) > 0
	return w.mustFlush, w.Fail
}

// Scanned implements scan.Writer.
func (w *Collector) Scanned(key []byte) {
	switch {
	case w.open:
		w.broken("Scanned(%q) inside a row", key)
	case !w.passes(key, true):
		w.broken("Scanned(%q) after %q", key, w.behind)
	}
	w.started, w.behind = true, bytes.Clone(key)
}

// Flush implements scan.Writer.
func (w *Collector) Flush() error {
	if w.open {
		w.broken("Flush inside a row")
	}
	w.mustFlush = false
	w.Flushes++
	return w.Fail
}

// render writes one line a cell: row family:qualifier@timestamp=value, with
// the labels in brackets behind.
func render(rows []Row) string {
	var b strings.Builder
	for _, r := range rows {
		for i := range r.Cells {
			fmt.Fprintf(&b, "%s %s\n", plain(r.Key), renderCell(&r.Cells[i]))
		}
	}
	return b.String()
}

func renderCell(c *row.Cell) string {
	value := plain(string(c.Value))
	if len(value) > 300 {
		value = fmt.Sprintf("%s…(%d bytes)", value[:40], len(c.Value))
	}
	out := fmt.Sprintf("%s:%s@%d=%s", c.Family, plain(string(c.Qualifier)), c.Timestamp, value)
	if len(c.Labels) > 0 {
		out += " [" + strings.Join(c.Labels, ",") + "]"
	}
	return out
}

func renderCells(cs []row.Cell) string {
	var b strings.Builder
	for i := range cs {
		fmt.Fprintln(&b, renderCell(&cs[i]))
	}
	return b.String()
}

func plain(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func int64be(n int64) string {
	return string([]byte{byte(n >> 56), byte(n >> 48), byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// future is a timestamp that no clock reaches: the time of a
// ReadModifyWriteRow stays at it.
const future int64 = 1 << 52 / 1000 * 1000

func isNow(ts int64) bool {
	return math.Abs(float64(time.Now().UnixMicro()-ts)) < float64(time.Minute.Microseconds())
}

// keepFamily, keepQualifier and so on are short forms for filters.
func keepFamily(pattern string) *filter.Node {
	return &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(pattern)}
}

func keepQualifier(pattern string) *filter.Node {
	return &filter.Node{Op: filter.QualifierRegex, Pattern: []byte(pattern)}
}

func keepValue(pattern string) *filter.Node {
	return &filter.Node{Op: filter.ValueRegex, Pattern: []byte(pattern)}
}
