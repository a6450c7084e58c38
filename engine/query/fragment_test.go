package query

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// remote is a source whose rows come from another server: it runs fragments where the
// rows are, and breaks off now and then, to go on behind what has been taken.
type remote struct {
	*counting
	pool      *exec.Pool
	fragments int
	passed    int64 // bytes of pieces
	rows      int64 // rows in pieces
}

// breaking ends a read after some rows.
type breaking struct {
	scan.Writer
	left int
}

var errBroken = errors.New("the server has gone")

func (b *breaking) EndRow() (bool, error) {
	if b.left--; b.left < 0 {
		return false, errBroken
	}
	return b.Writer.EndRow()
}

func (r *remote) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	encoded := scan.Fragment(w)
	if encoded == nil {
		return r.counting.ReadRows(ctx, req, w)
	}
	to := scan.Encoded(w)
	r.fragments++
	var total scan.Stats
	left := slices.Clone(req.Ranges)
	for try := 0; ; try++ {
		var done []byte
		e, err := exec.NewFragmentEncoder(r.pool, encoded, func(p *scan.Piece, b []byte) error {
			r.passed += int64(len(b))
			r.rows += p.Rows
			done = slices.Clone(p.Key)
			for at := 0; at < len(b); {
				room, err := to.Room(len(b) - at)
				if err != nil {
					return err
				}
				at += copy(room, b[at:])
			}
			_, err := to.Encoded(p)
			return err
		})
		if err != nil {
			return total, err
		}
		wr := scan.Writer(e)
		if try%2 == 0 {
			wr = &breaking{e, 40}
		}
		part := *req
		part.Ranges = slices.Clone(left)
		st, err := r.counting.ReadRows(ctx, &part, wr)
		if err == nil {
			err = e.Finish()
		} else if try == 0 {
			// What was complete may be passed on.
			if e.Flush() == nil {
				if e := e.Finish(); e != nil {
					err = e
				}
			}
		}
		e.Close()
		total.RowsSeen += st.RowsSeen
		total.RowsReturned += st.RowsReturned
		switch {
		case err == nil:
			return total, nil
		case !errors.Is(err, errBroken):
			return total, err
		}
		if done != nil {
			var rest []row.Range
			for _, g := range left {
				behind := row.Range{Start: row.Successor(done)}
				if req.Reversed {
					behind = row.Range{End: done}
				}
				if g = g.Intersect(behind); !g.Empty() {
					rest = append(rest, g)
				}
			}
			left = rest
		}
	}
}

// TestFragments compares the results of queries of which parts run at a server with
// those of the same queries here.
func TestFragments(t *testing.T) {
	src, cat := stored(t)
	pool := exec.NewPool(exec.Limits{})
	far := &remote{counting: src, pool: pool}
	here, there := New(src, Options{Parallel: 1}), New(far, Options{Parallel: 1})
	for _, q := range append(pushdownQueries, fragmentQueries...) {
		p, err := prepare(t, cat, q, plan.Options{})
		if err != nil {
			t.Errorf("%s: %v", q, err)
			continue
		}
		want, wantErr := result(t, here, p)
		got, err := result(t, there, p)
		if fault.KindOf(err) != fault.KindOf(wantErr) {
			t.Errorf("%s: got error %v, want %v", q, err, wantErr)
		}
		if !p.Statement.Ordered {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %d rows, want %d\n got %.300q\nwant %.300q", q, len(got), len(want), got, want)
		}
		if used, _ := pool.Used(); used != 0 {
			t.Fatalf("%s: a fragment has left %d bytes", q, used)
		}
		if used, _ := there.Used(); used != 0 {
			t.Fatalf("%s: %d bytes are still taken", q, used)
		}
	}
	if far.fragments < 30 || far.rows < 1000 {
		t.Errorf("only %d fragments ran, over %d rows", far.fragments, far.rows)
	}
}

var fragmentQueries = []string{
	"SELECT COUNT(*), COUNT(DISTINCT f['a']), AVG(n['c']), LOGICAL_OR(f['a'] = '3') FROM t",
	"SELECT f['a'], COUNTIF(g['q1'] > '5'), MAX(_key), APPROX_COUNT_DISTINCT(_key) FROM t GROUP BY 1",
	"SELECT LENGTH(_key) AS l, f['a'] AS a, SUM(n['c']) FROM t WHERE _key > @lo AND f['a'] != '4' GROUP BY l, a",
	"SELECT _key, f['a'] FROM t WHERE f['a'] < '8' ORDER BY f['a'] DESC, _key LIMIT 7",
	"SELECT _key, g FROM t ORDER BY f['a'], _key DESC LIMIT @n OFFSET 60",
	"SELECT l, k FROM (SELECT _key AS k, CONCAT(f['a'], f['ref']) AS l FROM t) ORDER BY l NULLS LAST, k LIMIT 30",
	"SELECT _key FROM t ORDER BY f['a'] LIMIT 0",
	"SELECT region, MAX(id), MIN(tag) FROM k WHERE id < @n GROUP BY region",
	"SELECT COUNT(*) FROM (SELECT DISTINCT region, tag FROM k)",
	"SELECT UPPER(CAST(f['a'] AS STRING)) AS u, COUNT(*) FROM t GROUP BY u",
	"SELECT SUM(CAST(CAST(f['a'] AS STRING) AS INT64)) FROM t",
	"SELECT SUM(1 / (CAST(CAST(f['a'] AS STRING) AS INT64) - 3)) FROM t",
	"SELECT x.a FROM (SELECT CONCAT(f['a'], '!') AS a, _key AS k FROM t WHERE f['a'] < '6') x ORDER BY x.k",
	"SELECT t._key FROM t JOIN u USING (_key) WHERE t.f['a'] = '3'",
	"SELECT ARRAY_LENGTH(f['a']) AS n, COUNT(*) FROM t(with_history => TRUE) GROUP BY n",
	"SELECT _timestamp, COUNT(*), COUNT(f['a']) FROM UNPACK(t(with_history => TRUE)) GROUP BY 1",
	"SELECT COUNT(*) FROM t WHERE ARRAY_LENGTH(ARRAY_FILTER(MAP_VALUES(g), e -> e > '5')) > 0",
	"SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1 FROM UNNEST(MAP_KEYS(g)) AS q WHERE q = 'q1')",
}
