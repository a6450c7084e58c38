// Package sqlclient is a client of the SQL of the Cloud Bigtable API: it prepares a
// statement, runs it, and gives out its rows as protobuf values. It prepares again
// what has expired, and goes on behind the last resume token when a stream breaks.
package sqlclient
