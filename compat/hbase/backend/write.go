package backend

import (
	"bytes"
	"context"

	"slices"
	"sync"
	"time"

	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
)

const (
	// batchBytes and batchRows bound one request of MutateRows.
	batchBytes = 4 << 20
	batchRows  = 2000
	// batches is how many of them are under way at a time.
	batches = 4
	// retries is how often rows are sent again that a region server refused
	// because the region is moving.
	retries = 30
)

// checked holds an entry against the table.
func checked(t *table, e *row.Entry) (reads bool, err error) {
	p := plan.New(t.schema, time.Now())
	if reads, err = p.Check(e.Key, e.Mutations, "mutations"); err != nil {
		return false, err
	}
	return reads, checkTimes(t, e.Mutations)
}

// MutateRow implements backend.Data.
func (b *Backend) MutateRow(ctx context.Context, resource string, e *row.Entry) error {
	return b.onTable(ctx, resource, func(t *table) error {
		if err := plan.CheckToken(e.Token, time.Now()); err != nil {
			return err
		}
		if _, err := checked(t, e); err != nil {
			return err
		}
		return b.mutate(ctx, t, e)
	})
}

// mutate applies an entry that was checked.
func (b *Backend) mutate(ctx context.Context, t *table, e *row.Entry) error {
	if len(e.Token.Token) == 0 {
		if c, ok := blind(t, e.Mutations, now(t)); ok {
			return b.write(ctx, t, e.Key, c)
		}
	}
	return b.dependent(ctx, t, e)
}

// version returns a new version for a row, nil if t's rows have none.
func (t *table) version() []byte {
	if !t.versioned {
		return nil
	}
	return newVersion()
}

// write makes a change that depends on nothing.
func (b *Backend) write(ctx context.Context, t *table, key []byte, c *change) error {
	if c.empty() {
		return ctx.Err()
	}
	_, err := b.atomic(ctx, t, key, c.actions(t, key, t.version(), nil), nil)
	return err
}

// atomic applies mutations of one row, on a condition if there is one, which is
// what processed tells. It goes on until the row's region answers.
func (b *Backend) atomic(ctx context.Context, t *table, key []byte, muts []*pb.MutationProto, condition *pb.Condition) (processed bool, err error) {
	r, _, err := b.multi(ctx, t, key, muts, condition)
	return r.GetProcessed(), err
}

// multi is atomic that returns HBase's answer. resent tells that gohbase has sent a call
// twice: an earlier one, whose answer was lost, may have made the change.
func (b *Backend) multi(ctx context.Context, t *table, key []byte, muts []*pb.MutationProto, condition *pb.Condition) (r *pb.RegionActionResult, resent bool, err error) {
	if len(muts) == 1 && condition == nil && muts[0].GetMutateType() >= pb.MutationProto_PUT {
		// One message less for the server to take apart.
		c := &call{name: "Mutate", table: t.key(), key: key,
			request: func(r hrpc.RegionInfo) proto.Message {
				return &pb.MutateRequest{Region: specifier(r), Mutation: muts[0]}
			},
			answer: func() proto.Message { return new(pb.MutateResponse) }}
		_, err := send[*pb.MutateResponse](ctx, b.client(), b.o.Timeout, c)
		return &pb.RegionActionResult{Processed: proto.Bool(true)}, c.sent.Load() > 1, err
	}
	actions := make([]*pb.Action, len(muts))
	for i, m := range muts {
		actions[i] = &pb.Action{Index: proto.Uint32(uint32(i)), Mutation: m}
	}
	group := nonce()
	for attempt := 0; ; attempt++ {
		c := &call{name: "Multi", table: t.key(), key: key,
			request: func(r hrpc.RegionInfo) proto.Message {
				return &pb.MultiRequest{NonceGroup: group, Condition: condition, RegionAction: []*pb.RegionAction{
					{Region: specifier(r), Atomic: proto.Bool(true), Action: actions, Condition: condition}}}
			},
			answer: func() proto.Message { return new(pb.MultiResponse) }}
		resp, err := send[*pb.MultiResponse](ctx, b.client(), b.o.Timeout, c)
		resent = resent || c.sent.Load() > 1
		if err != nil {
			return nil, resent, err
		}
		if len(resp.GetRegionActionResult()) != 1 {
			return nil, resent, fault.New(fault.Corruption, "HBase answered %d results for one region", len(resp.GetRegionActionResult()))
		}
		r := resp.GetRegionActionResult()[0]
		err = resultError(r)
		if err == nil {
			if r.Processed == nil {
				r.Processed = resp.Processed
			}
			attachCells(r, c.block)
			return r, resent, nil
		}
		if attempt == retries || !moving(err) {
			return nil, resent, err
		}
		if err := b.awaitServing(ctx, t, key, attempt); err != nil {
			return nil, resent, err
		}
	}
}

// resultError is the exception of a region, or of the first action in it.
func resultError(r *pb.RegionActionResult) error {
	if r.GetException() != nil {
		return pairError(r.GetException())
	}
	for _, x := range r.GetResultOrException() {
		if x.GetException() != nil {
			return pairError(x.GetException())
		}
	}
	return nil
}

// moving tells whether a region server refused because it does not have the
// region now: nothing was done.
func moving(err error) bool {
	return is(err, "NotServingRegionException", "RegionMovedException", "RegionOpeningException", "WrongRegionException", "RegionTooBusyException",
		"RegionServerStoppedException", "RegionServerAbortedException", "ServerNotRunningYetException", "CallQueueTooBigException",
		"RetryImmediatelyException", "RpcThrottlingException")
}

// awaitServing waits until key's region serves. An exception inside the answer of a
// Multi does not tell gohbase that the region is elsewhere; that of a Get does.
func (b *Backend) awaitServing(ctx context.Context, t *table, key []byte, attempt int) error {
	if err := sleep(ctx, min(time.Duration(attempt+1)*10*time.Millisecond, time.Second)); err != nil {
		return err
	}
	for _, client := range b.clients {
		_, err := send[*pb.GetResponse](ctx, client.(interface {
			SendRPC(hrpc.Call) (proto.Message, error)
		}), b.o.Timeout, &call{name: "Get", table: t.key(), key: key,
			request: func(r hrpc.RegionInfo) proto.Message {
				return &pb.GetRequest{Region: specifier(r), Get: &pb.Get{Row: key, ExistenceOnly: proto.Bool(true)}}
			},
			answer: func() proto.Message { return new(pb.GetResponse) }})
		if err != nil {
			return err
		}
	}
	return nil
}

// A pending row of MutateRows.
type pending struct {
	index   int
	key     []byte
	actions []*pb.MutationProto
	bytes   int
}

// MutateRows implements backend.Data. Entries of one row are applied in their
// order; the others in any.
func (b *Backend) MutateRows(ctx context.Context, resource string, entries []row.Entry, done func(int, error)) error {
	var t *table
	if err := b.onTable(ctx, resource, func(now *table) error { t = now; return nil }); err != nil {
		return err
	}
	errs := make([]error, len(entries))
	for i := range entries {
		e := &entries[i]
		if err := plan.CheckToken(e.Token, time.Now()); err != nil {
			return plan.InEntry(err, i)
		}
		if _, errs[i] = checked(t, e); fault.KindOf(errs[i]) == fault.Invalid {
			return plan.InEntry(errs[i], i)
		}
	}
	var one sync.Mutex
	report := func(i int, err error) {
		if is(err, "TableNotFoundException", "NoSuchColumnFamilyException") {
			b.remember(resource, nil)
		}
		one.Lock()
		defer one.Unlock()
		done(i, err)
	}
	// What depends on the row, and what another entry of the same row comes
	// before, is done alone, in order, behind the rest.
	var blindly []pending
	var alone []int
	seen := make(map[string]bool, len(entries))
	at := now(t)
	for i := range entries {
		e := &entries[i]
		if errs[i] != nil {
			report(i, errs[i])
			continue
		}
		again := seen[string(e.Key)]
		seen[string(e.Key)] = true
		c, ok := (*change)(nil), false
		if !again && len(e.Token.Token) == 0 {
			c, ok = blind(t, e.Mutations, at)
		}
		switch {
		case !ok:
			alone = append(alone, i)
		case c.empty():
			report(i, nil)
		default:
			p := pending{index: i, key: e.Key, actions: c.actions(t, e.Key, t.version(), nil)}
			for _, a := range p.actions {
				p.bytes += proto.Size(a)
			}
			blindly = append(blindly, p)
		}
	}
	slices.SortStableFunc(blindly, func(x, y pending) int { return bytes.Compare(x.key, y.key) })
	var wg sync.WaitGroup
	slots := make(chan struct{}, batches)
	for len(blindly) > 0 {
		n, size := 0, 0
		for n < len(blindly) && n < batchRows && (n == 0 || size+blindly[n].bytes <= batchBytes) {
			size += blindly[n].bytes
			n++
		}
		part := blindly[:n]
		blindly = blindly[n:]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			b.sendRows(ctx, t, part, report)
		})
	}
	wg.Wait()
	for _, i := range alone {
		report(i, b.mutate(ctx, t, &entries[i]))
	}
	return nil
}

// sendRows applies rows, which are sorted, region by region.
func (b *Backend) sendRows(ctx context.Context, t *table, rows []pending, report func(int, error)) {
	attempt := 0
	for len(rows) > 0 {
		sent := 0
		c := &call{name: "Multi", table: t.key(), key: rows[0].key,
			// The region says how many of the rows are its own.
			request: func(r hrpc.RegionInfo) proto.Message {
				req := &pb.MultiRequest{}
				sent = 0
				for i := range rows {
					if end := r.StopKey(); len(end) > 0 && bytes.Compare(rows[i].key, end) >= 0 {
						break
					}
					ra := &pb.RegionAction{Region: specifier(r), Atomic: proto.Bool(true)}
					for j, m := range rows[i].actions {
						ra.Action = append(ra.Action, &pb.Action{Index: proto.Uint32(uint32(j)), Mutation: m})
					}
					req.RegionAction = append(req.RegionAction, ra)
					sent++
				}
				return req
			},
			answer: func() proto.Message { return new(pb.MultiResponse) }}
		resp, err := send[*pb.MultiResponse](ctx, b.client(), b.o.Timeout, c)
		if err == nil && len(resp.GetRegionActionResult()) != sent {
			err = fault.New(fault.Corruption, "HBase answered %d results for %d rows", len(resp.GetRegionActionResult()), sent)
		}
		if err != nil {
			for i := range rows {
				report(rows[i].index, err)
			}
			return
		}
		var again []pending
		for i, r := range resp.GetRegionActionResult() {
			err := resultError(r)
			if err != nil && moving(err) && attempt < retries {
				again = append(again, rows[i])
				continue
			}
			report(rows[i].index, err)
		}
		rows = append(again, rows[sent:]...)
		if len(again) == 0 {
			attempt = 0
			continue
		}
		if err := b.awaitServing(ctx, t, again[0].key, attempt); err != nil {
			for i := range rows {
				report(rows[i].index, err)
			}
			return
		}
		attempt++
	}
}
