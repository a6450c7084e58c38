package analyze

import (
	"errors"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// The scalar types by name. DOUBLE, FLOAT and BOOLEAN are GoogleSQL's other names.
var scalarTypes = map[string]*types.Type{
	"BOOL": types.BoolType, "BOOLEAN": types.BoolType, "INT64": types.Int64Type,
	"FLOAT32": types.Float32Type, "FLOAT": types.Float32Type, "FLOAT64": types.Float64Type, "DOUBLE": types.Float64Type,
	"STRING": types.StringType, "BYTES": types.BytesType, "DATE": types.DateType, "TIMESTAMP": types.TimestampType,
}

// unsupported are GoogleSQL's types that are none here.
var unsupported = map[string]bool{
	"NUMERIC": true, "BIGNUMERIC": true, "DECIMAL": true, "BIGDECIMAL": true, "DATETIME": true, "TIME": true, "JSON": true, "INTERVAL": true, "GEOGRAPHY": true,
	"RANGE": true, "INT32": true, "UINT32": true, "UINT64": true, "UUID": true, "TOKENLIST": true,
}

// typeOf returns the type that t names.
func (a *analyzer) typeOf(t *syntax.TypeName) *types.Type {
	a.enter(t.At())
	defer a.leave()
	switch t.Kind {
	case "ARRAY":
		elem := a.typeOf(t.Args[0])
		if elem.Kind == types.Array {
			a.fail(t.At(), "Arrays of arrays are not supported")
		}
		return types.ArrayOf(elem)
	case "MAP":
		key := a.typeOf(t.Args[0])
		if k := key.Kind; k != types.Bytes && k != types.String && k != types.Int64 {
			a.fail(t.Args[0].At(), "Map keys of type %s are not supported", key)
		}
		return types.MapOf(key, a.typeOf(t.Args[1]))
	case "STRUCT":
		out := &types.Type{Kind: types.Struct}
		for i, f := range t.Args {
			field := types.Field{Type: a.typeOf(f)}
			if i < len(t.Names) && t.Names[i] != nil {
				field.Name = t.Names[i].Name
			}
			out.Fields = append(out.Fields, field)
		}
		return out
	}
	path := t.Path.Names
	name := joined(path)
	if len(path) == 1 {
		upper := strings.ToUpper(name)
		if s := scalarTypes[upper]; s != nil {
			return s
		}
		if unsupported[upper] {
			a.fail(t.At(), "Type %s is not supported", upper)
		}
	}
	names := make([]string, len(path))
	for i, n := range path {
		names[i] = n.Name
	}
	found, err := a.catalog.Type(a.ctx, names)
	if errors.Is(err, fault.NotFound) || err == nil && found == nil {
		a.fail(t.At(), "Type not found: %s", typePath(path))
	}
	must(err)
	return found
}

func typePath(path []syntax.Identifier) string {
	parts := make([]string, len(path))
	for i, n := range path {
		parts[i] = types.QuoteIdentifier(n.Name)
	}
	return strings.Join(parts, ".")
}
