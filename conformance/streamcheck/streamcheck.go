package streamcheck

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// FirstToken is how many bytes of a result come before its first token, unless
// the result ends before that.
const FirstToken = 4 << 20

// A Checker looks at streams. It is safe for concurrent use.
type Checker struct {
	// FirstToken replaces the constant, where a server was told so.
	FirstToken int

	mu         sync.Mutex
	schemas    map[string]*bigtablepb.ProtoSchema // by prepared query
	violations []string
	streams    int
	tokens     int
}

// New returns a Checker.
func New() *Checker {
	return &Checker{FirstToken: FirstToken, schemas: map[string]*bigtablepb.ProtoSchema{}}
}

// Options are those of a client connection whose streams are looked at.
func (c *Checker) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// Violations returns what was wrong so far.
func (c *Checker) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.violations
}

// Seen returns how many streams were looked at to their end, and how many tokens
// they had.
func (c *Checker) Seen() (streams, tokens int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams, c.tokens
}

func (c *Checker) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
}

// unary remembers the columns of prepared queries.
func (c *Checker) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoker(ctx, method, req, reply, cc, opts...)
	r, ok := reply.(*bigtablepb.PrepareQueryResponse)
	if !ok || err != nil {
		return err
	}
	cols := r.GetMetadata().GetProtoSchema()
	switch {
	case len(cols.GetColumns()) == 0:
		c.violate("a prepared query without columns")
	case len(r.GetPreparedQuery()) == 0:
		c.violate("an empty prepared query")
	case r.GetValidUntil() == nil:
		c.violate("no valid_until: clients take the query for expired")
	}
	for i, col := range cols.GetColumns() {
		if col.GetType().GetKind() == nil {
			c.violate("column %d has no type", i)
		}
		if col.GetName() == "" {
			c.violate("column %d has no name: Node's client fails", i)
		}
	}
	c.mu.Lock()
	c.schemas[string(r.GetPreparedQuery())] = cols
	c.mu.Unlock()
	return nil
}

func (c *Checker) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != bigtablepb.Bigtable_ExecuteQuery_FullMethodName {
		return s, err
	}
	return &stream{ClientStream: s, c: c}, nil
}

// A stream is an answer that is looked at.
type stream struct {
	grpc.ClientStream
	c   *Checker
	req *bigtablepb.ExecuteQueryRequest

	schema   *bigtablepb.ProtoSchema
	messages int // of any kind
	results  int // with results
	batch    []byte
	batches  int                 // complete ones since the last token
	values   []*bigtablepb.Value // since the last token
	sent     int                 // bytes of batches
	tokens   int
	data     bool // any row
	ended    bool // by a token behind which there must be nothing
}

func (s *stream) SendMsg(m any) error {
	if r, ok := m.(*bigtablepb.ExecuteQueryRequest); ok {
		s.req = proto.Clone(r).(*bigtablepb.ExecuteQueryRequest)
		s.c.mu.Lock()
		s.schema = s.c.schemas[string(r.GetPreparedQuery())]
		s.c.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *stream) violate(format string, args ...any) {
	s.c.violate("message %d: %s", s.messages, fmt.Sprintf(format, args...))
}

func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	r, ok := m.(*bigtablepb.ExecuteQueryResponse)
	switch {
	case !ok:
	case err == nil:
		s.messages++
		s.message(r)
	case errors.Is(err, io.EOF):
		s.end()
	default:
		s.failed(err)
	}
	return err
}

func (s *stream) message(m *bigtablepb.ExecuteQueryResponse) {
	switch r := m.GetResponse().(type) {
	case *bigtablepb.ExecuteQueryResponse_Metadata:
		switch {
		case len(s.req.GetPreparedQuery()) > 0:
			s.violate("metadata for a prepared query: clients fail on it")
		case len(s.req.GetResumeToken()) > 0:
			s.violate("metadata in a stream that goes on")
		case s.messages != 1:
			s.violate("metadata is not first")
		}
		s.schema = r.Metadata.GetProtoSchema()
		if len(s.schema.GetColumns()) == 0 {
			s.violate("metadata without columns")
		}
		return
	case *bigtablepb.ExecuteQueryResponse_Results:
		s.partial(r.Results)
	default:
		s.violate("neither metadata nor results")
	}
}

func (s *stream) partial(p *bigtablepb.PartialResultSet) {
	s.results++
	if s.ended {
		s.violate("a message behind the end")
	}
	if p.GetReset_() != (s.results == 1) {
		s.violate("reset is %v in message %d with results", p.GetReset_(), s.results)
	}
	if p.GetEstimatedBatchSize() != 0 {
		s.violate("estimated_batch_size is %d: Node's client fails", p.GetEstimatedBatchSize())
	}
	batch, hasData := p.GetPartialRows().(*bigtablepb.PartialResultSet_ProtoRowsBatch)
	if hasData && len(batch.ProtoRowsBatch.GetBatchData()) == 0 {
		s.violate("a batch message without data")
	}
	if !hasData && p.BatchChecksum == nil && p.ResumeToken == nil && !p.GetReset_() {
		s.violate("an empty message")
	}
	if hasData {
		s.batch = append(s.batch, batch.ProtoRowsBatch.GetBatchData()...)
		s.sent += len(batch.ProtoRowsBatch.GetBatchData())
		s.data = true
		if n := proto.Size(p); n > 4<<20 {
			s.violate("%d bytes: more than gRPC's clients take by themselves", n)
		}
	}
	if p.BatchChecksum != nil {
		if !hasData {
			s.violate("a checksum without data: Python's client ignores it")
		}
		s.complete(p.GetBatchChecksum())
	}
	if p.ResumeToken == nil {
		return
	}
	s.tokens++
	s.c.mu.Lock()
	s.c.tokens++
	s.c.mu.Unlock()
	if len(p.GetResumeToken()) == 0 {
		s.violate("a token of length 0")
	}
	if len(s.batch) > 0 {
		s.violate("a token within a batch")
	}
	if n := len(s.schema.GetColumns()); n > 0 && len(s.values)%n != 0 {
		s.violate("%d values before a token, for %d columns", len(s.values), n)
	}
	if s.sent < s.c.FirstToken && len(s.req.GetResumeToken()) == 0 {
		// Only good if nothing follows.
		s.ended = true
	}
	s.values, s.batches = nil, 0
}

// complete looks at a batch that is all there.
func (s *stream) complete(sum uint32) {
	switch want := crc32.Checksum(s.batch, crc32.MakeTable(crc32.Castagnoli)); {
	case sum == 0:
		s.violate("a checksum of 0: Node's client takes it for none")
	case sum != want:
		s.violate("checksum %08x of a batch with %08x", sum, want)
	}
	rows := new(bigtablepb.ProtoRows)
	if err := proto.Unmarshal(s.batch, rows); err != nil {
		s.violate("a batch that is no ProtoRows: %v", err)
	}
	s.batch = nil
	s.batches++
	cols := s.schema.GetColumns()
	if len(cols) == 0 {
		return
	}
	if len(rows.GetValues())%len(cols) != 0 {
		s.violate("a row goes over the end of a batch: %d values for %d columns", len(rows.GetValues()), len(cols))
	}
	for i, v := range rows.GetValues() {
		if why := Mismatch(v, cols[i%len(cols)].GetType()); why != "" {
			s.violate("value %d, column %d: %s", i, i%len(cols), why)
			return
		}
	}
	s.values = append(s.values, rows.GetValues()...)
}

// end looks at a stream that ended well.
func (s *stream) end() {
	s.c.mu.Lock()
	s.c.streams++
	s.c.mu.Unlock()
	switch {
	case s.results == 0:
		s.violate("a stream without a result")
	case len(s.batch) > 0:
		s.violate("the last batch is incomplete: Go's client drops it")
	case s.batches > 0:
		s.violate("rows without a token at the end")
	case s.tokens == 0:
		s.violate("no token")
	}
}

// failed looks at a stream that ended otherwise.
func (s *stream) failed(err error) {
	if s.tokens == 0 || s.ended || len(s.req.GetResumeToken()) > 0 {
		return
	}
	if status.Code(err) == codes.Unavailable && s.Context().Err() == nil {
		s.violate("UNAVAILABLE behind a token: Go's client begins anew, and its caller sees rows twice: %v", err)
	}
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(proto.Message); ok && m.ProtoReflect().Descriptor().Name() == "PreconditionFailure" {
			s.violate("a violated precondition behind a token: %v", m)
		}
	}
}

// Mismatch returns why v is no value of type t, "" if it is one.
func Mismatch(v *bigtablepb.Value, t *bigtablepb.Type) string {
	if v.GetType() != nil {
		return "it says its type"
	}
	if v.GetKind() == nil {
		return ""
	}
	want := false
	switch t.GetKind().(type) {
	case *bigtablepb.Type_BytesType, *bigtablepb.Type_ProtoType:
		_, want = v.Kind.(*bigtablepb.Value_BytesValue)
	case *bigtablepb.Type_StringType:
		_, want = v.Kind.(*bigtablepb.Value_StringValue)
		if want && !utf8.ValidString(v.GetStringValue()) {
			return "it is no valid UTF-8"
		}
	case *bigtablepb.Type_Int64Type, *bigtablepb.Type_EnumType:
		_, want = v.Kind.(*bigtablepb.Value_IntValue)
	case *bigtablepb.Type_Float32Type, *bigtablepb.Type_Float64Type:
		_, want = v.Kind.(*bigtablepb.Value_FloatValue)
	case *bigtablepb.Type_BoolType:
		_, want = v.Kind.(*bigtablepb.Value_BoolValue)
	case *bigtablepb.Type_TimestampType:
		_, want = v.Kind.(*bigtablepb.Value_TimestampValue)
		if want && !v.GetTimestampValue().IsValid() {
			return "its time is out of range"
		}
	case *bigtablepb.Type_DateType:
		_, want = v.Kind.(*bigtablepb.Value_DateValue)
	case *bigtablepb.Type_ArrayType, *bigtablepb.Type_StructType, *bigtablepb.Type_MapType:
		_, want = v.Kind.(*bigtablepb.Value_ArrayValue)
	}
	if !want {
		return fmt.Sprintf("%T for %T", v.Kind, t.GetKind())
	}
	list := v.GetArrayValue().GetValues()
	switch k := t.GetKind().(type) {
	case *bigtablepb.Type_ArrayType:
		for i, e := range list {
			if why := Mismatch(e, k.ArrayType.GetElementType()); why != "" {
				return fmt.Sprintf("element %d: %s", i, why)
			}
		}
	case *bigtablepb.Type_StructType:
		if len(list) != len(k.StructType.GetFields()) {
			return fmt.Sprintf("%d fields of %d", len(list), len(k.StructType.GetFields()))
		}
		for i, e := range list {
			if why := Mismatch(e, k.StructType.GetFields()[i].GetType()); why != "" {
				return fmt.Sprintf("field %d: %s", i, why)
			}
		}
	case *bigtablepb.Type_MapType:
		for i, e := range list {
			pair := e.GetArrayValue().GetValues()
			if len(pair) != 2 {
				return fmt.Sprintf("entry %d has %d values", i, len(pair))
			}
			if why := Mismatch(pair[0], k.MapType.GetKeyType()); why != "" {
				return fmt.Sprintf("key %d: %s", i, why)
			}
			if why := Mismatch(pair[1], k.MapType.GetValueType()); why != "" {
				return fmt.Sprintf("value %d: %s", i, why)
			}
		}
	}
	return ""
}
