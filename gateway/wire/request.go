package wire

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A Target is what a request is about.
type Target struct {
	Table   string
	View    string // authorized view
	Profile string
	size    int // of the encoded message
}

// WireLen returns the length of the encoded message.
func (t *Target) WireLen() int { return t.size }

// An entry is one row's change while it is decoded.
type entry struct {
	row.Entry
	count      int          // mutations seen, those beyond the limit too
	invalid    *fault.Error // the first refusal among them
	seconds    int64        // idempotency start_time
	nanos      int32
	hasStart   bool
	idempotent bool
}

// add decodes a mutation of the named field.
func (e *entry) add(field string, b []byte, m *mutation, names *names, c *charge) error {
	m.reset()
	if err := m.decode(b, names); err != nil {
		return err
	}
	e.count++
	if e.invalid != nil || e.count > schema.MaxMutations {
		return nil // refused anyhow; only malformed bytes are looked for
	}
	if err := c.use(mutationBytes); err != nil {
		return err
	}
	n := len(e.Mutations)
	if e.Mutations = room(e.Mutations); n < cap(e.Mutations) {
		e.Mutations = e.Mutations[:n+1]
	} else {
		e.Mutations = append(e.Mutations, row.Mutation{})
	}
	if err := m.finish(&e.Mutations[n]); err != nil {
		e.invalid = err.In(field, n)
	}
	return nil
}

func (e *entry) idempotency(b []byte) error {
	e.idempotent = true
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			e.Token.Token = f.bytes
		case 2:
			e.hasStart = true
			for t := f.bytes; len(t) > 0; {
				f, rest, err := nextField(t)
				if err != nil {
					return err
				}
				t = rest
				if f.typ == protowire.VarintType {
					switch f.num {
					case 1:
						e.seconds = int64(f.varint)
					case 2:
						e.nanos = int32(f.varint)
					}
				}
			}
		}
	}
	return nil
}

// finish checks what can be checked once all of the entry is known.
func (e *entry) finish() *fault.Error {
	if err := checkKey("row_key", e.Key); err != nil {
		return err
	}
	if err := checkCount("mutations", e.count, true); err != nil {
		return err
	}
	if e.invalid != nil {
		return e.invalid
	}
	if !e.idempotent {
		return nil
	}
	tok, err := token(e.Token.Token, e.hasStart, e.seconds, e.nanos)
	if err != nil {
		return err.In("idempotency", -1)
	}
	e.Token = tok
	return nil
}

func token(tok []byte, hasStart bool, seconds int64, nanos int32) (row.Token, *fault.Error) {
	if len(tok) < schema.MinTokenBytes {
		return row.Token{}, inField("token", "An idempotency token must be at least %d bytes long, but got %d", schema.MinTokenBytes, len(tok))
	}
	if len(tok) > schema.MaxQualifier {
		return row.Token{}, inField("token", "An idempotency token must be at most %d bytes long, but got %d", schema.MaxQualifier, len(tok))
	}
	t := row.Token{Token: tok}
	if hasStart {
		if seconds < minTimestampSeconds || seconds > maxTimestampSeconds || nanos < 0 || nanos > 999_999_999 {
			return row.Token{}, inField("start_time", "The timestamp is out of range")
		}
		t.Start = time.Unix(seconds, int64(nanos)).UTC()
	}
	return t, nil
}

// keepMutations bounds the memory that a pooled request keeps: 150 bytes each.
// keepBatch is that of many rows.
const (
	keepMutations = 256
	keepBatch     = 16 * keepMutations
)

func (e *entry) reset() {
	muts := e.Mutations
	clear(muts)
	if cap(muts) > keepMutations {
		muts = nil
	}
	*e = entry{}
	e.Mutations = muts[:0]
}

// A MutateRowRequest is a google.bigtable.v2.MutateRowRequest whose Entry
// aliases the receive buffer.
type MutateRowRequest struct {
	Target
	Entry   row.Entry
	invalid *fault.Error

	received
	names names
	m     mutation
	e     entry
}

// DecodeWire implements Decoder. Its error means that data is no such message;
// one that is and must be refused says so in Check.
func (r *MutateRowRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	return r.decode(b)
}

func (r *MutateRowRequest) decode(b []byte) error {
	r.size = len(b)
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			r.Table, err = r.names.get(f.bytes)
		case 2:
			r.e.Key = f.bytes
		case 3:
			err = r.e.add("mutations", f.bytes, &r.m, &r.names, &r.charge)
		case 4:
			r.Profile, err = r.names.get(f.bytes)
		case 6:
			r.View, err = r.names.get(f.bytes)
		case 8:
			err = r.e.idempotency(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	r.invalid = r.e.finish()
	r.Entry = r.e.Entry
	return nil
}

// Check returns why the request must be refused, nil if it need not be.
func (r *MutateRowRequest) Check() error {
	if r.invalid != nil {
		return r.invalid
	}
	return nil
}

// Release makes r ready for the next request. Nothing that came out of it, the
// names excepted, may be used any more.
func (r *MutateRowRequest) Release() {
	r.m.reset()
	r.e.reset()
	r.received.release()
	r.Target, r.Entry, r.invalid = Target{}, row.Entry{}, nil
}

// A MutateRowsRequest is a google.bigtable.v2.MutateRowsRequest whose Entries
// alias the receive buffer.
type MutateRowsRequest struct {
	Target
	Entries []row.Entry
	total   int
	invalid *fault.Error

	received
	names names
	m     mutation
	e     entry
	muts  []row.Mutation // those of entries follow each other, in arrays of which this is the last
	from  int            // where the current entry's begin in it
}

// DecodeWire implements Decoder, as for MutateRowRequest.
func (r *MutateRowsRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	return r.decode(b)
}

func (r *MutateRowsRequest) decode(b []byte) error {
	r.size = len(b)
	n := 0
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			r.Table, err = r.names.get(f.bytes)
		case 2:
			err = r.decodeEntry(f.bytes, n)
			n++
		case 3:
			r.Profile, err = r.names.get(f.bytes)
		case 5:
			r.View, err = r.names.get(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	if n == 0 {
		r.invalid = fault.InvalidField("entries", "No mutations provided")
		return nil
	}
	if r.total > schema.MaxMutations {
		r.invalid = fault.InvalidField("entries", "Too many mutations: %d provided; limit %d", r.total, schema.MaxMutations)
	}
	if r.invalid != nil {
		r.Entries = nil
	}
	return nil
}

func (r *MutateRowsRequest) decodeEntry(b []byte, index int) error {
	r.e, r.from = entry{}, len(r.muts)
	for len(b) > 0 {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		if f.typ != protowire.BytesType {
			continue
		}
		switch f.num {
		case 1:
			r.e.Key = f.bytes
		case 2:
			// The entry's mutations go behind those of the entries before it.
			if r.invalid == nil && r.total+r.e.count < schema.MaxMutations {
				err = r.add(f.bytes)
				break
			}
			// Refused anyhow: nothing is kept, only malformed bytes are looked for.
			r.m.reset()
			err = r.m.decode(f.bytes, &r.names)
			r.e.count++
		case 3:
			err = r.e.idempotency(f.bytes)
		}
		if err != nil {
			return err
		}
	}
	r.total += r.e.count
	if r.invalid != nil || r.total > schema.MaxMutations {
		return nil
	}
	if err := r.e.finish(); err != nil {
		r.invalid = err.In("entries", index)
		return nil
	}
	if err := r.use(entryBytes); err != nil {
		return err
	}
	end := len(r.muts)
	r.Entries = append(room(r.Entries), row.Entry{Key: r.e.Key, Token: r.e.Token, Mutations: r.muts[r.from:end:end]})
	return nil
}

// add decodes a mutation of the current entry to the end of muts.
func (r *MutateRowsRequest) add(b []byte) error {
	r.m.reset()
	if err := r.m.decode(b, &r.names); err != nil {
		return err
	}
	r.e.count++
	if r.e.invalid != nil {
		return nil
	}
	if err := r.use(mutationBytes); err != nil {
		return err
	}
	n := len(r.muts)
	if n == cap(r.muts) {
		// The entries before this one keep their array: nothing of it becomes garbage.
		own := r.muts[r.from:]
		r.muts = append(make([]row.Mutation, 0, max(2*len(own), min(2*n, keepBatch), 1)), own...)
		n, r.from = len(own), 0
	}
	r.muts = r.muts[:n+1]
	if err := r.m.finish(&r.muts[n]); err != nil {
		r.e.invalid = err.In("mutations", r.e.count-1)
	}
	return nil
}

// Check returns why the request must be refused, nil if it need not be.
func (r *MutateRowsRequest) Check() error {
	if r.invalid != nil {
		return r.invalid
	}
	return nil
}

// Release makes r ready for the next request.
func (r *MutateRowsRequest) Release() {
	r.m.reset()
	r.e = entry{}
	r.received.release()
	clear(r.muts)
	clear(r.Entries)
	if cap(r.muts) > keepBatch || cap(r.Entries) > keepBatch {
		r.muts, r.Entries = nil, nil
	}
	r.muts, r.Entries = r.muts[:0], r.Entries[:0]
	r.Target, r.total, r.invalid = Target{}, 0, nil
}
