package functions

import (
	"github.com/trestledb/trestle/engine/query/types"
)

// Templates that many signatures have.
var (
	tBool     = T(types.BoolType)
	tInt64    = T(types.Int64Type)
	tFloat32  = T(types.Float32Type)
	tFloat64  = T(types.Float64Type)
	tString   = T(types.StringType)
	tBytes    = T(types.BytesType)
	tDate     = T(types.DateType)
	arbitrary = Template{Arbitrary: true}
)

// evalFunc and kernelFunc are the types of Signature.Eval and Signature.Kernel.
type (
	evalFunc   = func(c *Call, args []types.Value) (types.Value, error)
	kernelFunc = func(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error
)

// positional returns one required Arg for each template.
func positional(list ...Template) []Arg {
	args := make([]Arg, len(list))
	for i, t := range list {
		args[i].Type = t
	}
	return args
}

// signature returns a Signature whose arguments are all required.
func signature(result Template, eval evalFunc, kernel kernelFunc, args ...Template) *Signature {
	return &Signature{Args: positional(args...), Result: result, Eval: eval, Kernel: kernel}
}

// operator returns a Function for an operator that messages call sql.
func operator(name, sql, doc string, list ...*Signature) *Function {
	return &Function{Name: name, SQL: sql, Category: "Operators", Doc: doc, Signatures: list}
}

// lazy returns the entry of a function of which package exec has the code.
func lazy(name, sql, category, doc string, result Template, args ...Arg) *Function {
	return &Function{
		Name: name, SQL: sql, Category: category, Doc: doc, Kind: Lazy,
		Signatures: []*Signature{{Args: args, Result: result, Nulls: true}},
	}
}

func init() {
	register(
		operator("$add", "+", "Returns the sum.",
			signature(tInt64, evalAddInts, addInts, tInt64, tInt64),
			signature(tFloat64, evalAddFloats, addFloats, tFloat64, tFloat64),
			signature(tDate, evalAddDays, nil, tDate, tInt64),
			signature(tDate, evalDaysAdd, nil, tInt64, tDate)),
		operator("$subtract", "-", "Returns the difference.",
			signature(tInt64, evalSubtractInts, subtractInts, tInt64, tInt64),
			signature(tFloat64, evalSubtractFloats, subtractFloats, tFloat64, tFloat64),
			signature(tDate, evalSubtractDays, nil, tDate, tInt64)),
		operator("$multiply", "*", "Returns the product.",
			signature(tInt64, evalMultiplyInts, multiplyInts, tInt64, tInt64),
			signature(tFloat64, evalMultiplyFloats, multiplyFloats, tFloat64, tFloat64)),
		operator("$divide", "/", "Returns the quotient, always a FLOAT64.",
			signature(tFloat64, evalDivide, divideFloats, tFloat64, tFloat64)),
		operator("$unary_minus", "-", "Returns the number with the other sign.",
			signature(tInt64, evalNegateInt, nil, tInt64),
			signature(tFloat32, evalNegateFloat, nil, tFloat32),
			signature(tFloat64, evalNegateFloat, nil, tFloat64)),

		operator("$bitwise_not", "~", "Returns the complement of each bit.",
			signature(tInt64, evalNotInt, nil, tInt64),
			signature(tBytes, evalNotBytes, nil, tBytes)),
		operator("$bitwise_and", "&", "Returns the bits that are set in both.",
			signature(tInt64, bitwiseInts(func(x, y int64) int64 { return x & y }), nil, tInt64, tInt64),
			signature(tBytes, bitwiseBytes(func(x, y byte) byte { return x & y }), nil, tBytes, tBytes)),
		operator("$bitwise_or", "|", "Returns the bits that are set in one or both.",
			signature(tInt64, bitwiseInts(func(x, y int64) int64 { return x | y }), nil, tInt64, tInt64),
			signature(tBytes, bitwiseBytes(func(x, y byte) byte { return x | y }), nil, tBytes, tBytes)),
		operator("$bitwise_xor", "^", "Returns the bits that are set in exactly one.",
			signature(tInt64, bitwiseInts(func(x, y int64) int64 { return x ^ y }), nil, tInt64, tInt64),
			signature(tBytes, bitwiseBytes(func(x, y byte) byte { return x ^ y }), nil, tBytes, tBytes)),
		operator("$left_shift", "<<", "Returns the bits moved to the left, zeros coming from the right.",
			signature(tInt64, evalShiftLeftInt, nil, tInt64, tInt64),
			signature(tBytes, evalShiftLeftBytes, nil, tBytes, tInt64)),
		operator("$right_shift", ">>", "Returns the bits moved to the right, zeros coming from the left.",
			signature(tInt64, evalShiftRightInt, nil, tInt64, tInt64),
			signature(tBytes, evalShiftRightBytes, nil, tBytes, tInt64)),

		operator("$concat_op", "||", "Returns the operands one after the other.",
			signature(tString, evalConcat, concatStrings, tString, tString),
			signature(tBytes, evalConcat, concatStrings, tBytes, tBytes),
			signature(ArrayT(AnyT("T1")), evalConcatArrays, nil, ArrayT(AnyT("T1")), ArrayT(AnyT("T1"))),
			&Signature{Args: positional(arbitrary, arbitrary), Result: tString, Check: checkConcat, Eval: evalConcatMixed, Internal: true}),

		operator("$is_null", "IS NULL", "Returns whether the value is NULL.",
			&Signature{Args: positional(AnyT("T1")), Result: tBool, Nulls: true, Eval: evalIsNull, Kernel: isNull}),
		operator("$is_true", "IS TRUE", "Returns whether the value is TRUE. NULL is not.",
			&Signature{Args: positional(tBool), Result: tBool, Nulls: true, Eval: evalIsTrue, Kernel: isTrue}),
		operator("$is_false", "IS FALSE", "Returns whether the value is FALSE. NULL is not.",
			&Signature{Args: positional(tBool), Result: tBool, Nulls: true, Eval: evalIsFalse, Kernel: isFalse}),
		operator("$not", "NOT", "Returns TRUE for FALSE, FALSE for TRUE and NULL for NULL.",
			signature(tBool, evalNot, not, tBool)),

		lazy("$and", "AND", "Operators", "Returns whether all operands are TRUE.", tBool,
			Arg{Type: tBool}, Arg{Type: tBool, Repeated: true}),
		lazy("$or", "OR", "Operators", "Returns whether one of the operands is TRUE.", tBool,
			Arg{Type: tBool}, Arg{Type: tBool, Repeated: true}),
		lazy("$case_no_value", "CASE", "Conditional", "Returns the value that follows the first condition that is TRUE.", AnyT("T1"),
			Arg{Type: tBool, Repeated: true}, Arg{Type: AnyT("T1"), Repeated: true}, Arg{Type: AnyT("T1"), Optional: true}),
		lazyEquality(lazy("$case_with_value", "CASE", "Conditional", "Returns the value that follows the first operand that equals the one behind CASE.", AnyT("T2"),
			Arg{Type: AnyT("T1")}, Arg{Type: AnyT("T1"), Repeated: true}, Arg{Type: AnyT("T2"), Repeated: true}, Arg{Type: AnyT("T2"), Optional: true})),
		lazy("IF", "", "Conditional", "Returns the second argument if the first is TRUE, otherwise the third.", AnyT("T1"),
			positional(tBool, AnyT("T1"), AnyT("T1"))...),
		lazy("IFNULL", "", "Conditional", "Returns the first argument, or the second if that is NULL.", AnyT("T1"),
			positional(AnyT("T1"), AnyT("T1"))...),
		lazyEquality(lazy("NULLIF", "", "Conditional", "Returns NULL if both arguments are equal, otherwise the first.", AnyT("T1"),
			positional(AnyT("T1"), AnyT("T1"))...)),
		lazy("COALESCE", "", "Conditional", "Returns the first argument that is not NULL.", AnyT("T1"),
			Arg{Type: AnyT("T1")}, Arg{Type: AnyT("T1"), Repeated: true}),
		lazy("IFERROR", "", "Debugging", "Returns the first argument, or the second if evaluating the first fails.", AnyT("T1"),
			positional(AnyT("T1"), AnyT("T1"))...),
		lazy("ISERROR", "", "Debugging", "Returns whether evaluating the argument fails.", tBool, positional(AnyT("T1"))...),
		lazy("NULLIFERROR", "", "Debugging", "Returns the argument, or NULL if evaluating it fails.", AnyT("T1"), positional(AnyT("T1"))...),
		&Function{
			Name: "ERROR", Category: "Debugging", Doc: "Fails with the message. Its type is whatever its place needs.", Volatile: true,
			// The result's type is that of a NULL literal without context.
			Signatures: []*Signature{{Args: positional(tString), Result: tInt64, Nulls: true, Eval: evalError}},
		},
	)
}

func evalError(_ *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, Errorf("ERROR function called with NULL value")
	}
	return types.Null, Errorf("%s", args[0].Str)
}

func lazyEquality(f *Function) *Function {
	f.Signatures[0].Check = checkEquality
	return f
}

// checkEquality refuses types that cannot be compared with =.
func checkEquality(args []*types.Type) string {
	if len(args) > 0 && !args[0].SupportsEquality() {
		return "Equality is not defined for arguments of type " + args[0].String()
	}
	return ""
}
