package types

import (
	"slices"
	"testing"
)

func TestSortMap(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"a1", "a1"},
		{"a1b2c3", "a1b2c3"},
		{"c3a1b2", "a1b2c3"},
		{"a1a2", "a2"},
		{"b1a1b2a2b3", "a2b3"},
		{"a1b2b3c4", "a1b3c4"},
	} {
		var list []Value
		for i := range len(c.in) {
			list = append(list, NewString(c.in[i:i+1]))
		}
		var got string
		for _, v := range SortMap(StringType, list) {
			got += v.Str
		}
		if got != c.want {
			t.Errorf("SortMap(%s) = %s, want %s", c.in, got, c.want)
		}
	}
}

func TestFindKey(t *testing.T) {
	ints := []Value{NewInt(-3), NewString("x"), NewInt(0), NewString("y"), NewInt(7), NewString("z")}
	for k, want := range map[int64]int{-4: -1, -3: 1, 0: 3, 1: -1, 7: 5, 8: -1} {
		if got := FindKey(Int64Type, ints, NewInt(k)); got != want {
			t.Errorf("FindKey(%d) = %d, want %d", k, got, want)
		}
	}
	var names []Value
	for _, s := range []string{"", "a", "b", "ba", "c"} {
		names = append(names, NewString(s), NewInt(1))
	}
	for i := 0; i < len(names); i += 2 {
		if got := FindKey(BytesType, names, names[i]); got != i+1 {
			t.Errorf("FindKey(%q) = %d, want %d", names[i].Str, got, i+1)
		}
	}
	for _, s := range []string{"A", "aa", "bb", "d"} {
		if got := FindKey(BytesType, names, NewString(s)); got != -1 {
			t.Errorf("FindKey(%q) = %d, want -1", s, got)
		}
	}
	withNull := []Value{{}, NewInt(1), NewString("a"), NewInt(2)}
	if got := FindKey(StringType, withNull, Null); got != 1 {
		t.Errorf("FindKey(NULL) = %d, want 1", got)
	}
	if !slices.IsSortedFunc([]Value{Null, NewString("a")}, func(a, b Value) int { return Compare(StringType, a, b) }) {
		t.Error("NULL is not first")
	}
}
