package sqlclient

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/query/syntax"
)

// A Client runs statements on one instance. It is safe for concurrent use.
type Client struct {
	Conn     grpc.ClientConnInterface
	Instance string // full resource name
	Profile  string // id of the app profile; empty for the default one
}

// A Param is a parameter of a statement.
type Param struct {
	Type  *bigtablepb.Type
	Value *bigtablepb.Value
}

// Params are parameters by name.
type Params map[string]Param

func (p Params) types() map[string]*bigtablepb.Type {
	out := make(map[string]*bigtablepb.Type, len(p))
	for name, v := range p {
		out[name] = v.Type
	}
	return out
}

func (p Params) values() map[string]*bigtablepb.Value {
	out := make(map[string]*bigtablepb.Value, len(p))
	for name, v := range p {
		out[name] = v.Value
	}
	return out
}

// Columns are those of a result.
type Columns = []*bigtablepb.ColumnMetadata

// Row gets the values of one row, in the order of the columns. It may keep them.
type Row func([]*bigtablepb.Value) error

// retries is how often a statement is prepared again or a stream begun anew.
const retries = 5

// Query runs a statement. begin is called once, before the rows. Rows that were
// given out do not come again when a stream breaks. A statement that Writes is run once: if
// it is Unavailable, it may have written all its rows, some or none. If the columns change
// behind begin, before any row came, it is Aborted. Errors are gRPC statuses, and those of
// begin and row as they are.
func (c *Client) Query(ctx context.Context, text string, params Params, begin func(Columns) error, row Row) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-goog-request-params", "name="+url.QueryEscape(c.Instance)+"&app_profile_id="+url.QueryEscape(c.Profile),
		"google-cloud-resource-prefix", c.Instance)
	api := bigtablepb.NewBigtableClient(c.Conn)
	s := &stream{api: api, c: c, params: params, row: row}
	for try := 0; ; try++ {
		if s.token == nil && (s.prepared == nil || expired(s.last)) {
			p, err := api.PrepareQuery(ctx, &bigtablepb.PrepareQueryRequest{InstanceName: c.Instance, AppProfileId: c.Profile, Query: text, ParamTypes: params.types(),
				DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}}})
			if err != nil {
				return err
			}
			columns := p.GetMetadata().GetProtoSchema().GetColumns()
			if s.prepared == nil {
				if err := begin(columns); err != nil {
					return err
				}
			} else if !slices.EqualFunc(columns, s.columns, func(a, b *bigtablepb.ColumnMetadata) bool { return proto.Equal(a, b) }) {
				return status.Error(codes.Aborted, "the columns of the result have changed; run the statement again")
			}
			s.prepared, s.columns = p.GetPreparedQuery(), columns
		}
		s.last = s.run(ctx)
		again := expired(s.last) && s.token == nil || status.Code(s.last) == codes.Unavailable && (s.token != nil || !Writes(text))
		if s.failed != nil {
			return s.failed
		}
		if !again || try == retries || ctx.Err() != nil {
			return s.last
		}
		select {
		case <-time.After(time.Duration(20<<try) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Writes tells whether running a statement may write rows: it does, or a newer server may know
// what it is. To run it again could write twice.
func Writes(text string) bool {
	st, err := syntax.Parse(text)
	if err != nil {
		return true
	}
	if e, ok := st.(*syntax.Explain); ok {
		if !e.Analyze {
			return false
		}
		st = e.Statement
	}
	switch st.(type) {
	case *syntax.Insert, *syntax.Update, *syntax.Delete:
		return true
	}
	return false
}

func expired(err error) bool {
	for _, d := range status.Convert(err).Details() {
		if p, ok := d.(*errdetails.PreconditionFailure); ok {
			return slices.ContainsFunc(p.GetViolations(), func(v *errdetails.PreconditionFailure_Violation) bool {
				return strings.Contains(v.GetType(), "PREPARED_QUERY_EXPIRED")
			})
		}
	}
	return false
}

// A stream reads the rows of a statement, and goes on where it was cut off.
type stream struct {
	api      bigtablepb.BigtableClient
	c        *Client
	params   Params
	row      Row
	prepared []byte
	columns  Columns
	token    []byte
	last     error
	failed   error // of row
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *stream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := s.api.ExecuteQuery(ctx, &bigtablepb.ExecuteQueryRequest{InstanceName: s.c.Instance, AppProfileId: s.c.Profile, PreparedQuery: s.prepared,
		Params: s.params.values(), ResumeToken: s.token})
	if err != nil {
		return err
	}
	var batch []byte
	var values []*bigtablepb.Value
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			if len(batch) > 0 || len(values) > 0 {
				return errors.New("the answer ended within a batch of rows")
			}
			return nil
		}
		if err != nil {
			return err
		}
		r := m.GetResults()
		if r.GetReset_() {
			batch, values = nil, nil
		}
		batch = append(batch, r.GetProtoRowsBatch().GetBatchData()...)
		if r.BatchChecksum != nil {
			if crc32.Checksum(batch, castagnoli) != r.GetBatchChecksum() {
				return errors.New("a batch of rows was damaged on its way")
			}
			rows := new(bigtablepb.ProtoRows)
			if err := proto.Unmarshal(batch, rows); err != nil {
				return fmt.Errorf("decode rows: %w", err)
			}
			values, batch = append(values, rows.GetValues()...), nil
		}
		if len(r.GetResumeToken()) == 0 {
			continue
		}
		n := len(s.columns)
		if n == 0 || len(values)%n != 0 {
			return fmt.Errorf("%d values came for rows of %d columns", len(values), n)
		}
		for ; len(values) > 0; values = values[n:] {
			if s.failed = s.row(values[:n]); s.failed != nil {
				return nil
			}
		}
		s.token = r.GetResumeToken()
	}
}
