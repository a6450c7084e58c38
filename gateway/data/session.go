package data

import (
	"context"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// Sessions serves the methods that open sessions.
type Sessions interface {
	OpenTable(grpc.ServerStream) error
	OpenAuthorizedView(grpc.ServerStream) error
	OpenMaterializedView(grpc.ServerStream) error
	// Configuration is what the client of a request is told about sessions.
	Configuration(ctx context.Context) *bigtablepb.ClientConfiguration
}

// UseSessions sets the server of sessions. Call it before requests are served;
// without it there are none.
func (s *Service) UseSessions(ss Sessions) { s.sessions = ss }

// openSession returns the handler of a method that opens a session.
func openSession(method string, open func(Sessions, grpc.ServerStream) error) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		ss := srv.(*Service).sessions
		if ss == nil {
			return fault.New(fault.Unimplemented, "method %s not implemented", method)
		}
		return open(ss, stream)
	}
}

// Names are those in a request. One of Table, View and Materialized is set.
type Names struct {
	Table, View, Materialized string
	Profile                   string
}

// Rows are those of a table or a view, as an app profile reaches it. A
// request is held to what it would be held to as an RPC of its own: nothing is
// remembered but names.
type Rows struct {
	s *Service
	n Names
}

// Rows returns the rows of what n names, if they could be read or written now.
func (s *Service) Rows(ctx context.Context, n Names, writes bool) (*Rows, error) {
	a := read
	if writes {
		a = write
	}
	t, err := s.open(ctx, n.Table, n.View, n.Materialized, n.Profile, a)
	if err != nil {
		return nil, err
	}
	if _, err := s.tables.Table(ctx, t.table); err != nil {
		return nil, t.refusal(err)
	}
	return &Rows{s: s, n: n}, nil
}

// ReadRow reads one row.
func (r *Rows) ReadRow(ctx context.Context, key []byte, f *filter.Node, w scan.Writer) (scan.Stats, error) {
	t, err := r.s.open(ctx, r.n.Table, r.n.View, r.n.Materialized, r.n.Profile, read)
	if err != nil {
		return scan.Stats{}, err
	}
	if f, err = t.filter(f); err != nil {
		return scan.Stats{}, err
	}
	stats, err := r.s.backend.ReadRows(ctx, &scan.Request{Table: t.table, Ranges: t.ranges([]row.Range{row.Single(key)}), Filter: f}, w)
	return stats, t.refusal(err)
}

// MutateRow changes one row.
func (r *Rows) MutateRow(ctx context.Context, e *row.Entry) error {
	t, err := r.s.open(ctx, r.n.Table, r.n.View, r.n.Materialized, r.n.Profile, write)
	if err != nil {
		return err
	}
	if err := t.check(e.Key, e.Mutations); err != nil {
		return err
	}
	return r.s.backend.MutateRow(ctx, t.table, e)
}
