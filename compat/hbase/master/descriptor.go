package master

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/schema"
)

// attribute returns an attribute; ok is false if it is not there.
func attribute(list []*pb.BytesBytesPair, name string) (value string, ok bool) {
	for _, p := range list {
		if string(p.GetFirst()) == name {
			value, ok = string(p.GetSecond()), true
		}
	}
	return value, ok
}

func setAttribute(list []*pb.BytesBytesPair, name, value string) []*pb.BytesBytesPair {
	for _, p := range list {
		if string(p.GetFirst()) == name {
			p.Second = []byte(value)
			return list
		}
	}
	return append(list, &pb.BytesBytesPair{First: []byte(name), Second: []byte(value)})
}

func insane(format string, args ...any) error { return wire.SanityCheck.New(format, args...) }

// number reads an attribute that is a decimal number.
func number(f *pb.ColumnFamilySchema, name string, absent int64) (int64, error) {
	s, ok := attribute(f.GetAttributes(), name)
	if !ok {
		return absent, nil
	}
	if name == model.AttrTTL && strings.EqualFold(s, "FOREVER") {
		return model.Forever, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0, insane("%s of column family %s is not a number: %q", name, f.GetName(), s)
	}
	return n, nil
}

// family reads what a family's attributes say of its cells' life, with HBase's
// defaults, and holds it to what HBase accepts.
func family(f *pb.ColumnFamilySchema) (model.Family, error) {
	var m model.Family
	versions, err := number(f, model.AttrVersions, 1)
	if err != nil {
		return m, err
	}
	least, err := number(f, model.AttrMinVersions, 0)
	if err != nil {
		return m, err
	}
	ttl, err := number(f, model.AttrTTL, model.Forever)
	if err != nil {
		return m, err
	}
	blocks, err := number(f, "BLOCKSIZE", 64<<10)
	switch {
	case err != nil:
		return m, err
	case ttl <= 0:
		return m, insane("TTL for column family %s must be positive.", f.GetName())
	case blocks < 1<<10 || blocks > 16<<20:
		return m, insane("Block size for column family %s must be between 1K and 16MB.", f.GetName())
	case least < 0:
		return m, insane("Min versions for column family %s must be positive.", f.GetName())
	case versions <= 0 || versions > math.MaxInt32:
		return m, insane("Max versions for column family %s must be positive.", f.GetName())
	case least > versions:
		return m, insane("Min versions for column family %s must be less than the Max versions.", f.GetName())
	}
	return model.Family{Versions: int32(versions), MinVersions: int32(least), TTL: min(ttl, model.Forever)}, nil
}

// checkTable holds a name to HBase's rules.
func checkTable(n model.Name) error {
	q := n.Qualifier
	if q == "" {
		return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: Table qualifier must not be empty")
	}
	if q[0] == '.' || q[0] == '-' {
		return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: Illegal first character <%c> at 0. User-space table qualifiers can only start with 'alphanumeric characters' from any language: %s", q[0], q)
	}
	for i, r := range q {
		if !(unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-' || r == '.') || r == utf8.RuneError {
			return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: Illegal character code:%d, <%c> at %d. User-space table qualifiers may only contain 'alphanumeric characters' and digits: %q", r, r, i, q)
		}
	}
	if len(q) > math.MaxUint8 {
		return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: table names of more than 255 bytes are not kept: %q", q)
	}
	return nil
}

func checkNamespace(ns string) error {
	for i, r := range ns {
		if !(unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_') || r == utf8.RuneError {
			return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: Illegal character <%c> at %d. Namespaces may only contain 'alphanumeric characters' from any language and digits: %q", r, i, ns)
		}
	}
	if ns == "" || len(ns) > math.MaxUint8 {
		return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: a namespace has between 1 and 255 bytes: %q", ns)
	}
	return nil
}

func checkFamily(name []byte) error {
	bad := ""
	switch {
	case len(name) == 0:
		bad = "Column Family name can not be empty"
	case len(name) > math.MaxInt8:
		bad = "Column Family name is too long"
	case name[0] == '.':
		bad = "Column Family names cannot start with a period"
	case string(name) == "recovered.edits":
		bad = "Column Family name cannot be: recovered.edits"
	case !utf8.Valid(name):
		bad = "Column Family names are kept as UTF-8"
	case bytes.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == ':' || r == '\\' || r == '/' }):
		bad = "Column Family names cannot contain control characters or colons"
	}
	if bad != "" {
		return wire.DoNotRetryIO.New("java.lang.IllegalArgumentException: %s: %q", bad, name)
	}
	return nil
}

// checkDescriptor holds a table's descriptor to HBase's rules and returns its
// families.
func checkDescriptor(d *pb.TableSchema) (map[string]model.Family, error) {
	if err := checkTable(model.NameOf(d.GetTableName())); err != nil {
		return nil, err
	}
	if len(d.GetColumnFamilies()) == 0 {
		return nil, insane("Table should have at least one column family.")
	}
	families := map[string]model.Family{}
	for _, f := range d.GetColumnFamilies() {
		if err := checkFamily(f.GetName()); err != nil {
			return nil, err
		}
		m, err := family(f)
		if err != nil {
			return nil, err
		}
		families[string(f.GetName())] = m
	}
	return families, nil
}

// The attributes of a family that was made through another API, beside those of
// model.Family, with HBase's defaults.
var plain = [][2]string{
	{"BLOOMFILTER", "ROW"}, {"COMPRESSION", "NONE"}, {"DATA_BLOCK_ENCODING", "NONE"}, {"BLOCKSIZE", "65536"}, {"BLOCKCACHE", "true"},
	{"IN_MEMORY", "false"}, {"KEEP_DELETED_CELLS", "FALSE"}, {"REPLICATION_SCOPE", "0"},
}

// descriptor returns a table's descriptor as it is now.
func descriptor(t *model.Table) *pb.TableSchema {
	d := proto.Clone(t.Descriptor).(*pb.TableSchema)
	d.TableName = t.Name.Proto()
	given := d.ColumnFamilies
	d.ColumnFamilies = nil
	for _, f := range given {
		if _, ok := t.Schema.Families[string(f.GetName())]; ok {
			d.ColumnFamilies = append(d.ColumnFamilies, f)
		}
	}
	for _, name := range t.Schema.FamilyNames() {
		i := slices.IndexFunc(d.ColumnFamilies, func(f *pb.ColumnFamilySchema) bool { return string(f.GetName()) == name })
		if i < 0 {
			f := &pb.ColumnFamilySchema{Name: []byte(name)}
			for _, a := range plain {
				f.Attributes = setAttribute(f.Attributes, a[0], a[1])
			}
			d.ColumnFamilies = append(d.ColumnFamilies, f)
			i = len(d.ColumnFamilies) - 1
		}
		show(d.ColumnFamilies[i], t.Schema.Families[name].GC)
	}
	// HBase keeps families sorted.
	slices.SortFunc(d.ColumnFamilies, func(a, b *pb.ColumnFamilySchema) int { return bytes.Compare(a.GetName(), b.GetName()) })
	return d
}

// show makes a family's attributes say what its rule does.
func show(f *pb.ColumnFamilySchema, rule *schema.GCRule) {
	now, known := model.FamilyOf(rule)
	f.Attributes = slices.DeleteFunc(f.Attributes, func(p *pb.BytesBytesPair) bool { return string(p.GetFirst()) == model.AttrGCRule })
	if !known {
		f.Attributes = setAttribute(f.Attributes, model.AttrGCRule, ruleText(rule))
	}
	if was, err := family(f); err == nil && was == now {
		return // as it was written
	}
	for _, name := range []string{model.AttrVersions, model.AttrMinVersions, model.AttrTTL} {
		f.Attributes = setAttribute(f.Attributes, name, now.Attributes()[name])
	}
}

// ruleText writes a rule for people, as cbt does.
func ruleText(r *schema.GCRule) string {
	join := func(list []*schema.GCRule, op string) string {
		parts := make([]string, len(list))
		for i, r := range list {
			parts[i] = ruleText(r)
		}
		return "(" + strings.Join(parts, op) + ")"
	}
	switch {
	case r == nil:
		return "never"
	case r.MaxVersions > 0:
		return "maxversions=" + strconv.Itoa(int(r.MaxVersions))
	case r.MaxAge > 0:
		return "maxage=" + r.MaxAge.String()
	case len(r.Union) > 0:
		return join(r.Union, " || ")
	}
	return join(r.Intersection, " && ")
}

// system returns the descriptor of a computed table.
func system(n model.Name) *pb.TableSchema {
	names := []string{"info"}
	if n == model.Meta {
		names = []string{"info", "ns", "rep_barrier", "table"}
	}
	d := &pb.TableSchema{TableName: n.Proto(), Attributes: []*pb.BytesBytesPair{{First: []byte("IS_META"), Second: []byte(strconv.FormatBool(n == model.Meta))}}}
	for _, name := range names {
		f := &pb.ColumnFamilySchema{Name: []byte(name)}
		for _, a := range plain {
			f.Attributes = setAttribute(f.Attributes, a[0], a[1])
		}
		show(f, &schema.GCRule{MaxVersions: 1})
		d.ColumnFamilies = append(d.ColumnFamilies, f)
	}
	return d
}
