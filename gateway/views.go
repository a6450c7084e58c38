package gateway

import (
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/sql"
)

// ViewEvaluators returns what evaluates the queries of materialized views over a backend's
// tables, with all rights. memory is what all evaluations may take together, in bytes, and
// dir where the rest goes: see materialize.Options.
func ViewEvaluators(b backend.Backend, memory int64, dir string) matview.Evaluators {
	return materialize.New(materialize.Options{Source: b, Catalog: sql.Sources(b, admin.TableTypes{}), Memory: memory, Dir: dir})
}
