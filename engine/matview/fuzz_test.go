package matview

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// seeds returns encodings of each kind, of groups and of an index.
func seeds(f *testing.F, add func(contribution, payload, state []byte)) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, v := range []*schema.View{groupView(), indexView()} {
		args := drawArgs(rnd, v, false)
		c, err := AppendItem(nil, v, []byte("key"), args)
		if err != nil {
			f.Fatal(err)
		}
		d := NewDeltas(v)
		if err := d.Change([]byte("source"), nil, c); err != nil {
			f.Fatal(err)
		}
		_ = d.Each(func(_, payload []byte) error {
			r := fakeRow{}
			muts, err := NewTarget(v).Apply(r, []Update{{1, 1, payload}}, time.Now())
			if err != nil {
				f.Fatal(err)
			}
			r.apply(muts)
			add(c, append([]byte{}, payload...), r[StateFamily][""])
			return nil
		})
	}
}

// FuzzContribution has Deltas take any contribution apart.
func FuzzContribution(f *testing.F) {
	seeds(f, func(c, _, _ []byte) { f.Add(c) })
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []*schema.View{groupView(), indexView()} {
			d := NewDeltas(v)
			if err := d.Change([]byte("s"), nil, b); err != nil {
				if fault.KindOf(err) != fault.Corruption {
					t.Fatal(err)
				}
				continue
			}
			// What was added and taken away again is nothing.
			if err := d.Change([]byte("s"), b, nil); err != nil {
				t.Fatal(err)
			}
			_ = d.Each(func(key, payload []byte) error {
				t.Fatalf("%x is left of %q", payload, key)
				return nil
			})
		}
	})
}

// FuzzPayload has a row take any payload, and the same payload again.
func FuzzPayload(f *testing.F) {
	seeds(f, func(_, p, s []byte) { f.Add(p, s) })
	f.Fuzz(func(t *testing.T, payload, state []byte) {
		for _, v := range []*schema.View{groupView(), indexView()} {
			r := fakeRow{}
			if len(state) > 0 {
				r[StateFamily] = map[string][]byte{"": state}
			}
			target := NewTarget(v)
			muts, err := target.Apply(r, []Update{{9, 1 << 51, payload}}, time.Now())
			if err != nil {
				if k := fault.KindOf(err); k != fault.Invalid && k != fault.Corruption {
					t.Fatal(err)
				}
				continue
			}
			r.apply(muts)
			if muts, err = target.Apply(r, []Update{{9, 1 << 51, payload}}, time.Now()); err != nil || len(muts) > 0 {
				t.Fatalf("the second time: %d mutations, %v", len(muts), err)
			}
		}
	})
}
