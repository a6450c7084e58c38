package row

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var (
	drawKey   = rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xFF}), 0, 3)
	drawRange = rapid.Custom(func(t *rapid.T) Range {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return Single(drawKey.Draw(t, "key"))
		case 1:
			return Prefix(drawKey.Draw(t, "prefix"))
		}
		return Range{Start: drawKey.Draw(t, "start"), End: drawKey.Draw(t, "end")}
	})
)

func TestRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k, p := drawKey.Draw(t, "key"), drawKey.Draw(t, "other")
		a, b := drawRange.Draw(t, "a"), drawRange.Draw(t, "b")
		if Single(p).Contains(k) != slices.Equal(k, p) || !Single(p).IsSingle() {
			t.Fatalf("Single(%x) and %x", p, k)
		}
		if got, want := Prefix(p).Contains(k), len(k) >= len(p) && slices.Equal(k[:len(p)], p); got != want {
			t.Fatalf("Prefix(%x) contains %x: %v", p, k, got)
		}
		if a.Empty() && a.Contains(k) {
			t.Fatalf("%x is empty and contains %x", a, k)
		}
		if a.IsSingle() && a.Contains(k) != slices.Equal(k, a.Start) {
			t.Fatalf("%x is single and contains %x: %v", a, k, a.Contains(k))
		}
		if a.Intersect(b).Contains(k) != (a.Contains(k) && b.Contains(k)) {
			t.Fatalf("intersection of %x and %x: %x", a, b, k)
		}
	})
}

func TestUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := rapid.SliceOfN(drawRange, 0, 6).Draw(t, "ranges")
		k := drawKey.Draw(t, "key")
		want := slices.ContainsFunc(ranges, func(r Range) bool { return r.Contains(k) })
		u := Union(slices.Clone(ranges))
		if got := slices.ContainsFunc(u, func(r Range) bool { return r.Contains(k) }); got != want {
			t.Fatalf("%x of %x contains %x: %v", u, ranges, k, got)
		}
		for i, r := range u {
			if r.Empty() {
				t.Fatalf("%x is empty", r)
			}
			if i > 0 && (len(u[i-1].End) == 0 || slices.Compare(u[i-1].End, r.Start) >= 0) {
				t.Fatalf("%x and %x touch or are out of order", u[i-1], r)
			}
		}
	})
}

func TestCellClone(t *testing.T) {
	c := Cell{Family: "f", Qualifier: []byte("q"), Timestamp: 1, Value: []byte("v"), Labels: []string{"l"}}
	d := c.Clone()
	d.Qualifier[0], d.Value[0], d.Labels[0] = 'x', 'x', "x"
	if string(c.Qualifier) != "q" || string(c.Value) != "v" || c.Labels[0] != "l" {
		t.Errorf("a clone shares %+v", c)
	}
}
