// Command realdata does the main job on real input: it loads the Unicode
// Character Database, multiplied to a million rows and more, into a server,
// reads it back, scans and filters it, kills the server with SIGKILL while it
// is being written to, starts it again, and checks everything once more.
//
// The data are the 150,000 assigned code points of golang.org/x/text (name,
// general category, script, encodings), real strings of real lengths. A row is
// one code point in one copy of the set:
//
//	"Greek#03B1#02"   id:name      "GREEK SMALL LETTER ALPHA"
//	                  prop:category "Ll"
//	                  prop:script   "Greek"
//	                  enc:utf8      CE B1
//	                  enc:utf16     03 B1
//
// With -cluster the server is one of a cluster, all processes of which are killed
// at once.
//
// Otherwise the directory becomes a cluster ("trestle cluster adopt"), and that
// another directory ("trestle cluster release"): every cell is as it was.
//
// The official Go client loads one table; with -cbt the cbt CLI imports the
// same rows as CSV into a second, and the two are compared.
package main
