package stream

import (
	"context"

	"github.com/trestledb/trestle/engine/request"
)

// What a question is a part of comes behind it: see request.Record.AppendTo. A server of an
// earlier version does not look there. What it cost comes behind the answer, or as a record of
// the rows, for a question that had something behind it.

// appendWork appends what a question cost.
func appendWork(b []byte, w *request.Work) []byte {
	var room [96]byte
	return appendBytes(b, w.AppendTo(room[:0]))
}

// work reads that, if it is there, and adds it to what is known of the request.
func (d *decoder) work(r *request.Record) {
	if d.Len() == 0 {
		return
	}
	if b := d.bytes(); r != nil && !d.Bad() && !r.Work.AddEncoded(b) {
		d.Fail()
	}
}

// A requestShare is a question that is part of a request, or of none.
type requestShare struct{ r *request.Record }

// begin makes r, which is unused, the record of the request of which behind tells. The
// context is that of the question then.
func (s *Server) begin(ctx context.Context, r *request.Record, behind []byte) (context.Context, requestShare) {
	if len(behind) == 0 {
		return ctx, requestShare{}
	}
	if q, ok := ctx.(*question); ok {
		r = &q.record
	}
	of, ok := r.Parse(behind)
	if !ok {
		return ctx, requestShare{} // a later version's
	}
	if of != nil && s.o.Tracer != nil {
		r.Span = s.o.Tracer.Remote(*of, "tablet server")
	}
	if q, ok := ctx.(*question); ok {
		q.measured = true
		return ctx, requestShare{r}
	}
	return request.With(ctx, r), requestShare{r}
}

// work returns what is to be told of the cost, nil if nobody asked.
func (p requestShare) work() *request.Work {
	if p.r == nil {
		return nil
	}
	return &p.r.Work
}

// end appends what the question cost.
func (p requestShare) end(b []byte, err error) []byte {
	if p.r == nil {
		return b
	}
	p.ended(err)
	return appendWork(b, &p.r.Work)
}

// ended ends the span.
func (p requestShare) ended(err error) {
	if p.r != nil && p.r.Span != nil {
		p.r.Span.String("trestle.request_id", request.IDString(p.r.ID()))
		p.r.Span.End(err)
	}
}
