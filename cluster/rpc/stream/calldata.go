package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// ReadRows implements rpc.Data. Rows that have come are the caller's, also if
// the answer ends early.
func (p *peer) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	body := batches.Get(0)
	defer batches.Put(body)
	*body = appendRead(appendTarget((*body)[:0], at), req)
	r := readers.Get().(*rowReader)
	defer readers.Put(r)
	*r = rowReader{to: w}
	defer func() { *r = rowReader{} }()
	r.work = request.From(ctx)
	if small(req) {
		// The work comes within the answer.
		unasked := len(*body)
		answer, err := p.ask(ctx, opReadRows, body, false)
		*body = (*body)[:unasked]
		if err == nil {
			if err = r.read(answer.Rest()); err == nil && !r.ended {
				err = errMalformed
			}
			return r.rest, r.stats, err
		}
		if !errors.Is(err, errUseScan) {
			return req.Ranges, scan.Stats{}, err
		}
	}
	r.encoded = scan.Encoded(w)
	if err := p.large(ctx, *body, r); err != nil {
		return req.Ranges, scan.Stats{}, err
	}
	return r.rest, r.stats, nil
}

var readers = sync.Pool{New: func() any { return new(rowReader) }}

// large reads rows that may not fit into a short message.
func (p *peer) large(ctx context.Context, body []byte, r *rowReader) error {
	if p.inline != nil {
		return p.inline.scanInline(ctx, body, r)
	}
	l, err := p.get(ctx)
	if err != nil {
		return err
	}
	l.acquire()
	defer l.release()
	var encoding uint64
	if r.encoded != nil {
		encoding = r.encoded.Encoding()
	}
	asked := binary.AppendUvarint(body, encoding)
	f := scan.Fragment(r.to)
	if f != nil || r.work != nil {
		asked = appendBytes(asked, f)
	}
	span := r.work.StartSpan("call tablet server")
	if r.work != nil {
		asked = r.work.AppendTo(asked, span)
	}
	question := batches.Get(0)
	*question = appendBytes((*question)[:0], asked)
	known, err := p.scan(ctx, l, *question, r)
	batches.Put(question)
	request.End(span, err)
	if !known {
		err = p.scanGRPC(ctx, l, body, r)
	}
	return err
}

// small tells whether a read is likely to be answered by a short message.
func small(req *rpc.Read) bool {
	const rows = 16
	if req.Limit > 0 && req.Limit <= rows {
		return true
	}
	if len(req.Ranges) > rows {
		return false
	}
	for _, r := range req.Ranges {
		if !r.IsSingle() {
			return false
		}
	}
	return true
}

// MutateRow implements rpc.Data.
func (p *peer) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	answer, err := p.change(ctx, opMutateRow, appendEntry(appendTarget(batches.empty(), at), e))
	answer.work(request.From(ctx))
	return err
}

// MutateRows implements rpc.Data.
func (p *peer) MutateRows(ctx context.Context, at rpc.Target, entries []row.Entry) ([]error, error) {
	answer, err := p.change(ctx, opMutateRows, appendEntries(appendTarget(batches.empty(), at), entries))
	if err != nil {
		return nil, err
	}
	errs, err := answer.errors(len(entries))
	answer.work(request.From(ctx))
	return errs, err
}

// appendErrors writes those of errs that are not nil.
func appendErrors(b []byte, errs []error) []byte {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	b = binary.AppendUvarint(b, uint64(failed))
	for i, err := range errs {
		if err != nil {
			b = appendError(binary.AppendUvarint(b, uint64(i)), err)
		}
	}
	return b
}

func (d *decoder) errors(n int) ([]error, error) {
	errs := make([]error, n)
	for range d.Count() {
		i := d.Uvarint()
		if i >= uint64(n) {
			d.Fail()
		}
		if d.Bad() {
			break
		}
		errs[i] = d.error()
	}
	return errs, d.err()
}

// CheckAndMutateRow implements rpc.Data.
func (p *peer) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	b := appendFilter(appendBytes(appendTarget(batches.empty(), at), key), predicate)
	answer, err := p.change(ctx, opCheckAndMutateRow, appendMutations(appendMutations(b, then), otherwise))
	if err != nil {
		return false, err
	}
	matched := answer.Byte() != 0
	answer.work(request.From(ctx))
	return matched, answer.err()
}

// ReadModifyWriteRow implements rpc.Data.
func (p *peer) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	answer, err := p.change(ctx, opReadModifyWriteRow, appendRules(appendBytes(appendTarget(batches.empty(), at), key), rules))
	if err != nil {
		return nil, err
	}
	cells := answer.cells()
	answer.work(request.From(ctx))
	return cells, answer.err()
}

// UpdateRow implements rpc.Data.
func (p *peer) UpdateRow(ctx context.Context, at rpc.Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) ([]row.Cell, rpc.UpdateOutcome, error) {
	body := appendFilter(appendBytes(appendBytes(appendTarget(batches.empty(), at), key), token), read)
	body = appendMutations(appendBytes(body, seen), muts)
	answer, err := p.ask(ctx, opUpdateRow, &body, len(seen) > 0)
	batches.Put(&body)
	if err != nil {
		return nil, rpc.NotApplied, err
	}
	became := rpc.UpdateOutcome(answer.Byte())
	if became > rpc.AppliedBefore {
		answer.Fail()
	}
	cells := answer.cells()
	answer.work(request.From(ctx))
	return cells, became, answer.err()
}

// DropRange implements rpc.Data.
func (p *peer) DropRange(ctx context.Context, at rpc.Target, r row.Range) error {
	_, err := p.change(ctx, opDropRange, appendRange(appendTarget(batches.empty(), at), r))
	return err
}
