// Package session serves the streams of OpenTable, OpenAuthorizedView and
// OpenMaterializedView. A client opens a table once and then sends virtual calls on the stream, each of
// them a read or a change of one row.
//
//	client                          server
//	open_session {name, permission} ─▶
//	                                ◀─ headers, open_session, session_parameters
//	virtual_rpc {id, payload}       ─▶
//	                                ◀─ heartbeat*, virtual_rpc | error {id}
//	                                ◀─ go_away          (age, shutdown)
//	close_session                   ─▶
//	                                ◀─ end of the stream
//
// The package knows frames and lifetimes. What a virtual call means, and whom
// it is allowed, is decided by the Rows that Options.Open returns.
package session
