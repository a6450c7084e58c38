package tabletserver

import (
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/worker"
)

// Users returns what the tablets of tables share, System the same of METADATA's.
func (s *Server) Users() (*tablet.Env, *worker.Worker)  { return s.users.env, s.users.work }
func (s *Server) System() (*tablet.Env, *worker.Worker) { return s.system.env, s.system.work }

// UserTablets returns the tablets of tables that are served, SystemTablets those of
// METADATA, in any order.
func (s *Server) UserTablets() []*tablet.Tablet   { return s.tabletsOf(s.users) }
func (s *Server) SystemTablets() []*tablet.Tablet { return s.tabletsOf(s.system) }
