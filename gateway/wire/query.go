package wire

import (
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
)

// An ExecuteQueryRequest is the message of that name. Tokens in it alias the receive
// buffer until Release. What a prepared statement of a few parameters needs is decoded
// here, with the memory of the request before: the generated code takes as much time for
// it as reading a row does. Anything else the generated code decodes.
type ExecuteQueryRequest struct {
	bigtablepb.ExecuteQueryRequest

	received
	names  names
	size   int
	params [quickParams]quickParam
	used   int // of params
}

// quickParams is how many parameters are decoded here.
const quickParams = 8

type quickParam struct {
	value  bigtablepb.Value
	bytes  bigtablepb.Value_BytesValue
	number bigtablepb.Value_IntValue
	text   bigtablepb.Value_StringValue
}

// WireLen returns the length of the encoded message.
func (r *ExecuteQueryRequest) WireLen() int { return r.size }

// DecodeWire implements Decoder.
func (r *ExecuteQueryRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	if r.quick(b) {
		return nil
	}
	r.clear()
	return r.unmarshal(b, &r.ExecuteQueryRequest)
}

// quick decodes b and tells whether it could.
func (r *ExecuteQueryRequest) quick(b []byte) bool {
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil || f.typ != protowire.BytesType {
			return false
		}
		b = rest
		switch f.num {
		case 1:
			r.InstanceName, err = r.names.get(f.bytes)
		case 2:
			r.AppProfileId, err = r.names.get(f.bytes)
		case 7:
			if !r.param(f.bytes) {
				return false
			}
		case 8:
			r.ResumeToken = f.bytes
		case 9:
			r.PreparedQuery = f.bytes
		default:
			return false
		}
		if err != nil {
			return false
		}
	}
	return true
}

// param decodes an entry of params: a name, and a value with one field.
func (r *ExecuteQueryRequest) param(b []byte) bool {
	if r.used == len(r.params) {
		return false
	}
	p := &r.params[r.used]
	name, rest, err := nextField(b)
	if err != nil || name.num != 1 || name.typ != protowire.BytesType {
		return false
	}
	value, rest, err := nextField(rest)
	if err != nil || value.num != 2 || value.typ != protowire.BytesType || len(rest) > 0 {
		return false
	}
	v, rest, err := nextField(value.bytes)
	if err != nil || len(rest) > 0 {
		return false
	}
	switch {
	case v.num == 2 && v.typ == protowire.BytesType:
		p.bytes.BytesValue, p.value.Kind = v.bytes, &p.bytes
		if v.bytes == nil {
			p.bytes.BytesValue = []byte{}
		}
	case v.num == 3 && v.typ == protowire.BytesType && utf8.Valid(v.bytes):
		p.text.StringValue, p.value.Kind = string(v.bytes), &p.text
	case v.num == 6 && v.typ == protowire.VarintType:
		p.number.IntValue, p.value.Kind = int64(v.varint), &p.number
	default:
		return false
	}
	key, err := r.names.get(name.bytes)
	if err != nil {
		return false
	}
	if r.Params == nil {
		r.Params = make(map[string]*bigtablepb.Value, quickParams)
	}
	r.Params[key] = &p.value
	r.used++
	return true
}

// clear forgets the message, but not the memory for the next one.
func (r *ExecuteQueryRequest) clear() {
	for i := range r.params[:r.used] {
		p := &r.params[i]
		p.value.Kind, p.bytes.BytesValue, p.text.StringValue = nil, nil, ""
	}
	params := r.Params
	if len(params) > quickParams {
		params = nil
	}
	clear(params)
	r.used = 0
	r.ExecuteQueryRequest.Reset()
	r.Params = params
}

// Release makes r ready for the next request.
func (r *ExecuteQueryRequest) Release() {
	r.received.release()
	r.clear()
	r.size = 0
}
