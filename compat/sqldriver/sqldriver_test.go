package sqldriver_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/compat/sqldriver"
	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/conformance/trestletest"
)

// open returns a database with a table, "people".
func open(t *testing.T) *sql.DB {
	t.Helper()
	srv, err := trestletest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	check := streamcheck.New()
	conn, err := grpc.NewClient(srv.Addr, append(check.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adminpb.NewBigtableTableAdminClient(conn).CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: "projects/p/instances/i", TableId: "people",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(sqldriver.OpenConnector(conn, "projects/p/instances/i", ""))
	t.Cleanup(func() {
		_ = db.Close()
		_ = conn.Close()
		for _, v := range check.Violations() {
			t.Error(v)
		}
	})
	// The same server by the name of a data source.
	named, err := sql.Open("bigtable", "projects/p/instances/i?plaintext=true&endpoint="+srv.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := named.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
	if err := named.Close(); err != nil {
		t.Error(err)
	}
	return db
}

func TestDriver(t *testing.T) {
	db, ctx := open(t), t.Context()
	res, err := db.ExecContext(ctx, "INSERT INTO people (_key, f['city']) VALUES (@a, b'Rome'), (@p2, b'Oslo')", sql.Named("a", []byte("ann")), []byte("bob"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 2 {
		t.Error(n, err)
	}
	rows, err := db.QueryContext(ctx, "SELECT _key, f['city'] AS city, f FROM people WHERE _key < @end ORDER BY _key DESC", sql.Named("end", []byte("c")))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var key, city string
		var f any
		if err := rows.Scan(&key, &city, &f); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", key, city, f))
	}
	if err := rows.Err(); err != nil || strings.Join(got, ", ") != "bob Oslo map[city:Oslo], ann Rome map[city:Rome]" {
		t.Error(got, err)
	}
	// The columns of a result without rows.
	rows, err = db.QueryContext(ctx, "SELECT _key, f FROM people WHERE FALSE")
	if err != nil {
		t.Fatal(err)
	}
	cols, err := rows.ColumnTypes()
	if err != nil || len(cols) != 2 || cols[0].Name() != "_key" || cols[0].DatabaseTypeName() != "BYTES" || cols[1].DatabaseTypeName() != "MAP" {
		t.Error(cols, err)
	}
	_ = rows.Close()
	st, err := db.PrepareContext(ctx, "SELECT COUNT(*) FROM people WHERE f['city'] = @p1")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for city, want := range map[string]int{"Rome": 1, "Bern": 0} {
		var n int
		if err := st.QueryRowContext(ctx, []byte(city)).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, %v", city, n, err)
		}
	}
	if _, err := db.QueryContext(ctx, "SELECT x"); err == nil || !strings.Contains(err.Error(), "Unrecognized name: x [at 1:8]") {
		t.Error(err)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT 1/0").Scan(&n); err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Error(err)
	}
	if _, err := db.BeginTx(ctx, nil); err == nil {
		t.Error("a transaction began")
	}
	// Rows that nobody reads on are given up.
	rows, err = db.QueryContext(ctx, "SELECT n FROM UNNEST(GENERATE_ARRAY(1, 10000)) AS n")
	if err != nil || !rows.Next() {
		t.Fatal(err)
	}
	if err := rows.Close(); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	<-short.Done()
	if err := db.PingContext(short); err == nil {
		t.Error("no error behind the deadline")
	}
}

// Values of other packages.
type (
	userID   struct{ s string }
	status   int
	optional struct { // as those of drivers of other databases
		Float32 float32
		Valid   bool
	}
	nothing struct{}
	broken  struct{ Valid bool }
	secret  struct{ s string }
)

func (u userID) Value() (driver.Value, error) { return u.s, nil }
func (s status) Value() (driver.Value, error) { return fmt.Sprintf("status %d", s), nil }
func (o optional) Value() (driver.Value, error) {
	if !o.Valid {
		return nil, nil
	}
	return float64(o.Float32), nil
}
func (nothing) Value() (driver.Value, error)   { return nil, nil }
func (broken) Value() (driver.Value, error)    { return nil, errors.New("broken") }
func (s *secret) Value() (driver.Value, error) { return "sealed " + s.s, nil }

func TestValues(t *testing.T) {
	db, ctx := open(t), t.Context()
	now := time.Now().UTC().Truncate(time.Microsecond)
	five := 5
	for _, tc := range []struct {
		in   any
		typ  string
		want any
	}{
		{int64(-1), "INT64", int64(-1)}, {7, "INT64", int64(7)}, {uint16(9), "INT64", int64(9)}, {&five, "INT64", int64(5)}, {(*int64)(nil), "INT64", nil},
		{true, "BOOL", true}, {float32(0.5), "FLOAT32", 0.5}, {2.5, "FLOAT64", 2.5}, {"é", "STRING", "é"}, {(*string)(nil), "STRING", nil},
		{[]byte("\x00"), "BYTES", []byte("\x00")}, {[]byte(nil), "BYTES", nil}, {now, "TIMESTAMP", now},
		{sqldriver.Date{Year: 2024, Month: 2, Day: 29}, "DATE", time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC)},
		{[]string{"a", ""}, "ARRAY", []any{"a", ""}}, {[]*int{&five, nil}, "ARRAY", []any{int64(5), nil}}, {[][]byte{[]byte("x"), nil}, "ARRAY", []any{[]byte("x"), nil}},
		{[]int(nil), "ARRAY", nil}, {sql.NullInt64{Int64: 3, Valid: true}, "INT64", int64(3)}, {sql.NullString{}, "STRING", nil}, {sql.Null[float64]{V: 1, Valid: true}, "FLOAT64", 1.0},
		{sql.Null[float32]{V: 1, Valid: true}, "FLOAT32", 1.0}, {sql.Null[float32]{}, "FLOAT32", nil}, {&sql.NullBool{Bool: true, Valid: true}, "BOOL", true}, {(*sql.NullBool)(nil), "BOOL", nil},
		{userID{"x"}, "STRING", "x"}, {&userID{"x"}, "STRING", "x"}, {sql.Null[userID]{V: userID{"x"}, Valid: true}, "STRING", "x"}, {status(7), "STRING", "status 7"}, {&secret{"x"}, "STRING", "sealed x"},
		{optional{Float32: 0.5, Valid: true}, "FLOAT64", 0.5}, {optional{}, "FLOAT32", nil},
	} {
		rows, err := db.QueryContext(ctx, "SELECT @v", sql.Named("v", tc.in))
		if err != nil {
			t.Errorf("%#v: %v", tc.in, err)
			continue
		}
		var got any
		types, err := rows.ColumnTypes()
		if err == nil && rows.Next() {
			err = rows.Scan(&got)
		}
		if err != nil || types[0].DatabaseTypeName() != tc.typ || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%#v: %s %#v, %v, want %s %#v", tc.in, types[0].DatabaseTypeName(), got, err, tc.typ, tc.want)
		}
		_ = rows.Close()
	}
	for _, v := range []any{nil, struct{}{}, map[string]int{}, uint64(1), [][]string{{"a"}}, nothing{}, broken{true}, secret{"x"}, (*userID)(nil), sql.Null[userID]{}} {
		if _, err := db.QueryContext(ctx, "SELECT @v", sql.Named("v", v)); err == nil {
			t.Errorf("%#v is a parameter", v)
		}
	}
	var s any
	if err := db.QueryRowContext(ctx, "SELECT STRUCT(1 AS a, [b'x'] AS b)").Scan(&s); err != nil || !reflect.DeepEqual(s, []any{int64(1), []any{[]byte("x")}}) {
		t.Errorf("%#v %v", s, err)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "p/i", "projects/p/instances/i?x=y", "projects/p/instances/i?plaintext=perhaps", "projects/p/instances/i?%"} {
		if db, err := sql.Open("bigtable", name); err == nil {
			_ = db.Close()
			t.Errorf("%q is a data source", name)
		}
	}
}
