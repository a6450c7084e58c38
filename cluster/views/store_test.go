package views

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
)

func FuzzEntry(f *testing.F) {
	name := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 3), 4)
	f.Add(name, appendDelta(appendDelta(nil, []byte("a"), []byte("p")), []byte("b"), nil))
	f.Add(name, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, qualifier, value []byte) {
		e, err := parseEntry([]byte("row"), qualifier, value)
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(e.qualifier(), qualifier) {
			t.Errorf("%x becomes %x", qualifier, e.qualifier())
		}
		var again []byte
		if err := e.each(func(key, payload []byte) { again = appendDelta(again, key, payload) }); err != nil {
			t.Fatal(err)
		}
		if len(again) > len(value) {
			t.Errorf("%x becomes %x", value, again)
		}
	})
}
