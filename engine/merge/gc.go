package merge

import (
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// An Action is what a compaction does with an entry.
type Action uint8

// The actions.
const (
	// Keep writes the entry as it is.
	Keep Action = iota + 1
	// Drop writes nothing.
	Drop
	// Bury writes the entry's key and sequence number as a Delete. The cell was
	// collected, but an older run may hold an older version of the same key,
	// which must not come back.
	Bury
)

// A Rule is the garbage collection rule of a family.
type Rule struct {
	*schema.GCRule
	// New says that the rule was not in force at GC.AsOf.
	New bool
}

// GC decides what a compaction writes.
//
// A cell may go if a rule ever allowed it: a compaction that sees some of the
// runs can only under-estimate how many newer cells a column had. What must
// never happen is that dropping an entry uncovers an older one. So unless Complete,
// tombstones stay and collected cells are buried.
type GC struct {
	Resolver
	// Complete says that the inputs hold every older entry of their keys.
	Complete bool
	// Families gives the rules of the table by family id. Cells of other
	// families below NextFamily belong to families that were dropped.
	Families map[cell.FamilyID]Rule
	// NextFamily is the schema's. As no id is used again, cells from it on belong to
	// families that a later version of the schema has, which is not known here yet.
	NextFamily uint32
	// Rows is the tablet's range: rows outside are those of another tablet, which
	// has the same files since a split.
	Rows row.Range
	// Now is the time that ages are counted from, in microseconds.
	Now int64
	// AsOf is a time at which the inputs, and what is older, were everything
	// that there was. What came since, a deletion of the newest version say,
	// makes cells count again that newer ones had outnumbered. So only a cell
	// that was outnumbered and old enough at AsOf goes by both.
	AsOf int64
	// CollectNothing keeps cells that would go by rule or at their end: the caller could not
	// tell whether a newer run has the same cell.
	CollectNothing bool

	column  uint64
	rank    int
	outside bool // the current row is not in Rows
	// Collected counts the cells that went by rule, and Ended those that had an end of their
	// own and are past it: they go once nothing older can hide behind them.
	Collected, Ended int64
	// Uncovered counts the sticky markers that went: a cell that was written after one, and that
	// it hid, is there again.
	Uncovered int64
}

// Decide judges the next entry.
func (g *GC) Decide(e *cell.Entry) (Action, error) {
	if !g.InRow(e.Key) {
		if err := g.StartRow(e); err != nil {
			return 0, err
		}
		if len(g.Rows.Start) > 0 || len(g.Rows.End) > 0 {
			key, err := cell.RowOf(nil, g.Prefix())
			if err != nil {
				return 0, fault.New(fault.Corruption, "%w", err)
			}
			g.outside = !g.Rows.Contains(key)
		}
	}
	if g.outside {
		return Drop, nil
	}
	var s cell.Suffix
	g.Time = g.Now
	v, err := g.Judge(e, &s)
	if err != nil {
		return 0, err
	}
	switch v {
	case Covered:
		return Drop, nil
	case Tombstone:
		switch {
		case !g.Complete || g.CollectNothing && e.Kind == cell.SetUntil:
			return Keep, nil
		case e.Kind == cell.SetUntil:
			g.Ended++
		case s.Shape != cell.Cell && cell.IsSticky(e.Value):
			g.Uncovered++
		}
		return Drop, nil
	}
	if g.column != g.columns {
		g.column, g.rank = g.columns, 0
	}
	if s.Family >= cell.FirstSystemFamily {
		// A token is a key of its own: nothing older hides behind it.
		if s.Timestamp < g.Now-int64(schema.TokenWindow/time.Microsecond) {
			return Drop, nil
		}
		return Keep, nil
	}
	rule, known := g.Families[s.Family]
	switch {
	case known:
	case uint32(s.Family) >= g.NextFamily:
		return Keep, nil
	default:
		return Drop, nil
	}
	rank := g.rank
	g.rank++
	if g.CollectNothing || !rule.Collects(0, s.Timestamp, g.Now) && (rule.New || !rule.Collects(rank, s.Timestamp, g.AsOf)) {
		return Keep, nil
	}
	g.Collected++
	if g.Complete {
		return Drop, nil
	}
	return Bury, nil
}
