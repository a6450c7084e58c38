package wire

import (
	"errors"
	"math"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
)

// A SessionPayload is the member of a SessionRequest's oneof.
type SessionPayload uint8

// The numbers are those of the fields.
const (
	NoSessionPayload SessionPayload = iota
	OpenSession
	CloseSession
	VirtualCall
)

// A VirtualOp is what a virtual call does.
type VirtualOp uint8

// The numbers are those of the fields of a TableRequest.
const (
	NoVirtualOp VirtualOp = iota
	VirtualReadRow
	VirtualMutateRow
)

// A SessionRequest is the message of that name; what it holds aliases the
// receive buffer until Release. Bytes that are no such message are told by
// Malformed, so that they end the session with a status of their own.
type SessionRequest struct {
	Payload SessionPayload

	// Of an OpenSession: what is to be opened, by which app profile and for
	// what. The fields of the three kinds of open request have the same numbers.
	Name, Profile string
	Permission    bigtablepb.OpenTableRequest_Permission

	// Of a VirtualCall. Timeout counts from the arrival; HasTimeout tells
	// whether there is one.
	ID         int64
	Timeout    time.Duration
	HasTimeout bool
	Attempt    int64
	Op         VirtualOp
	Key        []byte
	Filter     *filter.Node
	Entry      row.Entry

	size      int
	malformed error
	seconds   int64 // of the timeout
	nanos     int32

	refusal
	received
	names names
	m     mutation
	e     entry
}

// Reads and Writes tell what an OpenSession wants to do.
func (r *SessionRequest) Reads() bool {
	return r.Permission == bigtablepb.OpenTableRequest_PERMISSION_READ || r.Permission == bigtablepb.OpenTableRequest_PERMISSION_READ_WRITE
}

// Writes is the other half of Reads.
func (r *SessionRequest) Writes() bool {
	return r.Permission == bigtablepb.OpenTableRequest_PERMISSION_WRITE || r.Permission == bigtablepb.OpenTableRequest_PERMISSION_READ_WRITE
}

// WireLen returns the length of the encoded message.
func (r *SessionRequest) WireLen() int { return r.size }

// Malformed returns why the bytes are no SessionRequest.
func (r *SessionRequest) Malformed() error { return r.malformed }

// DecodeWire implements Decoder.
func (r *SessionRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	r.malformed = r.decode(b)
	return nil
}

func (r *SessionRequest) decode(b []byte) error {
	var payload []byte // of the open or of the call, which says what it is
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType || f.num > protowire.Number(VirtualCall) {
			continue
		}
		if p := SessionPayload(f.num); p != r.Payload {
			// The last member of a oneof counts.
			r.Payload, payload = p, nil
			r.ID, r.HasTimeout, r.seconds, r.nanos, r.Attempt = 0, false, 0, 0, 0
		}
		for inner := f.bytes; len(inner) > 0; {
			f, rest, err := nextField(inner)
			if err != nil {
				return err
			}
			inner = rest
			switch r.Payload {
			case OpenSession:
				if f.num == 5 && f.typ == protowire.BytesType {
					payload = f.bytes
				}
			case VirtualCall:
				switch {
				case f.num == 1 && f.typ == protowire.VarintType:
					r.ID = int64(f.varint)
				case f.num == 2 && f.typ == protowire.BytesType:
					r.HasTimeout = true
					err = r.decodeDeadline(f.bytes)
				case f.num == 3 && f.typ == protowire.BytesType:
					err = r.decodeMetadata(f.bytes)
				case f.num == 4 && f.typ == protowire.BytesType:
					payload = f.bytes
				}
			}
			if err != nil {
				return err
			}
		}
	}
	switch r.Payload {
	case OpenSession:
		return r.decodeOpen(payload)
	case VirtualCall:
		// What does not fit is as long as can be.
		const most = math.MaxInt64/int64(time.Second) - 3 // nanos may be two seconds
		r.Timeout = time.Duration(min(max(r.seconds, -most), most))*time.Second + time.Duration(r.nanos)
		// The session goes on after a call that cannot be read.
		if err := r.decodeCall(payload); err != nil {
			r.err = fault.InvalidField("payload", "The payload is no request of this kind of session")
			if short, ok := errors.AsType[*fault.Error](err); ok {
				r.err = short
			}
		}
	}
	return nil
}

// decodeOpen decodes an Open{Table,AuthorizedView,MaterializedView}Request.
func (r *SessionRequest) decodeOpen(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			r.Name, err = r.names.get(f.bytes)
		case f.num == 2 && f.typ == protowire.BytesType:
			r.Profile, err = r.names.get(f.bytes)
		case f.num == 3 && f.typ == protowire.VarintType:
			r.Permission = bigtablepb.OpenTableRequest_Permission(int32(f.varint))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeCall decodes a {Table,AuthorizedView,MaterializedView}Request.
func (r *SessionRequest) decodeCall(b []byte) error {
	var predicate filterField
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType || f.num > protowire.Number(VirtualMutateRow) {
			continue
		}
		if op := VirtualOp(f.num); op != r.Op {
			r.Op, r.Key, predicate = op, nil, filterField{}
			r.e.reset()
		}
		for inner := f.bytes; len(inner) > 0; {
			f, rest, err := nextField(inner)
			if err != nil {
				return err
			}
			inner = rest
			switch {
			case f.typ != protowire.BytesType:
			case f.num == 1:
				r.Key = f.bytes
			case f.num == 2 && r.Op == VirtualReadRow:
				predicate.add(f.bytes)
			case f.num == 2:
				if err := r.e.add("mutations", f.bytes, &r.m, &r.names, &r.charge); err != nil {
					return err
				}
			}
		}
	}
	switch r.Op {
	case NoVirtualOp:
		r.refuse(fault.InvalidField("payload", "The payload holds no request"))
	case VirtualReadRow:
		r.refuse(checkKey("key", r.Key))
		node, refused, err := predicate.decode("filter", &r.charge)
		if err != nil {
			return err
		}
		r.Filter = node
		if r.err == nil {
			r.err = refused
		}
	case VirtualMutateRow:
		r.e.Key = r.Key
		r.refuse(r.e.finish())
		r.Entry = r.e.Entry
	}
	return nil
}

// decodeDeadline decodes a google.protobuf.Duration.
func (r *SessionRequest) decodeDeadline(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ == protowire.VarintType {
			switch f.num {
			case 1:
				r.seconds = int64(f.varint)
			case 2:
				r.nanos = int32(f.varint)
			}
		}
	}
	return nil
}

// decodeMetadata decodes what is of use of a call's metadata.
func (r *SessionRequest) decodeMetadata(b []byte) error {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.num == 1 && f.typ == protowire.VarintType {
			r.Attempt = int64(f.varint)
		}
	}
	return nil
}

// Release makes r ready for the next request.
func (r *SessionRequest) Release() {
	r.m.reset()
	r.e.reset()
	r.received.release()
	r.Payload, r.Name, r.Profile, r.Permission = 0, "", "", 0
	r.ID, r.Timeout, r.HasTimeout, r.seconds, r.nanos, r.Attempt = 0, 0, false, 0, 0, 0
	r.Op, r.Key, r.Filter, r.Entry = 0, nil, nil, row.Entry{}
	r.size, r.malformed, r.err = 0, nil, nil
}
