package metadata

import "testing"

// TestFollows: what a tablet knows of a part of its rows is known of that part of its children,
// and of a merged tablet up to the first row that is not.
func TestFollows(t *testing.T) {
	whole := &Followed{Life: 1, Through: 5}
	part := func(before string) *Followed { return &Followed{Life: 1, Through: 3, Before: []byte(before)} }
	show := func(f *Followed) string {
		switch {
		case f == nil:
			return "none"
		case len(f.Before) == 0:
			return "all"
		}
		return string(f.Before)
	}
	for _, c := range []struct {
		f          *Followed
		start, end string
		want       string
	}{
		{nil, "", "m", "none"}, {whole, "", "m", "all"}, {part("c"), "", "m", "c"}, {part("m"), "", "m", "all"}, {part("p"), "", "m", "all"},
		{part("m"), "m", "", "none"}, {part("c"), "m", "", "none"}, {part("p"), "m", "", "p"},
	} {
		r := &Row{Start: []byte(c.start), End: []byte(c.end)}
		r.SetFollows(c.f)
		if r.ClipFollows(); show(r.Follows()) != c.want {
			t.Errorf("%s of [%s, %s) is %s, not %s", show(c.f), c.start, c.end, show(r.Follows()), c.want)
		}
		if r.Followed != nil && len(r.Followed.Before) > 0 {
			t.Error("a part is said to be all")
		}
	}
	other := &Followed{Life: 2, Through: 9}
	for _, c := range []struct {
		left, right *Followed
		want        string
	}{
		{nil, whole, "none"}, {part("c"), whole, "c"}, {whole, nil, "m"}, {whole, other, "m"}, {whole, part("p"), "p"}, {whole, whole, "all"},
	} {
		l, r, m := &Row{End: []byte("m")}, &Row{Start: []byte("m")}, &Row{}
		l.SetFollows(c.left)
		r.SetFollows(c.right)
		m.MergeFollows(l, r)
		if got := m.Follows(); show(got) != c.want || c.want == "p" && got.Through != 3 {
			t.Errorf("%s and %s are %s, not %s", show(c.left), show(c.right), show(got), c.want)
		}
	}
}
