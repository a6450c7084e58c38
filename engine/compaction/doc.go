// Package compaction chooses what a tablet compacts next. It decides; it does
// no I/O, and another package writes the outputs.
//
// The SSTables of a locality group form runs. A run is what one flush or one
// compaction left: files that do not overlap, in key order. Of two runs the
// newer holds, for any key, the newer entries. A merging compaction replaces
// neighbouring runs (by age) by one; a major compaction replaces all of them,
// and drops what is deleted or due for garbage collection.
//
// # Policy
//
// A read looks into every run, so there should be few. A compaction writes all
// that it reads, so it should not happen often to the same bytes. Rewriting a
// window of runs grows the run that a byte is in by the growth of the window:
//
//	growth = rewritten bytes / those of them that come from the largest run
//
// Pick takes a window whose growth reaches a demand, which falls as runs
// accumulate:
//
//	runs     up to 4   5   6   more
//	growth   4         3   2   the best there is
//
// # Several at once
//
// What is under way (Run.Compacting) is left alone and counts as the runs that it
// still is. While a long compaction is under way the flushes go on, so they need
// room, and their runs are compacted beside it:
//
//   - a window of Options.Long or more is begun when there are two runs fewer: the
//     demand is that of two more, but no less than 2;
//   - beside what is under way the demand is no less than 1.5: with less it is
//     cheaper to wait;
//   - a flush that would be one run too many waits (Options.Waiting counts it), as
//     long as something is under way that makes room. So there are never more than
//     Options.MaxRuns;
//   - while a major compaction waits for others to end, nothing but too many runs
//     begins another.
//
// Parts are as complete as they were when the job was chosen. An older
// compaction under way has its inputs in place until it ends, and its outputs
// lie within them.
//
// # Arithmetic
//
// N bytes in the tablet, F bytes per flush, n = N/F, at most R = 6 runs.
//
//   - Write amplification, random keys: a byte moves to a run that is larger by
//     the growth each time it is rewritten: log4 n times, plus one for the flush
//     (and one for the commit log). Demands below 4 come up when runs of
//     different sizes pile up. Simulated (TestWriteAmplification): 2.4 for n=16,
//     4.1 for n=64, 5.6 for n=256; what is tested is 1 + 0.6 log2 n.
//   - Write amplification, keys in ascending order: 1. Files that overlap no
//     other input keep their place by a change of metadata (Part.Move). Flushes
//     smaller than Options.SmallFile are joined by doubling: 2.5 for 3 MB flushes.
//   - Read amplification: at most R runs, that is R Bloom filters per point
//     read, of which all but one usually say no; a scan merges R ways.
//   - Space amplification: what newer runs shadow in older ones stays until the
//     runs are merged: a window of growth 4 takes all runs at the latest when
//     the newer ones hold three times what the oldest does. Simulated with a data
//     set that is overwritten at random: at most 2. A compaction needs the space
//     of its rewritten inputs once more while it runs.
//   - Tombstones, with what they may hide in older runs, and collectable cells go
//     when they are a quarter of the bytes (Options.MajorRatio), and in any case
//     within Options.MajorEvery. A scan pays for tombstones by number: 10,000 in
//     one file, if half of its entries are, go within Options.DensePause, and a file
//     half of which is garbage within Options.MajorPause.
//
// # Completeness
//
// Dropping a tombstone, or a cell by rule, must not uncover an older entry in a
// run that is not compacted. Part.Complete says that no older run has a file
// that overlaps the part, so that the part may drop; often it is true for most
// of a merging compaction.
package compaction
