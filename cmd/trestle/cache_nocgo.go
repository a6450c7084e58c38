//go:build !cgo

package main

// cacheOutsideHeap says that the block cache is not in Go's heap.
const cacheOutsideHeap = false
