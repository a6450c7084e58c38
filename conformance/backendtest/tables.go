package backendtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

var tableTests = []test{
	{"CreateSetsWhatTheStoreOwns", func(s *suite) {
		in := newTable("t", 1000, "b", "a", "c")
		in.Extra = []byte("gateway's own")
		in.Families["a"] = schema.Family{Name: "a", GC: &schema.GCRule{MaxVersions: 3}, Extra: []byte("type")}
		made, err := s.CreateTable(s.ctx, in, nil)
		s.ok(err)
		got, err := s.Table(s.ctx, in.Name)
		s.ok(err)
		for _, g := range []*schema.Table{made, got} {
			if g.Name != in.Name || g.ID == 0 || g.Granularity != 1000 || !isNow(g.CreateTime.UnixMicro()) || !g.DeleteTime.IsZero() {
				s.Errorf("table is %+v", g)
			}
			if string(g.Extra) != "gateway's own" || g.Families["a"].GC.MaxVersions != 3 || string(g.Families["a"].Extra) != "type" {
				s.Errorf("table lost what the gateway gave: %+v", g)
			}
			ids := map[cell.FamilyID]string{}
			for name, f := range g.Families {
				if f.Name != name || f.ID >= cell.FirstSystemFamily || uint32(f.ID) >= g.NextFamily || ids[f.ID] != "" {
					s.Errorf("family %s is %+v, next id %d", name, f, g.NextFamily)
				}
				ids[f.ID] = name
			}
			if len(ids) != 3 {
				s.Errorf("families are %v", g.Families)
			}
		}
		other, err := s.CreateTable(s.ctx, newTable("u", 1, "a"), nil)
		s.ok(err)
		if other.ID == made.ID || other.Granularity != 1 {
			s.Errorf("second table is %+v", other)
		}
	}},
	{"TooManyFamilies", func(s *suite) {
		var names []string
		for i := range schema.MaxFamilies + 1 {
			names = append(names, fmt.Sprintf("f%04d", i))
		}
		refused := func(err error, text string) {
			s.failsWith(err, fault.FailedPrecondition, text)
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Reason != schema.ReasonFamilies || f.Metadata["limit"] == "" {
				s.Errorf("refused without its reason: %+v", f)
			}
		}
		_, err := s.CreateTable(s.ctx, newTable("t", 1000, names...), nil)
		refused(err, "1001 column families; the limit is 1000")
		_, err = s.Table(s.ctx, parent+"/tables/t")
		s.fails(err, fault.NotFound)
		// One less: a backend may need a family of its own.
		name := s.create("t", names[:schema.MaxFamilies-1]...)
		add := func(families ...string) func(*schema.Table) error {
			return func(t *schema.Table) error {
				for _, f := range families {
					t.AddFamily(schema.Family{Name: f})
				}
				return nil
			}
		}
		_, err = s.UpdateTable(s.ctx, name, add("g", "h"))
		refused(err, "1001 column families; the limit is 1000")
		t, err := s.Table(s.ctx, name)
		s.ok(err)
		if len(t.Families) != schema.MaxFamilies-1 {
			s.Errorf("%d families after a refusal", len(t.Families))
		}
		_, err = s.UpdateTable(s.ctx, name, func(t *schema.Table) error {
			delete(t.Families, names[0])
			return add("g")(t)
		})
		s.ok(err)
		s.put(name, "r", set("g", "q", 1000, "v"))
		s.want(name, "r g:q@1000=v")
		_, err = s.UpdateTable(s.ctx, name, func(t *schema.Table) error {
			f := t.Families["g"]
			f.Extra = make([]byte, schema.MaxSchema)
			t.Families["g"] = f
			return nil
		})
		refused(err, "bytes; the limit is")
		// Ids are not used twice: a table that has had all of them gets no more.
		_, err = s.UpdateTable(s.ctx, name, func(t *schema.Table) error {
			for n := range t.Families {
				if n != "g" {
					delete(t.Families, n)
				}
			}
			t.NextFamily = uint32(cell.FirstSystemFamily) - 1
			return add("last")(t)
		})
		s.ok(err)
		s.put(name, "r", set("last", "q", 1000, "v"))
		for range 2 { // the second would begin again
			_, err = s.UpdateTable(s.ctx, name, add("beyond"))
			refused(err, "has had too many column families")
		}
		var more []string
		for i := range 1<<16 + 8 {
			more = append(more, fmt.Sprint("x", i))
		}
		_, err = s.UpdateTable(s.ctx, name, func(t *schema.Table) error {
			// All but the last few are dropped in the same change: what counts is ids.
			if err := add(more...)(t); err != nil {
				return err
			}
			for _, n := range more[:1<<16] {
				delete(t.Families, n)
			}
			return nil
		})
		refused(err, "has had too many column families")
		s.want(name, "r g:q@1000=v", "r last:q@1000=v")
	}},
	{"CreateTwice", func(s *suite) {
		s.create("t", "f")
		_, err := s.CreateTable(s.ctx, newTable("t", 1000, "g"), nil)
		s.failsWith(err, fault.AlreadyExists, "t")
		t, err := s.Table(s.ctx, parent+"/tables/t")
		s.ok(err)
		same(s.T, strings.Join(t.FamilyNames(), " ")+"\n", "f")
	}},
	{"IDs", func(s *suite) {
		ids := func(want ...uint64) {
			s.Helper()
			got, err := s.TableIDs(s.ctx)
			s.ok(err)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				s.Errorf("tables have the ids %d, want %d", got, want)
			}
		}
		ids()
		a, err := s.CreateTable(s.ctx, newTable("a", 1000), nil)
		s.ok(err)
		b, err := s.CreateTable(s.ctx, newTable("b", 1000), nil)
		s.ok(err)
		ids(a.ID, b.ID)
		s.ok(s.DeleteTable(s.ctx, a.Name))
		ids(a.ID, b.ID)
	}},
	{"CreateAtOnceMakesOne", func(s *suite) {
		var made, refused int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := s.CreateTable(s.ctx, newTable("t", 1000, "f"), nil)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					made++
				case errors.Is(err, fault.AlreadyExists):
					refused++
				default:
					s.Errorf("unexpected error: %v", err)
				}
			})
		}
		wg.Wait()
		if made != 1 || refused != 7 {
			s.Errorf("%d made, %d refused", made, refused)
		}
	}},
	{"ListIsSortedAndOfOneParent", func(s *suite) {
		for _, id := range []string{"b", "a", "c"} {
			s.create(id, "f")
		}
		for _, p := range []string{"projects/p/instances/i2", "projects/p/instances/other", "projects/q/instances/i"} {
			t := newTable("x", 1000)
			t.Name = p + "/tables/x"
			_, err := s.CreateTable(s.ctx, t, nil)
			s.ok(err)
		}
		s.ok(s.DeleteTable(s.ctx, parent+"/tables/b"))
		list, err := s.ListTables(s.ctx, parent)
		s.ok(err)
		var names []string
		for _, t := range list {
			names = append(names, strings.TrimPrefix(t.Name, parent+"/tables/"))
		}
		if fmt.Sprint(names) != "[a c]" {
			s.Errorf("listed %v", names)
		}
		list, err = s.ListTables(s.ctx, "projects/p")
		s.ok(err)
		if len(list) < 4 || !slices.ContainsFunc(list, func(t *schema.Table) bool { return t.Name == "projects/p/instances/other/tables/x" }) ||
			!slices.IsSortedFunc(list, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) }) ||
			slices.ContainsFunc(list, func(t *schema.Table) bool { return !strings.HasPrefix(t.Name, "projects/p/") }) {
			s.Errorf("listed of a project: %d tables, %+v", len(list), list)
		}
		list, err = s.ListTables(s.ctx, "projects/none/instances/none")
		s.ok(err)
		if len(list) > 0 {
			s.Errorf("listed %v for a parent without tables", list)
		}
	}},
	{"NotFoundEverywhere", func(s *suite) { s.notFound(parent + "/tables/none") }},
	{"UpdateAddsFamily", func(s *suite) {
		t := s.create("t", "f")
		before, err := s.Table(s.ctx, t)
		s.ok(err)
		s.fails(s.try(t, "r", set("g", "q", 1000, "v")), fault.NotFound)
		after, err := s.UpdateTable(s.ctx, t, func(t *schema.Table) error {
			t.AddFamily(schema.Family{Name: "g", GC: &schema.GCRule{MaxVersions: 1}})
			t.Extra = []byte("x")
			return nil
		})
		s.ok(err)
		if after.Version <= before.Version || after.ID != before.ID || !after.CreateTime.Equal(before.CreateTime) {
			s.Errorf("before %+v after %+v", before, after)
		}
		if got, err := s.Table(s.ctx, t); err != nil || got.Families["g"].GC == nil || string(got.Extra) != "x" {
			s.Errorf("stored %+v, %v", got, err)
		}
		if before.Families["g"].Name != "" {
			s.Error("a table that was handed out has changed")
		}
		s.put(t, "r", set("g", "q", 1000, "v"))
		s.want(t, "r g:q@1000=v")
	}},
	{"UpdateThatFailsStoresNothing", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "v"))
		before, err := s.Table(s.ctx, t)
		s.ok(err)
		mine := errors.New("no")
		_, err = s.UpdateTable(s.ctx, t, func(t *schema.Table) error {
			t.AddFamily(schema.Family{Name: "g"})
			delete(t.Families, "f")
			return mine
		})
		if !errors.Is(err, mine) {
			s.Errorf("got error %v", err)
		}
		after, err := s.Table(s.ctx, t)
		s.ok(err)
		if after.Version != before.Version || len(after.Families) != 1 {
			s.Errorf("stored %+v", after)
		}
		s.want(t, "r f:q@1000=v")
	}},
	{"UpdatesAtOnceAllCount", func(s *suite) {
		t := s.create("t")
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				_, err := s.UpdateTable(s.ctx, t, func(t *schema.Table) error {
					t.AddFamily(schema.Family{Name: fmt.Sprintf("f%02d", i)})
					return nil
				})
				if err != nil {
					s.Errorf("unexpected error: %v", err)
				}
			})
		}
		wg.Wait()
		got, err := s.Table(s.ctx, t)
		s.ok(err)
		if len(got.Families) != 16 {
			s.Errorf("families are %v", got.FamilyNames())
		}
	}},
	{"DroppedFamilyIsGone", func(s *suite) {
		t := s.create("t", "f", "g")
		s.put(t, "only-f", set("f", "q", 1000, "old"))
		s.put(t, "r", set("f", "q", 1000, "old"), set("g", "q", 1000, "kept"))
		_, err := s.UpdateTable(s.ctx, t, func(t *schema.Table) error { delete(t.Families, "f"); return nil })
		s.ok(err)
		s.want(t, "r g:q@1000=kept")
		s.fails(s.try(t, "r", set("f", "q", 2000, "v")), fault.NotFound)
		s.fails(s.try(t, "r", deleteFamily("f")), fault.NotFound)
		_, err = s.UpdateTable(s.ctx, t, func(t *schema.Table) error { t.AddFamily(schema.Family{Name: "f"}); return nil })
		s.ok(err)
		s.want(t, "r g:q@1000=kept")
		s.put(t, "r", set("f", "q", 500_000, "new"))
		s.want(t, "r f:q@500000=new", "r g:q@1000=kept")
		got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("only-f"), []row.Rule{{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte("+")}})
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != "+" {
			s.Errorf("the dropped cell came back: %s", renderCells(got))
		}
	}},
	{"FamilyReplacedInOneUpdateIsGone", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "old"))
		_, err := s.UpdateTable(s.ctx, t, func(t *schema.Table) error {
			delete(t.Families, "f")
			t.AddFamily(schema.Family{Name: "f"})
			return nil
		})
		s.ok(err)
		s.want(t)
	}},
	{"DeletedTableIsGone", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "old"))
		s.ok(s.DeleteTable(s.ctx, t))
		s.notFound(t)
		s.create("t", "f")
		s.want(t)
	}},
	{"UndeleteBringsBackTheNewest", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "first"))
		s.ok(s.DeleteTable(s.ctx, t))
		s.create("t", "g")
		s.put(t, "r", set("g", "q", 1000, "second"))
		_, err := s.UndeleteTable(s.ctx, t)
		s.fails(err, fault.AlreadyExists)
		s.ok(s.DeleteTable(s.ctx, t))
		got, err := s.UndeleteTable(s.ctx, t)
		s.ok(err)
		if got.Name != t || !got.DeleteTime.IsZero() || got.Families["g"].Name != "g" {
			s.Errorf("undeleted %+v", got)
		}
		s.want(t, "r g:q@1000=second")
		s.put(t, "r", set("g", "q", 2000, "third"))
		s.want(t, "r g:q@2000=third", "r g:q@1000=second")
		s.ok(s.DeleteTable(s.ctx, t))
	}},
	{"UndeleteOfNone", func(s *suite) {
		_, err := s.UndeleteTable(s.ctx, parent+"/tables/none")
		s.fails(err, fault.NotFound)
		t := s.create("t", "f")
		_, err = s.UndeleteTable(s.ctx, t)
		if k := fault.KindOf(err); k != fault.NotFound && k != fault.AlreadyExists {
			s.Errorf("undelete of a live table: %v", err)
		}
	}},
	{"DeletionProtection", func(s *suite) {
		in := newTable("t", 1000, "f")
		in.DeletionProtection = true
		_, err := s.CreateTable(s.ctx, in, nil)
		s.ok(err)
		s.fails(s.DeleteTable(s.ctx, in.Name), fault.FailedPrecondition)
		s.put(in.Name, "r", set("f", "q", 1000, "v"), deleteRow(), set("f", "q", 2000, "w"))
		s.want(in.Name, "r f:q@2000=w")
		_, err = s.UpdateTable(s.ctx, in.Name, func(t *schema.Table) error { t.DeletionProtection = false; return nil })
		s.ok(err)
		s.ok(s.DeleteTable(s.ctx, in.Name))
	}},
	{"DropRowRange", func(s *suite) {
		t := s.create("t", "f")
		for _, k := range []string{"a", "b", "b\x00", "b\xff", "b\xff\xff", "ba", "c", "\xff", "\xff\xff", "\xff\xffx"} {
			s.put(t, k, set("f", "q", 1000, "v"))
		}
		s.ok(s.DropRowRange(s.ctx, t, []byte("b\xff")))
		s.want(t, "a f:q@1000=v", `b f:q@1000=v`, `b\x00 f:q@1000=v`, "ba f:q@1000=v", "c f:q@1000=v", `\xff f:q@1000=v`, `\xff\xff f:q@1000=v`, `\xff\xffx f:q@1000=v`)
		s.ok(s.DropRowRange(s.ctx, t, []byte("b")))
		s.ok(s.DropRowRange(s.ctx, t, []byte("\xff\xff")))
		s.ok(s.DropRowRange(s.ctx, t, []byte("nothing")))
		s.want(t, "a f:q@1000=v", "c f:q@1000=v", `\xff f:q@1000=v`)
		s.put(t, "ba", set("f", "q", 0, "again"))
		s.want(t, "a f:q@1000=v", "ba f:q@0=again", "c f:q@1000=v", `\xff f:q@1000=v`)
		s.ok(s.DropRowRange(s.ctx, t, nil))
		s.want(t)
		s.put(t, "a", set("f", "q", 0, "anew"))
		s.want(t, "a f:q@0=anew")
	}},
	{"TableBytes", func(s *suite) {
		t := s.create("t", "f")
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 64 {
			v := make([]byte, 16<<10)
			for j := range v {
				v[j] = byte(r.Uint32())
			}
			s.put(t, fmt.Sprintf("r%d", i), set("f", "q", 1000, string(v)))
		}
		n, err := s.TableBytes(s.ctx, t)
		s.ok(err)
		if n < 256<<10 || n > 16<<20 {
			s.Errorf("a table with 1 MiB of random values has %d bytes", n)
		}
	}},
	{"SampleRowKeys", func(s *suite) {
		splits := [][]byte{[]byte("r0"), []byte("r11"), []byte("r12"), []byte("r2")}
		t := s.createTable("t", 1000, splits, "f")
		for i := range 300 {
			s.put(t, fmt.Sprintf("r%03d", i), set("f", "q", 1000, strings.Repeat("v", 1000)))
		}
		sample := func(within row.Range) (keys []string) {
			s.Helper()
			last := int64(-1)
			s.ok(s.Backend.SampleRowKeys(s.ctx, t, within, func(p scan.Sample) error {
				if p.Offset < last {
					s.Errorf("offset %d of %q is smaller than the one before, %d", p.Offset, p.Key, last)
				}
				last = p.Offset
				keys = append(keys, string(p.Key))
				return nil
			}))
			for i := range keys {
				end := i == len(keys)-1
				switch {
				case end && keys[i] != string(within.End):
					s.Errorf("the last sample of %q is %q", within, keys[i])
				case !end && !within.Contains([]byte(keys[i])):
					s.Errorf("sample %q is outside %q", keys[i], within)
				case i > 0 && keys[i] <= keys[i-1] && (!end || len(within.End) > 0):
					s.Errorf("samples are %q", keys)
				}
			}
			if len(keys) == 0 {
				s.Errorf("no samples of %q", within)
			}
			return keys
		}
		has := func(keys []string, want ...string) {
			s.Helper()
			at := 0
			for _, k := range keys {
				if at < len(want) && k == want[at] {
					at++
				}
			}
			if at != len(want) {
				s.Errorf("samples %q do not have all of %q", keys, want)
			}
		}
		has(sample(row.All), "r0", "r11", "r12", "r2", "")
		has(sample(row.Prefix([]byte("r1"))), "r11", "r12", "r2")
		has(sample(keyRange("r11a", "r11b")), "r11b")
		has(sample(keyRange("x", "")), "")
		mine := errors.New("enough")
		if err := s.Backend.SampleRowKeys(s.ctx, t, row.All, func(scan.Sample) error { return mine }); !errors.Is(err, mine) {
			s.Errorf("emit's error came back as %v", err)
		}
	}},
	{"SplitsDoNotShow", func(s *suite) {
		t := s.createTable("t", 1000, [][]byte{[]byte("b"), []byte("b\x00"), []byte("c"), []byte("\xff")}, "f")
		var want []string
		for _, k := range []string{"a", "b", "b\x00", "b\x00\x00", "bz", "c", "d", "\xff", "\xff\xff"} {
			s.put(t, k, set("f", "q", 1000, "v"))
			want = append(want, plain(k)+" f:q@1000=v")
		}
		s.want(t, want...)
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Reversed: true, Limit: 4}),
			`\xff\xff f:q@1000=v`, `\xff f:q@1000=v`, "d f:q@1000=v", "c f:q@1000=v")
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{keyRange("az", "bz")}}),
			"b f:q@1000=v", `b\x00 f:q@1000=v`, `b\x00\x00 f:q@1000=v`)
		entries := []row.Entry{}
		for _, k := range []string{"\xff", "a", "c", "b"} {
			entries = append(entries, row.Entry{Key: []byte(k), Mutations: []row.Mutation{deleteRow()}})
		}
		done := 0
		s.ok(s.MutateRows(s.ctx, t, entries, func(_ int, err error) { s.ok(err); done++ }))
		if done != 4 {
			s.Errorf("%d of 4 entries were reported", done)
		}
		s.ok(s.DropRowRange(s.ctx, t, []byte("b")))
		s.want(t, "d f:q@1000=v", `\xff\xff f:q@1000=v`)
	}},
}

// notFound checks that every method that takes a table says NotFound.
func (s *suite) notFound(t string) {
	s.Helper()
	key, muts := []byte("r"), []row.Mutation{set("f", "q", 1000, "v")}
	check := func(method string, err error) {
		s.Helper()
		if !errors.Is(err, fault.NotFound) {
			s.Errorf("%s of a missing table: got %v, want NotFound", method, err)
		}
	}
	_, err := s.Table(s.ctx, t)
	check("Table", err)
	_, err = s.UpdateTable(s.ctx, t, func(*schema.Table) error { return nil })
	check("UpdateTable", err)
	check("DeleteTable", s.DeleteTable(s.ctx, t))
	check("DropRowRange", s.DropRowRange(s.ctx, t, []byte("r")))
	_, err = s.TableBytes(s.ctx, t)
	check("TableBytes", err)
	_, err = s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, &Collector{})
	check("ReadRows", err)
	check("MutateRow", s.MutateRow(s.ctx, t, &row.Entry{Key: key, Mutations: muts}))
	check("MutateRows", s.MutateRows(s.ctx, t, []row.Entry{{Key: key, Mutations: muts}}, func(int, error) {
		s.Error("MutateRows of a missing table called done")
	}))
	_, err = s.CheckAndMutateRow(s.ctx, t, key, &filter.Node{Op: filter.PassAll}, muts, nil)
	check("CheckAndMutateRow", err)
	_, err = s.ReadModifyWriteRow(s.ctx, t, key, []row.Rule{{Family: "f", Qualifier: []byte("q"), Increment: 1}})
	check("ReadModifyWriteRow", err)
	check("SampleRowKeys", s.SampleRowKeys(s.ctx, t, row.All, func(scan.Sample) error { return nil }))
}
