package wire

import (
	"context"

	"google.golang.org/grpc"
)

// LastMessage says that the next message of the stream of ctx is its last, so that it leaves
// together with the status: half the writes to the socket for an answer of one message. A
// handler says it right before that message, and returns right after it.
func LastMessage(ctx context.Context) {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ Last() }); ok {
		s.Last()
	}
}
