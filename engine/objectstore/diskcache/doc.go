// Package diskcache keeps copies of whole objects of a slow store on a local
// disk.
//
// An object is copied as it is written, and in the background once it is
// opened; until then, and when it had to make room, it is read from the store.
// The copies used longest ago go first. A copy that cannot be made or read is
// done without: the disk may be slow, full or gone, and no answer changes.
//
// A copy is synced before it gets its name, so one that is found at a start is
// whole. It stays good for ever, as objects are immutable and their names are
// not used again in their store. Which store that is, a file beside the copies says:
// a cache of another store begins without them.
package diskcache
