//go:build !kafka

package feed

import (
	"context"
	"errors"
)

// OpenKafka refuses: the client of Kafka would make every program a tenth larger.
func OpenKafka(context.Context, string, string, func(error)) (Sink, error) {
	return nil, errors.New("this trestle was built without Kafka: build it with go build -tags kafka ./cmd/trestle, or pipe the lines into a producer of yours")
}
