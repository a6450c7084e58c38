package wire

import (
	"context"
	"encoding/base64"
	"strings"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// FeaturesHeader is the request header in which a client says what it can do.
const FeaturesHeader = "bigtable-features"

// Features returns what the client of a request said it can do, nil if it said
// nothing that can be read.
func Features(ctx context.Context) *bigtablepb.FeatureFlags {
	v := metadata.ValueFromIncomingContext(ctx, FeaturesHeader)
	if len(v) == 0 {
		return nil
	}
	// Clients differ in padding and, against the documentation, in alphabet.
	s := strings.NewReplacer("+", "-", "/", "_").Replace(strings.TrimRight(v[0], "="))
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return nil
	}
	f := new(bigtablepb.FeatureFlags)
	if proto.Unmarshal(b, f) != nil {
		return nil
	}
	return f
}

// WholeRows reports whether the caller may refuse a row that comes in several
// ReadRowsResponses. The API allows it, and readers take it but Go's client: up
// to 1.58 its chunkReader.Close, after each response, ends the read with "invalid
// state for end of stream". It is known by its gRPC library, since it sends
// x-goog-api-client on connections of its own only.
func WholeRows(ctx context.Context) bool {
	v := metadata.ValueFromIncomingContext(ctx, "user-agent")
	return len(v) > 0 && strings.Contains(v[0], "grpc-go/")
}
