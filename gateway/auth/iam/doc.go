// Package iam says who may do what: permissions, the roles that bundle them,
// and policies that bind roles to members.
//
// It is arithmetic on sets. Where policies are kept, who a caller is and which
// permission an RPC needs is decided elsewhere.
//
// A binding may carry a condition. The only ones there are restrict reading and
// writing cells to some column families:
//
//	condition = "resource.family" ( "==" name | "in" "[" name { "," name } "]" )
//	name      = a family's name in single or double quotes
//
// A conditional binding grants the permissions to read and to mutate rows, for
// those families, and nothing else of its role.
package iam
