package gateway

import "testing"

// byGRPCGo has fixtures served by gRPC-Go's transport.
var byGRPCGo bool

// TestGRPCGo: what does most with the transport holds with gRPC-Go's as well.
func TestGRPCGo(t *testing.T) {
	byGRPCGo = true
	defer func() { byGRPCGo = false }()
	for _, tc := range []struct {
		name string
		test func(*testing.T)
	}{
		{"refusals", TestRefusals},
		{"every method answers", TestEveryMethodAnswers},
		{"response metadata", TestResponseMetadata},
		{"headers early", TestHeadersEarly},
		{"panic", TestPanic},
		{"large row", TestLargeRow},
		{"stalled reader", TestStalledReader},
		{"compressed requests", TestCompressedRequests},
		{"request limit", TestRequestLimit},
		{"request memory", TestRequestMemory},
		{"receive timeout", TestReceiveTimeout},
		{"buffers come back", TestBuffersComeBack},
		{"health and drain", TestHealthAndDrain},
		{"gone callers", TestGoneCallersAreNoErrors},
		{"ended transport", TestEndedTransportIsNoError},
		{"memory of large requests", TestMemoryOfLargeRequests},
		{"memory without credentials", TestMemoryWithoutCredentials},
		{"silent client", TestSilentClient},
		{"session", TestSessionPipeline},
		{"session's deadlines", TestSessionHeartbeatAndDeadline},
		{"cancelled session", TestSessionCancel},
		{"session goes away", TestSessionGoAway},
	} {
		t.Run(tc.name, tc.test)
	}
}
