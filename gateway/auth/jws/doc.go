// Package jws reads, verifies and signs the compact tokens that Google's client
// libraries send: JSON Web Tokens signed with RS256 or ES256.
//
//	base64url(header) "." base64url(claims) "." base64url(signature)
//
// A token never says how it is to be verified. The key comes from the caller,
// and the algorithm is that of the key. A header that names another one, none,
// or a critical extension is refused. Header fields that carry or point to keys
// (jwk, jku, x5u, x5c) are not looked at.
package jws
