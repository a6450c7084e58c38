// Package pb has the protocol buffers of the HBase RPC protocol: the messages
// of ClientService, ClientMetaService, MasterService and AdminService, and what
// frames and znodes carry.
//
// Only names, numbers and types of fields are HBase's: they are the wire
// format. Fields that this server neither reads nor writes are left out, and
// come back to a client only where a message keeps what it does not know.
package pb

//go:generate sh generate.sh
