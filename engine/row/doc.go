// Package row holds what a client names and changes: row ranges, cells and
// mutations, in the engine's own types.
package row
