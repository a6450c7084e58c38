//go:build cgo

package main

/*
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>

// glibc gives every thread an arena of its own, and a block of the cache that
// one thread has read and another evicts leaves a hole where no other thread
// looks for room: a full cache had twice its size. So there is one arena from
// the start, before there are threads. Blocks come from disk; the arena's lock
// is not what a read waits for.
__attribute__((constructor)) static void one_arena(void) { mallopt(M_ARENA_MAX, 1); }
#endif
*/
import "C"

// cacheOutsideHeap says that the block cache is not in Go's heap: Pebble takes
// its memory from C where it can.
const cacheOutsideHeap = true
