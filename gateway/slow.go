package gateway

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trestledb/trestle/engine/request"
)

// A slowLog is told of requests that took from on. It is off if that is zero.
type slowLog struct {
	from time.Duration
	to   func(request.Slow)
}

func (s *slowLog) isSlow(elapsed time.Duration) bool { return s.from > 0 && elapsed >= s.from }

// tell describes a slow request.
func (s *slowLog) tell(r *request.Record, code codes.Code, start time.Time, elapsed time.Duration, received, sent int64) {
	s.to(r.Slow(code.String(), start, elapsed, received, sent))
}

// EndSpan ends the span of a request, if it is traced, with what was measured of it.
func EndSpan(r *request.Record, err error) {
	if r.Span == nil {
		return
	}
	r.Span.String("trestle.request_id", request.IDString(r.ID()))
	if r.TableName != "" {
		r.Span.String("db.collection.name", r.TableName)
	}
	r.Span.Int("trestle.rows_seen", r.Work.RowsSeen.Load())
	r.Span.Int("trestle.rows_returned", r.Work.RowsReturned.Load())
	r.Span.Int("trestle.rows_written", r.Work.RowsWritten.Load())
	r.Span.End(err)
}
