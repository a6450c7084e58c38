package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/backend"
)

// measured is a backend that knows its tablets' load.
type measured struct {
	backend.Backend
	parent  string
	tablets []backend.HotTablet
}

func (m *measured) HotTablets(_ context.Context, parent string) ([]backend.HotTablet, error) {
	m.parent = parent
	return m.tablets, nil
}

func TestHotTablets(t *testing.T) {
	c := newClock()
	m := &measured{Backend: model.New(model.Options{})}
	s := serve(t, m, Options{Now: c.now})
	ctx := t.Context()
	s.createInstance(t, "inst-one", "cluster-one")
	parent := testInstance + "/clusters/cluster-one"
	for i, cpu := range []float64{0.001, 1, 0.09, 0.5} {
		m.tablets = append(m.tablets, backend.HotTablet{Table: testTable, Rows: row.Range{Start: fmt.Appendf(nil, "k%d", i), End: []byte{'z', 0xFF}},
			CPUFraction: cpu, From: c.now().Add(-time.Minute), To: c.now()})
	}
	req := &adminpb.ListHotTabletsRequest{Parent: parent, PageSize: 3}
	var got []string
	names := map[string]bool{}
	for {
		resp := must(s.inst.ListHotTablets(ctx, req))(t)
		for _, h := range resp.HotTablets {
			got = append(got, fmt.Sprintf("%s=%.4g", h.StartKey, h.NodeCpuUsagePercent))
			names[h.Name] = true
			if !strings.HasPrefix(h.Name, parent+"/hotTablets/") || h.TableName != testTable || h.EndKey != "z\uFFFD" ||
				h.EndTime.AsTime() != c.now() || h.StartTime.AsTime() != c.now().Add(-time.Minute) {
				t.Error(h)
			}
		}
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if g := strings.Join(got, " "); g != "k1=100 k3=50 k2=9 k0=0.1" || len(names) != 4 {
		t.Error(g, names)
	}
	if m.parent != testInstance {
		t.Error("asked for ", m.parent)
	}

	at := func(age time.Duration) *timestamppb.Timestamp { return timestamppb.New(c.now().Add(-age)) }
	count := func(start, end *timestamppb.Timestamp) int {
		t.Helper()
		return len(must(s.inst.ListHotTablets(ctx, &adminpb.ListHotTabletsRequest{Parent: parent, StartTime: start, EndTime: end}))(t).HotTablets)
	}
	for _, w := range []struct {
		start, end *timestamppb.Timestamp
		n          int
	}{{at(2 * time.Hour), nil, 4}, {nil, at(time.Hour), 0}, {at(14 * day), at(13 * day), 0}, {at(48 * time.Hour), at(0), 4}} {
		if n := count(w.start, w.end); n != w.n {
			t.Errorf("%v to %v: %d tablets", w.start, w.end, n)
		}
	}
	listing := func(r *adminpb.ListHotTabletsRequest) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if r.Parent == "" {
				r.Parent = parent
			}
			return drop(s.inst.ListHotTablets(ctx, r))
		}
	}
	checkRefusals(t, s, []refusal{
		{"parent", listing(&adminpb.ListHotTabletsRequest{Parent: testInstance}), codes.InvalidArgument, "Cluster name expected", "parent"},
		{"cluster", listing(&adminpb.ListHotTabletsRequest{Parent: parent + "x"}), codes.NotFound, "Cluster not found", ""},
		{"size", listing(&adminpb.ListHotTabletsRequest{PageSize: -1}), codes.InvalidArgument, "Must not be negative", "page_size"},
		{"backwards", listing(&adminpb.ListHotTabletsRequest{StartTime: at(time.Hour), EndTime: at(2 * time.Hour)}), codes.InvalidArgument, "Must be before end_time", "start_time"},
		{"long", listing(&adminpb.ListHotTabletsRequest{StartTime: at(49 * time.Hour)}), codes.InvalidArgument, "at most 48 hours", "start_time"},
		{"old", listing(&adminpb.ListHotTabletsRequest{StartTime: at(14*day + time.Hour), EndTime: at(14*day - time.Hour)}), codes.InvalidArgument, "last 14 days", "start_time"},
		{"future", listing(&adminpb.ListHotTabletsRequest{EndTime: at(-time.Hour)}), codes.InvalidArgument, "last 14 days", "end_time"},
		{"no time", listing(&adminpb.ListHotTabletsRequest{EndTime: &timestamppb.Timestamp{Nanos: -1}}), codes.InvalidArgument, "out of range", "end_time"},
	})
	plain := serve(t, model.New(model.Options{}), Options{Emulator: true})
	checkRefusals(t, plain, []refusal{{"not measured", listing(&adminpb.ListHotTabletsRequest{Parent: testInstance + "/clusters/default"}), codes.Unimplemented, "not measured", ""}})
}
