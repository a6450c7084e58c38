package model

import (
	"math"
	"strconv"
	"time"

	"github.com/trestledb/trestle/engine/schema"
)

// The attributes of families and tables that mean something here.
const (
	AttrVersions        = "VERSIONS"
	AttrMinVersions     = "MIN_VERSIONS"
	AttrTTL             = "TTL"
	AttrNewVersions     = "NEW_VERSION_BEHAVIOR"
	AttrGCRule          = "BIGTABLE_GC_RULE"
	AttrTimestampUnit   = "TS_UNIT"          // of a table: MILLIS or RAW
	AttrDeletes         = "DELETE_SEMANTICS" // of a table: HBASE or BIGTABLE
	TimestampUnitRaw    = "RAW"
	DeletesLikeHBase    = "HBASE"
	DeletesLikeBigtable = "BIGTABLE"
)

// Forever is the TTL, in seconds, of cells that stay.
const Forever = math.MaxInt32

// A Family says which cells of a column a read through HBase returns.
type Family struct {
	// Versions is how many of the newest; math.MaxInt32 is all of them.
	Versions int32
	// MinVersions is how many of the newest stay when they are older than TTL.
	MinVersions int32
	// TTL is Forever, or an age in seconds.
	TTL int64
}

// Rule returns the GC rule of a family:
//
//	TTL forever   VERSIONS all: none; else: max versions
//	TTL t         age: max age t, and at the same time beyond MIN_VERSIONS if that is set
//	              VERSIONS all: age; else: age, or beyond max versions
func (f Family) Rule() *schema.GCRule {
	versions := &schema.GCRule{MaxVersions: f.Versions}
	all := f.Versions == math.MaxInt32 || f.Versions <= 0
	if f.TTL <= 0 || f.TTL >= Forever {
		if all {
			return nil
		}
		return versions
	}
	age := &schema.GCRule{MaxAge: time.Duration(f.TTL) * time.Second}
	if f.MinVersions > 0 {
		age = &schema.GCRule{Intersection: []*schema.GCRule{age, {MaxVersions: f.MinVersions}}}
	}
	if all {
		return age
	}
	return &schema.GCRule{Union: []*schema.GCRule{age, versions}}
}

// FamilyOf returns the family whose Rule is r. ok is false if there is none: r
// then collects when it pleases, and nothing is enforced when reading.
func FamilyOf(r *schema.GCRule) (f Family, ok bool) {
	f = Family{Versions: math.MaxInt32, TTL: Forever}
	switch {
	case r == nil:
		return f, true
	case r.MaxVersions > 0:
		f.Versions = r.MaxVersions
		return f, true
	case len(r.Union) == 2 && r.Union[1].MaxVersions > 0:
		if g, ok := aged(r.Union[0]); ok {
			g.Versions = r.Union[1].MaxVersions
			return g, true
		}
	default:
		if g, ok := aged(r); ok {
			return g, true
		}
	}
	return f, false
}

func aged(r *schema.GCRule) (Family, bool) {
	f := Family{Versions: math.MaxInt32, TTL: Forever}
	if len(r.Intersection) == 2 && r.Intersection[1].MaxVersions > 0 {
		f.MinVersions = r.Intersection[1].MaxVersions
		r = r.Intersection[0]
	}
	if r.MaxAge <= 0 || r.MaxAge%time.Second != 0 {
		return f, false
	}
	f.TTL = int64(r.MaxAge / time.Second)
	return f, f.TTL < Forever
}

// Attributes returns the family's attributes as clients write them.
func (f Family) Attributes() map[string]string {
	return map[string]string{
		AttrVersions:    strconv.Itoa(int(f.Versions)),
		AttrMinVersions: strconv.Itoa(int(f.MinVersions)),
		AttrTTL:         strconv.FormatInt(f.TTL, 10),
	}
}
