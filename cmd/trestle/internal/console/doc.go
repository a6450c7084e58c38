// Package console serves the console: pages for browsers below /console/, and the
// sessions of their callers.
//
// The pages have no power of their own. They call REST, the admin service and /token as
// any client does, with the permissions of their caller. The page's session is a token in
// a cookie, which ops.Gate gives to requests that pages of this origin make.
package console
