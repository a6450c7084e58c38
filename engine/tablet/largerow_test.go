package tablet

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestLargeRow: the parts of a row in several SSTables are one row, each index is read once,
// and no more of them at a time than are asked for.
func TestLargeRow(t *testing.T) {
	s := newStreamed(t)
	rng := rand.NewChaCha8([32]byte{})
	write := func(cells int) {
		t.Helper()
		for _, key := range []string{"a", "large", "z"} {
			b := NewBatch([]byte(key))
			n := cells
			if key != "large" {
				n = 1
			}
			for i := range n {
				value := make([]byte, 4<<10) // which the batch refers to
				_, _ = rng.Read(value)
				b.Set(1, fmt.Appendf(nil, "%06d", i), 1000, value)
			}
			s.apply(b)
		}
		s.flush()
	}
	write(100)
	write(150)
	const least = 900_000
	look := func(least int64, most, wantRead int, want bool) {
		t.Helper()
		x, read, err := s.largeRow(t.Context(), least, most)
		if err != nil || read != wantRead || (x != nil) != want {
			t.Fatalf("%d bytes, %d indexes: %+v, %d were read, %v; want %d", least, most, x, read, err, wantRead)
		}
		if want && (string(x.Key) != "large" || x.RawBytes < 1_000_000 || x.RawBytes > 1_200_000 || x.Bytes < 1_000_000 || x.Bytes > 1_200_000) {
			t.Errorf("the large row is %+v", x)
		}
	}
	look(least, 0, 0, false)
	look(least, 1, 1, false)
	look(least, 5, 1, true)
	look(least, 5, 0, true)
	look(2*least, 5, 0, false)
	look(8*least, 5, 0, false)
	if x, _, err := s.LargeRow(t.Context(), 5); x != nil || err != nil {
		t.Errorf("a row of a megabyte is a large one: %+v, %v", x, err)
	}
	s.reopen()
	look(least, 5, 2, true)
}
