package session

import (
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/chunk"
	"github.com/trestledb/trestle/gateway/wire"
)

// encode encodes a frame whose strings are valid.
func encode(m *bigtablepb.SessionResponse) wire.Encoded {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // only strings can be invalid
	}
	return b
}

// answer sends the outcome of a call and returns the length of the frame.
func (s *session) answer(c *call, err error, elapsed time.Duration) (int, error) {
	zone, cluster := c.zone, c.cluster
	if zone == "" || cluster == "" {
		zone, cluster = s.svc.o.Zone, s.svc.o.Cluster
	}
	if err != nil {
		frame := s.failure(c, err, zone, cluster)
		return len(frame), s.send(frame)
	}
	head := make([]byte, 0, chunk.Headroom)
	if c.req.Op == wire.VirtualMutateRow {
		// TableResponse{mutate_row: {}}
		head = appendHead(head, c.req.ID, zone, cluster, elapsed, 2)
		return s.sendFrame(append(head, 2<<3|2, 0))
	}
	// TableResponse{read_row: {stats, row}}, the row last since it is there
	// already.
	var scratch [80]byte
	stats := appendStats(scratch[:0], c.stats, elapsed)
	n, ok := c.row.Len()
	inner := 1 + protowire.SizeBytes(len(stats))
	if ok {
		inner += 1 + protowire.SizeBytes(n)
	}
	head = appendHead(head, c.req.ID, zone, cluster, elapsed, 1+protowire.SizeBytes(inner))
	head = append(head, 1<<3|2)
	head = protowire.AppendVarint(head, uint64(inner))
	head = append(head, 2<<3|2)
	head = protowire.AppendBytes(head, stats)
	if !ok {
		return s.sendFrame(head)
	}
	head = append(head, 1<<3|2)
	head = protowire.AppendVarint(head, uint64(n))
	m := wire.NewBuffers(mem.BufferSlice{c.row.Take(head)})
	defer m.Free()
	return m.WireLen(), s.send(m)
}

// appendStats appends a RequestStats, of at most 80 bytes: clients cannot say
// in a session whether they want it.
func appendStats(b []byte, st scan.Stats, elapsed time.Duration) []byte {
	counts := [...]uint64{uint64(max(st.RowsSeen, st.RowsReturned)), uint64(st.RowsReturned), uint64(max(st.CellsSeen, st.CellsReturned)), uint64(st.CellsReturned)}
	iteration := 0
	for _, n := range counts {
		iteration += 1 + protowire.SizeVarint(n)
	}
	latency := durationSize(elapsed)
	frontend := 1 + protowire.SizeBytes(latency)
	view := 1 + protowire.SizeBytes(iteration) + 1 + protowire.SizeBytes(frontend)
	b = append(b, 1<<3|2) // full_read_stats_view
	b = protowire.AppendVarint(b, uint64(view))
	b = append(b, 1<<3|2)
	b = protowire.AppendVarint(b, uint64(iteration))
	for i, n := range counts {
		b = append(b, byte(i+1)<<3|0)
		b = protowire.AppendVarint(b, n)
	}
	b = append(b, 2<<3|2)
	b = protowire.AppendVarint(b, uint64(frontend))
	b = append(b, 1<<3|2)
	return appendDuration(b, elapsed, latency)
}

func durationSize(d time.Duration) int {
	return 1 + protowire.SizeVarint(uint64(d/time.Second)) + 1 + protowire.SizeVarint(uint64(d%time.Second))
}

// appendDuration appends a Duration of that size with its length.
func appendDuration(b []byte, d time.Duration, size int) []byte {
	b = protowire.AppendVarint(b, uint64(size))
	b = append(b, 1<<3|0)
	b = protowire.AppendVarint(b, uint64(d/time.Second))
	b = append(b, 2<<3|0)
	return protowire.AppendVarint(b, uint64(d%time.Second))
}

func (s *session) sendFrame(b []byte) (int, error) { return len(b), s.send(wire.Encoded(b)) }

// maxPlace bounds the ids of zone and cluster in an answer, so that what is
// before a row fits its headroom. Both are shorter where the API creates them.
const maxPlace = chunk.Headroom - 176

// appendHead appends a SessionResponse with a VirtualRpcResponse up to its
// payload of n bytes, which follows.
func appendHead(b []byte, id int64, zone, cluster string, elapsed time.Duration, n int) []byte {
	if len(zone)+len(cluster) > maxPlace {
		zone, cluster = "", ""
	}
	place := 0
	if cluster != "" {
		place = 1 + protowire.SizeBytes(len(cluster)) + 1 + protowire.SizeBytes(len(zone))
	}
	latency := durationSize(elapsed)
	stats := 1 + protowire.SizeBytes(latency)
	size := 1 + protowire.SizeVarint(uint64(id)) + 1 + protowire.SizeBytes(stats) + 1 + protowire.SizeBytes(n)
	if place > 0 {
		size += 1 + protowire.SizeBytes(place)
	}
	b = append(b, 2<<3|2)
	b = protowire.AppendVarint(b, uint64(size))
	b = append(b, 1<<3|0)
	b = protowire.AppendVarint(b, uint64(id))
	if place > 0 {
		b = append(b, 2<<3|2)
		b = protowire.AppendVarint(b, uint64(place))
		b = append(b, 1<<3|2)
		b = protowire.AppendString(b, cluster)
		b = append(b, 2<<3|2)
		b = protowire.AppendString(b, zone)
	}
	b = append(b, 4<<3|2)
	b = protowire.AppendVarint(b, uint64(stats))
	b = append(b, 1<<3|2)
	b = appendDuration(b, elapsed, latency)
	b = append(b, 3<<3|2)
	return protowire.AppendVarint(b, uint64(n))
}

// failure encodes the error of a call.
func (s *session) failure(c *call, err error, zone, cluster string) wire.Encoded {
	st := wire.StatusProto(c, s.svc.o.Log, err)
	var retry *errdetails.RetryInfo
	kept := st.Details[:0:0]
	for _, d := range st.Details {
		r := new(errdetails.RetryInfo)
		if d.UnmarshalTo(r) == nil {
			retry = r // it has a field of its own
			continue
		}
		kept = append(kept, d)
	}
	st.Details = kept
	wire.AddRequestInfo(st, &c.record)
	if retry == nil && codes.Code(st.Code) == codes.Unavailable {
		// What is UNAVAILABLE was not done. Other than those of an RPC, clients do
		// not make a virtual call again unless they are told when.
		shift := min(max(c.req.Attempt-1, 0), 7)
		retry = &errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Millisecond << shift)}
	}
	e := &bigtablepb.ErrorResponse{RpcId: c.req.ID, ClusterInfo: &bigtablepb.ClusterInformation{ClusterId: cluster, ZoneId: zone}, Status: st, RetryInfo: retry}
	m := &bigtablepb.SessionResponse{Payload: &bigtablepb.SessionResponse_Error{Error: e}}
	b, merr := proto.Marshal(m)
	if merr != nil { // a text that is no UTF-8
		e.ClusterInfo, e.Status = nil, &spb.Status{Code: st.Code}
		return encode(m)
	}
	return b
}
