package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// ReasonFamilies is the Reason of a refusal for the number of column families.
const ReasonFamilies = "TOO_MANY_COLUMN_FAMILIES"

// CheckFamilies returns why t may not follow old, nil if it may, for the sake of
// its column families and what is said of them: FailedPrecondition with
// ReasonFamilies. old is nil for a
// table that is new. A table that has too many, from before they were bounded,
// may lose families and get no others. It must be called before t is handed out.
func (t *Table) CheckFamilies(old *Table) error {
	var before map[string]Family
	if old != nil {
		before = old.Families
	}
	added := false
	for name, f := range t.Families {
		o, ok := before[name]
		added = added || !ok || o.ID != f.ID
	}
	refuse := func(limit int, format string, args ...any) error {
		err := fault.New(fault.FailedPrecondition, format, args...)
		err.Reason = ReasonFamilies
		err.Metadata = map[string]string{"limit": strconv.Itoa(limit), "families": strconv.Itoa(len(t.Families))}
		return err
	}
	if added && len(t.Families) > MaxFamilies {
		return refuse(MaxFamilies, "table %s would have %d column families; the limit is %d", t.Name, len(t.Families), MaxFamilies)
	}
	if limit := uint32(cell.FirstSystemFamily); added && t.NextFamily > limit || old != nil && t.NextFamily < old.NextFamily {
		return refuse(int(limit), "table %s has had too many column families, those that were dropped included: the limit is %d. "+
			"Copy its rows to a new table", t.Name, limit)
	}
	if n := len(t.Marshal()); n > MaxSchema && (old == nil || n > len(old.Marshal())) {
		return refuse(MaxFamilies, "the schema of table %s would have %d bytes; the limit is %d", t.Name, n, MaxSchema)
	}
	t.unsound = unsound(t.Families)
	if old == nil || len(old.unsound) == 0 {
		return nil
	}
	now := map[cell.FamilyID][]string{}
	for name, f := range t.Families {
		now[f.ID] = append(now[f.ID], name)
	}
	for _, name := range old.unsound {
		f := old.Families[name]
		if left := now[f.ID]; f.ID < cell.FirstSystemFamily && len(left) == 1 && left[0] != name {
			return refuse(MaxFamilies, "the cells of column family %s of table %s cannot be told from those of %s, as they have one id: drop both at once", name, t.Name, left[0])
		}
	}
	return nil
}

// Unsound returns the families, ascending, whose cells cannot be told from others:
// two have one id, or it is one of the system's. Before the number of families was
// bounded, tables were made with some.
func (t *Table) Unsound() []string { return t.unsound }

// CheckSound returns FailedPrecondition, with what to do, if t has families that
// are Unsound: rows are neither read nor written then.
func (t *Table) CheckSound() error {
	if len(t.unsound) == 0 {
		return nil
	}
	names := strings.Join(t.unsound[:min(len(t.unsound), 10)], ", ")
	if len(t.unsound) > 10 {
		names += ", ..."
	}
	err := fault.New(fault.FailedPrecondition, "the cells of %d column families of table %s cannot be told from those of others, as an earlier version made "+
		"more families than there are ids: %s. Drop these families, and the table's rows are served again", len(t.unsound), t.Name, names)
	err.Reason = ReasonFamilies
	return err
}

// CheckRestored returns why t, whose families are some of a backup's table from,
// may not become a table, nil if it may. One of more than MaxFamilies may: a
// backup is no less worth than what it was made of.
func (t *Table) CheckRestored(from *Table) error {
	if err := t.CheckFamilies(from); err != nil {
		return err
	}
	return t.CheckSound()
}

func unsound(fams map[string]Family) []string {
	n := make(map[cell.FamilyID]int, len(fams))
	for _, f := range fams {
		n[f.ID]++
	}
	var out []string
	for name, f := range fams {
		if n[f.ID] > 1 || f.ID >= cell.FirstSystemFamily {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
