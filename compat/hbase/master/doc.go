// Package master answers the administration of HBase clients: MasterService
// and AdminService.
//
// What a table is, is said once, in the schema. An HBase descriptor is kept as
// it was given, for what means nothing here. What does mean something
// (families, VERSIONS, TTL, MIN_VERSIONS) is shown as the schema has it,
// whichever API has changed it. Namespaces are instances, with a record each;
// snapshots are backups of the store.
//
// HBase runs changes of tables as procedures that clients poll. Here they are
// done when the call returns, and every procedure that a client can ask about
// has finished. A call that comes again with the same nonce is not made again.
//
// There is one server, which serves all regions: there is nothing to move, to
// balance or to normalize. The switches of such chores are remembered, and
// switch nothing.
package master
