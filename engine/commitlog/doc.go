// Package commitlog keeps the redo log of a tablet server.
//
// A record is in the log before its change is acknowledged. Records are
// replayed in order after a crash, starting at the redo point that the
// manifest keeps. One log serves every tablet of a server; one group commit,
// that is one write and one fdatasync, carries the records of many callers.
// The package knows bytes, files and objects. It knows nothing of rows.
//
// A log has one of two forms, behind the interface Writer. Open opens append-only files in
// a local directory. CreateSegments makes immutable segment objects in a store that other
// machines share, any of which can Seal and replay them (ReplaySealed).
//
// # Files
//
// A directory holds LOCK, segments named by number, 000000000001.log and so on,
// and files that wait to be segments again, 000000000001.free. Integers are
// little-endian; checksums are CRC-32C.
//
//	segment := header frame* rest
//	rest    := zeros, or what an earlier use of the file has left
//
//	header (64 bytes)
//	  0  magic "trestlog"     8  version u32    12  zero u32
//	 16  incarnation u64     24  segment u64    32  previous segment u64
//	 40  previous end u32    44  zeros          60  crc u32 of bytes 0-59
//
//	frame (40 bytes, then the payload) = one group commit
//	  0  magic u32            4  crc u32 of bytes 8-39
//	  8  incarnation u64     16  segment u32    20  offset of this frame u32
//	 24  durable u32         28  length u32     32  crc u32 of the payload
//	 36  records u32
//
//	payload := record*      (a frame with neither length nor records is the
//	                         mark that a clean Close leaves)
//	record (24 bytes, then the bytes of the caller)
//	  0  length u32   4  n u32   8  tablet u64   16  first seq u64
//
// A record lies in one frame and a frame in one segment, so both are atomic. A record
// larger than a segment gets a segment of its own size.
//
// # Files that are used again
//
// fdatasync of blocks that were written before has nothing to journal and takes half the
// time. So Trim keeps up to four files of the usual size and the next segments are made of
// them. On disk are, besides records, at most these, the segment allocated ahead, and as
// much again as the segments that were left half full. A disk that gets full gets them
// back.
//
// A file goes from one name to the next by rename. It becomes .free when no redo point
// needs it. Only after the directory was synced does it get its next number, which is
// higher than that of any segment it ever was. Before that rename its start is made, and
// synced:
//
//	blank (4,096 bytes)
//	  0  64 zeros: the segment is not begun
//	 64  magic "trestnew"    72  incarnation u64    80  segment u64
//	 88  zeros              124  crc u32 of bytes 64-123                zeros
//
// So a crash shows either a file that is no part of the log, or a segment not begun, or
// its header. Frames behind the header are the segment's if they name its number, its
// incarnation and the place where they are. What an earlier use left names another number.
// A client that wrote bytes to look like a frame would have to know the incarnation, a
// random number. That goes for proofs of durability too (below), which are looked for in
// everything behind the end.
//
// # Segment objects
//
// A group commit is one object, put if absent under the next index: no object
// is ever changed. The name is log/index, the log in 16 hexadecimal digits, the
// index in 15 decimal ones, from 1 on.
//
//	segment := header entry* extent*   fence := header
//
//	header (64 bytes)
//	  0  magic "trestseg"     8  version u32    12  kind u32: 1 segment, 2 fence
//	 16  log u64             24  index u64      32  nonce of the writer u64
//	 40  acknowledged u64    48  extents u32    52  zero u32
//	 56  crc u32 of the entries                 60  crc u32 of bytes 0-59
//
//	entry (24 bytes), one for each tablet, in ascending order
//	  0  tablet u64   8  offset u32   12  length u32   16  records u32   20  crc u32
//
//	extent := record*, those of one tablet as they were appended
//	record (24 bytes, then the bytes of the caller)
//	  0  length u32   4  n u32   8  ordinal in the segment u32   12  zero u32
//	 16  first seq u64
//
// "Acknowledged" is the index up to which every segment was when this one was built.
// Records are acknowledged in the order of indexes, so a log is sealed by one fence at the
// first free index. What is behind it never will be acknowledged. The fence is never
// deleted, and a segment only if it lies before every redo point. Why this is enough:
// docs/decisions/2026-11-21-segment-log.md.
//
// # Where a log in files ends
//
// After a power cut the last writes may be missing, whole or in part and in any order. So
// a damaged frame alone says nothing: it may be a write that was never acknowledged, or an
// acknowledged one that rotted. Every frame therefore carries the offset up to which its
// segment was already synced when the frame was built ("durable"). Every segment header
// carries the end of the segment before it, which is synced whole before its successor is
// begun. Damage below an offset that any later frame or header calls durable is
// fault.Corruption, and the log refuses. Damage above is the torn tail, where the log
// ends.
//
// A tail that was replayed must not disappear later, and after a failed fsync
// the page cache may hold bytes that the disk does not. Start therefore writes
// the part of the tail that nothing proves durable a second time and syncs it
// before anything new is accepted. A writer never appends to a segment of an
// earlier one.
//
// # Full disks and failed writes
//
// The blocks of a segment are allocated before the segment is used. Reserve admits a write
// only if it fits into what is allocated. So a full disk shows as fault.Exhausted before
// the caller has changed anything, and goes away by itself when there is room again. (A
// copy-on-write file system may still refuse a write into allocated space; that is a
// failed write.)
//
// A failed write or fsync ends the writer: nothing it covered is ever
// acknowledged, and no byte is written after it. Open the log again to go on.
//
// # Sealing
//
// The form in files is sealed by the process lock on LOCK. While a process holds it no
// other can open the log. When it is gone nothing can append any more, so the lock's next
// holder may replay. It protects between processes of one machine, not between machines.
package commitlog
