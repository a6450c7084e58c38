// Command trestle is the server and its tools in one binary.
//
// The command parses, assembles and prints. It turns settings into the options of
// other packages, joins these to a server, and stops that in order; what is known of
// tables and clusters is in those packages. A server is an opener (wire.go: a data
// directory; roles.go: the processes of a cluster; hbasegateway.go: a gateway before
// HBase), over which gatewayOver (front.go) puts what clients reach, and which
// runServer (server.go) starts and stops. commands.go has the tree of commands, and
// reach.go how those of operators ask a server, or act on a cluster themselves.
package main
