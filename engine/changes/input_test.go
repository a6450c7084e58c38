package changes

import (
	"bytes"
	"math"
	"testing"

	"github.com/trestledb/trestle/engine/row"
)

func FuzzInput(f *testing.F) {
	for _, in := range []row.Input{
		{}, {Kind: row.IntInput, Int: -5}, {Kind: row.BytesInput, Bytes: []byte("ab")}, {Kind: row.StringInput}, {Kind: row.FloatInput, Float: math.Pi},
		{Kind: row.BoolInput, Int: 1}, {Kind: row.TimestampInput, Int: 7}, {Kind: row.DateInput, Int: -1}, {Kind: row.RawInput, Bytes: []byte{0}},
	} {
		b := AppendInput(nil, in)
		out, err := ParseInput(b)
		if err != nil || out.Kind != in.Kind || out.Int != in.Int || !bytes.Equal(out.Bytes, in.Bytes) || out.Float != in.Float {
			f.Errorf("%+v became %+v, %v", in, out, err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if in, err := ParseInput(b); err == nil && !bytes.Equal(AppendInput(nil, in), b) {
			t.Errorf("%x became %+v", b, in)
		}
	})
}
