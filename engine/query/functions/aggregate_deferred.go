package functions

import "github.com/trestledb/trestle/engine/query/types"

func init() {
	register(&Function{
		Name: "$deferred", Category: aggregateCategory, Kind: Scalar,
		Doc: "Returns the value of an aggregate whose errors wait until it is asked for, or its error.",
		Signatures: []*Signature{{
			Args:     []Arg{{Type: Template{Kind: types.Struct}}},
			ResultOf: func(args []*types.Type) *types.Type { return args[0].Fields[0].Type },
			Nulls:    true, Internal: true,
			Eval: func(_ *Call, args []types.Value) (types.Value, error) {
				if !args[0].Valid {
					return types.Null, nil
				}
				if message := args[0].List[1]; message.Valid {
					return types.Null, Errorf("%s", message.Str)
				}
				return args[0].List[0], nil
			},
		}},
	})
}

// DeferredType returns the type of an aggregate whose value has type t, and whose
// errors are deferred: a STRUCT of the value and the text of the error, of which one
// is NULL.
func DeferredType(t *types.Type) *types.Type {
	return types.StructOf(types.Field{Name: "value", Type: t}, types.Field{Name: "error", Type: types.StringType})
}
