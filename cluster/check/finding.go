package check

import (
	"fmt"
	"strings"
)

// A Finding is something that is not as servers that ended in order leave it.
type Finding struct {
	// Harmless findings are left by a crash, or are changes under way: servers deal with
	// them. All others are damage.
	Harmless bool
	// Where is the file, relative to the data directory or the store, or the tablet,
	// table or backup in METADATA.
	Where string
	// What is wrong, and what to do about it, each a phrase in one line.
	What, Do string
}

// A Summary says how much was looked at.
type Summary struct {
	Tables, Tablets   int // deleted tables that can be undeleted included
	Backups           int // snapshots included
	SSTables          int // that METADATA names
	ChangeFiles       int // that METADATA names
	ChangeFileBytes   int64
	SSTableBytes      int64
	Entries           int64 // of the SSTables that were read
	LogRecords        int64 // of the commit logs in files
	LogSegments       int64 // of those in objects that were read
	Unused            int   // objects that nothing names
	UnusedBytes       int64
	Damaged, Harmless int // findings
}

// doDeleteOld is what to do about unreferenced objects.
const doDeleteOld = "nothing: a server deletes it"

// A reporter takes findings, and counts them.
type reporter struct {
	report func(Finding)
	sum    Summary
	// doRestore is what to do about damage: but for ROOT nothing damaged can be computed
	// from the rest.
	doRestore string
}

func (r *reporter) add(f Finding) {
	if f.Harmless {
		r.sum.Harmless++
	} else {
		r.sum.Damaged++
	}
	f.What = strings.Join(strings.Fields(f.What), " ")
	r.report(f)
}

func (r *reporter) damage(where, do, format string, args ...any) {
	r.add(Finding{Where: where, What: fmt.Sprintf(format, args...), Do: do})
}

func (r *reporter) note(where, do, format string, args ...any) {
	r.add(Finding{Harmless: true, Where: where, What: fmt.Sprintf(format, args...), Do: do})
}
