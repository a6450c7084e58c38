package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/chunk"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	// streamBytes is what a change stream takes while it waits: stacks and gRPC's
	// stream.
	streamBytes = 32 << 10
	// maxStreams is how many there may be unless Options say otherwise.
	maxStreams = 10_000
	// clockSkew is how far ahead a client's clock may be: a start_time in the near
	// future is waited for.
	clockSkew = 5 * time.Second
	// schemaEvery is how often a stream looks whether it is still enabled.
	schemaEvery = time.Second
)

// stillOn returns the stream of a table, or why there is none.
func stillOn(t *schema.Table) (*schema.Stream, error) {
	if t.ChangeStream() == nil {
		return nil, fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s", t.Name)
	}
	return t.Stream, nil
}

// openStream checks what both methods of change streams have in common.
func (s *Service) openStream(ctx context.Context, table, profile string) (backend.ChangeStreamer, *schema.Table, Profile, error) {
	fail := func(err error) (backend.ChangeStreamer, *schema.Table, Profile, error) {
		return nil, nil, Profile{}, err
	}
	instance, err := wire.CheckTable("table_name", table, s.opt.LaxNames)
	if err != nil {
		return fail(err)
	}
	p := Profile{SingleCluster: true}
	if s.opt.Profile == nil {
		err = s.profile(ctx, instance, profile, read)
	} else {
		if profile == "" {
			profile = DefaultProfile
		}
		p, err = s.opt.Profile(ctx, instance, profile)
	}
	switch {
	case err != nil:
		return fail(err)
	case p.ReadOnly:
		return fail(profileRefused("App profile %s is of Data Boost, which does not read change streams: use one with standard isolation", profile))
	case !p.SingleCluster:
		return fail(profileRefused("App profile %s routes to several clusters: change streams need one with single-cluster routing", profile))
	}
	if p.Cluster == "" {
		p.Cluster = s.opt.Cluster
	}
	b, ok := s.backend.(backend.ChangeStreamer)
	if !ok {
		return fail(fault.New(fault.Unimplemented, "This server does not keep changes"))
	}
	t, err := s.tables.Table(ctx, table)
	if err != nil {
		return fail(err)
	}
	if _, err := stillOn(t); err != nil {
		return fail(err)
	}
	return b, t, p, nil
}

func profileRefused(format string, args ...any) error {
	err := fault.New(fault.FailedPrecondition, format, args...)
	err.Field = "app_profile_id"
	return err
}

// GenerateInitialChangeStreamPartitions implements bigtablepb.BigtableServer.
func (s *Service) GenerateInitialChangeStreamPartitions(req *bigtablepb.GenerateInitialChangeStreamPartitionsRequest, stream bigtablepb.Bigtable_GenerateInitialChangeStreamPartitionsServer) error {
	ctx := stream.Context()
	b, t, _, err := s.openStream(ctx, req.GetTableName(), req.GetAppProfileId())
	if err != nil {
		return err
	}
	parts, err := b.StreamPartitions(ctx, t.Name)
	if err != nil {
		return err
	}
	for _, r := range parts {
		if err := stream.Send(&bigtablepb.GenerateInitialChangeStreamPartitionsResponse{Partition: wire.StreamPartition(r)}); err != nil {
			return err
		}
	}
	return nil
}

// Drain ends change streams, which would not end by themselves, and refuses new ones.
// Their clients go on elsewhere with their last tokens.
func (s *Service) Drain() { s.drain(errDraining) }

var errDraining = fault.New(fault.Unavailable, "The server is shutting down: go on with the last token")

func (s *Service) readChangeStream(req *wire.ReadChangeStreamRequest, stream grpc.ServerStream) error {
	ctx := stream.Context()
	b, t, p, err := s.openStream(ctx, req.Table, req.Profile)
	if err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	if n := s.streams.Add(1); n > s.opt.MaxChangeStreams {
		s.streams.Add(-1)
		return &fault.Error{Kind: fault.Exhausted, Reason: "TOO_MANY_CHANGE_STREAMS", RetryAfter: budget.RetryAfter,
			Msg: fmt.Sprintf("The server serves %d change streams, as many as it may; see --max-change-streams", s.opt.MaxChangeStreams)}
	}
	defer s.streams.Add(-1)
	if !s.opt.Budget.Try(streamBytes) {
		return budget.Busy()
	}
	defer s.opt.Budget.Release(streamBytes)
	// A drained service ends all of its streams.
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(s.drained, func() { cancel(errDraining) })()
	defer cancel(nil)
	life, _ := t.Stream.ForClients()
	r := &streamReader{s: s, b: b, table: t, life: life, rows: req.Partition, heartbeat: req.Heartbeat, ctx: ctx, stream: stream}
	if err := r.start(req); err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	r.looked = s.now()
	r.sent = r.looked
	r.w = chunk.NewChangeWriter(chunk.ChangeOptions{
		Send: r.send, Cluster: p.Cluster, Family: r.family, Families: func() []string { return r.names },
		Token:     func(dst []byte) []byte { return r.seal.seal(dst, r.at) },
		TokenSize: func() int { return r.seal.size(r.at) },
		Watermark: func() cell.Seq { return r.at.watermark() },
		Budget:    s.opt.Budget,
	})
	defer r.w.Close()
	r.note()
	defer s.enter(r)()
	err = r.run()
	if err != nil {
		r.ended = endOf(err, stream.Context().Err() != nil)
	}
	s.opt.Streams.StreamEnded(r.ended)
	if err != nil && ctx.Err() != nil && stream.Context().Err() == nil {
		return context.Cause(ctx)
	}
	return err
}

// A streamReader serves one ReadChangeStream.
type streamReader struct {
	s         *Service
	b         backend.ChangeStreamer
	table     *schema.Table
	life      uint64    // of the stream that the client sees
	rows      row.Range // the partition
	heartbeat time.Duration
	ctx       context.Context
	stream    grpc.ServerStream
	w         *chunk.ChangeWriter
	seal      *sealer

	families map[cell.FamilyID]string
	names    []string

	at     place         // what was given to w
	i      int           // of the part that is being read
	until  cell.Seq      // of end_time, 0: none
	newest cell.Seq      // of the records that were given to w
	mark   atomic.Uint64 // the watermark that the client was told last, or could have been
	ended  string        // one of StreamEnds
	sent   time.Time
	looked time.Time // when the schema was looked at
}

// know takes over the families of a table.
func (r *streamReader) know(t *schema.Table) {
	r.table, r.names = t, t.FamilyNames()
	r.families = make(map[cell.FamilyID]string, len(t.Families))
	for name, f := range t.Families {
		r.families[f.ID] = name
	}
}

// start finds out from where to read.
func (r *streamReader) start(req *wire.ReadChangeStreamRequest) error {
	key, err := r.s.opt.TokenKey(r.ctx)
	if err != nil {
		return err
	}
	r.seal = newSealer(key, r.table.ID, r.life, r.rows)
	r.know(r.table)
	if !req.End.IsZero() {
		r.until = stamp.At(req.End) + stamp.Stride - 1
	}
	if req.Tokens != nil {
		r.at, err = r.resume(key, req.Tokens)
		return err
	}
	now := r.s.now().Truncate(time.Microsecond)
	from := req.Start
	if from.IsZero() {
		from = now
	}
	if ahead := from.Sub(now); ahead > clockSkew {
		return fault.InvalidField("", "Must not be in the future, but found %s, which is %v from now", rfc3339(from), ahead).In("start_time", -1)
	} else if ahead > 0 {
		wait := time.NewTimer(ahead)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	earliest := now.Add(-r.table.Stream.Retention)
	if _, since := r.table.Stream.ForClients(); since.After(earliest) {
		earliest = since
	}
	if from.Before(earliest.Add(-clockSkew)) {
		return expired(from, rfc3339(earliest))
	}
	if from.Before(earliest) {
		from = earliest
	}
	r.at = place{{r.rows, changes.Position{Through: stamp.At(from) - 1}}}
	return nil
}

func rfc3339(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func expired(from time.Time, earliest string) error {
	err := fault.New(fault.OutOfRange, "start_time %s is before %s, the earliest that the stream still has", rfc3339(from), earliest)
	err.Field, err.Reason = "start_time", changes.ExpiredReason
	err.Metadata = map[string]string{changes.EarliestKey: earliest}
	return err
}

// resume returns the place that tokens say together.
func (r *streamReader) resume(key []byte, tokens []wire.StreamToken) (place, error) {
	var all place
	from := make([]int, 0, len(tokens)) // of each part: its token
	for i, t := range tokens {
		p, err := newSealer(key, r.table.ID, r.life, t.Partition).open(t.Token)
		if err != nil {
			var f *fault.Error
			if errors.As(err, &f) {
				err = f.In("tokens", i).In("continuation_tokens", -1)
			}
			return nil, err
		}
		all = append(all, p...)
		for range p {
			from = append(from, i)
		}
	}
	if len(all) > wire.MaxStreamTokens {
		return nil, fault.InvalidField("", "The tokens are of %d partitions that were merged; %d can be", len(all), wire.MaxStreamTokens).In("continuation_tokens", -1)
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(all[a].rows.Start, all[b].rows.Start) })
	bad := func(i int, format string, args ...any) error {
		return fault.New(fault.Invalid, format, args...).In("tokens", from[i]).In("continuation_tokens", -1)
	}
	var out place
	at, open := r.rows.Start, true // where the next part begins; whether there is to be one
	for _, i := range order {
		rows := all[i].rows
		switch c := bytes.Compare(rows.Start, at); {
		case !open && (len(r.rows.End) == 0 || bytes.Compare(rows.Start, r.rows.End) < 0):
			return nil, bad(i, "The token's partition overlaps that of another token from %q on", rows.Start)
		case !open, len(out) == 0 && c < 0:
			return nil, bad(i, "The token's partition reaches beyond the partition that is to be read")
		case c < 0:
			return nil, bad(i, "The token's partition overlaps that of another token from %q on", rows.Start)
		case c > 0:
			return nil, bad(i, "No token is of the rows from %q to %q, before this one's", at, rows.Start)
		}
		if len(r.rows.End) > 0 && (len(rows.End) == 0 || bytes.Compare(rows.End, r.rows.End) > 0) {
			return nil, bad(i, "The token's partition reaches beyond the partition that is to be read")
		}
		at, open = rows.End, len(rows.End) > 0 && !bytes.Equal(rows.End, r.rows.End)
		out = append(out, all[i])
	}
	if open {
		return nil, bad(order[len(order)-1], "No token is of the rows from %q on, behind this one's", at)
	}
	return out.simple(), nil
}

// run reads until there is nothing more to tell.
func (r *streamReader) run() error {
	for {
		if r.until > 0 && r.at.watermark() >= r.until {
			r.ended = EndedEndTime
			return r.stream.SendMsg(&bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_CloseStream_{
				CloseStream: &bigtablepb.ReadChangeStreamResponse_CloseStream{Status: new(statuspb.Status)}}})
		}
		until := r.until
		r.i = 0
		if goal := r.at.goal(); goal > 0 {
			// The part that is behind most goes first.
			if until == 0 || goal < until {
				until = goal
			}
			for i := range r.at {
				if r.at[i].at.Through < r.at[r.i].at.Through {
					r.i = i
				}
			}
		}
		req := &changes.Request{Table: r.table.Name, Life: r.table.Stream.Life, Within: r.at[r.i].rows, Partition: &r.rows, From: r.at[r.i].at, Until: until, Every: r.heartbeat}
		req.From.Row = bytes.Clone(req.From.Row) // as that of r.at goes on
		c, err := r.b.ReadChanges(r.ctx, req, r)
		if begin, ok := changes.BeginOf(err); ok && begin.Through > r.at[r.i].at.Through {
			r.moved(begin) // a stream has all that came after it was enabled, and this is that
			continue
		}
		if err != nil {
			return r.explain(err)
		}
		if c != nil {
			r.moved(c.At)
			for i := range r.at {
				r.at[i].at.Born = max(r.at[i].at.Born, c.At.Born)
			}
			return r.closed(c)
		}
		if until == 0 {
			return fault.New(fault.Internal, "changes of %s ended", r.table.Name)
		}
		r.moved(changes.Position{Through: until})
		r.at = r.at.simple()
	}
}

// explain says of a request's start what the backend says of positions.
func (r *streamReader) explain(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != changes.ExpiredReason {
		return err
	}
	out := *f
	out.Msg = fmt.Sprintf("The stream was read up to %s, which is before %s, the earliest that it still has",
		rfc3339(stamp.Time(r.at.watermark())), f.Metadata[changes.EarliestKey])
	return &out
}

// moved notes how far the part that is being read was read.
func (r *streamReader) moved(at changes.Position) {
	p := &r.at[r.i].at
	key := append(p.Row[:0], at.Row...)
	at.Born = max(at.Born, p.Born)
	*p = at
	p.Row = key
}

// Record implements changes.Writer.
func (r *streamReader) Record(rec *changes.Record, at changes.Position) (full bool, err error) {
	r.moved(at)
	r.newest = rec.Stamp
	return r.w.Record(rec)
}

// Flush implements changes.Writer.
func (r *streamReader) Flush() error {
	if err := r.w.Flush(); err != nil {
		return err
	}
	r.note()
	return r.look()
}

// note notes how far the client is.
func (r *streamReader) note() { r.mark.Store(uint64(r.at.watermark())) }

func (r *streamReader) send(b mem.BufferSlice) error {
	m := wire.NewBuffers(b)
	defer m.Free()
	r.sent = r.s.now()
	if err := r.stream.SendMsg(m); err != nil {
		return err
	}
	r.s.opt.Streams.ChangesSent(r.s.now().Sub(stamp.Time(r.newest)))
	return nil
}

// Watermark implements changes.Writer.
func (r *streamReader) Watermark(at changes.Position) error {
	r.moved(at)
	r.note()
	if err := r.look(); err != nil {
		return err
	}
	// One that comes a little early is as good: the next would be late.
	if now := r.s.now(); now.Sub(r.sent) >= r.heartbeat-r.heartbeat/8 {
		r.sent = now
		return r.stream.SendMsg(&bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_Heartbeat_{
			Heartbeat: &bigtablepb.ReadChangeStreamResponse_Heartbeat{
				ContinuationToken:     r.continuation(r.rows, r.at),
				EstimatedLowWatermark: timestamppb.New(stamp.Time(r.at.watermark())),
			}}})
	}
	return nil
}

// continuation returns the token of a place of rows.
func (r *streamReader) continuation(rows row.Range, p place) *bigtablepb.StreamContinuationToken {
	s := r.seal
	if p := s.rows; !bytes.Equal(p.Start, rows.Start) || !bytes.Equal(p.End, rows.End) {
		s = newSealer(s.key, s.table, s.life, rows)
	}
	return &bigtablepb.StreamContinuationToken{Partition: wire.StreamPartition(rows), Token: string(s.seal(nil, p))}
}

// look finds out, now and then, whether the stream is still on.
func (r *streamReader) look() error {
	now := r.s.now()
	if now.Sub(r.looked) < schemaEvery {
		return nil
	}
	r.looked = now
	if key, err := r.s.opt.TokenKey(r.ctx); err == nil {
		r.seal.use(key)
	}
	return r.reread()
}

// reread reads the schema of the table. That it cannot be read is no reason to end a
// stream.
func (r *streamReader) reread() error {
	t, err := r.s.tables.Table(r.ctx, r.table.Name)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return err
	case err != nil:
		return r.ctx.Err()
	}
	on, err := stillOn(t)
	if err != nil {
		return err
	}
	if life, _ := on.ForClients(); life != r.life || t.ID != r.table.ID {
		return fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s as they were when this one began: start again with start_time", t.Name)
	}
	if t.Version != r.table.Version {
		r.know(t)
	}
	return nil
}

// family returns the name of a column family.
func (r *streamReader) family(id cell.FamilyID) (string, error) {
	if name, ok := r.families[id]; ok || uint32(id) < r.table.NextFamily || id >= cell.FirstSystemFamily {
		return name, nil
	}
	// It is newer than the schema that we have.
	if err := r.reread(); err != nil {
		return "", err
	}
	if name, ok := r.families[id]; ok || uint32(id) < r.table.NextFamily {
		return name, nil
	}
	return "", fault.New(fault.Unavailable, "A column family of table %s is not known here yet: go on with the last token", r.table.Name)
}

// closed tells the client by what to go on.
func (r *streamReader) closed(c *changes.Close) error {
	if err := r.w.Flush(); err != nil {
		return err
	}
	r.ended = EndedRepartitioned
	out := &bigtablepb.ReadChangeStreamResponse_CloseStream{Status: &statuspb.Status{Code: int32(codes.OutOfRange),
		Message: "The partition was split or merged: go on with new_partitions"}}
	for _, n := range c.Partitions {
		rows := n.Intersect(r.rows)
		if rows.Empty() {
			continue
		}
		out.ContinuationTokens = append(out.ContinuationTokens, r.continuation(rows, r.at.within(rows)))
		out.NewPartitions = append(out.NewPartitions, wire.StreamPartition(n))
	}
	if len(out.NewPartitions) == 0 {
		return fault.New(fault.Internal, "changes of %s ended without partitions", r.table.Name)
	}
	return r.stream.SendMsg(&bigtablepb.ReadChangeStreamResponse{StreamRecord: &bigtablepb.ReadChangeStreamResponse_CloseStream_{CloseStream: out}})
}
