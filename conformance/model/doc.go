// Package model is a table store in plain Go maps: the oracle that the real
// stores are compared with.
//
// It fits gateway/backend.Backend and is written straight from the API's
// contract, for reading rather than for speed: a row is a map of cells that is
// copied before each change and replaced as a whole, one mutex guards
// everything, and every read sorts what it returns. Nothing is durable.
//
// Garbage collection rules are kept with the schema but not applied, since a
// read may return a cell that a rule would collect.
package model
