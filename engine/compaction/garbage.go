package compaction

import (
	"math"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// Garbage estimates how many bytes of a file, other than tombstones, a major
// compaction at time now (microseconds) would drop, under the rules of the
// families that exist and the ends of cells that have their own. Families from next on,
// the schema's NextFamily, are not known yet and keep everything else. It knows one
// file only: cells that newer files shadow do not count, nor versions whose newer ones
// are elsewhere. Times are taken to be spread evenly between the least and the
// largest.
func Garbage(info *sstable.Info, rules map[cell.FamilyID]*schema.GCRule, next uint32, now int64) int64 {
	if info.RawBytes == 0 || info.Entries == 0 {
		return 0
	}
	raw := float64(info.Shadowed) / float64(info.Entries) * float64(info.RawBytes)
	for i := range info.Families {
		f := &info.Families[i]
		rule, known := rules[f.ID]
		switch {
		case f.ID >= cell.FirstSystemFamily:
			rule = &schema.GCRule{MaxAge: schema.TokenWindow}
		case !known && uint32(f.ID) < next: // the family was dropped
			raw += float64(f.Bytes)
			continue
		}
		raw += Collectable(rule, f, now) * float64(f.Bytes)
	}
	switch {
	case info.EndBytes > 0:
		raw += below(now+1, info.MinEnd, info.MaxEnd) * float64(info.EndBytes)
	case info.Ends > 0:
		raw++ // when they end was not noted: the next major compaction does so
	}
	// Bytes before compression, as a part of the file.
	return int64(math.Ceil(float64(info.Size) * min(1, raw/float64(info.RawBytes))))
}

// Collectable estimates the part of the cells of f that rule collects at time now
// (microseconds), 0 to 1.
func Collectable(rule *schema.GCRule, f *sstable.FamilyInfo, now int64) float64 {
	switch {
	case rule == nil || f.Cells == 0:
		return 0
	case rule.MaxVersions > 0:
		return float64(f.OlderThan(int(rule.MaxVersions))) / float64(f.Cells)
	case rule.MaxAge > 0:
		limit := now - int64(rule.MaxAge/time.Microsecond) // older goes
		return below(limit, f.MinTS, f.MaxTS)
	case len(rule.Union) > 0:
		part := 0.0
		for _, r := range rule.Union {
			part = max(part, Collectable(r, f, now))
		}
		return part
	case len(rule.Intersection) > 0:
		part := 1.0
		for _, r := range rule.Intersection {
			part = min(part, Collectable(r, f, now))
		}
		return part
	}
	return 0
}

// below returns the part of times from least to largest, evenly spread, that are
// below limit, 0 to 1.
func below(limit, least, largest int64) float64 {
	switch {
	case largest < limit:
		return 1
	case least >= limit:
		return 0
	}
	return (float64(limit) - float64(least)) / (float64(largest) - float64(least) + 1)
}
