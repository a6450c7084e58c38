package tabletserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

var _ rpc.TabletServer = (*Server)(nil)

// notServing turns the error of a tablet that was given up meanwhile into ErrNotServing,
// after which the caller looks elsewhere.
func notServing(err error) error {
	if errors.Is(err, tablet.ErrReplaced) || errors.Is(err, tablet.ErrClosed) {
		return rpc.ErrNotServing
	}
	return err
}

// retryable is notServing for errors of calls that can be repeated. It makes Unavailable
// of the error of a server that was taken over from too.
func retryable(err error) error {
	if err = notServing(err); errors.Is(err, fault.Fenced) {
		err = fault.New(fault.Unavailable, "others have taken over from this tablet server: %s", err.Error())
	}
	return err
}

// unknownOutcome is notServing for the error of a write. The next owner may find a write
// in the log that was under way when this server ended. So its caller must not repeat it
// on its own.
func unknownOutcome(err error) error {
	err = notServing(err)
	if err == nil || errors.Is(err, rpc.ErrNotServing) || tablet.IsFailure(err) {
		return err
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Fenced, fault.Internal:
		// Its kind is not the call's: no other writer has changed the row.
		return fmt.Errorf("%w: %s", rpc.ErrUnknown, err.Error())
	}
	return err
}

// ReadRows implements rpc.Data.
func (s *Server) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	var stats scan.Stats
	t, err := s.lookup(ctx, at)
	if err != nil {
		return req.Ranges, stats, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	q, err := t.queries.For(t.table.Schema(), req.Filter, req.Reversed)
	if err != nil {
		return req.Ranges, stats, err
	}
	rest := req.Ranges
	var v *leaseCheckedWriter // nil if no other server can have the tablet
	if s.o.Private == nil {
		v = &leaseCheckedWriter{Writer: w, s: s}
		w = v
	}
	for len(rest) > 0 {
		limit := int64(0)
		if req.Limit > 0 {
			if limit = req.Limit - stats.RowsReturned; limit == 0 {
				rest = nil
				break
			}
		}
		var full bool
		if v != nil {
			v.checked = false
		}
		rest, full, err = t.Read(ctx, q, rest, limit, w, &stats)
		if err != nil {
			return rest, stats, notServing(err)
		}
		// That there is no row is true too only if the session had not ended.
		if v != nil {
			if err := v.check(); err != nil {
				return req.Ranges, stats, err
			}
		}
		if full {
			break
		}
	}
	return rest, stats, nil
}

// A leaseCheckedWriter checks, before it passes on the end of a row or a position behind
// the reader, that the session had not ended by then. What the caller has received counts
// even if the read fails later. The rows of one call of tablet.Read are all of one
// instant, before the first of them: once is enough.
type leaseCheckedWriter struct {
	scan.Writer
	s       *Server
	checked bool
}

func (w *leaseCheckedWriter) check() error {
	if w.checked {
		return nil
	}
	err := w.s.alive()
	w.checked = err == nil
	return err
}

// EndRow implements scan.Writer.
func (w *leaseCheckedWriter) EndRow() (bool, error) {
	if err := w.check(); err != nil {
		return false, err
	}
	return w.Writer.EndRow()
}

// Space implements scan.SpaceWriter.
func (w *leaseCheckedWriter) Space() int { return scan.Space(w.Writer) }

// Scanned implements scan.Writer.
func (w *leaseCheckedWriter) Scanned(key []byte) {
	if w.check() == nil {
		w.Writer.Scanned(key)
	}
}

// MutateRow implements rpc.Data.
func (s *Server) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	now := s.o.Now()
	if err := plan.CheckToken(e.Token, now); err != nil {
		return err
	}
	p := plan.New(t.table.Schema(), now)
	reads, err := p.Check(e.Key, e.Mutations, "mutations")
	if err != nil {
		return err
	}
	pos, err := p.Apply(ctx, t.Tablet, e, reads)
	if err == nil {
		wait := request.From(ctx).BeginLogWait()
		err = t.Wait(ctx, pos)
		wait.End(err)
	}
	return unknownOutcome(err)
}

// MutateRows implements rpc.Data.
func (s *Server) MutateRows(ctx context.Context, at rpc.Target, entries []row.Entry) ([]error, error) {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return nil, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	now := s.o.Now()
	p := plan.New(t.table.Schema(), now)
	rows, err := p.Rows(entries, now)
	if err != nil {
		return nil, err
	}
	_ = rows.Apply(ctx, t.Tablet) // it fails only if something is left
	rows.Refuse(tablet.ErrReplaced)
	errs := make([]error, len(entries))
	wait := request.From(ctx).BeginLogWait()
	for i := range entries {
		errs[i] = unknownOutcome(rows.Wait(ctx, i, t.Wait))
	}
	wait.End(nil)
	return errs, nil
}

// CheckAndMutateRow implements rpc.Data.
func (s *Server) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return false, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	p := plan.New(t.table.Schema(), s.o.Now())
	c, err := p.Condition(key, predicate, then, otherwise)
	if err != nil {
		return false, err
	}
	matched, err := p.CheckAndMutate(ctx, t.Tablet, key, c)
	if err != nil {
		return false, unknownOutcome(err)
	}
	if err := s.alive(); err != nil {
		return false, fmt.Errorf("%w: %s", rpc.ErrUnknown, err.Error())
	}
	return matched, nil
}

// ReadModifyWriteRow implements rpc.Data.
func (s *Server) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return nil, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	p := plan.New(t.table.Schema(), s.o.Now())
	if err := p.CheckRules(key, rules); err != nil {
		return nil, err
	}
	cells, err := p.ReadModifyWrite(ctx, t.Tablet, key, rules)
	return cells, unknownOutcome(err)
}

// UpdateRow implements rpc.Data.
func (s *Server) UpdateRow(ctx context.Context, at rpc.Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) (cells []row.Cell, became rpc.UpdateOutcome, err error) {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return nil, rpc.NotApplied, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	sch := t.table.Schema()
	q, err := tablet.NewQuery(sch, read, false)
	if err != nil {
		return nil, rpc.NotApplied, err
	}
	p := plan.New(sch, s.o.Now())
	done := false
	repeated, err := p.Update(ctx, t.Tablet, key, token, q, func(now []row.Cell) ([]row.Mutation, error) {
		if cells, done = now, len(seen) > 0 && bytes.Equal(seen, rpc.Digest(now)); done {
			return muts, nil
		}
		return nil, nil
	})
	switch {
	case done && err == nil:
		return nil, rpc.Applied, nil
	case done:
		return nil, rpc.NotApplied, unknownOutcome(err)
	case err != nil:
		return nil, rpc.NotApplied, notServing(err)
	}
	if err := s.alive(); err != nil {
		return nil, rpc.NotApplied, err
	}
	if repeated {
		return nil, rpc.AppliedBefore, nil
	}
	return cells, rpc.NotApplied, nil
}

// Update implements rpc.Updater.
func (s *Server) Update(ctx context.Context, at rpc.Target, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return false, err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	sch := t.table.Schema()
	q, err := tablet.NewQuery(sch, read, false)
	if err != nil {
		return false, err
	}
	p, changes := plan.New(sch, s.o.Now()), false
	repeated, err = p.Update(ctx, t.Tablet, key, token, q, func(cells []row.Cell) ([]row.Mutation, error) {
		muts, err := decide(cells)
		changes = err == nil && len(muts) > 0
		return muts, err
	})
	switch {
	case err != nil && changes:
		return false, unknownOutcome(err)
	case err != nil:
		return false, notServing(err)
	case !changes:
		return repeated, s.alive() // the cells seen count if this server still had the row
	}
	return repeated, nil
}

// DropRange implements rpc.Data.
func (s *Server) DropRange(ctx context.Context, at rpc.Target, r row.Range) error {
	t, err := s.lookupWritable(ctx, at)
	if err != nil {
		return err
	}
	defer request.From(ctx).BeginTablet(uint64(at.Tablet)).End()
	return unknownOutcome(s.runDetached(ctx, func(ctx context.Context) error { return t.DropRange(ctx, r) }))
}
