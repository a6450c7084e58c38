package views

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A View is a materialized view of an instance.
type View struct {
	// ID is the last part of its name.
	ID    string
	Query string
	// Columns are those of the view that have what the query's result has, in its order.
	Columns string
}

// Create makes a view in the instance of that name, and returns when its backfill is done.
func (v *View) Create(ctx context.Context, cc grpc.ClientConnInterface, instance string) error {
	op, err := adminpb.NewBigtableInstanceAdminClient(cc).CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{
		Parent: instance, MaterializedViewId: v.ID, MaterializedView: &adminpb.MaterializedView{Query: v.Query}})
	if err != nil {
		return fmt.Errorf("create materialized view %s: %w", v.ID, err)
	}
	for ops := longrunningpb.NewOperationsClient(cc); !op.Done; time.Sleep(50 * time.Millisecond) {
		if op, err = ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}); err != nil {
			return err
		}
	}
	return status.ErrorProto(op.GetError())
}

// Wait returns when a view shows what its source had when it was called. at is the
// address of a server's HTTP.
func (v *View) Wait(ctx context.Context, at, instance string) error {
	body, err := json.Marshal(map[string]string{"view": instance + "/materializedViews/" + v.ID})
	if err != nil {
		return err
	}
	for {
		retry, err := post(ctx, "http://"+at+"/admin/views/wait", body)
		if err == nil || !retry {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for materialized view %s: %w", v.ID, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// post sends a request, and tells after an error whether another may fare better.
func post(ctx context.Context, url string, body []byte) (retry bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, resp.Status, bytes.TrimSpace(said))
	}
	return resp.StatusCode >= 500, err
}

// Check compares a view with its query's result, and returns how many rows it has. Nothing
// may change the source meanwhile.
func (v *View) Check(ctx context.Context, c *bigtable.Client) (rows int, err error) {
	differ, seed := map[uint64]int{}, maphash.MakeSeed()
	count := func(query string, by int, each func(hash uint64, row string)) (n int, err error) {
		err = Rows(ctx, c, query, func(row string) {
			n++
			h := maphash.String(seed, row)
			if differ[h] += by; differ[h] == 0 {
				delete(differ, h)
			}
			each(h, row)
		})
		if err != nil {
			err = fmt.Errorf("%s: %w", query, err)
		}
		return n, err
	}
	// The first rows are kept, to be told if they differ: what is asked again may be right.
	var kept []string
	hashes := map[string]uint64{}
	keep := func(what string) func(uint64, string) {
		n := 0
		return func(h uint64, row string) {
			if n++; n <= keptRows {
				kept = append(kept, what+" has "+row)
				hashes[kept[len(kept)-1]] = h
			}
		}
	}
	want, err := count(v.Query, 1, keep("the query's result"))
	if err != nil {
		return 0, err
	}
	shown := "SELECT " + v.Columns + " FROM `" + v.ID + "`"
	rows, err = count(shown, -1, keep("the view"))
	if err != nil || len(differ) == 0 {
		return rows, err
	}
	few := slices.DeleteFunc(kept, func(row string) bool { return differ[hashes[row]] == 0 })
	few = few[:min(len(few), 20)]
	return rows, fmt.Errorf("materialized view %s has %d rows, its query's result %d, and %d differ, among the first:\n%s", v.ID, rows, want, len(differ), strings.Join(few, "\n"))
}

// keptRows is how many rows of each result Check keeps.
const keptRows = 10_000

// Rows gives the rows of a query's result, each in one form.
func Rows(ctx context.Context, c *bigtable.Client, query string, each func(row string)) error {
	var stmt *bigtable.PreparedStatement
	for {
		var err error
		if stmt, err = c.PrepareStatement(ctx, query, nil); err == nil {
			break
		}
		if code := status.Code(err); code != codes.Unavailable || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	bound, err := stmt.Bind(nil)
	if err != nil {
		return err
	}
	var bad error
	err = bound.Execute(ctx, func(r bigtable.ResultRow) bool {
		parts := make([]string, len(r.Metadata.Columns))
		for i, c := range r.Metadata.Columns {
			if parts[i], bad = text(&r, i, c.SQLType); bad != nil {
				return false
			}
		}
		each(strings.Join(parts, ", "))
		return true
	})
	return errors.Join(err, bad)
}

// text returns column i in the form that equal values have.
func text(r *bigtable.ResultRow, i int, t bigtable.SQLType) (string, error) {
	switch t.(type) {
	case bigtable.Int64SQLType:
		return get(r, i, func(v int64) string { return fmt.Sprint(v) })
	case bigtable.StringSQLType:
		return get(r, i, func(v string) string { return fmt.Sprintf("%q", v) })
	case bigtable.BytesSQLType:
		var v []byte
		if err := r.GetByIndex(i, &v); err != nil || v == nil {
			return "NULL", err
		}
		return "x" + hex.EncodeToString(v), nil
	case bigtable.MapSQLType:
		var v map[string][]byte
		if err := r.GetByIndex(i, &v); err != nil || v == nil {
			return "NULL", err
		}
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fmt.Fprintf(&b, "%q=%x ", k, v[k])
		}
		return b.String(), nil
	}
	return "", fmt.Errorf("column %d is of type %T", i, t)
}

func get[T any](r *bigtable.ResultRow, i int, show func(T) string) (string, error) {
	var v *T
	if err := r.GetByIndex(i, &v); err != nil || v == nil {
		return "NULL", err
	}
	return show(*v), nil
}
