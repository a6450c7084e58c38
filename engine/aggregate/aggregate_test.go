package aggregate

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

func intState(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func TestIntegers(t *testing.T) {
	for _, tt := range []struct {
		kind schema.Aggregate
		in   []int64
		want int64
	}{
		{schema.Sum, []int64{5}, 5},
		{schema.Sum, []int64{5, 3, -10}, -2},
		{schema.Sum, []int64{math.MaxInt64, 1}, math.MinInt64},
		{schema.Min, []int64{5, 3, 8}, 3},
		{schema.Min, []int64{5, -3}, -3},
		{schema.Max, []int64{5, 3}, 5},
		{schema.Max, []int64{-5, -3, -8}, -3},
	} {
		var added, raw, merged, mergedInput []byte
		for _, v := range tt.in {
			var errs [4]error
			added, errs[0] = Add(tt.kind, added, row.Input{Kind: row.IntInput, Int: v})
			raw, errs[1] = Add(tt.kind, raw, row.Input{Kind: row.RawInput, Bytes: intState(v)})
			merged, errs[2] = Merge(tt.kind, merged, intState(v))
			mergedInput, errs[3] = MergeInput(tt.kind, mergedInput, row.Input{Kind: row.IntInput, Int: v})
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
		}
		for _, state := range [][]byte{added, raw, merged, mergedInput} {
			if got, err := Int(state); err != nil || got != tt.want {
				t.Errorf("aggregator %d of %v: %d, want %d; %v", tt.kind, tt.in, got, tt.want, err)
			}
		}
	}
}

func TestNull(t *testing.T) {
	for kind := schema.Sum; kind <= schema.HLL; kind++ {
		for _, state := range [][]byte{nil, intState(7)} {
			for _, f := range []func(schema.Aggregate, []byte, row.Input) ([]byte, error){Add, MergeInput} {
				if got, err := f(kind, state, row.Input{}); err != nil || !bytes.Equal(got, state) || (got == nil) != (state == nil) {
					t.Errorf("aggregator %d: a null made %v of %v, %v", kind, got, state, err)
				}
			}
			if got, err := Merge(kind, state, nil); err != nil || !bytes.Equal(got, state) {
				t.Errorf("aggregator %d: merging nothing made %v of %v, %v", kind, got, state, err)
			}
		}
	}
}

func TestInvalid(t *testing.T) {
	text := row.Input{Kind: row.StringInput, Bytes: []byte("x")}
	number := row.Input{Kind: row.IntInput, Int: 1}
	words := add(t, nil, text)
	numbers := add(t, nil, number)
	coarse := (&sketch{p: 14, sp: 21}).encode()
	fine := (&sketch{p: 15, sp: 20}).encode()
	for i, f := range []func() ([]byte, error){
		func() ([]byte, error) { return Add(schema.NotAggregate, nil, number) },
		func() ([]byte, error) { return Add(schema.Sum, nil, text) },
		func() ([]byte, error) { return Add(schema.Min, nil, row.Input{Kind: row.FloatInput, Float: 1}) },
		func() ([]byte, error) {
			return Add(schema.Sum, nil, row.Input{Kind: row.RawInput, Bytes: []byte("1234567")})
		},
		func() ([]byte, error) { return Add(schema.Sum, []byte{1}, number) },
		func() ([]byte, error) { return Add(schema.Sum, []byte{}, number) },
		func() ([]byte, error) { return Add(schema.HLL, words, number) },
		func() ([]byte, error) { return Add(schema.HLL, numbers, text) },
		func() ([]byte, error) { return Add(schema.HLL, intState(1), text) },
		func() ([]byte, error) { return Add(schema.HLL, []byte{}, text) },
		func() ([]byte, error) { return Add(schema.HLL, nil, row.Input{Kind: 100}) },
		func() ([]byte, error) { return Merge(schema.NotAggregate, nil, intState(1)) },
		func() ([]byte, error) { return Merge(schema.Sum, nil, []byte{}) },
		func() ([]byte, error) { return Merge(schema.Max, intState(1), []byte("123456789")) },
		func() ([]byte, error) { return Merge(schema.Max, []byte("1"), intState(1)) },
		func() ([]byte, error) { return Merge(schema.HLL, words, numbers) },
		func() ([]byte, error) { return Merge(schema.HLL, words, intState(1)) },
		func() ([]byte, error) { return Merge(schema.HLL, nil, intState(1)) },
		func() ([]byte, error) { return Merge(schema.HLL, intState(1), words) },
		func() ([]byte, error) { return Merge(schema.HLL, coarse, fine) },
		func() ([]byte, error) { return Merge(schema.HLL, fine, coarse) },
		func() ([]byte, error) { return MergeInput(schema.HLL, words, number) },
		func() ([]byte, error) { return MergeInput(schema.HLL, words, text) },
		func() ([]byte, error) { return MergeInput(schema.Sum, nil, row.Input{Kind: row.RawInput}) },
		func() ([]byte, error) { _, err := Estimate([]byte("x")); return nil, err },
		func() ([]byte, error) { _, err := Int(nil); return nil, err },
	} {
		if state, err := f(); !errors.Is(err, fault.Invalid) || state != nil {
			t.Errorf("case %d: state %x, error %v", i, state, err)
		}
	}
}

func TestMalformedState(t *testing.T) {
	state := func(kind, version uint64, hll []byte) []byte {
		b := appendVarint(nil, fieldType, kind)
		b = appendVarint(b, fieldValues, 1)
		b = appendVarint(b, fieldVersion, version)
		b = protowire.AppendTag(b, fieldHLL, protowire.BytesType)
		return protowire.AppendBytes(b, hll)
	}
	hll := func(p, sp uint64, dense, sparse []byte) []byte {
		b := appendVarint(nil, fieldPrecision, p)
		b = appendVarint(b, fieldSparseP, sp)
		if dense != nil {
			b = protowire.AppendTag(b, fieldDense, protowire.BytesType)
			b = protowire.AppendBytes(b, dense)
		}
		if sparse != nil {
			b = protowire.AppendTag(b, fieldSparse, protowire.BytesType)
			b = protowire.AppendBytes(b, sparse)
		}
		return b
	}
	values := func(vs ...uint64) (b []byte) {
		for _, v := range vs {
			b = protowire.AppendVarint(b, v)
		}
		return b
	}
	registers := func(n int, last byte) []byte { return append(make([]byte, n-1), last) }
	const flag = 1 << 21 // for precisions 15 and 20

	for name, b := range map[string][]byte{
		"no precision":     state(112, 2, nil),
		"precision 3":      state(112, 2, hll(3, 20, nil, nil)),
		"precision 25":     state(112, 2, hll(25, 25, nil, nil)),
		"huge precision":   state(112, 2, hll(1<<63, 25, nil, nil)),
		"sparse below":     state(112, 2, hll(15, 14, nil, nil)),
		"sparse 26":        state(112, 2, hll(15, 26, nil, nil)),
		"type sum":         state(100, 2, hll(15, 20, nil, nil)),
		"version 1":        state(112, 1, hll(15, 20, nil, nil)),
		"registers short":  state(112, 2, hll(10, 15, registers(1023, 0), nil)),
		"registers long":   state(112, 2, hll(10, 15, registers(1025, 0), nil)),
		"register too big": state(112, 2, hll(10, 15, registers(1024, 56), nil)),
		"both forms":       state(112, 2, hll(10, 15, registers(1024, 1), values(1))),
		"sparse disabled":  state(112, 2, hll(10, 0, nil, values(1))),
		"sparse too long":  state(112, 2, hll(4, 25, nil, values(1, 2, 4, 8, 16, 32, 1, 2, 4, 8, 16, 32, 1, 2, 4, 8, 16))),
		"sparse cut":       state(112, 2, hll(15, 20, nil, []byte{0x80})),
		"value 0":          state(112, 2, hll(15, 20, nil, values(0))),
		"value twice":      state(112, 2, hll(15, 20, nil, values(1, 0))),
		"value needs rho":  state(112, 2, hll(15, 20, nil, values(32))),
		"value too big":    state(112, 2, hll(15, 20, nil, values(1<<20+1))),
		"rho 0":            state(112, 2, hll(15, 20, nil, values(flag))),
		"rho too big":      state(112, 2, hll(15, 20, nil, values(flag|46))),
		"index twice":      state(112, 2, hll(15, 20, nil, values(flag|1, 1))),
		"index too big":    state(112, 2, hll(15, 20, nil, values(flag*2|1))),
		"difference 2^64":  state(112, 2, hll(15, 20, nil, values(1, math.MaxUint64))),
		"difference 2^32":  state(112, 2, hll(15, 20, nil, values(1, 1<<32))),
		"cut":              state(112, 2, hll(15, 20, nil, nil))[:12],
		"not a message":    {0xFF, 0xFF, 0xFF},
	} {
		if s, err := decode(b); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: decoded to %+v, %v", name, s, err)
		}
	}
	// Just inside of the limits.
	for name, b := range map[string][]byte{
		"register full": state(112, 2, hll(10, 15, registers(1024, 55), nil)),
		"rho full":      state(112, 2, hll(15, 20, nil, values(flag|45))),
		"smallest":      state(112, 2, hll(15, 25, nil, values(1))),
		"last index":    state(112, 2, hll(15, 20, nil, values(1<<20-1, (flag|1<<6|1)-(1<<20-1)))),
		"equal":         state(112, 2, hll(15, 15, nil, values(flag|1))),
	} {
		if n, err := Estimate(b); err != nil || n < 1 {
			t.Errorf("%s: estimate %d, %v", name, n, err)
		}
	}
}

// TestOldValueType: BigQuery's older sketches have the value type elsewhere.
func TestOldValueType(t *testing.T) {
	hll := appendVarint(nil, fieldPrecision, 15)
	hll = appendVarint(hll, fieldSparseP, 20)
	hll = appendVarint(hll, fieldOldType, 1)
	b := appendVarint(nil, fieldType, aggregatorType)
	b = appendVarint(b, fieldVersion, encodingVersion)
	b = protowire.AppendTag(b, fieldHLL, protowire.BytesType)
	b = protowire.AppendBytes(b, hll)
	if _, err := Add(schema.HLL, b, row.Input{Kind: row.IntInput}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an integer was added to a sketch of strings: %v", err)
	}
	if got, want := add(t, b, str("x")), add(t, nil, str("x")); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestInputsThatAreTheSame(t *testing.T) {
	text := []byte("text")
	for _, group := range [][]row.Input{
		{{Kind: row.IntInput, Int: 1}, {Kind: row.BoolInput, Int: 1}, {Kind: row.TimestampInput, Int: 1}, {Kind: row.DateInput, Int: 1}},
		{{Kind: row.StringInput, Bytes: text}, {Kind: row.BytesInput, Bytes: text}, {Kind: row.RawInput, Bytes: text}},
		{{Kind: row.FloatInput}, {Kind: row.FloatInput, Float: math.Copysign(0, -1)}},
	} {
		var state []byte
		for _, in := range group {
			state = add(t, state, in)
		}
		if n := estimate(t, state); n != 1 {
			t.Errorf("%v count as %d", group, n)
		}
	}
}

// TestMergeModel: merging the sketches of parts gives the sketch of the whole,
// whatever the parts, their order and their precisions.
func TestMergeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type precision struct{ p, sp int }
		sizes := rapid.SampledFrom([]int{0, 1, 5, 40, 300, 2000})
		precisions := rapid.SampledFrom([]precision{{4, 9}, {4, 4}, {8, 8}, {9, 14}, {10, 15}, {10, 25}, {12, 25}, {15, 20}, {15, 25}, {9, 0}, {13, 0}})
		base := precisions.Draw(t, "precision")
		same := rapid.Bool().Draw(t, "same precision")
		var parts []*sketch
		var whole *sketch
		hashes := map[uint64]bool{}
		for i := range rapid.IntRange(1, 4).Draw(t, "parts") {
			pr := base
			if !same {
				pr = precisions.Draw(t, "precision")
			}
			s := &sketch{p: pr.p, sp: pr.sp, valueType: typeBytes}
			from := rapid.IntRange(0, 2000).Draw(t, "from")
			for j := range sizes.Draw(t, "size") {
				h := fingerprint(fmt.Append(nil, from+j))
				hashes[h] = true
				s.addHash(h)
			}
			parts = append(parts, s)
			if i == 0 {
				whole = &sketch{p: pr.p, sp: pr.sp, valueType: typeBytes}
			}
			for _, o := range parts {
				if (o.p < pr.p && o.sp > pr.sp || o.p > pr.p && o.sp < pr.sp) && o.sp > 0 && pr.sp > 0 {
					t.Skip("precisions that do not go together")
				}
			}
			whole.p, whole.sp = min(whole.p, pr.p), min(whole.sp, pr.sp)
		}
		// The whole, straight at the precision that the parts have in common.
		dense := make([]byte, whole.registers())
		for _, s := range parts {
			whole.values += s.values
		}
		for h := range hashes {
			i := h >> (64 - whole.p)
			dense[i] = max(dense[i], rho(h, 64-whole.p))
		}
		merged, backwards := &sketch{p: parts[0].p, sp: parts[0].sp}, &sketch{p: parts[0].p, sp: parts[0].sp}
		for i := range parts {
			for _, step := range []struct{ into, part *sketch }{{merged, parts[i]}, {backwards, parts[len(parts)-1-i]}} {
				before := step.part.encode()
				got, err := Merge(schema.HLL, step.into.encode(), before)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(before, step.part.encode()) {
					t.Fatal("a merge changed its operand")
				}
				s, err := decode(got)
				if err != nil {
					t.Fatal(err)
				}
				*step.into = *s
			}
		}
		for _, s := range []*sketch{merged, backwards} {
			if s.values != whole.values || s.p != whole.p || s.sp != whole.sp {
				t.Fatalf("merged: %d values, precisions %d and %d; want %d, %d and %d", s.values, s.p, s.sp, whole.values, whole.p, whole.sp)
			}
			got := &sketch{p: s.p, dense: make([]byte, s.registers())}
			s.addTo(got)
			if !bytes.Equal(got.dense, dense) {
				t.Fatal("merged registers differ from those of the whole")
			}
		}
		if !bytes.Equal(merged.encode(), backwards.encode()) && merged.isSparse() == backwards.isSparse() {
			t.Fatal("the order of merging matters")
		}
	})
}

// TestAccuracy: the estimate stays within four standard errors, also where
// linear counting ends and where the raw estimate begins.
func TestAccuracy(t *testing.T) {
	for _, p := range []int{10, 12, 15} {
		s := &sketch{p: p, sp: p + 5}
		limit := 4 * 1.04 / math.Sqrt(float64(s.registers()))
		next := 100
		for n := 1; n <= 10*s.registers(); n++ {
			s.addHash(fingerprint(fmt.Append(nil, "accuracy", n)))
			if n == next {
				next += next/10 + 1
				if got := s.estimate(); math.Abs(float64(got)/float64(n)-1) > limit {
					t.Errorf("p %d: estimate of %d is %d", p, n, got)
				}
			}
		}
	}
}

func TestAddLeavesStateAlone(t *testing.T) {
	state := build(t, 10, 15, 50)
	for i := range 2000 {
		before := bytes.Clone(state)
		next := add(t, state, str("alone %d", i))
		if !bytes.Equal(before, state) {
			t.Fatalf("input %d changed the state it was added to", i)
		}
		state = next
	}
}

func seeds(f *testing.F) {
	for _, g := range golden {
		b, err := base64.StdEncoding.DecodeString(g.state)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Add([]byte(nil), intState(1))
}

// FuzzState feeds arbitrary bytes to everything that decodes a state. What is
// accepted must survive encoding and merging.
func FuzzState(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s, err := decode(a)
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Fatalf("%x: %v", a, err)
			}
			return
		}
		again, err := decode(s.encode())
		if err != nil {
			t.Fatalf("%x: not decodable after encoding: %v", a, err)
		}
		if !bytes.Equal(again.encode(), s.encode()) {
			t.Fatalf("%x: encoding is not stable", a)
		}
		if n := s.estimate(); n < 0 {
			t.Fatalf("%x: estimate %d", a, n)
		}
		if _, err := Add(schema.HLL, a, str("x")); err != nil && s.valueType == typeBytes {
			t.Fatalf("%x: %v", a, err)
		}
		merged, err := Merge(schema.HLL, a, b)
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Fatalf("%x and %x: %v", a, b, err)
			}
			return
		}
		back, err := Merge(schema.HLL, b, a)
		if len(b) == 0 || err != nil {
			return
		}
		x, y := must(decode(merged)), must(decode(back))
		if x.estimate() != y.estimate() && x.isSparse() == y.isSparse() {
			t.Fatalf("%x and %x: %d one way, %d the other", a, b, x.estimate(), y.estimate())
		}
	})
}

func must(s *sketch, err error) *sketch {
	if err != nil {
		panic(err)
	}
	return s
}

func BenchmarkFingerprint(b *testing.B) {
	for _, n := range []int{8, 40, 1024} {
		data := make([]byte, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				fingerprint(data)
			}
		})
	}
}

func benchState(n int) []byte {
	s := &sketch{p: newPrecision, sp: newSparsePrecision, valueType: typeInt}
	for i := range n {
		s.addHash(fingerprint(fmt.Append(nil, "bench", i)))
	}
	return s.encode()
}

func BenchmarkAdd(b *testing.B) {
	b.Run("sum", func(b *testing.B) {
		b.ReportAllocs()
		state := intState(0)
		for b.Loop() {
			state, _ = Add(schema.Sum, state, row.Input{Kind: row.IntInput, Int: 1})
		}
	})
	for _, n := range []int{10, 1000, 10_000, 100_000} {
		state := benchState(n)
		b.Run(fmt.Sprintf("hll/distinct=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			i := int64(0)
			for b.Loop() {
				i++
				if _, err := Add(schema.HLL, state, row.Input{Kind: row.IntInput, Int: i}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMerge(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		x, y := benchState(n), benchState(n+n/2)
		b.Run(fmt.Sprintf("distinct=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Merge(schema.HLL, x, y); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEstimate(b *testing.B) {
	state := benchState(100_000)
	for b.Loop() {
		if _, err := Estimate(state); err != nil {
			b.Fatal(err)
		}
	}
}
