package data

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

var tokenKey = bytes.Repeat([]byte("k"), 32)

func testPlaces() []place {
	in := changes.Position{Through: stamp.Least + 5, ChunkEnd: stamp.Least + 900, Row: []byte("cat"), Stamp: stamp.Least + 64, Born: stamp.Least + 3}
	return []place{
		{{row.Range{Start: []byte("a"), End: []byte("m")}, changes.Position{Through: stamp.Least}}},
		{{row.Range{Start: []byte("a"), End: []byte("m")}, in}},
		{{row.Range{Start: []byte("a"), End: []byte("c")}, in}, {row.Range{Start: []byte("c"), End: []byte("d")}, changes.Position{}},
			{row.Range{Start: []byte("d"), End: []byte("m")}, changes.Position{Through: stamp.Most}}},
	}
}

func TestTokens(t *testing.T) {
	rows := row.Range{Start: []byte("a"), End: []byte("m")}
	s := newSealer(tokenKey, 7, 3, rows)
	for _, p := range testPlaces() {
		token := s.seal([]byte("x"), p)
		if len(token)-1 > s.size(p) {
			t.Errorf("a token of %d bytes; %d are expected at most", len(token)-1, s.size(p))
		}
		got, err := s.open(string(token[1:]))
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%v became %v, %v", p, got, err)
		}
		for name, other := range map[string]*sealer{
			"key":       newSealer(bytes.Repeat([]byte("j"), 32), 7, 3, rows),
			"table":     newSealer(tokenKey, 8, 3, rows),
			"life":      newSealer(tokenKey, 7, 4, rows),
			"partition": newSealer(tokenKey, 7, 3, row.Range{Start: []byte("a")}),
			"start":     newSealer(tokenKey, 7, 3, row.Range{Start: []byte("b"), End: []byte("m")}),
			"end":       newSealer(tokenKey, 7, 3, row.Range{Start: []byte("a"), End: []byte("n")}),
			"shifted":   newSealer(tokenKey, 7, 3, row.Range{Start: []byte("am")}),
		} {
			if _, err := other.open(string(token[1:])); fault.KindOf(err) != fault.Invalid {
				t.Errorf("another %s: %v", name, err)
			}
		}
	}
}

func TestPlaces(t *testing.T) {
	p := testPlaces()[2]
	if p.watermark() != 0 || p.goal() != stamp.Most || p[:1].goal() != 0 {
		t.Errorf("watermark %d, goal %d", p.watermark(), p.goal())
	}
	in := p.within(row.Range{Start: []byte("b"), End: []byte("cc")})
	if len(in) != 2 || string(in[0].rows.Start) != "b" || string(in[1].rows.End) != "cc" {
		t.Error(in)
	}
	p[1].at = p[0].at
	if s := p.simple(); len(s) != 2 || string(s[0].rows.End) != "d" || string(s[1].rows.Start) != "d" {
		t.Error(s)
	}
}

// What a token seals is checked even if it was sealed, by another version perhaps.
func FuzzToken(f *testing.F) {
	rows := row.Range{Start: []byte("a"), End: []byte("m")}
	s := newSealer(tokenKey, 7, 3, rows)
	for _, p := range testPlaces() {
		b, err := tokenText.DecodeString(string(s.seal(nil, p)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[tokenMAC:], string(s.seal(nil, p)))
	}
	f.Fuzz(func(t *testing.T, body []byte, token string) {
		if _, err := s.open(token); err != nil && fault.KindOf(err) != fault.Invalid {
			t.Error(err)
		}
		p, err := s.parse(body)
		if err != nil {
			var e *fault.Error
			if !errors.As(err, &e) || e.Kind != fault.Invalid {
				t.Error(err)
			}
			return
		}
		if len(p) == 0 || !bytes.Equal(p[0].rows.Start, rows.Start) || !bytes.Equal(p[len(p)-1].rows.End, rows.End) {
			t.Fatalf("%v does not cover the partition", p)
		}
		for i, a := range p {
			if a.rows.Empty() || i > 0 && !bytes.Equal(p[i-1].rows.End, a.rows.Start) {
				t.Fatalf("%v does not cover the partition", p)
			}
		}
		q, err := s.open(string(s.seal(nil, p)))
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Errorf("%v became %v, %v", p, q, err)
		}
	})
}

func BenchmarkSealToken(b *testing.B) {
	s := newSealer(tokenKey, 7, 3, row.Range{Start: []byte("a"), End: []byte("m")})
	p := testPlaces()[1]
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = s.seal(buf[:0], p)
	}
}
