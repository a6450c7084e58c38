// Package gateway is the gRPC front of a table store: listeners, limits,
// interceptors, health, reflection and drain around the services of
// gateway/data and gateway/admin.
//
//	stream opens ── tap: refuse when too many request bytes are in memory
//	   │
//	length arrives ── beyond the stream's window: wait for memory of the budget
//	   │
//	message arrives ── buffers from the gate's pool, codec of gateway/wire
//	   │
//	interceptors ── panic and fault to status, response metadata, Observer
//	   │
//	handler
package gateway
