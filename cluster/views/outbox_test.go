package views

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestUpdates: rows ascend, each with the updates of all entries, in the order of these.
func TestUpdates(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		var entries []*entry
		want := map[string][]string{}
		for i := range n % 12 {
			e := &entry{shard: uint64(rnd.IntN(3)), seq: uint64(i)}
			for k := range rnd.IntN(30) {
				if rnd.IntN(3) == 0 {
					continue
				}
				key, payload := fmt.Sprintf("k%02d", k), fmt.Sprint(i, k)
				e.value = appendDelta(e.value, []byte(key), []byte(payload))
				want[key] = append(want[key], fmt.Sprint(e.shard, e.seq, payload))
			}
			entries = append(entries, e)
		}
		rows, err := updates(entries)
		if err != nil {
			t.Fatal(err)
		}
		keys := slices.Sorted(maps.Keys(want))
		if len(rows) != len(keys) {
			t.Fatalf("%d rows, want %d", len(rows), len(keys))
		}
		for i, r := range rows {
			var got []string
			for _, u := range r.Updates {
				got = append(got, fmt.Sprint(u.Shard, u.Seq, string(u.Payload)))
			}
			if string(r.Key) != keys[i] || !slices.Equal(got, want[keys[i]]) {
				t.Fatalf("row %d is %s with %v, want %s with %v", i, r.Key, got, keys[i], want[keys[i]])
			}
		}
	}
}
