package admin

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
)

// consistencyLife is how long a consistency token is good.
const consistencyLife = 90 * 24 * time.Hour

// A consistencyToken names the table it is for. The id tells it from a later
// table of the same name.
type consistencyToken struct {
	Table string    `json:"t"`
	ID    uint64    `json:"i"`
	Made  time.Time `json:"m"`
}

// GenerateConsistencyToken implements T15.
func (s *tableServer) GenerateConsistencyToken(ctx context.Context, req *adminpb.GenerateConsistencyTokenRequest) (*adminpb.GenerateConsistencyTokenResponse, error) {
	t, _, err := s.tableAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	token, err := s.seal(ctx, "consistency", consistencyToken{Table: t.Name, ID: t.ID, Made: s.o.Now()})
	if err != nil {
		return nil, err
	}
	return &adminpb.GenerateConsistencyTokenResponse{ConsistencyToken: token}, nil
}

// CheckConsistency implements T16. A write is in the one copy of the data
// before its client is told, so whatever came before a token can be read.
func (s *tableServer) CheckConsistency(ctx context.Context, req *adminpb.CheckConsistencyRequest) (*adminpb.CheckConsistencyResponse, error) {
	t, _, err := s.tableAt(ctx, "name", req.GetName())
	if err != nil {
		return nil, err
	}
	var c consistencyToken
	ok, err := s.open(ctx, "consistency", req.GetConsistencyToken(), &c)
	if err != nil {
		return nil, err
	}
	if !ok || c.Table != t.Name || c.ID != t.ID {
		return nil, refuse(fault.Invalid, "consistency_token", "Error in field 'consistency_token' : Not a token of table %s", t.Name)
	}
	if s.o.Now().Sub(c.Made) > consistencyLife {
		return nil, refuse(fault.Invalid, "consistency_token", "Error in field 'consistency_token' : The token is older than 90 days")
	}
	return &adminpb.CheckConsistencyResponse{Consistent: true}, nil
}
