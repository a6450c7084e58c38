// Package sqldriver is a driver of database/sql for the SQL of Cloud Bigtable, and
// so of Trestle:
//
//	import (
//		"database/sql"
//
//		_ "github.com/trestledb/trestle/compat/sqldriver"
//	)
//
//	db, err := sql.Open("bigtable", "projects/p/instances/i?endpoint=127.0.0.1:8086&plaintext=true")
//	rows, err := db.QueryContext(ctx, "SELECT _key, f['city'] FROM people WHERE _key < @end", sql.Named("end", []byte("m")))
//
// The name of a data source is that of an instance. What may follow it:
//
//	endpoint=HOST:PORT   the server; without it Google's, or $BIGTABLE_EMULATOR_HOST
//	plaintext=true       no TLS and no credentials, as with $BIGTABLE_EMULATOR_HOST
//	app_profile=ID       the app profile
//
// With TLS, credentials are those that Google's libraries find. OpenConnector is
// for connections that are made otherwise.
//
// Parameters are named. One without a name is called p1, p2 and so on by its
// place. Its type is that of its Go value: bool, any integer (INT64), float32,
// float64, string, []byte (BYTES), time.Time (TIMESTAMP), Date, and slices of
// these. A driver.Valuer is sent as what its Value returns. NULL needs a type too: a
// nil pointer or slice has one, and sql.Null.
//
// Columns are scanned as int64, float64, bool, string, []byte and time.Time; a
// DATE is a time.Time at midnight UTC. Arrays and structs are []any, maps
// map[string]any, which Scan puts into a *any. There are no transactions.
package sqldriver
