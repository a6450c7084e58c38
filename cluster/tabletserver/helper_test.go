package tabletserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

const parent = "projects/p/instances/i/tables/"

var ctx = context.Background()

// seeds returns how many seeds a random test runs: n, or what the environment
// variable TRESTLE_TEST_SEEDS says, from TRESTLE_TEST_FIRST_SEED on.
func seeds(t *testing.T, n int) (first, end uint64) {
	if v, err := strconv.Atoi(os.Getenv("TRESTLE_TEST_SEEDS")); err == nil {
		n = v
	} else if testing.Short() {
		n = max(n/10, 1)
	}
	if v, err := strconv.ParseUint(os.Getenv("TRESTLE_TEST_FIRST_SEED"), 10, 64); err == nil {
		first = v
	}
	return first, first + uint64(n)
}

// mustOpen opens a Store that the test closes.
func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Log == nil {
		o.Log = quiet(t)
	}
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// quiet is a logger that fails the test on a record of level WARN or more.
func quiet(t testing.TB) *slog.Logger { return slog.New(&failing{t: t}) }

type failing struct {
	slog.Handler
	t testing.TB
}

func (f *failing) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (f *failing) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "writes of a tablet were held up" {
		return nil // by a machine that is busy
	}
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %v", a); return true })
	f.t.Errorf("logged %v: %s%s", r.Level, r.Message, b.String())
	return nil
}
func (f *failing) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f *failing) WithGroup(string) slog.Handler      { return f }

func newSchema(name string, granularity int64, families ...string) *schema.Table {
	t := &schema.Table{Name: parent + name, Granularity: granularity, Families: map[string]schema.Family{}}
	for _, f := range families {
		name, agg, _ := strings.Cut(f, "=")
		t.Families[name] = schema.Family{Name: name, Aggregate: map[string]schema.Aggregate{
			"": schema.NotAggregate, "sum": schema.Sum, "max": schema.Max}[agg]}
	}
	return t
}

func mustCreate(t testing.TB, b backend.Backend, s *schema.Table, splits ...string) string {
	t.Helper()
	var keys [][]byte
	for _, k := range splits {
		keys = append(keys, []byte(k))
	}
	if _, err := b.CreateTable(ctx, s, keys); err != nil {
		t.Fatalf("create %s: %v", s.Name, err)
	}
	return s.Name
}

func setCell(family, qualifier string, ts int64, value string) row.Mutation {
	return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: ts, Value: []byte(value)}
}

func entry(key string, muts ...row.Mutation) *row.Entry {
	return &row.Entry{Key: []byte(key), Mutations: muts}
}

func mustPut(t testing.TB, b backend.Backend, table, key string, muts ...row.Mutation) {
	t.Helper()
	if err := b.MutateRow(ctx, table, entry(key, muts...)); err != nil {
		t.Fatalf("mutate %q: %v", key, err)
	}
}

// readRows returns the rows of req.
func readRows(b backend.Backend, req *scan.Request) ([]backendtest.Row, error) {
	w := &backendtest.Collector{Reversed: req.Reversed, FullEvery: 3}
	_, err := b.ReadRows(ctx, req, w)
	if err == nil {
		err = w.Check()
	}
	return w.Rows, err
}

// show renders rows, one line a cell.
func show(rows []backendtest.Row) string {
	var b strings.Builder
	for _, r := range rows {
		for _, c := range r.Cells {
			v := string(c.Value)
			if len(v) > 100 {
				v = fmt.Sprintf("%s…%d", v[:20], len(v))
			}
			fmt.Fprintf(&b, "%q %s:%q@%d=%q\n", r.Key, c.Family, c.Qualifier, c.Timestamp, v)
		}
	}
	return b.String()
}

// content renders ranges of a table, or the error.
func content(b backend.Backend, table string, ranges ...row.Range) string {
	rows, err := readRows(b, &scan.Request{Table: table, Ranges: ranges})
	if err != nil {
		return "error: " + err.Error()
	}
	return show(rows)
}

func kindOf(err error) string {
	switch k := fault.KindOf(err); {
	case err == nil:
		return "none"
	case k != 0:
		return k.Error()
	default:
		return err.Error()
	}
}

// A maker makes random requests.
type maker struct {
	*rand.Rand
	families, aggregates, qualifiers []string
	big                              int // one value in so many is big; 0 means none
}

func (m *maker) pick(from []string) string { return from[m.IntN(len(from))] }

func (m *maker) timestamp() int64 { return int64(m.IntN(6)) * 1000 }

func (m *maker) value() []byte {
	n := m.IntN(20)
	if m.big > 0 && m.IntN(m.big) == 0 {
		n = m.IntN(20_000)
	}
	v := make([]byte, n)
	for i := range v {
		v[i] = byte('a' + m.IntN(26))
	}
	return v
}

func (m *maker) mutation() row.Mutation {
	if len(m.aggregates) > 0 && m.IntN(5) == 0 {
		return row.Mutation{Op: row.AddToCell, Family: m.pick(m.aggregates), Qualifier: []byte(m.pick(m.qualifiers)),
			Timestamp: m.timestamp(), Input: row.Input{Kind: row.IntInput, Int: int64(m.IntN(100))}}
	}
	f := m.pick(m.families)
	switch m.IntN(12) {
	case 0:
		return row.Mutation{Op: row.DeleteRow}
	case 1:
		if len(m.aggregates) > 0 && m.IntN(4) == 0 {
			f = m.pick(m.aggregates)
		}
		return row.Mutation{Op: row.DeleteFamily, Family: f}
	case 2, 3:
		times := cell.AllTime
		switch m.IntN(3) {
		case 0:
			times.Start = m.timestamp()
		case 1:
			times.Start = m.timestamp()
			times.End = times.Start + int64(m.IntN(4)+1)*1000
		}
		return row.Mutation{Op: row.DeleteColumn, Family: f, Qualifier: []byte(m.pick(m.qualifiers)), Times: times}
	}
	return row.Mutation{Op: row.SetCell, Family: f, Qualifier: []byte(m.pick(m.qualifiers)), Timestamp: m.timestamp(), Value: m.value()}
}

func (m *maker) mutations() []row.Mutation {
	out := make([]row.Mutation, 1+m.IntN(5))
	for i := range out {
		out[i] = m.mutation()
	}
	return out
}

// rules makes the rules of a ReadModifyWriteRow that never fail.
func (m *maker) rules() []row.Rule {
	out := make([]row.Rule, 1+m.IntN(3))
	for i := range out {
		out[i] = row.Rule{Family: m.pick(m.families), Qualifier: []byte(m.pick(m.qualifiers)), IsAppend: true, Append: m.value()}
	}
	return out
}

// clock is a clock that stands still.
func clock() time.Time { return time.UnixMicro(1_700_000_000_000_000) }
