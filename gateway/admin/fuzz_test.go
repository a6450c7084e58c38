package admin

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// What is decoded is encoded to something that decodes to the same.
func FuzzInstanceRecord(f *testing.F) {
	i := &instance{
		pb:       &adminpb.Instance{Name: testInstance, DisplayName: "name"},
		clusters: map[string]*adminpb.Cluster{"cluster-one": cluster(1)}, profiles: map[string]*adminpb.AppProfile{},
	}
	i.addDefaultProfile()
	b, err := i.marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"instance":"AA==","clusters":{"a":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := unmarshalInstance(b)
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatal(err)
			}
			return
		}
		newRoute(i)
		again, err := i.marshal()
		if err != nil {
			return // not UTF-8
		}
		j, err := unmarshalInstance(again)
		if err != nil || !proto.Equal(i.pb, j.pb) || len(i.clusters) != len(j.clusters) || len(i.profiles) != len(j.profiles) {
			t.Fatalf("%v: %s", err, again)
		}
	})
}

func FuzzOperationRecord(f *testing.F) {
	f.Add([]byte(`{"operation":"CgFh","finished":"2026-01-02T03:04:05Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := new(storedOperation).decode(b); err != nil && fault.KindOf(err) != fault.Corruption {
			t.Fatal(err)
		}
	})
}

func FuzzSettings(f *testing.F) {
	x, err := deterministic.Marshal(&adminpb.Table{TieredStorageConfig: tiered(30 * day), RowKeySchema: keySchema(orderedCode(), keyField("id", stringType()))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(x)
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := Settings(&schema.Table{Name: "t", Extra: b})
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatal(err)
			}
			return
		}
		// Whatever a client sends in its place is refused or kept in one form.
		in := &instance{pb: new(adminpb.Instance)}
		x = configOf(x)
		if checkConfig(x, in, nil) != nil {
			return
		}
		y := proto.Clone(x).(*adminpb.Table)
		if err := checkConfig(y, in, nil); err != nil || !proto.Equal(x, y) {
			t.Fatalf("%v\n%v\n%v", err, x, y)
		}
	})
}

// No token but our own opens.
func FuzzToken(f *testing.F) {
	key := []byte("0123456789abcdef0123456789abcdef")
	f.Add("")
	f.Add(strings.Repeat("A", 30))
	f.Fuzz(func(t *testing.T, token string) {
		var p pageToken
		if openToken(key, "page x", token, &p) {
			t.Fatalf("opened %q", token)
		}
	})
}

func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		`done=true AND (name:"x" OR NOT metadata.@type:UpdateTableMetadata)`, `metadata.start_time>=2026-01-02T03:04:07Z`, "response.column_families:*", "é", `'\'`, "done:*:",
	} {
		f.Add(s)
	}
	op := &longrunningpb.Operation{Name: "operations/projects/p/x", Done: true}
	f.Fuzz(func(t *testing.T, s string) {
		match, err := parseFilter(s, operationFields)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatal(err)
			}
			return
		}
		match(op.ProtoReflect())
	})
}

// A rule that is accepted comes back as it was, but for the microseconds.
func FuzzGCRule(f *testing.F) {
	for _, r := range []*adminpb.GcRule{maxVersions(1), union(maxAge(time.Hour), intersection(maxVersions(2), maxAge(time.Second))), {}} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pb := new(adminpb.GcRule)
		if proto.Unmarshal(b, pb) != nil {
			return
		}
		r, err := newGCRule(pb)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatal(err)
			}
			return
		}
		again, err := newGCRule(gcRuleProto(r))
		if err != nil || !proto.Equal(gcRuleProto(r), gcRuleProto(again)) {
			t.Fatalf("%v\n%v\n%v", err, gcRuleProto(r), gcRuleProto(again))
		}
	})
}

func FuzzValueType(f *testing.F) {
	for _, t := range []*adminpb.Type{sumType(), stringType(), {}} {
		b, err := proto.Marshal(t)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pb := new(adminpb.Type)
		if proto.Unmarshal(b, pb) != nil {
			return
		}
		agg, extra, err := newValueType(pb)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatal(err)
			}
			return
		}
		cf, err := familyProto(schema.Family{Name: "f", Extra: extra})
		if err != nil {
			t.Fatal(err)
		}
		agg2, extra2, err := newValueType(cf.ValueType)
		if err != nil || agg != agg2 || string(extra) != string(extra2) {
			t.Fatalf("%v %v %v\n%x\n%x", err, agg, agg2, extra, extra2)
		}
	})
}
