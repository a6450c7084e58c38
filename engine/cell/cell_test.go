package cell

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type parts struct {
	row, qualifier []byte
	family         FamilyID
	ts             int64
	shape          Shape
}

func (p parts) key() []byte {
	k := AppendRow(nil, p.row)
	switch p.shape {
	case FamilyMarker:
		k = AppendFamily(k, p.family)
	case ColumnMarker:
		k = AppendColumn(k, p.family, p.qualifier)
	case Cell:
		k = AppendCell(k, p.family, p.qualifier, p.ts)
	}
	return k
}

// compare orders parts as the data model does: wider markers first, newest
// timestamp first.
func (p parts) compare(q parts) int {
	if c := bytes.Compare(p.row, q.row); c != 0 {
		return c
	}
	if p.shape == RowMarker || q.shape == RowMarker {
		return cmp.Compare(p.shape, q.shape)
	}
	if c := cmp.Compare(p.family, q.family); c != 0 {
		return c
	}
	if p.shape == FamilyMarker || q.shape == FamilyMarker {
		return cmp.Compare(p.shape, q.shape)
	}
	if c := bytes.Compare(p.qualifier, q.qualifier); c != 0 {
		return c
	}
	if p.shape == ColumnMarker || q.shape == ColumnMarker {
		return cmp.Compare(p.shape, q.shape)
	}
	return cmp.Compare(q.ts, p.ts)
}

var drawParts = rapid.Custom(func(t *rapid.T) parts {
	b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 0xFE, 0xFF}), 0, 4)
	return parts{row: b.Draw(t, "row"), qualifier: b.Draw(t, "qualifier"),
		family: rapid.SampledFrom([]FamilyID{0, 1, 255, 256, TokenFamily}).Draw(t, "family"),
		ts:     rapid.SampledFrom([]int64{0, 1, 1000, 1 << 40, math.MaxInt64}).Draw(t, "ts"),
		shape:  Shape(rapid.IntRange(1, 4).Draw(t, "shape"))}
})

// TestKeys: keys sort as what they name, and parse back.
func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := drawParts.Draw(t, "p"), drawParts.Draw(t, "q")
		pk, qk := p.key(), q.key()
		if got, want := bytes.Compare(pk, qk), p.compare(q); got != want {
			t.Fatalf("%x and %x compare as %d, want %d", pk, qk, got, want)
		}
		n := EscapedLen(pk)
		if n < 0 || n != RowPrefixLen(pk) || n != len(AppendRow(nil, p.row)) {
			t.Fatalf("row prefix of %x is %d long", pk, n)
		}
		r, err := RowOf(nil, pk[:n])
		if err != nil || !bytes.Equal(r, p.row) {
			t.Fatalf("row %x, %v, want %x", r, err, p.row)
		}
		s, err := ParseSuffix(pk[n:])
		if err != nil || s.Shape != p.shape {
			t.Fatalf("suffix %+v, %v", s, err)
		}
		if p.shape >= FamilyMarker && s.Family != p.family {
			t.Fatalf("family %d, want %d", s.Family, p.family)
		}
		if p.shape >= ColumnMarker && !bytes.Equal(Qualifier(nil, s.Column), p.qualifier) {
			t.Fatalf("qualifier %x, want %x", s.Column, p.qualifier)
		}
		if p.shape == Cell && s.Timestamp != p.ts {
			t.Fatalf("timestamp %d, want %d", s.Timestamp, p.ts)
		}
		// A row prefix is no prefix of another row's.
		if bytes.HasPrefix(qk, pk[:n]) != bytes.Equal(p.row, q.row) {
			t.Fatalf("%x begins %x", pk[:n], qk)
		}
	})
}

func TestRanges(t *testing.T) {
	rs := []TimeRange{{1, 2}, {-5, 7}, AllTime}
	b := AppendRanges(nil, rs...)
	got, err := ParseRanges(nil, b)
	if err != nil || !slices.Equal(got, rs) {
		t.Errorf("got %v, %v", got, err)
	}
	for i := range b {
		if _, err := ParseRanges(nil, b[:i]); (err == nil) != (i > 0 && i%16 == 0) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
	for _, tc := range []struct {
		r    TimeRange
		ts   int64
		want bool
	}{
		{TimeRange{1, 3}, 1, true}, {TimeRange{1, 3}, 3, false}, {TimeRange{1, 3}, 0, false},
		{AllTime, math.MaxInt64, true}, {AllTime, math.MinInt64, true}, {TimeRange{1, math.MaxInt64}, math.MaxInt64, true},
	} {
		if tc.r.Contains(tc.ts) != tc.want {
			t.Errorf("%v contains %d: %v", tc.r, tc.ts, !tc.want)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add([]byte("r\x00\x01\x00\x02q\x00\x01\xff\xff\xff\xff\xff\xff\xff\xfe"), []byte{1})
	f.Add([]byte("r\x00\xffs\x00\x01"), AppendRanges(nil, AllTime))
	f.Add([]byte("r\x00\xffs\x00\x01"), AppendSticky(nil, AllTime))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if rs, sticky, err := ParseMarker(nil, value); err == nil {
			again := AppendRanges(nil, rs...)
			if sticky {
				again = AppendSticky(nil, rs...)
			}
			if !bytes.Equal(again, value) {
				t.Fatalf("%x comes back as %x", value, again)
			}
		}
		n := EscapedLen(key)
		if m := RowPrefixLen(key); n >= 0 && m != n || n < 0 && m != len(key) {
			t.Fatalf("prefix %d, %d", n, m)
		}
		if n < 0 {
			return
		}
		r, err := RowOf(nil, key[:n])
		if err != nil || !bytes.Equal(AppendRow(nil, r), key[:n]) {
			t.Fatalf("row %x of %x: %v", r, key[:n], err)
		}
		s, err := ParseSuffix(key[n:])
		if err != nil {
			return
		}
		p := parts{row: r, family: s.Family, ts: s.Timestamp, shape: s.Shape}
		if s.Shape >= ColumnMarker {
			p.qualifier = Qualifier(nil, s.Column)
		}
		if !bytes.Equal(p.key(), key) {
			t.Fatalf("%x parsed and put together is %x", key, p.key())
		}
	})
}
