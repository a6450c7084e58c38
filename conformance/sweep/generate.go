package sweep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A generator makes random messages: mostly nonsense, with enough names of
// the right form to get behind the first checks.
type generator struct{ *rand.Rand }

// names are values for string fields. The instance and table may exist.
var names = []string{
	"", "x", "-", "projects/sweep", "projects/sweep/instances/sweep-1", "projects/sweep/instances/sweep-1/tables/t",
	"projects/sweep/instances/sweep-1/clusters/c-1", "projects/sweep/instances/sweep-1/clusters/-",
	"projects/sweep/instances/sweep-1/clusters/c-1/backups/b", "projects/sweep/instances/sweep-1/clusters/c-1/snapshots/s",
	"projects/sweep/instances/sweep-1/appProfiles/default", "projects/sweep/instances/sweep-1/tables/t/authorizedViews/v",
	"projects/sweep/instances/sweep-1/tables/t/schemaBundles/b", "projects/sweep/instances/sweep-1/logicalViews/l",
	"projects/sweep/instances/sweep-1/materializedViews/m", "projects/sweep/instances/sweep-1/clusters/c-1/memoryLayer",
	"projects/sweep/instances/sweep-1/clusters/c-1/hotTablets/h", "operations/projects/sweep/instances/sweep-1/o",
	"projects//instances//tables/", "projects/../instances/../../etc/passwd", "projects/sweep/instances/sweep-1/tables/" + strings.Repeat("t", 5000),
	"sweep-1", "t", "f", "SELECT 1", "SELECT * FROM t", "*", "gc_rule", "display_name", "\x00", "é", "𝕏", "%s%n", "default", "bigtable.tables.get",
}

// fitting are values for string fields of some names, so that a good part of
// the requests is about what there is.
var fitting = map[protoreflect.Name][]string{
	"table_name":             names[5:6],
	"authorized_view_name":   names[:1],
	"materialized_view_name": names[:1],
	"app_profile_id":         {"", "default"},
	"family_name":            {"f"},
	"table_id":               {"t", "u"},
	"instance_id":            {"sweep-1", "sweep-2"},
	"parent":                 {names[4], names[4], names[3], names[5], names[6]},
	"name":                   {names[4], names[5], names[5], names[6], names[10]},
	"resource":               {names[4], names[5]},
}

func (g generator) bytes(limit int) []byte {
	b := make([]byte, g.IntN(limit))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

// fill sets random fields of m, nested to depth.
func (g generator) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if g.IntN(3) == 0 {
			continue
		}
		switch {
		case f.IsMap():
			for range g.IntN(3) {
				m.Mutable(f).Map().Set(g.scalar(f.MapKey()).MapKey(), g.value(f.MapValue(), m.Mutable(f).Map().NewValue, depth))
			}
		case f.IsList():
			for range g.IntN(4) {
				m.Mutable(f).List().Append(g.value(f, m.Mutable(f).List().NewElement, depth))
			}
		default:
			m.Set(f, g.value(f, func() protoreflect.Value { return m.NewField(f) }, depth))
		}
	}
}

func (g generator) value(f protoreflect.FieldDescriptor, fresh func() protoreflect.Value, depth int) protoreflect.Value {
	if f.Kind() != protoreflect.MessageKind && f.Kind() != protoreflect.GroupKind {
		return g.scalar(f)
	}
	v := fresh()
	if depth > 0 {
		g.fill(v.Message(), depth-1)
	}
	return v
}

func (g generator) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	numbers := []int64{0, 1, -1, 2, 7, 100, 1000, 4097, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, g.Int64()}
	n := numbers[g.IntN(len(numbers))]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(g.IntN(12) - 1))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n) / 7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64([]float64{0, 0.5, 1, -1, math.NaN(), math.Inf(1), math.MaxFloat64}[g.IntN(7)])
	case protoreflect.StringKind:
		if fit := fitting[f.Name()]; fit != nil && g.IntN(4) > 0 {
			return protoreflect.ValueOfString(fit[g.IntN(len(fit))])
		}
		return protoreflect.ValueOfString(names[g.IntN(len(names))])
	case protoreflect.BytesKind:
		if g.IntN(2) == 0 {
			return protoreflect.ValueOfBytes(fmt.Appendf(nil, "r%d", g.IntN(10)))
		}
		return protoreflect.ValueOfBytes(g.bytes(20))
	}
	panic("a field of kind " + f.Kind().String() + " is no scalar")
}
