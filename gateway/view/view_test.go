package view

import (
	"bytes"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// words are all short strings of a few bytes: enough for every way in which
// prefixes and ranges can lie.
var words = func() [][]byte {
	out := [][]byte{{}}
	for from, n := 0, 0; n < 3; n++ {
		to := len(out)
		for _, w := range out[from:to] {
			for _, c := range []byte{0, 'a', 'b', 0xFF} {
				out = append(out, append(bytes.Clone(w), c))
			}
		}
		from = to
	}
	return out
}()

func genWords(t *rapid.T, most int, label string) [][]byte {
	return rapid.SliceOfN(rapid.SampledFrom(words[:21]), 0, most).Draw(t, label)
}

func genSubset(t *rapid.T) *adminpb.AuthorizedView_SubsetView {
	s := &adminpb.AuthorizedView_SubsetView{RowPrefixes: genWords(t, 3, "rows"), FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{}}
	for _, f := range []string{"f", "g"} {
		if rapid.Bool().Draw(t, f) {
			s.FamilySubsets[f] = &adminpb.AuthorizedView_FamilySubsets{Qualifiers: genWords(t, 3, "exact"), QualifierPrefixes: genWords(t, 2, "prefixes")}
		}
	}
	return s
}

// What the API says that a view has.
func hasRow(s *adminpb.AuthorizedView_SubsetView, key []byte) bool {
	for _, p := range s.RowPrefixes {
		if bytes.HasPrefix(key, p) {
			return true
		}
	}
	return false
}

func hasColumn(s *adminpb.AuthorizedView_SubsetView, family string, q []byte) bool {
	f := s.FamilySubsets[family]
	for _, e := range f.GetQualifiers() {
		if bytes.Equal(q, e) {
			return true
		}
	}
	for _, p := range f.GetQualifierPrefixes() {
		if bytes.HasPrefix(q, p) {
			return true
		}
	}
	return false
}

func TestViewAgreesWithDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSubset(t)
		v := New("v", s)
		var ranges []row.Range
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			ranges = append(ranges, row.Range{Start: rapid.SampledFrom(words).Draw(t, "start"), End: rapid.SampledFrom(words).Draw(t, "end")})
		}
		ranges = row.Union(ranges)
		got := v.Intersect(ranges)
		for i, r := range got {
			if r.Empty() || i > 0 && bytes.Compare(got[i-1].End, r.Start) >= 0 {
				t.Fatalf("ranges %q are not as Union leaves them", got)
			}
		}
		in := func(ranges []row.Range, key []byte) bool {
			for _, r := range ranges {
				if r.Contains(key) {
					return true
				}
			}
			return false
		}
		for _, w := range words {
			if v.HasRow(w) != hasRow(s, w) {
				t.Fatalf("row %q: %v", w, v.HasRow(w))
			}
			if in(got, w) != (in(ranges, w) && hasRow(s, w)) {
				t.Fatalf("%q of %q: %q", w, ranges, got)
			}
			for _, f := range []string{"f", "g", "h"} {
				want := hasColumn(s, f, w)
				for _, m := range []row.Mutation{{Op: row.SetCell}, {Op: row.DeleteColumn}, {Op: row.AddToCell}, {Op: row.MergeToCell}} {
					m.Family, m.Qualifier = f, w
					if v.permits(&m, nil) != want {
						t.Fatalf("column %s:%q: %v", f, w, !want)
					}
				}
				key := append([]byte(nil), w...)
				err := v.CheckRules(key, []row.Rule{{Family: f, Qualifier: w}})
				if (err == nil) != (hasRow(s, key) && want) {
					t.Fatalf("rule of %s:%q: %v", f, w, err)
				}
			}
		}
	})
}

func TestCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genSubset(t), genSubset(t)
		if rapid.Bool().Draw(t, "more") {
			b.RowPrefixes = append(b.RowPrefixes, a.RowPrefixes...)
			for f, s := range a.FamilySubsets {
				if b.FamilySubsets[f] == nil {
					b.FamilySubsets[f] = s
				} else {
					b.FamilySubsets[f].QualifierPrefixes = append(b.FamilySubsets[f].QualifierPrefixes, append(s.QualifierPrefixes, s.Qualifiers...)...)
				}
			}
		}
		// Prefixes are at most two bytes long, so words tell all, with one
		// exception: exact qualifiers that make up a prefix do not exist.
		want := true
		for _, w := range words {
			want = want && (!hasRow(a, w) || hasRow(b, w))
			for _, f := range []string{"f", "g"} {
				want = want && (!hasColumn(a, f, w) || hasColumn(b, f, w))
			}
		}
		if got := New("v", b).Covers(New("v", a)); got != want {
			t.Fatalf("%v covers %v: %v", b, a, got)
		}
	})
}

func TestWholeFamilies(t *testing.T) {
	v := New("v", &adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{[]byte("r")}, FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{
		"whole": {QualifierPrefixes: [][]byte{[]byte("a"), nil}},
		"part":  {QualifierPrefixes: [][]byte{[]byte("a")}, Qualifiers: [][]byte{nil}},
		"none":  {},
	}})
	families := func(names ...string) map[string]schema.Family {
		m := map[string]schema.Family{}
		for _, n := range names {
			m[n] = schema.Family{Name: n}
		}
		return m
	}
	for _, c := range []struct {
		m  row.Mutation
		in map[string]schema.Family
		ok bool
	}{
		{row.Mutation{Op: row.DeleteFamily, Family: "whole"}, nil, true},
		{row.Mutation{Op: row.DeleteFamily, Family: "part"}, nil, false},
		{row.Mutation{Op: row.DeleteFamily, Family: "none"}, nil, false},
		{row.Mutation{Op: row.DeleteFamily, Family: "other"}, nil, false},
		{row.Mutation{Op: row.DeleteRow}, families("whole"), true},
		{row.Mutation{Op: row.DeleteRow}, families("whole", "part"), false},
		{row.Mutation{Op: row.DeleteRow}, families("whole", "other"), false},
		{row.Mutation{}, families("whole"), false},
	} {
		err := v.Check([]byte("r1"), []row.Mutation{c.m}, c.in)
		if (err == nil) != c.ok {
			t.Errorf("%+v of %v: %v", c.m, c.in, err)
		}
		err = v.Check([]byte("q"), []row.Mutation{c.m}, c.in)
		if fault.KindOf(err) != fault.PermissionDenied || !strings.Contains(err.Error(), "outside the Authorized View") {
			t.Error(err)
		}
	}
}

func BenchmarkView(b *testing.B) {
	s := &adminpb.AuthorizedView_SubsetView{RowPrefixes: [][]byte{[]byte("user1"), []byte("user3")},
		FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{"cf": {Qualifiers: [][]byte{[]byte("a"), []byte("b")}, QualifierPrefixes: [][]byte{[]byte("x")}}}}
	v := New("v", s)
	key := []byte("user17")
	b.Run("Check", func(b *testing.B) {
		b.ReportAllocs()
		muts := []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("xyz")}}
		for b.Loop() {
			if v.Check(key, muts, nil) != nil {
				b.Fatal("refused")
			}
		}
	})
	b.Run("Intersect", func(b *testing.B) {
		b.ReportAllocs()
		ranges := []row.Range{row.Single(key)}
		for b.Loop() {
			if len(v.Intersect(ranges)) != 1 {
				b.Fatal("empty")
			}
		}
	})
}
