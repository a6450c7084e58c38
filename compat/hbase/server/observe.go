package server

import (
	"time"

	"github.com/trestledb/trestle/engine/request"
)

// An Observer is told of calls. Its methods are called on their goroutines and must be quick
// and safe for concurrent use.
type Observer interface {
	// CallStarted is called before a call, with the record that its context has. parent
	// is the W3C traceparent that came with it, empty if none did.
	CallStarted(r *request.Record, parent string)
	// CallDone is called after it. received and sent are bytes of messages and cell blocks.
	CallDone(r *request.Record, c *Call, err error, start time.Time, elapsed time.Duration, received, sent int64)
}

// methodUnknown stands for what is no method of the service, in place of what a client sent.
const methodUnknown = "unknown"

// observed begins the record of a call.
func (c *conn) observed(call *Call, parent string) *request.Record {
	call.record.Face, call.record.Method = request.HBase, methodUnknown
	if _, ok := c.service[call.Method]; ok {
		call.record.Method = call.Method
	}
	if o := c.s.o.Observer; o != nil {
		o.CallStarted(&call.record, parent)
	}
	return &call.record
}
