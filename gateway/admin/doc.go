// Package admin answers the administrative services of Bigtable:
// BigtableTableAdmin, BigtableInstanceAdmin and google.longrunning.Operations.
//
// Tables live in the backend. Everything else is a record of the backend
// (backend.Records), changed by compare-and-set, so that any number of
// gateways may serve the same store:
//
//	instances/<instance>        an instance with its clusters, memory layers
//	                            and app profiles
//	policies/<resource>         the IAM policy of an instance
//	policies/<table>#<table id> the IAM policy of a table
//	policies/<table>#<table id>/authorizedViews/<view>#<incarnation>
//	                            the IAM policy of an authorized view, and
//	                            likewise of a schema bundle
//	views/<table>#<table id>/   the authorized views of a table
//	bundles/<table>#<table id>/ the schema bundles of a table
//	policies/<backup>#<backup id>
//	                            the IAM policy of a backup
//	schedules/<table>#<table id> when the table's next automated backup is due
//	operations/<...>            a long-running operation, by its own name
//	secrets/tokens              the key that signs page and consistency tokens
//	setup/defaults              the default instance was made once
//
// An instance is one record because its rules span it: the last cluster stays,
// and a cluster that an app profile routes to stays.
//
// There is one copy of the data. Clusters are names, with a size and a zone,
// that clients route to; every table is READY in each of them at once.
//
// Backups and snapshots live in the backend, too. Making, copying and restoring
// one is an operation that goes on after the call that began it (tasks.go); one
// whose server ended is ended by the next request for it. All other
// operations are done when the call returns.
//
// A refusal is a *fault.Error that names the request field to blame; the
// gateway turns it into a gRPC status.
package admin
