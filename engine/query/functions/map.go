package functions

import (
	"strconv"

	"github.com/trestledb/trestle/engine/query/types"
)

// A slab is memory for the lists that a Kernel makes of the rows of a batch. It
// is used again for the next batch.
type slab struct{ values []types.Value }

// slabOf returns the slab of a call with room for n values, which are undefined.
func slabOf(c *Call, n int) (*slab, error) {
	s, _ := c.State.(*slab)
	if s == nil {
		s = &slab{}
		c.State = s
	}
	if cap(s.values) < n {
		if err := growList(c, n); err != nil {
			return nil, err
		}
		s.values = make([]types.Value, 0, n+n/4)
	}
	s.values = s.values[:0]
	return s, nil
}

// take returns the next n values of s.
func (s *slab) take(n int) []types.Value {
	at := len(s.values)
	s.values = s.values[:at+n]
	return s.values[at : at+n : at+n]
}

// listKernel returns the Kernel of a function that makes an array of each map: one
// element for each entry, which fill writes.
func listKernel(fill func(dst, entries []types.Value)) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		m, total := args[0], 0
		err := eachRow(sel, n, func(i int) error {
			if !m.IsNull(i) {
				total += len(m.Lists[m.At(i)]) / 2
			}
			return nil
		})
		if err != nil {
			return err
		}
		s, err := slabOf(c, total)
		if err != nil {
			return err
		}
		return eachRow(sel, n, func(i int) error {
			if m.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			list := m.Lists[m.At(i)]
			dst := s.take(len(list) / 2)
			fill(dst, list)
			out.Lists[i] = dst[:len(list)/2]
			return nil
		})
	}
}

// listEval is the Eval that belongs to listKernel.
func listEval(fill func(dst, entries []types.Value)) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		list := args[0].List
		if err := growList(c, len(list)/2); err != nil {
			return types.Null, err
		}
		dst := make([]types.Value, len(list)/2)
		fill(dst, list)
		return types.NewList(dst[: len(list)/2 : len(list)/2]), nil
	}
}

func fillMapKeys(dst, entries []types.Value) {
	for i := range dst {
		dst[i] = entries[2*i]
	}
}

func fillMapValues(dst, entries []types.Value) {
	for i := range dst {
		dst[i] = entries[2*i+1]
	}
}

// fillMapEntries makes structs of the entries, which share the memory of the map.
func fillMapEntries(dst, entries []types.Value) {
	for i := range dst {
		dst[i] = types.NewList(entries[2*i : 2*i+2 : 2*i+2])
	}
}

func mapSubscript(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	if i := types.FindKey(c.Types[0].Key, args[0].List, args[1]); i >= 0 {
		return args[0].List[i], nil
	}
	return types.Null, nil
}

func mapSubscriptKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	m, k := args[0], args[1]
	return eachRow(sel, n, func(i int) error {
		if !m.IsNull(i) {
			list := m.Lists[m.At(i)]
			if at := types.FindKey(m.Type.Key, list, k.Value(i)); at >= 0 {
				out.Set(i, list[at])
				return nil
			}
		}
		out.SetNull(i)
		return nil
	})
}

// mapSubscriptKey is map[KEY(k)]: a key that is not there is an error.
func mapSubscriptKey(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	key := c.Types[0].Key
	i := types.FindKey(key, args[0].List, args[1])
	if i < 0 {
		return types.Null, Errorf("Key not found in map: %s", keyLiteral(key, args[1]))
	}
	return args[0].List[i], nil
}

func mapContainsKey(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	return types.NewBool(types.FindKey(c.Types[0].Key, args[0].List, args[1]) >= 0), nil
}

func mapContainsKeyKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	m, k := args[0], args[1]
	return eachRow(sel, n, func(i int) error {
		if m.IsNull(i) {
			out.SetNull(i)
			return nil
		}
		out.Ints[i] = types.NewBool(types.FindKey(m.Type.Key, m.Lists[m.At(i)], k.Value(i)) >= 0).Int
		return nil
	})
}

func mapFromArray(c *Call, args []types.Value) (types.Value, error) {
	list := args[0].List
	if err := growList(c, 2*len(list)); err != nil {
		return types.Null, err
	}
	out := make([]types.Value, 0, 2*len(list))
	for _, e := range list {
		if !e.Valid {
			return types.Null, Errorf("Struct element in MAP_FROM_ARRAY must not be NULL")
		}
		out = append(out, e.List[0], e.List[1])
	}
	key := elemType(c, 0).Fields[0].Type
	sorted := types.SortMap(key, out)
	if len(sorted) < 2*len(list) {
		return types.Null, Errorf("Duplicate map keys are not allowed, but got multiple instances of key: %s",
			keyLiteral(key, firstDuplicate(key, list)))
	}
	return types.NewList(sorted), nil
}

// firstDuplicate returns the first key of list, an array of entries, that an entry
// before it has too.
func firstDuplicate(t *types.Type, list []types.Value) types.Value {
	seen := make(map[string]struct{}, len(list))
	var buf []byte
	for _, e := range list {
		buf = types.AppendKey(buf[:0], t, e.List[0])
		if _, ok := seen[string(buf)]; ok {
			return e.List[0]
		}
		seen[string(buf)] = struct{}{}
	}
	return types.Null
}

// keyLiteral returns a map's key as messages show it.
func keyLiteral(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.String:
		return strconv.Quote(v.Str)
	case types.Bytes:
		return "b" + strconv.QuoteToASCII(v.Str)
	case types.Bool:
		return strconv.FormatBool(v.Bool())
	case types.Float32:
		return strconv.FormatFloat(v.Float, 'g', -1, 32)
	case types.Float64:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case types.Date:
		return dateString(v.Int)
	case types.Timestamp:
		return timestampString(v.Int, nil)
	}
	return strconv.FormatInt(v.Int, 10)
}

// entryType returns STRUCT<key K, value V> of a map's type.
func entryType(m *types.Type) *types.Type {
	return types.StructOf(types.Field{Name: "key", Type: m.Key}, types.Field{Name: "value", Type: m.Elem})
}

func init() {
	k, v := AnyT("K"), AnyT("V")
	m := MapT(k, v)
	register(
		&Function{
			Name: "$map_subscript", SQL: "Map subscript", Category: "Map", Doc: "Returns the value of a key, NULL if the map does not have it.",
			Aliases:    []string{"$safe_map_subscript_with_key"},
			Signatures: []*Signature{{Args: []Arg{{Type: m}, {Type: k}}, Result: v, Nulls: true, Eval: mapSubscript, Kernel: mapSubscriptKernel}},
		},
		&Function{
			Name: "$map_subscript_with_key", SQL: "Map subscript", Category: "Map", Doc: "Returns the value of a key, which the map must have.",
			Signatures: []*Signature{{Args: []Arg{{Type: m}, {Type: k}}, Result: v, Nulls: true, Eval: mapSubscriptKey}},
		},
		&Function{
			Name: "MAP_CONTAINS_KEY", Category: "Map", Doc: "Tells whether a map has a key.",
			Signatures: []*Signature{{Args: []Arg{{Type: m}, {Type: k}}, Result: T(types.BoolType), Nulls: true, Eval: mapContainsKey, Kernel: mapContainsKeyKernel}},
		},
		&Function{
			Name: "MAP_EMPTY", Category: "Map", Doc: "Tells whether a map has no entries.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: m}}, Result: T(types.BoolType),
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					return types.NewBool(len(args[0].List) == 0), nil
				},
				Kernel: func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
					a := args[0]
					return eachRow(sel, n, func(i int) error {
						if a.IsNull(i) {
							out.SetNull(i)
						} else {
							out.Ints[i] = types.NewBool(len(a.Lists[a.At(i)]) == 0).Int
						}
						return nil
					})
				},
			}},
		},
		&Function{
			Name: "MAP_ENTRIES", Category: "Map", Doc: "Returns the entries of a map, ascending by key.",
			Aliases: []string{"MAP_ENTRIES_SORTED"},
			Signatures: []*Signature{{
				Args: []Arg{{Type: m}}, Result: ArrayT(Template{Kind: types.Struct}),
				ResultOf: func(args []*types.Type) *types.Type { return types.ArrayOf(entryType(args[0])) },
				Eval:     listEval(fillMapEntries), Kernel: listKernel(fillMapEntries),
			}},
		},
		&Function{
			Name: "MAP_KEYS", Category: "Map", Doc: "Returns the keys of a map, ascending.",
			Aliases: []string{"MAP_KEYS_SORTED"},
			Signatures: []*Signature{{
				Args: []Arg{{Type: m}}, Result: ArrayT(k), Eval: listEval(fillMapKeys), Kernel: listKernel(fillMapKeys),
			}},
		},
		&Function{
			Name: "MAP_VALUES", Category: "Map", Doc: "Returns the values of a map, ascending by their keys.",
			Aliases: []string{"MAP_VALUES_SORTED_BY_KEY"},
			Signatures: []*Signature{{
				Args: []Arg{{Type: m}}, Result: ArrayT(v), Eval: listEval(fillMapValues), Kernel: listKernel(fillMapValues),
			}},
		},
		&Function{
			Name: "MAP_FROM_ARRAY", Category: "Map", Doc: "Returns a map of an array of structs, each a key and a value.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: ArrayT(Template{Kind: types.Struct})}}, Result: m, Eval: mapFromArray,
				Check: func(args []*types.Type) string {
					t := args[0]
					if t == nil || t.Kind != types.Array || t.Elem.Kind != types.Struct || len(t.Elem.Fields) != 2 {
						return "MAP_FROM_ARRAY argument must be an array of structs with exactly 2 fields"
					}
					if key := t.Elem.Fields[0].Type; !key.SupportsGrouping() {
						return "MAP_FROM_ARRAY expected a groupable key, but got a key of type " + key.String()
					}
					return ""
				},
				ResultOf: func(args []*types.Type) *types.Type {
					f := args[0].Elem.Fields
					return types.MapOf(f[0].Type, f[1].Type)
				},
			}},
		},
	)
}
