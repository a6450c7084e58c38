package bench

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	methodPrepare = "/google.bigtable.v2.Bigtable/PrepareQuery"
	methodExecute = "/google.bigtable.v2.Bigtable/ExecuteQuery"
)

// A query is the SQL of a workload, prepared when it is first executed. TABLE in the
// text stands for the table.
type query struct {
	text    string
	params  []string // names, all BYTES
	columns int
}

// prepared has what PrepareQuery answered on one server.
type prepared struct {
	once sync.Once
	plan []byte
	err  error
}

var (
	pointQuery = &query{"SELECT f['c00000'] FROM TABLE WHERE _key = @k", []string{"k"}, 1}
	scanQuery  = &query{"SELECT _key, f['c00000'] FROM TABLE WHERE _key >= @a AND _key < @b", []string{"a", "b"}, 2}
	countQuery = &query{"SELECT COUNT(*) FROM TABLE", nil, 1}
	// Keys end in ten different digits.
	groupQuery = &query{"SELECT SUBSTR(_key, 13) AS g, COUNT(*), SUM(BYTE_LENGTH(f['c00000'])) FROM TABLE WHERE BYTE_LENGTH(f['c00000']) > 0 GROUP BY g", nil, 3}
	sortQuery  = &query{"SELECT _key FROM TABLE ORDER BY f['c00000']", nil, 1}
	joinQuery  = &query{"SELECT COUNT(*) FROM TABLE AS x JOIN TABLE AS y ON x.f['c00000'] = y.f['c00000']", nil, 1}
)

// A sqlValue is a google.bigtable.v2.Value: the field that is set, 0 for NULL, and
// what is in it. Bytes are valid until the next row.
type sqlValue struct {
	field protowire.Number
	bytes []byte
	n     uint64
}

// execute runs q, with params in the order of q.params, and calls row for each row.
func (w *worker) execute(ctx context.Context, s *state, q *query, row func(values []sqlValue) error, params ...[]byte) error {
	s.prepared.once.Do(func() { s.prepared.plan, s.prepared.err = w.prepare(ctx, s.d.name, q) })
	if s.prepared.err != nil {
		return s.prepared.err
	}
	instance, _, _ := strings.Cut(s.d.name, "/tables/")
	w.req = appendBytes(w.req[:0], 1, []byte(instance))
	for i, p := range params {
		w.req = appendLen(w.req, 7, sizeBytes(len(q.params[i]))+sizeBytes(sizeBytes(len(p))))
		w.req = appendBytes(w.req, 1, []byte(q.params[i]))
		w.req = appendLen(w.req, 2, sizeBytes(len(p)))
		w.req = appendBytes(w.req, 2, p)
	}
	w.req = appendBytes(w.req, 9, s.prepared.plan)
	r := resultReader{columns: q.columns, row: row, batch: w.sqlBatch[:0], values: w.sqlValues[:0]}
	err := w.stream(ctx, methodExecute, r.message)
	w.sqlBatch, w.sqlValues = r.batch, r.values
	if err == nil && !r.complete {
		err = fmt.Errorf("%w: the stream ended without a token behind its rows", errMessage)
	}
	return err
}

func (w *worker) prepare(ctx context.Context, table string, q *query) ([]byte, error) {
	instance, id, _ := strings.Cut(table, "/tables/")
	req := &bigtablepb.PrepareQueryRequest{
		InstanceName: instance, Query: strings.ReplaceAll(q.text, "TABLE", "`"+id+"`"),
		DataFormat: &bigtablepb.PrepareQueryRequest_ProtoFormat{ProtoFormat: &bigtablepb.ProtoFormat{}},
		ParamTypes: map[string]*bigtablepb.Type{},
	}
	for _, p := range q.params {
		req.ParamTypes[p] = &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}}
	}
	var out bigtablepb.PrepareQueryResponse
	if err := w.conn.Invoke(ctx, methodPrepare, req, &out); err != nil {
		return nil, err
	}
	return out.GetPreparedQuery(), nil
}

// A resultReader turns ExecuteQueryResponse messages into rows.
type resultReader struct {
	columns  int
	row      func(values []sqlValue) error
	batch    []byte
	values   []sqlValue
	complete bool // there was a token since the last row
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// message takes one ExecuteQueryResponse.
func (r *resultReader) message(b []byte) error {
	return fields(b, func(field protowire.Number, v []byte, _ uint64) error {
		if field != 2 {
			return nil
		}
		return r.results(v)
	})
}

// results takes a PartialResultSet.
func (r *resultReader) results(b []byte) error {
	checksum, checked := uint64(0), false
	err := fields(b, func(field protowire.Number, v []byte, n uint64) error {
		switch field {
		case 3:
			r.complete = false
			return fields(v, func(field protowire.Number, v []byte, _ uint64) error {
				if field == 1 {
					r.batch = append(r.batch, v...)
				}
				return nil
			})
		case 5:
			r.complete = len(v) > 0
		case 6:
			checksum, checked = n, true
		}
		return nil
	})
	if err != nil || !checked {
		return err
	}
	if uint64(crc32.Checksum(r.batch, castagnoli)) != checksum {
		return wrong("a batch of %d bytes has not the checksum that came with it", len(r.batch))
	}
	err = fields(r.batch, func(field protowire.Number, v []byte, _ uint64) error {
		if field != 2 {
			return nil
		}
		var x sqlValue
		if err := fields(v, func(field protowire.Number, v []byte, n uint64) error {
			x = sqlValue{field, v, n}
			return nil
		}); err != nil {
			return err
		}
		if r.values = append(r.values, x); len(r.values) < r.columns {
			return nil
		}
		defer func() { r.values = r.values[:0] }()
		return r.row(r.values)
	})
	r.batch = r.batch[:0]
	return err
}

// The operations.

func sqlPoint(ctx context.Context, w *worker, s *state) error {
	d := s.d
	w.key = d.appendKey(w.key[:0], w.rng.Uint64N(d.rows))
	rows := 0
	err := w.execute(ctx, s, pointQuery, func(v []sqlValue) error {
		rows++
		if _, err := checkValue(v[0].bytes, hashKey(w.key, 0), d.valueSize); err != nil {
			return wrong("row %q: %v", w.key, err)
		}
		return nil
	}, w.key)
	if err == nil && rows != 1 {
		err = wrong("%d rows for row %q", rows, w.key)
	}
	if err == nil {
		w.rows++
	}
	return err
}

func sqlScan(ctx context.Context, w *worker, s *state) error {
	d := s.d
	chunks := max(1, d.rows/s.o.ScanRows)
	first := (s.next.Add(1) - 1) % chunks * s.o.ScanRows
	end := min(first+s.o.ScanRows, d.rows)
	w.key, w.key2 = d.appendKey(w.key[:0], first), d.appendKey(w.key2[:0], end)
	n := first
	err := w.execute(ctx, s, scanQuery, func(v []sqlValue) error {
		if at, ok := d.number(v[0].bytes); !ok || at != n {
			return wrong("row %q comes where row %d should", v[0].bytes, n)
		}
		n++
		if _, err := checkValue(v[1].bytes, hashKey(v[0].bytes, 0), d.valueSize); err != nil {
			return wrong("row %q: %v", v[0].bytes, err)
		}
		return nil
	}, w.key, w.key2)
	if err == nil && n != end {
		err = wrong("%d rows from %q before %q, want %d", n-first, w.key, w.key2, end-first)
	}
	if err == nil {
		w.rows += end - first
	}
	return err
}

// sqlWhole runs a query over the whole table, of which sum says how many of its rows a
// row of the result stands for.
func sqlWhole(q *query, sum func(v []sqlValue) uint64) func(ctx context.Context, w *worker, s *state) error {
	return func(ctx context.Context, w *worker, s *state) error {
		rows := uint64(0)
		err := w.execute(ctx, s, q, func(v []sqlValue) error {
			rows += sum(v)
			return nil
		})
		if err == nil && rows != s.d.rows {
			err = wrong("%d rows are counted, want %d", rows, s.d.rows)
		}
		if err == nil {
			w.rows += rows
		}
		return err
	}
}

func oneRow([]sqlValue) uint64        { return 1 }
func firstCount(v []sqlValue) uint64  { return v[0].n }
func secondCount(v []sqlValue) uint64 { return v[1].n }
