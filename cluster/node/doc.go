// Package node joins a process to a cluster, whatever the process does there: it
// connects to the lock service, reaches the other processes, opens the store that
// all share, and checks that the process may go on with them.
//
// A process must not go on with a lock service that was put back to an earlier
// state, nor serve tables that were transferred to another place. Node.Failed is
// closed then.
package node
