package stream

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
)

// details are descriptions of tablets, the first with everything that there is.
var details = []rpc.TabletDetail{{
	TabletStatus:  rpc.TabletStatus{Tablet: 1 << 60, Table: 3, Start: []byte{0, 255}, End: []byte("e"), Epoch: 4, Bytes: 5, Reads: 6.5, Writes: 7.25, CPU: 0.5, Runs: 8, Since: time.UnixMicro(9)},
	MemtableBytes: 10, Files: 11, LastMajor: time.Unix(12, 0).UTC(), Redo: "13:14", ReadCalls: 15.5, BytesRate: 1e300, Done: 16, Total: -17,
	Groups: map[uint16]rpc.GroupState{0: {Bytes: 18, Resident: 19, Runs: 20, Files: 21}, 65535: {Bytes: 1 << 62}}, Earlier: rpc.GroupState{Runs: 22},
	Kept: &rpc.Kept{Files: 23, Bytes: 24, Since: time.UnixMicro(25).UTC(), Newest: time.Unix(26, 0).UTC()},
}, {Kept: &rpc.Kept{}}, {}}

func TestDescribe(t *testing.T) {
	f := &fake{details: details}
	_, s, _ := serve(t, f, Options{}, ServerOptions{})
	got, err := s.Describe(t.Context(), 3, true)
	if err != nil || !reflect.DeepEqual(got, details) {
		t.Errorf("got %+v, %v, want %+v", got, err, details)
	}
	f.details = nil
	if got, err := s.Describe(t.Context(), 3, true); err != nil || len(got) > 0 {
		t.Error(got, err)
	}
	// Each field is among what was compared, but for two that only Status tells.
	for _, v := range []reflect.Value{reflect.ValueOf(details[0]), reflect.ValueOf(details[0].TabletStatus)} {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "Changes" && name != "View" {
				t.Errorf("%s is not compared", name)
			}
		}
	}
}

// TestDescribeOfOthers: a server of an earlier version answers in JSON, one of a later version
// with more behind each tablet. Torn answers are refused.
func TestDescribeOfOthers(t *testing.T) {
	text, err := json.Marshal(details[1:])
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range [][]byte{text, []byte("null")} {
		got, err := detailsOf(answer)
		if err != nil || string(answer) != "null" && !reflect.DeepEqual(got, details[1:]) {
			t.Errorf("%s: %+v, %v", answer, got, err)
		}
	}
	more := []byte{detailsVersion, byte(len(details))}
	for i := range details {
		more = appendBytes(more, append(appendDetail(nil, &details[i]), "more"...))
	}
	if got, err := detailsOf(more); err != nil || !reflect.DeepEqual(got, details) {
		t.Errorf("%+v, %v", got, err)
	}
	whole := appendDetails(nil, details)
	for n := range whole {
		if got, err := detailsOf(whole[:n]); err == nil {
			t.Fatalf("%d bytes of %d are %+v", n, len(whole), got)
		}
	}
}

// BenchmarkDescribe decodes what a server tells of 10,000 tablets, packed and in JSON.
func BenchmarkDescribe(b *testing.B) {
	const many = 10_000
	all := make([]rpc.TabletDetail, many)
	for i := range all {
		all[i] = rpc.TabletDetail{TabletStatus: rpc.TabletStatus{Tablet: 1<<40 + 1, Table: 1 << 40, Start: fmt.Appendf(nil, "%06d", i), End: fmt.Appendf(nil, "%06d", i+1), Epoch: 3, Bytes: 1 << 27, Reads: 1.5, Runs: 3, Since: time.Now()},
			Files: 3, LastMajor: time.Now(), Kept: &rpc.Kept{}}
	}
	text, err := json.Marshal(all)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		answer []byte
	}{{"packed", appendDetails(nil, all)}, {"JSON", text}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if got, err := detailsOf(c.answer); err != nil || len(got) != many {
					b.Fatal(len(got), err)
				}
			}
			b.ReportMetric(float64(len(c.answer))/many, "B/tablet")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/many, "ns/tablet")
		})
	}
}
