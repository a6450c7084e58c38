// Package servertls gives a server its TLS: credentials that follow their files
// as these change, client certificates, and a certificate authority of its own
// for those who have none.
package servertls
