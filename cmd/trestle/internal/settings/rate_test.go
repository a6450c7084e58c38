package settings

import "testing"

func TestRate(t *testing.T) {
	var n int64
	v := rate(&n)
	for in, want := range map[string]int64{"1": 1, "25000": 25000, "off": -1} {
		if err := v.set(in); err != nil || n != want || v.get() != in {
			t.Errorf("%q: %d, printed %q, %v", in, n, v.get(), err)
		}
	}
	for _, in := range []string{"", "0", "-1", "x", "1.5", "99999999999999999999"} {
		if err := v.set(in); err == nil {
			t.Errorf("%q: no error", in)
		}
	}
}
