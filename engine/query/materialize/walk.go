package materialize

import (
	"reflect"

	"github.com/trestledb/trestle/engine/query/syntax"
)

// eachNode calls visit for n and all below it, whatever kinds of nodes package syntax
// has: a rule that forgets one would let through what it refuses.
func eachNode(n any, visit func(syntax.Node)) { eachValue(reflect.ValueOf(n), visit) }

func eachValue(v reflect.Value, visit func(syntax.Node)) {
	switch v.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			eachValue(v.Elem(), visit)
		}
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if n, ok := v.Interface().(syntax.Node); ok {
			visit(n)
		}
		eachValue(v.Elem(), visit)
	case reflect.Struct:
		for i := range v.NumField() {
			eachValue(v.Field(i), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachValue(v.Index(i), visit)
		}
	}
}
