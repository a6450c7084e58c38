// Package console tests the console of a server in a real browser: each page in both
// themes and three widths, content that would break pages, and the ways in that are not
// for others.
package console
