package aggregate

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestSketchIsAdd: a Sketch writes what Add writes, byte for byte, through the
// sparse form, its limit and the dense one.
func TestSketchIsAdd(t *testing.T) {
	k := NewSketch(DefaultPrecision)
	var state []byte
	for i := range 20_000 {
		if err := k.AddInt(int64(i % 15_000)); err != nil {
			t.Fatal(err)
		}
		var err error
		if state, err = Add(schema.HLL, state, row.Input{Kind: row.IntInput, Int: int64(i % 15_000)}); err != nil {
			t.Fatal(err)
		}
		if i < 50 || i%997 == 0 || i == 19_999 {
			if got := k.Encode(); !bytes.Equal(got, state) {
				t.Fatalf("after %d values the states differ", i+1)
			}
		}
	}
	want, err := Estimate(state)
	if got := k.Estimate(); got != want || err != nil {
		t.Errorf("estimate %d, want %d, %v", got, want, err)
	}
}

func TestSketchMerge(t *testing.T) {
	for _, n := range []int{0, 1, 600, 40_000} {
		whole := NewSketch(12)
		parts := []*Sketch{NewSketch(12), NewSketch(12)}
		for i := range n {
			b := fmt.Append(nil, i)
			for _, k := range []*Sketch{whole, parts[i%2]} {
				if err := k.AddBytes(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		parsed, err := ParseSketch(parts[1].Encode())
		if err != nil {
			t.Fatal(err)
		}
		if err := parts[0].Merge(parsed); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(parts[0].Encode(), whole.Encode()) {
			t.Errorf("%d values: the sketch of the parts is not that of the whole", n)
		}
		if got := whole.Estimate(); math.Abs(float64(got)-float64(n)) > 0.05*float64(n) {
			t.Errorf("%d values count as %d", n, got)
		}
	}
}

func TestFineSketch(t *testing.T) {
	k := NewFineSketch(DefaultPrecision)
	for i := range 3000 {
		if err := k.AddInt(int64(i)); err != nil {
			t.Fatal(err)
		}
		if got := k.Estimate(); i%100 == 0 && got != int64(i+1) {
			t.Errorf("%d values count as %d", i+1, got)
		}
	}
}

func TestSketchTypes(t *testing.T) {
	ints, words := NewSketch(10), NewSketch(10)
	for _, err := range []error{ints.AddInt(1), words.AddBytes([]byte("a"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	before := ints.Encode()
	for i, err := range []error{ints.AddBytes(nil), words.AddInt(1), ints.Merge(words), words.Merge(ints)} {
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	if !bytes.Equal(ints.Encode(), before) {
		t.Error("a refused value changed the sketch")
	}
	if _, err := ParseSketch(nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("a sketch of nothing: %v", err)
	}
}
