package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
	"pgregory.net/rapid"
)

// Random runs random operations on a Backend and on the model and compares
// every answer. rapid's flags -rapid.checks and -rapid.steps say how many; a
// failure is shrunk and its seed printed.
func Random(t *testing.T, open OpenFunc) {
	rapid.Check(t, func(rt *rapid.T) {
		sc := &scoped{TB: t}
		defer sc.close()
		newMachine(t, rt, open(sc)).run(rt, nil)
	})
}

// scoped is a testing.TB whose cleanups run when close is called, so that the
// Backends of many rounds are not open at once.
type scoped struct {
	testing.TB
	cleanups []func()
}

func (s *scoped) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scoped) TempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp("", "backendtest")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	return dir
}

func (s *scoped) close() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// Reopened is Random with a Backend that is closed and opened again at random:
// whatever was answered must still be there. open opens the Backend of dir;
// close closes it, or kills it.
func Reopened(t *testing.T, open func(dir string) (b backend.Backend, close func(), err error)) {
	rapid.Check(t, func(rt *rapid.T) {
		sc := &scoped{TB: t}
		defer sc.close()
		dir := sc.TempDir()
		b, closeIt, err := open(dir)
		if err != nil {
			rt.Fatalf("open: %v", err)
		}
		defer func() { closeIt() }()
		m := newMachine(t, rt, b)
		m.run(rt, func() {
			closeIt()
			closeIt = func() {}
			b, c, err := open(dir)
			if err != nil {
				rt.Fatalf("reopen: %v", err)
			}
			m.real, closeIt = b, c
		})
	})
}

// A machine applies each operation to two Backends.
type machine struct {
	*rapid.T
	ctx         context.Context
	real, model backend.Backend
	filters     []*filter.Node
}

// The universe is small, so that operations meet.
var (
	randomTables     = []string{parent + "/tables/ms", parent + "/tables/us"}
	randomFamilies   = []string{"a", "b", "agg"}
	randomKeys       = []string{"\x00", "a", "a\x00", "a\x01", "a\xff", "b", "ba", "bb", "c\x00\x01", "\xff", "\xff\xff"}
	randomQualifiers = []string{"", "q", "q\x00", "q1", "\xff"}
	randomValues     = []string{"", "v", "vv", "\x00", "12345678", "\xff\x0f"}
)

func newMachine(t *testing.T, rt *rapid.T, b backend.Backend) *machine {
	m := &machine{T: rt, ctx: t.Context(), real: b, model: model.New(model.Options{}), filters: Filters()}
	for i, name := range []string{"ms", "us"} {
		s := newTable(name, []int64{1000, 1}[i], "a", "b", "c", "agg=sum")
		m.both("CreateTable", func(b backend.Backend) (string, error) {
			_, err := b.CreateTable(m.ctx, s, [][]byte{[]byte("a\x01"), []byte("b")})
			return "", err
		})
	}
	return m
}

// both runs op on both sides; the answers, and the kinds of errors, must agree.
func (m *machine) both(what string, op func(backend.Backend) (string, error)) {
	m.Helper()
	want, wantErr := op(m.model)
	got, gotErr := op(m.real)
	if kind(gotErr) != kind(wantErr) {
		m.Fatalf("%s: got error %v, the model says %v", what, gotErr, wantErr)
	}
	if got != want {
		m.Fatalf("%s: got\n%s\nthe model says\n%s", what, got, want)
	}
}

func kind(err error) string {
	switch k := fault.KindOf(err); {
	case err == nil:
		return "none"
	case k != 0:
		return k.Error()
	default:
		return err.Error()
	}
}

func pick[T any](m *machine, what string, from []T) T {
	return from[rapid.IntRange(0, len(from)-1).Draw(m.T, what)]
}

func (m *machine) key() string   { return pick(m, "row", randomKeys) }
func (m *machine) table() string { return pick(m, "table", randomTables) }

// timestamp is mostly on a MILLIS table's grid.
func (m *machine) timestamp() int64 {
	ts := int64(rapid.IntRange(0, 6).Draw(m.T, "ms")) * 1000
	if rapid.IntRange(0, 19).Draw(m.T, "off the grid") == 0 {
		ts++
	}
	return ts
}

func (m *machine) mutation() row.Mutation {
	f := pick(m, "family", append(randomFamilies[:2:2], "a", "b", "a", "b", "agg", "none"))
	q := pick(m, "qualifier", randomQualifiers)
	switch rapid.IntRange(0, 9).Draw(m.T, "mutation") {
	case 0:
		return deleteRow()
	case 1:
		return deleteFamily(f)
	case 2:
		return deleteColumn(f, q)
	case 3:
		start := m.timestamp()
		if rapid.Bool().Draw(m.T, "to the end") {
			return deleteTimes(f, q, start, math.MaxInt64)
		}
		return deleteTimes(f, q, start, start+int64(rapid.IntRange(1, 4).Draw(m.T, "ms"))*1000)
	}
	if f == "agg" && rapid.IntRange(0, 19).Draw(m.T, "wrong") > 0 {
		n := int64(rapid.IntRange(-3, 100).Draw(m.T, "n"))
		if rapid.Bool().Draw(m.T, "merge") {
			return merge(f, q, m.timestamp(), int64be(n))
		}
		return add(f, q, m.timestamp(), n)
	}
	out := set(f, q, m.timestamp(), pick(m, "value", randomValues))
	out.Truncate = rapid.IntRange(0, 9).Draw(m.T, "truncate") == 0
	return out
}

func (m *machine) mutations() []row.Mutation {
	return rapid.Custom(func(rt *rapid.T) []row.Mutation {
		n := *m
		n.T = rt
		out := make([]row.Mutation, rapid.IntRange(1, 5).Draw(rt, "mutations"))
		for i := range out {
			out[i] = n.mutation()
		}
		return out
	}).Draw(m.T, "list")
}

func (m *machine) request(table string) *scan.Request {
	req := &scan.Request{Table: table, Reversed: rapid.Bool().Draw(m.T, "reversed")}
	for range rapid.IntRange(0, 3).Draw(m.T, "ranges") {
		a, b := m.key(), m.key()
		switch rapid.IntRange(0, 3).Draw(m.T, "range") {
		case 0:
			req.Ranges = append(req.Ranges, row.Single([]byte(a)))
		case 1:
			req.Ranges = append(req.Ranges, keyRange(a, b))
		case 2:
			req.Ranges = append(req.Ranges, keyRange(a, ""))
		case 3:
			req.Ranges = append(req.Ranges, row.Prefix([]byte(a)))
		}
	}
	if len(req.Ranges) == 0 {
		req.Ranges = []row.Range{row.All}
	}
	req.Ranges = row.Union(req.Ranges)
	if rapid.Bool().Draw(m.T, "limited") {
		req.Limit = int64(rapid.IntRange(1, 5).Draw(m.T, "limit"))
	}
	if rapid.Bool().Draw(m.T, "filtered") {
		req.Filter = pick(m, "filter", m.filters)
	}
	return req
}

func (m *machine) compareRead(req *scan.Request) {
	m.Helper()
	what := fmt.Sprintf("ReadRows(%s, %q, limit %d, reversed %v, filter %s)", req.Table, req.Ranges, req.Limit, req.Reversed, Describe(req.Filter))
	m.both(what, func(b backend.Backend) (string, error) {
		w := &Collector{Reversed: req.Reversed, FullEvery: 2}
		st, err := b.ReadRows(m.ctx, req, w)
		if werr := w.Check(); werr != nil {
			m.Fatalf("%s: %v", what, werr)
		}
		if err == nil && (st.RowsReturned != int64(len(w.Rows)) || st.RowsSeen < st.RowsReturned || st.CellsSeen < 0) {
			m.Fatalf("%s: %d rows, stats %+v", what, len(w.Rows), st)
		}
		return sortLines(render(w.Rows)), err
	})
}

// run draws operations until rapid has enough. reopen may be nil.
func (m *machine) run(rt *rapid.T, reopen func()) {
	actions := map[string]func(*rapid.T){
		"": func(*rapid.T) {
			for _, t := range randomTables {
				m.compareRead(everything(t))
			}
		},
		"MutateRow": func(*rapid.T) {
			t, e := m.table(), &row.Entry{Key: []byte(m.key()), Mutations: m.mutations()}
			m.both(fmt.Sprintf("MutateRow(%s, %q, %+v)", t, e.Key, e.Mutations), func(b backend.Backend) (string, error) {
				return "", b.MutateRow(m.ctx, t, e)
			})
		},
		"MutateRows": func(*rapid.T) {
			t := m.table()
			entries := make([]row.Entry, rapid.IntRange(1, 5).Draw(m.T, "entries"))
			used := map[string]bool{}
			for i := range entries {
				k := m.key()
				for used[k] { // entries of one row may be applied in any order
					k += "x"
				}
				used[k] = true
				entries[i] = row.Entry{Key: []byte(k), Mutations: m.mutations()}
			}
			m.both(fmt.Sprintf("MutateRows(%s, %+v)", t, entries), func(b backend.Backend) (string, error) {
				out := make([]string, len(entries))
				err := b.MutateRows(m.ctx, t, entries, func(i int, err error) { out[i] += kind(err) + ";" })
				return strings.Join(out, "\n"), err
			})
		},
		"CheckAndMutateRow": func(*rapid.T) {
			t, k, f := m.table(), []byte(m.key()), pick(m, "predicate", m.filters)
			if hasSink(f) {
				f = nil
			}
			then, otherwise := m.mutations(), m.mutations()
			m.both(fmt.Sprintf("CheckAndMutateRow(%s, %q, %s, %+v, %+v)", t, k, Describe(f), then, otherwise), func(b backend.Backend) (string, error) {
				matched, err := b.CheckAndMutateRow(m.ctx, t, k, f, then, otherwise)
				return fmt.Sprint(matched), err
			})
		},
		"ReadModifyWriteRow": func(*rapid.T) {
			t, k := m.table(), []byte(m.key())
			// A cell from the future keeps the clock out of the answer.
			var rules []row.Rule
			for range rapid.IntRange(1, 3).Draw(m.T, "rules") {
				r := row.Rule{Family: pick(m, "family", []string{"a", "b"}), Qualifier: []byte(pick(m, "qualifier", randomQualifiers))}
				if r.IsAppend = rapid.Bool().Draw(m.T, "append"); r.IsAppend {
					r.Append = []byte(pick(m, "value", randomValues))
				} else {
					r.Increment = int64(rapid.IntRange(-2, 1000).Draw(m.T, "increment"))
				}
				rules = append(rules, r)
			}
			m.both("prepare", func(b backend.Backend) (string, error) {
				var muts []row.Mutation
				for _, r := range rules {
					muts = append(muts, set(r.Family, string(r.Qualifier), future, int64be(7)))
				}
				return "", b.MutateRow(m.ctx, t, &row.Entry{Key: k, Mutations: muts})
			})
			for range 2 {
				m.both(fmt.Sprintf("ReadModifyWriteRow(%s, %q, %+v)", t, k, rules), func(b backend.Backend) (string, error) {
					out, err := b.ReadModifyWriteRow(m.ctx, t, k, rules)
					return renderCells(out), err
				})
			}
		},
		"ReadRows": func(*rapid.T) { m.compareRead(m.request(m.table())) },
		"DropRowRange": func(*rapid.T) {
			t, p := m.table(), []byte(pick(m, "prefix", append(randomKeys, "")))
			m.both(fmt.Sprintf("DropRowRange(%s, %q)", t, p), func(b backend.Backend) (string, error) {
				return "", b.DropRowRange(m.ctx, t, p)
			})
		},
		"ReplaceFamily": func(*rapid.T) {
			t, f := m.table(), pick(m, "family", randomFamilies)
			refused := errors.New("refused")
			fail := rapid.IntRange(0, 3).Draw(m.T, "fail") == 0
			m.both(fmt.Sprintf("UpdateTable(%s: replace %s)", t, f), func(b backend.Backend) (string, error) {
				_, err := b.UpdateTable(m.ctx, t, func(s *schema.Table) error {
					old := s.Families[f]
					delete(s.Families, f)
					s.AddFamily(schema.Family{Name: f, Aggregate: old.Aggregate})
					if fail {
						return refused
					}
					return nil
				})
				return "", err
			})
		},
		"DeleteAndUndelete": func(*rapid.T) {
			t := m.table()
			m.both("DeleteTable "+t, func(b backend.Backend) (string, error) { return "", b.DeleteTable(m.ctx, t) })
			m.compareRead(everything(t))
			m.both("UndeleteTable "+t, func(b backend.Backend) (string, error) {
				s, err := b.UndeleteTable(m.ctx, t)
				return strings.Join(s.FamilyNames(), " "), err
			})
		},
		"Record": func(*rapid.T) {
			k, v := pick(m, "record", randomQualifiers[1:]), pick(m, "value", randomValues)
			do := rapid.IntRange(0, 3).Draw(m.T, "do")
			m.both(fmt.Sprintf("record %q %d", k, do), func(b backend.Backend) (string, error) {
				_, version, err := b.GetRecord(m.ctx, k)
				if err != nil {
					version = 0
				}
				switch do {
				case 0:
					_, err = b.PutRecord(m.ctx, k, []byte(v), version)
				case 1:
					_, err = b.PutRecord(m.ctx, k, []byte(v), version+1)
				case 2:
					err = b.DeleteRecord(m.ctx, k, version)
				}
				var list bytes.Buffer
				lerr := b.ListRecords(m.ctx, "", func(k string, v []byte, _ uint64) error {
					fmt.Fprintf(&list, "%q=%q\n", k, v)
					return nil
				})
				return list.String(), errors.Join(err, lerr)
			})
		},
	}
	if reopen != nil {
		actions["Reopen"] = func(*rapid.T) { reopen() }
	}
	for name, f := range actions {
		actions[name] = func(t *rapid.T) { m.T = t; f(t) }
	}
	rt.Repeat(actions)
}

func hasSink(f *filter.Node) bool {
	if f == nil {
		return false
	}
	for _, c := range f.Children {
		if hasSink(c) {
			return true
		}
	}
	return f.Op == filter.Sink
}
