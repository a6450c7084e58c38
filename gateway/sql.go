package gateway

import (
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/sql"
)

// newSQL returns what answers queries over b, which is guarded if there is login.
func newSQL(b backend.Backend, a *admin.Admin, o Options) *sql.Service {
	s := o.SQL
	s.Tables, s.Resources, s.Budget, s.Log = b, a, o.Memory, o.Log
	if o.Auth.On() {
		s.MAC, s.Principal, s.As, s.ReadView = a.MAC, auth.Member, o.Auth.As, o.Auth.ReadView
		o.Query.As = o.Auth.As
	}
	if s.Engine == nil {
		s.Engine = query.New(sql.Visible(b), o.Query)
	}
	return sql.New(s)
}
