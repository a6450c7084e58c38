package stream

import (
	"errors"
	"reflect"
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/matview"
)

var someViewRows = []rpc.ViewRow{
	{Key: []byte("a"), Updates: []matview.Update{{Shard: 7, Seq: 1 << 60, Payload: []byte("p")}, {Shard: 8, Seq: 2, Payload: []byte{}}}},
	{Key: []byte{}, Updates: []matview.Update{}},
}

// TestApplyView: updates come to another process as they are, and so does the answer.
func TestApplyView(t *testing.T) {
	var got []rpc.ViewRow
	var fail error
	f := &fake{apply: func(rows []rpc.ViewRow) error {
		// They are valid during the call.
		got = nil
		for _, r := range rows {
			r.Key = append([]byte{}, r.Key...)
			us := []matview.Update{}
			for _, u := range r.Updates {
				u.Payload = append([]byte{}, u.Payload...)
				us = append(us, u)
			}
			got = append(got, rpc.ViewRow{Key: r.Key, Updates: us})
		}
		return fail
	}}
	_, p, _ := serve(t, f, Options{}, ServerOptions{})
	if err := p.ApplyView(t.Context(), rpc.Target{Tablet: 5, Schema: 1}, someViewRows); err != nil || !reflect.DeepEqual(got, someViewRows) {
		t.Errorf("%+v, %v", got, err)
	}
	fail = rpc.ErrNotServing
	if err := p.ApplyView(t.Context(), rpc.Target{Tablet: 5, Schema: 1}, someViewRows); !errors.Is(err, rpc.ErrNotServing) {
		t.Error(err)
	}
}

func FuzzViewRows(f *testing.F) {
	f.Add(appendViewRows(nil, someViewRows))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoderOf(b)
		rows := d.viewRows()
		if d.Bad() {
			return
		}
		again := decoderOf(appendViewRows(nil, rows))
		if got := again.viewRows(); again.Bad() || !reflect.DeepEqual(got, rows) {
			t.Errorf("%+v becomes %+v", rows, got)
		}
	})
}
