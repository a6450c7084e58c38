package master

import "sync/atomic"

// Counters count what a master does, over all terms of a process. What is called
// a gauge is of the last round, and 0 while the process is not the master.
type Counters struct {
	// Leading is 1 while the process is the master.
	Leading atomic.Int64
	// Terms it has had.
	Terms atomic.Int64
	// Rounds counts looks at everything, Failed those that did not get to their
	// end, RoundNanos how long they took together.
	Rounds, Failed, RoundNanos atomic.Int64
	// Gauges: the tablets that are known, those without a server, those that their
	// server has not opened yet, and the servers that live. While METADATA is not
	// served they are about its tablets.
	Tablets, Waiting, Opening, Servers atomic.Int64
	// Assigned counts tablets that were given to a server, TakenOver those of them
	// whose server had died.
	Assigned, TakenOver atomic.Int64
	// GivenUp counts servers that were given up before their session had ended.
	GivenUp atomic.Int64
	// Moved counts moves that were begun. They are off servers that are drained or of
	// tables that are deleted, to pinned servers, and to even out servers. MovesFailed are
	// those of which an error is known.
	MovedAway, MovedWanted, MovedEven, MovesFailed atomic.Int64
	// Merged counts merges of neighbours that had become small.
	Merged atomic.Int64
	// Balanced counts looks at the load of all servers. BalanceSkipped counts those
	// without effect because a server did not answer or a tablet was being moved.
	Balanced, BalanceSkipped atomic.Int64
	// Calls counts calls to tablet servers, CallsFailed those that failed.
	Calls, CallsFailed atomic.Int64
	// Scans counts reads of all METADATA. MetadataReads and RootReads count calls to
	// METADATA tablets that read, and listings of those tablets. MetadataChanges counts
	// changes of METADATA rows, of which MetadataConflicts found another version.
	Scans, MetadataReads, RootReads, MetadataChanges, MetadataConflicts atomic.Int64
}

// end makes the gauges those of a process that is not the master.
func (c *Counters) end() {
	for _, g := range []*atomic.Int64{&c.Leading, &c.Tablets, &c.Waiting, &c.Opening, &c.Servers} {
		g.Store(0)
	}
}

// A counterDelta adds to a counter by how much another has grown.
type counterDelta struct{ last int64 }

func (s *counterDelta) add(to, from *atomic.Int64) {
	now := from.Load()
	to.Add(now - s.last)
	s.last = now
}

// metadata tells the Counters what was asked of METADATA.
func (m *master) metadata() {
	c := m.o.Counters
	m.told.reads.add(&c.MetadataReads, &m.meta.Reads)
	m.told.roots.add(&c.RootReads, &m.meta.RootReads)
	m.told.changes.add(&c.MetadataChanges, &m.meta.Changes)
	m.told.conflicts.add(&c.MetadataConflicts, &m.meta.Conflicts)
}
