package backend

import (
	"bytes"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

const (
	// attrSchema is the attribute of a table in which its schema.Table is.
	attrSchema = "TRESTLE_SCHEMA"
	// attrVersioned is the attribute of a table whose rows have a version cell.
	attrVersioned = "TRESTLE_VERSIONED"
	// versionFamily holds the version cell of each row, and its idempotency
	// tokens. Clients cannot have a family of that name.
	versionFamily = "_v"
	// versionTTL, in seconds, is for how long a row's version is kept. A row
	// without one has not changed for that long; a read and the write that depends
	// on it are closer together.
	versionTTL = 3600
)

func attribute(list []*pb.BytesBytesPair, name string) (value string, ok bool) {
	for _, p := range list {
		if string(p.GetFirst()) == name {
			return string(p.GetSecond()), true
		}
	}
	return "", false
}

func setAttribute(list []*pb.BytesBytesPair, name, value string) []*pb.BytesBytesPair {
	list = removeAttribute(list, name)
	return append(list, &pb.BytesBytesPair{First: []byte(name), Second: []byte(value)})
}

func removeAttribute(list []*pb.BytesBytesPair, name string) []*pb.BytesBytesPair {
	return slices.DeleteFunc(list, func(p *pb.BytesBytesPair) bool { return string(p.GetFirst()) == name })
}

// familyOf reads what a family's attributes say of versions. Those that are not
// there, or not numbers, are HBase's defaults.
func familyOf(f *pb.ColumnFamilySchema) model.Family {
	number := func(name string, otherwise int64) int64 {
		v, ok := attribute(f.GetAttributes(), name)
		if !ok {
			return otherwise
		}
		if name == model.AttrTTL && strings.EqualFold(v, "FOREVER") {
			return model.Forever
		}
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			return otherwise
		}
		return n
	}
	m := model.Family{Versions: int32(number(model.AttrVersions, 1)), MinVersions: int32(number(model.AttrMinVersions, 0)),
		TTL: number(model.AttrTTL, model.Forever)}
	if m.TTL == 0 {
		m.TTL = model.Forever
	}
	if m.TTL >= model.Forever {
		m.MinVersions = 0 // means nothing then
	}
	return m
}

// wanted is what the attributes of a family with a rule say. HBase cannot carry
// out every rule: the others, and ages in a table whose timestamps are not
// HBase's milliseconds, keep everything.
func wanted(rule *schema.GCRule, unit model.Unit) (f model.Family, ok bool) {
	f, ok = model.FamilyOf(rule)
	if !ok || unit == model.Raw && f.TTL < model.Forever {
		return model.Family{Versions: math.MaxInt32, TTL: model.Forever}, false
	}
	return f, true
}

// describe makes a table of its descriptor.
func describe(d *pb.TableSchema, resource string) (*table, error) {
	t := &table{name: model.NameOf(d.GetTableName()), read: time.Now()}
	s := &schema.Table{Families: map[string]schema.Family{}, NextFamily: 1, Granularity: 1000, Version: 1}
	text, ours := attribute(d.GetAttributes(), attrSchema)
	if ours {
		var err error
		if s, err = schema.Unmarshal([]byte(text)); err != nil {
			return nil, fault.New(fault.Corruption, "attribute %s of HBase's table %s: %w", attrSchema, t.name, err)
		}
	} else {
		h := fnv.New64a()
		_, _ = h.Write([]byte(t.name.String()))
		s.ID = h.Sum64() | 1<<63
	}
	s.Name = resource
	if s.Granularity != 1 {
		s.Granularity = 1000
	}
	if u, _ := attribute(d.GetAttributes(), model.AttrTimestampUnit); ours && s.Granularity == 1 || strings.EqualFold(u, model.TimestampUnitRaw) {
		t.unit, s.Granularity = model.Raw, 1
	}
	_, t.versioned = attribute(d.GetAttributes(), attrVersioned)
	there := map[string]bool{}
	for _, f := range d.GetColumnFamilies() {
		name := string(f.GetName())
		if t.versioned && name == versionFamily {
			continue
		}
		there[name] = true
		have, known := s.Families[name]
		if !known {
			s.AddFamily(schema.Family{Name: name, GC: familyOf(f).Rule()})
			continue
		}
		// A later change of the attributes was meant.
		if want, _ := wanted(have.GC, t.unit); want != familyOf(f) {
			have.GC = familyOf(f).Rule()
			s.Families[name] = have
		}
	}
	for name := range s.Families {
		if !there[name] {
			delete(s.Families, name)
		}
	}
	t.schema = s
	return t, nil
}

// descriptor returns the descriptor of a table with schema s, as a change of
// old, which may be nil.
func descriptor(name model.Name, s *schema.Table, old *pb.TableSchema) (*pb.TableSchema, error) {
	d := &pb.TableSchema{TableName: name.Proto()}
	versioned := old == nil
	given := map[string]*pb.ColumnFamilySchema{}
	if old != nil {
		d.Attributes = slices.Clone(old.GetAttributes())
		d.Configuration = old.GetConfiguration()
		_, versioned = attribute(old.GetAttributes(), attrVersioned)
		for _, f := range old.GetColumnFamilies() {
			given[string(f.GetName())] = f
		}
	}
	d.Attributes = setAttribute(d.Attributes, attrSchema, string(s.Marshal()))
	unit := model.Millis
	if s.Granularity == 1 {
		unit = model.Raw
		d.Attributes = setAttribute(d.Attributes, model.AttrTimestampUnit, model.TimestampUnitRaw)
	}
	for n, f := range s.Families {
		if versioned && n == versionFamily {
			return nil, fault.New(fault.Invalid, "A column family cannot be called %s: the name is taken in a table in HBase", n)
		}
		c := &pb.ColumnFamilySchema{Name: []byte(n)}
		if g := given[n]; g != nil {
			c.Attributes, c.Configuration = slices.Clone(g.GetAttributes()), g.GetConfiguration()
		} else {
			c.Attributes = setAttribute(c.Attributes, "BLOOMFILTER", "ROW")
		}
		if versioned {
			c.Attributes = setAttribute(c.Attributes, model.AttrNewVersions, "true")
		}
		c.Attributes = removeAttribute(c.Attributes, model.AttrGCRule)
		m, ok := wanted(f.GC, unit)
		if !ok {
			c.Attributes = setAttribute(c.Attributes, model.AttrGCRule, "kept in "+attrSchema+"; HBase cannot carry it out")
		}
		for a, v := range m.Attributes() {
			c.Attributes = setAttribute(c.Attributes, a, v)
		}
		d.ColumnFamilies = append(d.ColumnFamilies, c)
	}
	if versioned {
		d.Attributes = setAttribute(d.Attributes, attrVersioned, "true")
		d.ColumnFamilies = append(d.ColumnFamilies, ownFamily(versionFamily, versionTTL))
	}
	slices.SortFunc(d.ColumnFamilies, func(a, b *pb.ColumnFamilySchema) int { return bytes.Compare(a.GetName(), b.GetName()) })
	for _, c := range d.ColumnFamilies {
		slices.SortFunc(c.Attributes, func(a, b *pb.BytesBytesPair) int { return bytes.Compare(a.GetFirst(), b.GetFirst()) })
	}
	return d, nil
}

// ownFamily is a family for one version of cells.
func ownFamily(name string, ttl int64) *pb.ColumnFamilySchema {
	c := &pb.ColumnFamilySchema{Name: []byte(name)}
	for a, v := range (model.Family{Versions: 1, TTL: ttl}).Attributes() {
		c.Attributes = setAttribute(c.Attributes, a, v)
	}
	c.Attributes = setAttribute(c.Attributes, model.AttrNewVersions, "true")
	return c
}
