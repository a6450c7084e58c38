package schema

import (
	"bytes"
	"testing"
	"time"
)

func FuzzUnmarshalBackup(f *testing.F) {
	b := &Backup{Name: "b", ID: 7, Table: &Table{Name: "t", ID: 3, Families: map[string]Family{"f": {Name: "f", GC: &GCRule{MaxVersions: 1}}}},
		CreateTime: time.Unix(1, 0).UTC(), ExpireTime: time.Unix(9, 0).UTC(), Extra: []byte("x")}
	f.Add(b.Marshal())
	f.Add([]byte(`{"Table":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		b, err := UnmarshalBackup(in)
		if err != nil {
			return
		}
		again, err := UnmarshalBackup(b.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), b.Marshal()) {
			t.Errorf("%+v became %+v, %v", b, again, err)
		}
		b.Clone().Table.Clone()
	})
}
