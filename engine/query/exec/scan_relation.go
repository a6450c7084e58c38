package exec

import (
	"context"
	"io"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// relationScan gives the rows of a relation in memory.
type relationScan struct {
	rel   *algebra.Scan
	at    int
	batch types.Batch
}

func newRelationScan(x *execution, r *algebra.Scan) *relationScan {
	return &relationScan{rel: r, batch: types.Batch{Cols: newVectors(columnTypes(r.Columns()))}}
}

func (s *relationScan) Open(context.Context) error { s.at = 0; return nil }
func (s *relationScan) Close() error               { return nil }

func (s *relationScan) Next(context.Context) (*types.Batch, error) {
	rows := s.rel.Table.Rows[s.at:]
	if len(rows) == 0 {
		return nil, io.EOF
	}
	rows = rows[:min(len(rows), types.BatchRows)]
	s.at += len(rows)
	s.batch.Len = len(rows)
	for c, u := range s.rel.Uses {
		v := s.batch.Cols[c]
		v.Resize(len(rows))
		for i, r := range rows {
			v.Set(i, r[u.Index])
		}
	}
	return &s.batch, nil
}
