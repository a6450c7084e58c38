package backend

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A column of a row.
type column struct{ family, qualifier string }

// A content is the cells of a row, or those of a part of it, by column and
// timestamp in microseconds.
type content map[column]map[int64][]byte

func (c content) put(col column, ts int64, value []byte) {
	if c[col] == nil {
		c[col] = map[int64][]byte{}
	}
	c[col][ts] = value
}

func (c content) clone() content {
	out := make(content, len(c))
	for col, versions := range c {
		m := make(map[int64][]byte, len(versions))
		for ts, v := range versions {
			m[ts] = v
		}
		out[col] = m
	}
	return out
}

// A change is what is to be done to one row in HBase: deletions of everything
// there is, deletions of single cells, and cells to write. None of the cells to
// write is covered by a deletion, so that their order does not matter: HBase
// gives all of a batch one sequence number, and lets deletions win.
type change struct {
	families map[string]bool
	columns  map[column]bool
	cells    map[column][]int64
	sets     content
}

func newChange() *change {
	return &change{families: map[string]bool{}, columns: map[column]bool{}, cells: map[column][]int64{}, sets: content{}}
}

func (c *change) empty() bool {
	return len(c.families) == 0 && len(c.columns) == 0 && len(c.cells) == 0 && len(c.sets) == 0
}

// now returns the time of a change in microseconds, on the table's grid.
func now(t *table) int64 {
	us := time.Now().UnixMicro()
	return us - us%t.schema.Granularity
}

// stamp returns the timestamp of a mutation.
func stamp(t *table, m *row.Mutation, now int64) int64 {
	if m.Op == row.SetCell && m.Timestamp == row.ServerTime {
		return now
	}
	return m.Timestamp - m.Timestamp%t.schema.Granularity
}

// hbaseTime returns the HBase timestamp of a cell's. The largest of Bigtable's is
// one like others: HBase's largest is out of its reach.
func hbaseTime(u model.Unit, micros int64) int64 {
	if u == model.Raw {
		return micros
	}
	return micros / 1000
}

// everything tells whether a deletion is of all timestamps that a cell can have.
func everything(r cell.TimeRange) bool { return r.Start <= 0 && r.End == math.MaxInt64 }

// blind returns the change that muts make whatever the row holds. ok is false
// if there is none: they depend on the row, or delete and then write the same.
func blind(t *table, muts []row.Mutation, now int64) (c *change, ok bool) {
	c = newChange()
	for i := range muts {
		m := &muts[i]
		col := column{m.Family, string(m.Qualifier)}
		switch m.Op {
		case row.SetCell:
			if c.families[m.Family] || c.columns[col] {
				return nil, false
			}
			c.sets.put(col, stamp(t, m, now), m.Value)
		case row.DeleteColumn:
			if !everything(m.Times) {
				return nil, false
			}
			delete(c.sets, col)
			c.columns[col] = true
		case row.DeleteFamily:
			if m.Times != (cell.TimeRange{}) && !everything(m.Times) {
				return nil, false
			}
			c.dropFamily(m.Family)
		case row.DeleteRow:
			for name := range t.schema.Families {
				c.dropFamily(name)
			}
		default:
			return nil, false
		}
	}
	return c, true
}

func (c *change) dropFamily(name string) {
	for col := range c.sets {
		if col.family == name {
			delete(c.sets, col)
		}
	}
	c.families[name] = true
}

// A scope is the part of a row that a change depends on: families as a whole
// (nil) or by column.
type scope map[string]map[string]bool

func (s scope) family(name string) { s[name] = nil }

func (s scope) column(family, qualifier string) {
	have, ok := s[family]
	if ok && have == nil {
		return
	}
	if have == nil {
		have = map[string]bool{}
		s[family] = have
	}
	have[qualifier] = true
}

// columns returns s as HBase reads it.
func (s scope) columns(t *table) []*pb.Column {
	out := make([]*pb.Column, 0, len(s)+1)
	for f, qs := range s {
		c := &pb.Column{Family: []byte(f)}
		for q := range qs {
			c.Qualifier = append(c.Qualifier, t.toHBase([]byte(q)))
		}
		slices.SortFunc(c.Qualifier, bytes.Compare)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *pb.Column) int { return bytes.Compare(a.Family, b.Family) })
	return out
}

// add widens s by what muts depend on.
func (s scope) add(t *table, muts []row.Mutation) {
	for i := range muts {
		switch m := &muts[i]; m.Op {
		case row.DeleteRow:
			for name := range t.schema.Families {
				s.family(name)
			}
		case row.DeleteFamily:
			s.family(m.Family)
		case row.DeleteColumn, row.AddToCell, row.MergeToCell:
			s.column(m.Family, string(m.Qualifier))
		}
	}
}

// covers tells whether s has all of a column.
func (s scope) covers(col column) bool {
	qs, ok := s[col.family]
	return ok && (qs == nil || qs[col.qualifier])
}

// apply makes of before, which is all that the row has of s, what muts make of
// it, and returns the change that leads there.
func apply(t *table, s scope, before content, muts []row.Mutation, now int64) (*change, error) {
	after := before.clone()
	c := newChange()
	for i := range muts {
		m := &muts[i]
		col := column{m.Family, string(m.Qualifier)}
		switch m.Op {
		case row.SetCell:
			after.put(col, stamp(t, m, now), m.Value)
		case row.AddToCell, row.MergeToCell:
			ts := stamp(t, m, now)
			state, err := plan.Combine(t.schema.Families[m.Family].Aggregate, after[col][ts], m)
			if err != nil {
				return nil, err
			}
			if state != nil {
				if len(state) > schema.MaxValue {
					return nil, fault.New(fault.Invalid, "Value of %d bytes; limit %d", len(state), schema.MaxValue)
				}
				after.put(col, ts, state)
			}
		case row.DeleteColumn:
			drop(after, col, m.Times)
		case row.DeleteFamily:
			times := m.Times
			if times == (cell.TimeRange{}) {
				times = cell.AllTime
			}
			for col := range after {
				if col.family == m.Family {
					drop(after, col, times)
				}
			}
		case row.DeleteRow:
			clear(after)
		}
	}
	for col, versions := range before {
		left := after[col]
		if len(left) == 0 {
			c.columns[col] = true
			continue
		}
		for ts := range versions {
			if _, ok := left[ts]; !ok {
				c.cells[col] = append(c.cells[col], ts)
			}
		}
		slices.Sort(c.cells[col])
		if len(c.cells[col]) == 0 {
			delete(c.cells, col)
		}
	}
	for col, versions := range after {
		for ts, v := range versions {
			if old, ok := before[col][ts]; !ok || !s.covers(col) || !bytes.Equal(old, v) {
				c.sets.put(col, ts, v)
			}
		}
	}
	return c, nil
}

func drop(c content, col column, times cell.TimeRange) {
	for ts := range c[col] {
		if times.Contains(ts) {
			delete(c[col], ts)
		}
	}
	if len(c[col]) == 0 {
		delete(c, col)
	}
}

// checkTimes refuses what HBase cannot store: its largest timestamp stands for
// its own time.
func checkTimes(t *table, muts []row.Mutation) error {
	for i := range muts {
		m := &muts[i]
		if m.Sticky || m.Until != 0 {
			return fault.New(fault.Unimplemented, "HBase's delete markers and TTLs of cells cannot be asked for through this API")
		}
		if t.unit == model.Raw && m.Timestamp == math.MaxInt64 && m.Op != row.DeleteColumn {
			return fault.New(fault.Invalid, "Timestamp %d cannot be stored in HBase", m.Timestamp)
		}
	}
	return nil
}

// actions encodes c for HBase: at most one Put and one Delete.
func (c *change) actions(t *table, key, version []byte, tokens [][]byte) []*pb.MutationProto {
	// A deletion covers every timestamp there is. What is written later is newer
	// by its sequence number in a table of ours. In another one HBase would hide
	// it unless its timestamp were larger than the deletion's. So that is
	// HBase's time, or the last one before the cells that are written with it.
	marker := uint64(math.MaxInt64 - 1)
	if !t.versioned {
		marker = math.MaxInt64
		if len(c.sets) > 0 {
			marker = uint64(time.Now().UnixMilli() - 1)
		}
	}
	var out []*pb.MutationProto
	if len(c.families) > 0 || len(c.columns) > 0 || len(c.cells) > 0 {
		by := map[string]*pb.MutationProto_ColumnValue{}
		of := func(family string) *pb.MutationProto_ColumnValue {
			if by[family] == nil {
				by[family] = &pb.MutationProto_ColumnValue{Family: []byte(family)}
			}
			return by[family]
		}
		for f := range c.families {
			v := of(f)
			v.QualifierValue = append(v.QualifierValue, &pb.MutationProto_ColumnValue_QualifierValue{Timestamp: proto.Uint64(marker),
				DeleteType: pb.MutationProto_DELETE_FAMILY.Enum(), Qualifier: []byte{}})
		}
		for col := range c.columns {
			if c.families[col.family] {
				continue
			}
			v := of(col.family)
			v.QualifierValue = append(v.QualifierValue, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: t.toHBase([]byte(col.qualifier)),
				Timestamp: proto.Uint64(marker), DeleteType: pb.MutationProto_DELETE_MULTIPLE_VERSIONS.Enum()})
		}
		for col, list := range c.cells {
			if c.families[col.family] || c.columns[col] {
				continue
			}
			v := of(col.family)
			for _, ts := range list {
				v.QualifierValue = append(v.QualifierValue, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: t.toHBase([]byte(col.qualifier)),
					Timestamp: proto.Uint64(uint64(hbaseTime(t.unit, ts))), DeleteType: pb.MutationProto_DELETE_ONE_VERSION.Enum()})
			}
		}
		out = append(out, mutation(key, pb.MutationProto_DELETE, by))
	}
	if len(c.sets) > 0 || version != nil {
		by := map[string]*pb.MutationProto_ColumnValue{}
		add := func(family string, v *pb.MutationProto_ColumnValue_QualifierValue) {
			if by[family] == nil {
				by[family] = &pb.MutationProto_ColumnValue{Family: []byte(family)}
			}
			by[family].QualifierValue = append(by[family].QualifierValue, v)
		}
		for col, versions := range c.sets {
			q := t.toHBase([]byte(col.qualifier))
			for ts, v := range versions {
				add(col.family, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: q, Value: notNil(v), Timestamp: proto.Uint64(uint64(hbaseTime(t.unit, ts)))})
			}
		}
		if version != nil {
			add(versionFamily, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: []byte(versionQualifier), Value: version})
			for _, k := range tokens {
				add(versionFamily, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: append([]byte(tokenPrefix), k...), Value: []byte{}})
			}
		}
		out = append(out, mutation(key, pb.MutationProto_PUT, by))
	}
	return out
}

// The columns of versionFamily.
const (
	versionQualifier = "v"
	tokenPrefix      = "t"
)

// newVersion returns a value of the version cell that was never there.
func newVersion() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, random()), random())
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// mutation is a message with its columns in order.
func mutation(key []byte, kind pb.MutationProto_MutationType, by map[string]*pb.MutationProto_ColumnValue) *pb.MutationProto {
	m := &pb.MutationProto{Row: key, MutateType: kind.Enum(), Durability: pb.MutationProto_USE_DEFAULT.Enum()}
	for _, v := range by {
		slices.SortFunc(v.QualifierValue, func(a, b *pb.MutationProto_ColumnValue_QualifierValue) int {
			if c := bytes.Compare(a.Qualifier, b.Qualifier); c != 0 {
				return c
			}
			return cmp.Compare(b.GetTimestamp(), a.GetTimestamp())
		})
		m.ColumnValue = append(m.ColumnValue, v)
	}
	slices.SortFunc(m.ColumnValue, func(a, b *pb.MutationProto_ColumnValue) int { return bytes.Compare(a.Family, b.Family) })
	return m
}
