// Package auth decides who a caller is and what it may do.
//
// A request passes four points:
//
//	Tap        as its headers arrive: credentials are verified, or the stream is
//	           refused before any of its bytes are read
//	Unary,     once its message is decoded: the permissions that the RPC needs are
//	Stream     looked for in the policies of the named resource and of what it is in
//	Guard      below the RPC's handler: reads and writes are held to the column
//	           families, and queries to the tables, that the policies allow
//	audit      when it is done: one line that says who did what to which resource
//
// Credentials are a token of a service account's own key, a token that the
// token endpoint gave for one, a static token, an OpenID Connect token, or a
// client's certificate. All that is needed to verify them is in memory, since a
// tap must not wait. It is read again every two seconds, and what a later
// reading revokes stops at once.
//
// Records:
//
//	accounts/<e-mail>            a service account with the public halves of its keys
//	policies/projects/<project>  the policy of a project
//	secrets/access-tokens        the key that authenticates the endpoint's tokens
//
// Policies of other resources are asked of the services that keep them.
package auth
