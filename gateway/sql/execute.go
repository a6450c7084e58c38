package sql

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A Request is an ExecuteQuery of an instance that exists.
type Request struct {
	*bigtablepb.ExecuteQueryRequest
	// ReadOnly is why a statement that writes is refused, nil if it is not.
	ReadOnly error
	// Send sends a message, whose buffers it owns then.
	Send func(mem.BufferSlice) error
}

// text returns the query of a request that has no prepared one. The API has deprecated
// its field, but still has it: through an interface it is like any other.
func (r *Request) text() string {
	return interface{ GetQuery() string }(r.ExecuteQueryRequest).GetQuery()
}

// An execution is one answer to an ExecuteQuery.
type execution struct {
	s      *Service
	plan   *plan
	id     hash
	params algebra.Params
	from   *resume // nil for the beginning
	w      *writer
	req    *Request
}

// Execute answers an ExecuteQuery.
func (s *Service) Execute(ctx context.Context, req *Request) error {
	e, err := s.begin(ctx, req)
	if err != nil {
		return err
	}
	if e.w, err = newWriter(s.o.Budget, req.Send); err != nil {
		return err
	}
	defer e.w.close()
	if req.text() != "" && e.from == nil {
		if err := e.w.metadata(e.plan.encoded); err != nil {
			return err
		}
	}
	switch {
	case e.from != nil && e.from.stage == stageEnd:
		// The token once more: the client has not learned that it was the last.
		return e.end(ctx)
	case e.from != nil && e.from.stage == stageSpool:
		return e.respool(ctx)
	case e.s.o.Streams(e.plan.prepared):
		return e.stream(ctx)
	}
	return e.gather(ctx)
}

// begin finds out what is to be executed.
func (s *Service) begin(ctx context.Context, req *Request) (*execution, error) {
	e := &execution{s: s, req: req}
	var statement hash
	var err error
	resuming := len(req.GetResumeToken()) > 0
	switch {
	case req.text() == "" && len(req.GetPreparedQuery()) == 0:
		return nil, fault.InvalidField("prepared_query", "Exactly one of prepared_query and query must be set, but none is")
	case req.text() != "" && len(req.GetPreparedQuery()) > 0:
		return nil, fault.InvalidField("prepared_query", "Exactly one of prepared_query and query must be set, but both are")
	case req.text() != "":
		if err := checkText(req.text()); err != nil {
			return nil, err
		}
		var declared map[string]*types.Type
		if declared, e.params.Values, err = typed(req.GetParams()); err != nil {
			return nil, err
		}
		if e.plan, statement, err = s.unprepared(ctx, req, declared); err != nil {
			return nil, err
		}
	default:
		if req.GetDataFormat() != nil {
			return nil, fault.InvalidField("data_format", "Error in field 'data_format' : Must not be set with prepared_query, as the prepared query tells it")
		}
		if e.plan, statement, err = s.known(ctx, req.GetInstanceName(), req.GetPreparedQuery(), resuming); err != nil {
			return nil, err
		}
		if e.params.Values, err = bind(req.GetParams(), e.plan.declared); err != nil {
			return nil, err
		}
	}
	if e.params.View, err = viewParams(req.GetViewParameters()); err != nil {
		return nil, err
	}
	if req.ReadOnly != nil && e.plan.prepared.Statement.Mutation != nil && e.plan.prepared.Statement.Explain != algebra.ExplainPlan {
		return nil, req.ReadOnly
	}
	e.id = executionOf(s.principal(ctx), statement, e.params, e.plan.declared)
	e.params.Now = s.o.Now().Truncate(time.Microsecond)
	if resuming {
		fields, ok, err := unseal(ctx, s.o.MAC, purposeResume, kindResume, req.GetResumeToken())
		if err != nil {
			return nil, err
		}
		if ok {
			e.from, ok = decodeResume(fields)
		}
		switch {
		case !ok:
			return nil, fault.InvalidField("resume_token", "Error in field 'resume_token' : Not a resume token of this server")
		case e.from.execution != e.id:
			return nil, fault.InvalidField("resume_token", "Error in field 'resume_token' : It is of another query, or of other parameters")
		}
		e.params.Now = e.from.now
	}
	return e, nil
}

// unprepared returns the plan of a request with the text of a query.
func (s *Service) unprepared(ctx context.Context, req *Request, declared map[string]*types.Type) (*plan, hash, error) {
	key := statementKey(req.GetInstanceName(), req.text(), declared)
	cached, ok := s.plans.get(key[:])
	if ok {
		st, err := s.lookAll(ctx, cached.plan.deps)
		if err != nil || st == unchanged {
			return cached.plan, key, err
		}
	}
	p, err := s.analyze(ctx, req.GetInstanceName(), req.text(), declared)
	if err == nil && !p.lacks {
		s.plans.put(cachedPlan{key: string(key[:]), plan: p, statement: key})
	}
	return p, key, err
}

// run begins the query behind position.
func (e *execution) run(ctx context.Context, position []byte) (query.Rows, error) {
	deadline, _ := ctx.Deadline()
	return e.s.o.Engine.Execute(ctx, e.plan.prepared, query.Request{Params: e.params, Resume: position, Deadline: deadline, ReadOnly: e.req.ReadOnly != nil})
}

// end sends what is left, and the token that says that there is no more.
func (e *execution) end(ctx context.Context) error {
	token, err := e.s.token(ctx, &resume{execution: e.id, now: e.params.Now, stage: stageEnd})
	if err != nil {
		return err
	}
	return e.flush(token)
}

func (e *execution) flush(token []byte) error {
	sum, err := e.w.checksum()
	if err != nil {
		return err
	}
	return e.w.flush(sum, token)
}

// add appends the rows of b from the from'th on until the batch is full, and returns
// which is next.
func (e *execution) add(b *types.Batch, from int) (next int, err error) {
	n := b.Rows()
	buf := e.w.room(n - from)
	for ; from < n && len(buf) < e.w.target; from++ {
		i := from
		if b.Sel != nil {
			i = int(b.Sel[from])
		}
		buf = appendRow(buf, b.Cols, i)
	}
	return from, e.w.keep(buf)
}

// Trying again behind a token, which clients cannot do without their callers
// seeing rows twice.
const (
	retryFirst  = 10 * time.Millisecond
	retryLast   = time.Second
	retryWithin = 30 * time.Second // since the last row
)

func temporary(err error) bool {
	k := fault.KindOf(err)
	return k == fault.Unavailable || k == fault.Fenced
}

// stream answers a query that can go on behind any of its positions.
func (e *execution) stream(ctx context.Context) error {
	var position []byte
	if e.from != nil {
		position = e.from.position
	}
	rows, err := e.run(ctx, position)
	if err != nil {
		return e.failed(ctx, err)
	}
	defer func() {
		if rows != nil {
			_ = rows.Close()
		}
	}()
	progress, pause := time.Now(), retryFirst
	own := false // position is in memory of its own
	for {
		b, err := rows.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return e.end(ctx)
		case err == nil:
		case position != nil && temporary(err) && time.Since(progress) < retryWithin && ctx.Err() == nil:
			_ = rows.Close()
			if rows, err = e.again(ctx, position, &pause, progress); err != nil {
				return err
			}
			continue
		default:
			return e.failed(ctx, err)
		}
		for from := 0; from < b.Rows(); {
			if from, err = e.add(b, from); err != nil {
				return err
			}
			if e.w.full() && from < b.Rows() {
				if err := e.flush(nil); err != nil {
					return err
				}
			}
		}
		at := rows.Position()
		if at == nil {
			// The plan has no positions after all: it goes on as one that has none.
			if position != nil {
				return e.failed(ctx, noLonger())
			}
			return e.unpositioned(ctx, rows)
		}
		if own {
			position = append(position[:0], at...)
		} else {
			position, own = bytes.Clone(at), true // not over the token
		}
		progress, pause = time.Now(), retryFirst
		due := e.w.sent+int64(len(e.w.batch)) >= e.s.o.FirstToken
		if !e.w.full() && (!due || e.w.since+int64(len(e.w.batch)) < int64(e.w.target)) {
			continue
		}
		var token []byte
		if due {
			if token, err = e.s.token(ctx, &resume{execution: e.id, now: e.params.Now, stage: stagePosition, position: position}); err != nil {
				return err
			}
		}
		if err := e.flush(token); err != nil {
			return err
		}
	}
}

// unpositioned sends the rest of rows without a token before the end.
func (e *execution) unpositioned(ctx context.Context, rows query.Rows) error {
	for {
		if e.w.full() {
			if err := e.flush(nil); err != nil {
				return err
			}
		}
		b, err := rows.Next(ctx)
		if errors.Is(err, io.EOF) {
			return e.end(ctx)
		}
		if err != nil {
			return e.failed(ctx, err)
		}
		for from := 0; from < b.Rows(); {
			if from, err = e.add(b, from); err != nil {
				return err
			}
			if e.w.full() && from < b.Rows() {
				if err := e.flush(nil); err != nil {
					return err
				}
			}
		}
	}
}

// again begins the query anew behind position, after a while.
func (e *execution) again(ctx context.Context, position []byte, pause *time.Duration, progress time.Time) (query.Rows, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(*pause):
		}
		*pause = min(2**pause, retryLast)
		rows, err := e.run(ctx, position)
		if err == nil || !temporary(err) || time.Since(progress) >= retryWithin {
			if err != nil {
				err = e.failed(ctx, err)
			}
			return rows, err
		}
	}
}

// failed is what the client is told of err. Once it got a token it must not try
// again by itself, unless it came with one and so knows what they are for.
func (e *execution) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.OutOfRange && f.Reason == "" {
		o := *f
		o.Reason = "EVALUATION_FAILED"
		return &o
	}
	if temporary(err) && e.from == nil && e.w.tokens > 0 {
		return fault.New(fault.Aborted, "The query was interrupted when part of its result was sent; run it again: %w", errors.New(err.Error()))
	}
	return err
}

// gather answers a query that has no positions, or perhaps none. What comes
// after the first 4 MiB is kept for a client that has to ask again.
func (e *execution) gather(ctx context.Context) error {
	// The query may outlive the stream, from the first token on.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	together := context.AfterFunc(ctx, cancel)
	var position []byte
	if e.from != nil {
		position = e.from.position
	}
	rows, err := e.run(run, position)
	if err != nil {
		together()
		cancel()
		return e.failed(ctx, err)
	}
	stop := func() {
		together()
		_ = rows.Close()
		cancel()
	}
	for {
		b, err := rows.Next(run)
		if errors.Is(err, io.EOF) {
			stop()
			return e.end(ctx)
		}
		if err != nil {
			stop()
			return e.failed(ctx, err)
		}
		for from := 0; from < b.Rows(); {
			if from, err = e.add(b, from); err != nil {
				stop()
				return err
			}
			if e.w.full() && from < b.Rows() {
				if err := e.flush(nil); err != nil {
					stop()
					return err
				}
			}
		}
		due := e.w.sent+int64(len(e.w.batch)) >= e.s.o.FirstToken
		at := rows.Position()
		switch {
		case due && at == nil:
			// From here on the query goes on in a spool.
			if !together() {
				stop()
				return ctx.Err()
			}
			sp, err := e.s.spools.add(run, e.s, e.id, e.params.Now, rows, cancel)
			if err != nil {
				_ = rows.Close()
				cancel()
				return err
			}
			return e.spooled(ctx, sp, 0, true)
		case due && (e.w.full() || e.w.since+int64(len(e.w.batch)) >= int64(e.w.target)):
			token, err := e.s.token(ctx, &resume{execution: e.id, now: e.params.Now, stage: stagePosition, position: bytes.Clone(at)})
			if err == nil {
				err = e.flush(token)
			}
			if err != nil {
				stop()
				return err
			}
		case e.w.full():
			if err := e.flush(nil); err != nil {
				stop()
				return err
			}
		}
	}
}
