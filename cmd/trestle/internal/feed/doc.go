// Package feed reads the whole change stream of a table, as a client does, and gives
// it to a sink as lines of JSON. It follows splits and merges, resumes by itself, and
// keeps its position so that a later run goes on where this one ended.
package feed
