package admin

import (
	"context"
	"fmt"
	"hash/fnv"
	"sort"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

// Limits of the times that hot tablets can be asked for.
const (
	hotTabletsRange   = 48 * time.Hour
	hotTabletsAge     = 14 * day
	hotTabletsDefault = 24 * time.Hour
	clockSkew         = 5 * time.Minute // of clients that ask for times up to now
)

// hotTimes returns the times that a request asks for.
func hotTimes(req *adminpb.ListHotTabletsRequest, now time.Time) (start, end time.Time, err error) {
	start, end = now.Add(-hotTabletsDefault), now
	for _, f := range []struct {
		field string
		in    *timestamppb.Timestamp
		out   *time.Time
	}{{"start_time", req.GetStartTime(), &start}, {"end_time", req.GetEndTime(), &end}} {
		if f.in == nil {
			continue
		}
		if err := f.in.CheckValid(); err != nil {
			return start, end, refuse(fault.Invalid, f.field, "Error in field '%s' : The timestamp is out of range", f.field)
		}
		*f.out = f.in.AsTime()
		if f.out.Before(now.Add(-hotTabletsAge)) || f.out.After(now.Add(clockSkew)) {
			return start, end, refuse(fault.Invalid, f.field, "Error in field '%s' : Must be within the last 14 days", f.field)
		}
	}
	if req.GetStartTime() == nil && req.GetEndTime() != nil {
		start = end.Add(-hotTabletsDefault)
	}
	switch {
	case !start.Before(end):
		return start, end, refuse(fault.Invalid, "start_time", "Error in field 'start_time' : Must be before end_time")
	case end.Sub(start) > hotTabletsRange:
		return start, end, refuse(fault.Invalid, "start_time", "Error in field 'start_time' : Must be at most 48 hours before end_time")
	}
	return start, end, nil
}

// ListHotTablets implements I24. Only the present load is known, so that times
// that have passed have none.
func (s *instanceServer) ListHotTablets(ctx context.Context, req *adminpb.ListHotTabletsRequest) (*adminpb.ListHotTabletsResponse, error) {
	ids, err := s.parse("parent", clusterForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	start, end, err := hotTimes(req, s.o.Now())
	if err != nil {
		return nil, err
	}
	scope := fmt.Sprintf("hotTablets %s %v %v", req.GetParent(), req.GetStartTime().AsTime(), req.GetEndTime().AsTime())
	p, err := s.newPage(ctx, scope, req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceForTables(ctx, "parent", parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	if i.clusters[ids[2]] == nil {
		return nil, missing("parent", "Cluster", req.GetParent())
	}
	b, ok := s.b.(backend.HotTabletLister)
	if !ok {
		return nil, refuse(fault.Unimplemented, "parent", "The load of tablets is not measured")
	}
	all, err := b.HotTablets(ctx, parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	var out []*adminpb.HotTablet
	for _, t := range all {
		if t.To.Before(start) || t.From.After(end) {
			continue
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%s", t.Table, t.Rows.Start)
		out = append(out, &adminpb.HotTablet{
			Name: fmt.Sprintf("%s/hotTablets/%016x", req.GetParent(), h.Sum64()), TableName: t.Table,
			StartTime: timestamppb.New(t.From), EndTime: timestamppb.New(t.To),
			// Keys may be any bytes, but here they are text. The last key is not known,
			// only the first behind the tablet.
			StartKey: strings.ToValidUTF8(string(t.Rows.Start), "\uFFFD"), EndKey: strings.ToValidUTF8(string(t.Rows.End), "\uFFFD"),
			NodeCpuUsagePercent: float32(100 * t.CPUFraction),
		})
	}
	// The busiest come first. Loads change between pages, so that a tablet may be
	// on two of them, or on none.
	key := func(t *adminpb.HotTablet) string {
		return fmt.Sprintf("%010.6f %s", 100-t.GetNodeCpuUsagePercent(), t.GetName())
	}
	sort.Slice(out, func(x, y int) bool { return key(out[x]) < key(out[y]) })
	resp := new(adminpb.ListHotTabletsResponse)
	resp.HotTablets, resp.NextPageToken, err = cut(ctx, s.Admin, p, out, key)
	if err != nil {
		return nil, err
	}
	return resp, nil
}
