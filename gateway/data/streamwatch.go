package data

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/stamp"
)

// Why a change stream ended.
const (
	EndedRepartitioned = "repartitioned" // its partition was split or merged
	EndedEndTime       = "end_time"      // all up to end_time was given
	EndedCancelled     = "cancelled"     // by its client
	EndedDisabled      = "disabled"      // the table's stream is off, or another
	EndedExpired       = "expired"       // what is asked for is no longer kept
	EndedDamaged       = "damaged"       // a change file cannot be read
	EndedDrained       = "drained"       // the server ends
	EndedError         = "error"
)

// StreamEnds are all of the reasons.
var StreamEnds = []string{EndedRepartitioned, EndedEndTime, EndedCancelled, EndedDisabled, EndedExpired, EndedDamaged, EndedDrained, EndedError}

// A StreamObserver is told of change streams. Its methods are called on their goroutines, and
// must be quick and safe for concurrent use.
type StreamObserver interface {
	// ChangesSent is called for a message with changes, with how long ago the last of them was
	// committed.
	ChangesSent(age time.Duration)
	// StreamEnded is called with one of StreamEnds.
	StreamEnded(why string)
}

type noStreamObserver struct{}

func (noStreamObserver) ChangesSent(time.Duration) {}
func (noStreamObserver) StreamEnded(string)        {}

// enter counts r among the streams, until leave is called.
func (s *Service) enter(r *streamReader) (leave func()) {
	s.reading.Store(r, nil)
	return func() { s.reading.Delete(r) }
}

// Streams returns how many change streams are read, and by how much the watermark that is
// farthest behind the clock is: 0 without streams.
func (s *Service) Streams() (n int64, lag time.Duration) {
	now := s.now()
	s.reading.Range(func(key, _ any) bool {
		if mark := key.(*streamReader).mark.Load(); mark > 0 {
			lag = max(lag, now.Sub(stamp.Time(cell.Seq(mark))))
		}
		return true
	})
	return s.streams.Load(), lag
}

// endOf tells why a stream ended that was read until err, and whose client has closed its
// context if gone.
func endOf(err error, gone bool) string {
	var f *fault.Error
	switch {
	case gone:
		return EndedCancelled
	case errors.Is(err, errDraining):
		return EndedDrained
	case errors.As(err, &f) && f.Reason == changes.ExpiredReason:
		return EndedExpired
	}
	switch fault.KindOf(err) {
	case fault.FailedPrecondition, fault.NotFound:
		return EndedDisabled
	case fault.Corruption:
		return EndedDamaged
	}
	if errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return EndedCancelled
	}
	return EndedError
}
