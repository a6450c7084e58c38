package server

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// An action is one action of a Multi.
type action struct {
	index  uint32
	region *model.Region
	t      *model.Table
	ctx    context.Context
	get    *pb.Get
	ch     *change

	res *pb.Result
	// block has the cells of res, if they are not in it. buffer, if it is not nil,
	// has blocks of this and other actions.
	block, buffer []byte
	taken         int64 // of Options.Memory
	err           error
}

// An actions is one RegionAction.
type actions struct {
	list   []action
	atomic bool
	err    error
	out    outcome
	cond   *pb.Condition
}

// retryAtOnce puts gets off: the client asks again for what is missing.
var retryAtOnce = wire.Class{Name: "org.apache.hadoop.hbase.RetryImmediatelyException"}

// multi answers a Multi. Puts and deletes of one table go to the store
// together; the order of actions that are not atomic is not defined.
func (s *Server) multi(ctx context.Context, c *Call, req *pb.MultiRequest) (*pb.MultiResponse, error) {
	groups := make([]actions, len(req.GetRegionAction()))
	// All cells of the block are read first: each action's are behind those of
	// the one before, whatever becomes of that.
	for i, ra := range req.GetRegionAction() {
		g := &groups[i]
		g.atomic = ra.GetAtomic() || ra.GetCondition() != nil
		if g.cond = ra.GetCondition(); g.cond == nil && len(groups) == 1 {
			g.cond = req.GetCondition()
			g.atomic = g.atomic || g.cond != nil
		}
		what := Action(0)
		g.list = make([]action, len(ra.GetAction()))
		for j, a := range ra.GetAction() {
			x := &g.list[j]
			x.index = a.GetIndex()
			switch {
			case a.GetGet() != nil:
				x.get = a.GetGet()
				what |= Read
			case a.GetMutation() != nil:
				var err error
				if x.ch, err = parseChange(a.GetMutation(), &c.Cells); x.ch == nil {
					return nil, err
				}
				x.err = err
				what |= Write
				if x.ch.reads() {
					what |= Read
				}
			case a.GetServiceCall() != nil:
				x.err = noCoprocessor(a.GetServiceCall())
			default:
				x.err = wire.DoNotRetryIO.New("an action that is neither a get nor a mutation")
			}
		}
		if g.cond != nil {
			what |= Read
		}
		rctx, region, t, err := s.region(ctx, c, ra.GetRegion(), what)
		if err == nil && t == nil && what&Write != 0 {
			err = wire.DoNotRetryIO.New("%s is computed and cannot be written", region.Table)
		}
		if g.err = err; err != nil {
			continue
		}
		for j := range g.list {
			x := &g.list[j]
			x.ctx, x.region, x.t = rctx, region, t
			if x.err == nil && x.ch != nil {
				if x.err = checkRow(region, x.ch.row); x.err == nil {
					x.err = x.ch.check(t)
				}
			}
		}
	}
	gets := 0
	for i := range groups {
		for j := range groups[i].list {
			if groups[i].list[j].get != nil {
				gets++
			}
		}
	}
	if gets > 0 {
		if err := c.reserve(ctx, s, min(gets*getBytes, int(s.o.multiBytes()))); err != nil {
			return nil, err
		}
	}
	s.plain(ctx, groups)
	share := int64(getBytes)
	if gets > 0 {
		share = c.reserved / int64(gets)
	}
	s.each(ctx, c, groups, share, req.GetNonceGroup())
	return multiResponse(c, groups), nil
}

// plain makes the puts and deletes that are not atomic with others and do not
// read: one request to the store for each table.
func (s *Server) plain(ctx context.Context, groups []actions) {
	type batchOf struct {
		t       *model.Table
		ctx     context.Context
		entries []row.Entry
		actions []*action
	}
	var tables []*batchOf
	now := time.Now().UnixMilli()
	for i := range groups {
		g := &groups[i]
		if g.atomic || g.err != nil {
			continue
		}
		var of *batchOf
		for j := range g.list {
			x := &g.list[j]
			if x.ch == nil || x.err != nil || x.ch.reads() {
				continue
			}
			if of == nil {
				for _, b := range tables {
					if b.t == x.t {
						of = b
					}
				}
				if of == nil {
					of = &batchOf{t: x.t, ctx: x.ctx}
					tables = append(tables, of)
				}
			}
			b := batch{t: x.t, now: now}
			b.put(x.ch)
			x.res = &pb.Result{}
			if len(b.muts) > 0 {
				of.entries = append(of.entries, row.Entry{Key: x.ch.row, Mutations: b.muts})
				of.actions = append(of.actions, x)
			}
		}
	}
	for _, b := range tables {
		done := make([]bool, len(b.entries))
		err := s.b.MutateRows(b.ctx, b.t.Resource, b.entries, func(i int, err error) {
			done[i], b.actions[i].err = true, err
		})
		for i, x := range b.actions {
			switch {
			case done[i] || err == nil:
			case fault.KindOf(err) == fault.Invalid && len(b.entries) > 1:
				// One of them can never be done, and so none was.
				x.err = s.b.MutateRow(b.ctx, b.t.Resource, &b.entries[i])
			default:
				x.err = err
			}
		}
	}
}

// parallel is how many of a Multi's gets and updates run at a time.
const parallel = 16

// each makes the actions that plain leaves: gets, updates, and groups that are
// atomic. share is what is reserved for each get.
func (s *Server) each(ctx context.Context, c *Call, groups []actions, share int64, nonceGroup uint64) {
	var wg sync.WaitGroup
	var slots chan struct{}
	// What is alone, or last, needs no goroutine.
	run := func(here bool, f func()) {
		if here {
			f()
			return
		}
		if slots == nil {
			slots = make(chan struct{}, parallel)
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f()
		})
	}
	var size atomic.Int64
	var together []*gathering
	for i := range groups {
		g := &groups[i]
		if g.err != nil {
			continue
		}
		if g.atomic {
			run(len(groups) == 1, func() { s.atomically(c, g, nonceGroup) })
			continue
		}
		for j := range g.list {
			x := &g.list[j]
			if x.err != nil || x.res != nil {
				continue
			}
			if x.get != nil {
				var ok bool
				if together, ok = gather(together, x); ok {
					continue
				}
			}
			run(len(groups) == 1 && len(g.list) == 1, func() { s.one(c, x, share, nonceGroup, &size) })
		}
	}
	for i, g := range together {
		pieces := g.pieces()
		for j, gets := range pieces {
			run(i == len(together)-1 && j == len(pieces)-1, func() { s.getRows(c, gets, share, &size) })
		}
	}
	wg.Wait()
}

// one makes an action that is not atomic with others. size is how much the
// block of the response has.
func (s *Server) one(c *Call, x *action, share int64, nonceGroup uint64, size *atomic.Int64) {
	call := &Call{Client: c.Client, room: room{memory: s.o.Memory, request: c.room.request, free: share, again: true}}
	defer func() { x.taken = call.room.taken }()
	if x.get == nil {
		var out outcome
		if out, x.err = s.once(x.ctx, call, x.t, x.region, nonceGroup, nil, x.ch); x.err == nil {
			x.res = &pb.Result{}
			if len(out.cells) > 0 {
				x.res = call.result(out.cells)
			}
		}
	} else if size.Load() >= s.o.multiBytes() {
		x.err = retryAtOnce.New("the response has %d bytes already", size.Load())
	} else {
		x.res, x.err = s.getRow(x.ctx, call, x.region, x.t, x.get, c.Blocks)
		size.Add(int64(len(call.Block)))
		if x.err != nil {
			call.room.release()
		}
	}
	x.block = call.Block
}

// atomically makes all actions of a group, or none.
func (s *Server) atomically(c *Call, g *actions, nonceGroup uint64) {
	changes := make([]*change, 0, len(g.list))
	for j := range g.list {
		x := &g.list[j]
		switch {
		case x.err != nil:
			g.err = x.err
		case x.get != nil:
			g.err = wire.DoNotRetryIO.New("Atomic put and/or delete only, not a Get=%q", shorten(string(x.get.GetRow())))
		case !bytes.Equal(x.ch.row, g.list[0].ch.row):
			g.err = wire.DoNotRetryIO.New("atomic mutations of more than one row")
		default:
			changes = append(changes, x.ch)
			continue
		}
		return
	}
	if len(changes) == 0 {
		g.out.processed = true
		return
	}
	x := &g.list[0]
	call := &Call{Client: c.Client, room: room{memory: s.o.Memory, request: c.room.request, free: getBytes}}
	defer call.room.release()
	cond, err := parseCondition(g.cond, x.t, x.ch.row, &call.room)
	if err != nil {
		g.err = err
		return
	}
	// One nonce is for all of them.
	var n nonce
	for _, ch := range changes {
		if n.n == 0 {
			n = nonce{nonceGroup, ch.nonce}
		}
	}
	g.out, g.err = s.update(x.ctx, call, x.t, x.ch.row, n, cond, changes)
}

// multiResponse puts together what became of a Multi. The cells in the block
// are in the order of the results.
func multiResponse(c *Call, groups []actions) *pb.MultiResponse {
	resp := &pb.MultiResponse{RegionActionResult: make([]*pb.RegionActionResult, len(groups))}
	for i := range groups {
		g := &groups[i]
		r := &pb.RegionActionResult{}
		resp.RegionActionResult[i] = r
		if g.err != nil {
			r.Exception = wire.ExceptionOf(g.err).Pair()
			continue
		}
		r.ResultOrException = make([]*pb.ResultOrException, len(g.list))
		if g.atomic {
			for j := range g.list {
				r.ResultOrException[j] = &pb.ResultOrException{Index: proto.Uint32(uint32(j)), Result: &pb.Result{}}
			}
			if len(g.out.cells) > 0 {
				r.ResultOrException[0].Result = c.result(g.out.cells)
			}
			r.Processed = proto.Bool(g.out.processed)
			resp.Processed = r.Processed
			continue
		}
		for j := range g.list {
			x := &g.list[j]
			roe := &pb.ResultOrException{Index: proto.Uint32(x.index)}
			if r.ResultOrException[j] = roe; x.err != nil {
				roe.Exception = wire.ExceptionOf(x.err).Pair()
				continue
			}
			roe.Result = x.res
			if c.Block == nil && len(x.block) > 0 {
				c.Block = newBuffer()
			}
			c.Block = append(c.Block, x.block...)
		}
	}
	for i := range groups {
		for j := range groups[i].list {
			c.room.taken += groups[i].list[j].taken
			recycle(groups[i].list[j].buffer)
		}
	}
	return resp
}
