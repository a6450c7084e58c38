// Package server answers HBase's RPC protocol: connections, the ClientService
// of rows, the ClientMetaService by which clients find the cluster, and the
// computed tables hbase:meta and hbase:namespace. Other services are added with
// Options.Services.
//
// A call is taken from its connection as soon as there is room for it and runs
// on a goroutine of its own. Responses go out in the order in which they are
// ready. Room means memory, of which all requests of the server share an
// amount, and calls, of which each connection has a number. A client for which
// there is none is not read from.
//
// A row is read and changed as one. A scanner holds no snapshot. It keeps the
// place in its region and, of a row that did not fit into a response, the cells
// that are still to be sent.
package server
