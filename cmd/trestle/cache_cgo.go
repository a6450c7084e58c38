//go:build cgo

package main

// cacheOutsideHeap says that the block cache is not in Go's heap: Pebble takes
// its memory from C where it can.
const cacheOutsideHeap = true
