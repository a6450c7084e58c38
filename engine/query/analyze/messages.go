package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// typeSet returns the types of list, sorted and each once, as messages write them.
// Unless literals are alike, a literal's type is not that of another value. With nulls,
// NULLs are named.
func typeSet(list []algebra.Expr, nulls bool) string { return typeSetAs(list, nulls, internalName) }

// typeSetAs is typeSet with the names that name gives the types.
func typeSetAs(list []algebra.Expr, nulls bool, name func(*types.Type) string) string {
	type entry struct {
		rank    int
		t       *types.Type
		text    string
		literal bool
	}
	var set []entry
	for _, e := range list {
		t := e.Type()
		if isUntyped(e) && !nulls {
			continue
		}
		x := entry{rank: kindRank(t.Kind), t: t, text: name(t), literal: isLiteral(e)}
		if isUntyped(e) {
			x.text = "NULL"
		}
		if !slices.ContainsFunc(set, func(y entry) bool { return y.text == x.text && y.literal == x.literal }) {
			set = append(set, x)
		}
		if len(set) > 100 {
			break
		}
	}
	slices.SortStableFunc(set, func(x, y entry) int {
		switch {
		case x.rank != y.rank:
			return x.rank - y.rank
		case x.rank == complexRank && x.literal != y.literal:
			if x.literal {
				return 1
			}
			return -1
		case x.rank == complexRank && !x.literal:
			return strings.Compare(x.text, y.text)
		case x.rank == complexRank:
			return compareKinds(x.t, y.t)
		case x.text != y.text && (x.text == "NULL" || y.text == "NULL"):
			return strings.Compare(x.text, y.text)
		}
		return 0
	})
	names := make([]string, len(set))
	for i, x := range set {
		names[i] = x.text
	}
	return strings.Join(names, ", ")
}

const complexRank = 100

// compareKinds orders types as messages do: by kind, and by what they are made of.
func compareKinds(t, u *types.Type) int {
	if t.Kind != u.Kind {
		if d := kindRank(t.Kind) - kindRank(u.Kind); d != 0 {
			return d
		}
		return strings.Compare(t.Kind.String(), u.Kind.String())
	}
	switch t.Kind {
	case types.Array:
		return compareKinds(t.Elem, u.Elem)
	case types.Struct:
		for i := range min(len(t.Fields), len(u.Fields)) {
			if d := compareKinds(t.Fields[i].Type, u.Fields[i].Type); d != 0 {
				return d
			}
		}
		return len(t.Fields) - len(u.Fields)
	}
	return strings.Compare(internalName(t), internalName(u))
}

// kindRank is the order of kinds in messages: scalar types, then others.
func kindRank(k types.Kind) int {
	switch k {
	case types.Int64:
		return 2
	case types.Bool:
		return 5
	case types.Float32:
		return 6
	case types.Float64:
		return 7
	case types.String:
		return 8
	case types.Bytes:
		return 9
	case types.Date:
		return 10
	case types.Timestamp:
		return 19
	}
	return complexRank
}

// display returns what messages call f.
func display(f *functions.Function) string {
	if f.SQL != "" {
		return f.SQL
	}
	return f.Name
}

func isOperator(f *functions.Function) bool { return strings.HasPrefix(f.Name, "$") }

// describe returns the type of an argument as messages write it.
func describe(arg *argument) string {
	switch {
	case arg.interval:
		return "INTERVAL INT64 DATE_TIME_PART"
	case arg.part != nil:
		return "DATE_TIME_PART"
	case arg.lambda != nil:
		return "LAMBDA"
	case isUntyped(arg.expr):
		return "NULL"
	case isEmptyArray(arg.expr):
		return "[]"
	}
	return arg.expr.Type().String()
}

// mismatch ends the analysis: no signature of f fits args. notes say why, one for each.
func (a *analyzer) mismatch(f *functions.Function, args []argument, pos syntax.Pos, notes []string) {
	if text := ownMismatch(f, args); text != "" {
		a.fail(pos, "%s", text)
	}
	var b strings.Builder
	switch {
	case isOperator(f) && f.Kind != functions.Aggregate && f.Name != "$extract":
		b.WriteString("No matching signature for operator ")
	case f.Kind == functions.Aggregate:
		b.WriteString("No matching signature for aggregate function ")
	case f.Kind == functions.Window:
		b.WriteString("No matching signature for analytic function ")
	default:
		b.WriteString("No matching signature for function ")
	}
	b.WriteString(display(f))
	switch {
	case len(args) == 0:
		b.WriteString(" with no arguments")
	case f.Name == "$extract":
		b.WriteString(" for argument types: DATE_TIME_PART FROM " + describe(&args[0]))
		if len(args) > 2 {
			b.WriteString(" AT TIME ZONE " + describe(&args[2]))
		}
	case shortForm(f):
		b.WriteString(" for argument types: " + describeAll(args))
		if f.Kind == functions.Scalar && mixesText(args) {
			b.WriteString(". STRING and BYTES are different types that are not directly comparable. To write a BYTES literal, use a b-prefixed literal such as b'bytes value'")
		}
	default:
		b.WriteString("\n  Argument types: " + describeAll(args))
	}
	for i, sig := range f.Signatures {
		if sig.Internal {
			continue
		}
		b.WriteString("\n  Signature: ")
		b.WriteString(signatureText(f, sig))
		b.WriteString("\n    ")
		b.WriteString(notes[i])
	}
	a.fail(pos, "%s", b.String())
}

// shortForm tells whether the types of the arguments stand in the first line of a
// message: for comparisons, and for functions of an INTERVAL.
func shortForm(f *functions.Function) bool {
	switch f.Name {
	case "$equal", "$not_equal", "$less", "$less_or_equal", "$greater", "$greater_or_equal", "$like":
		return true
	}
	for _, s := range f.Signatures {
		for i := range s.Args {
			if s.Args[i].Type.Interval {
				return true
			}
		}
	}
	return false
}

// mixesText tells whether a comparison is of a STRING and a BYTES.
func mixesText(args []argument) bool {
	if len(args) != 2 || args[0].expr == nil || args[1].expr == nil {
		return false
	}
	x, y := args[0].expr.Type().Kind, args[1].expr.Type().Kind
	return x == types.String && y == types.Bytes || x == types.Bytes && y == types.String
}

func describeAll(args []argument) string {
	parts := make([]string, len(args))
	for i := range args {
		parts[i] = describe(&args[i])
		if args[i].chained {
			parts[i] += " (from chained function call input)"
		}
		if args[i].name != "" {
			parts[i] = args[i].name + " => " + parts[i]
		}
	}
	return strings.Join(parts, ", ")
}

// ownMismatch returns the message of an operator that has one of its own, or "".
func ownMismatch(f *functions.Function, args []argument) string {
	exprs := make([]algebra.Expr, len(args))
	for i := range args {
		if exprs[i] = args[i].expr; exprs[i] == nil {
			return ""
		}
	}
	list := func(from int) string {
		same := make([]algebra.Expr, 0, len(args))
		for _, e := range exprs[from:] {
			same = append(same, typed(e.Type()))
			if isUntyped(e) {
				same[len(same)-1] = e
			}
		}
		return typeSet(same, true)
	}
	left := func() string {
		if _, ok := exprs[0].(*algebra.MakeStruct); !ok && isLiteral(exprs[0]) && !isUntyped(exprs[0]) {
			return "literal " + describe(&args[0])
		}
		return describe(&args[0])
	}
	switch f.Name {
	case "$bitwise_and", "$bitwise_or", "$bitwise_xor":
		return fmt.Sprintf("Bitwise operator %s requires two integer/BYTES arguments of the same type, but saw %s and %s", display(f), internalName(exprs[0].Type()), internalName(exprs[1].Type()))
	case "$in":
		return fmt.Sprintf("No matching signature for operator IN for argument types %s and {%s}", left(), list(1))
	case "$in_array":
		return "No matching signature for operator IN UNNEST for argument types: " + describeAll(args)
	case "$case_with_value":
		return "No matching signature for operator CASE\n  Argument types: " + describeAll(args) + elseNull(args, 1)
	case "$case_no_value":
		return caseMismatch(args)
	}
	if op, ok := strings.CutSuffix(display(f), " ANY"); ok && !strings.HasSuffix(f.Name, "_array") {
		return fmt.Sprintf("No matching signature for operator %s ANY|SOME for argument types %s and {%s}", op, left(), list(1))
	}
	if strings.HasSuffix(display(f), " ALL") && !strings.HasSuffix(f.Name, "_array") {
		return fmt.Sprintf("No matching signature for operator %s for argument types %s and {%s}", display(f), left(), list(1))
	}
	return ""
}

// elseNull returns the ELSE that CASE has if none was written. first is the index of
// the first WHEN.
func elseNull(args []argument, first int) string {
	if (len(args)-first)%2 == 0 {
		return ", NULL"
	}
	return ""
}

// caseMismatch returns the message of a CASE without operand.
func caseMismatch(args []argument) string {
	var whens, results []algebra.Expr
	var actual strings.Builder
	for i := 0; i+1 < len(args); i += 2 {
		whens, results = append(whens, args[i].expr), append(results, args[i+1].expr)
		fmt.Fprintf(&actual, "(%s %s) ", describe(&args[i]), describe(&args[i+1]))
	}
	if len(args)%2 == 1 {
		last := &args[len(args)-1]
		results = append(results, last.expr)
		actual.WriteString(describe(last))
	} else {
		actual.WriteString("NULL")
	}
	what := "all THEN/ELSE arguments must be coercible to a common type but found: " + typeSetAs(results, false, (*types.Type).String)
	for _, w := range whens {
		if w.Type().Kind != types.Bool && !isUntyped(w) {
			what = "all WHEN argument types must be BOOL but found: " + typeSetAs(whens, false, (*types.Type).String)
		}
	}
	return "No matching signature for operator CASE; " + what + "; actual argument types (WHEN THEN) ELSE: " + actual.String()
}

// internalName returns t under GoogleSQL's older names of types.
func internalName(t *types.Type) string {
	return olderNames.Replace(t.String())
}

var olderNames = strings.NewReplacer("FLOAT64", "DOUBLE", "FLOAT32", "FLOAT")

// signatureText returns sig as messages write it.
func signatureText(f *functions.Function, sig *functions.Signature) string {
	parts := make([]string, len(sig.Args))
	for i, p := range sig.Args {
		s := templateText(sig, &p.Type)
		if p.NamedOnly || p.Name != "" && p.Optional {
			if strings.HasPrefix(f.Name, "BIT_") {
				s = "BITWISE_AGG_MODE"
			}
			s = p.Name + " => " + s
		}
		if p.Repeated {
			s += ", ..."
		}
		if p.Optional || p.Repeated {
			s = "[" + s + "]"
		}
		parts[i] = s
	}
	switch {
	case f.Name == "$extract":
		text := "EXTRACT(DATE_TIME_PART FROM " + parts[0]
		if len(parts) > 2 {
			text += " [AT TIME ZONE STRING]"
		}
		return text + ")"
	case f.Name == "$and" || f.Name == "$or":
		return parts[0] + " " + f.SQL + " (" + strings.Join(parts[1:], ", ") + ")"
	case f.Name == "$between":
		return "(" + parts[0] + ") BETWEEN (" + parts[1] + ") AND (" + parts[2] + ")"
	case f.Name == "$not":
		return "NOT (" + parts[0] + ")"
	case f.Name == "$unary_minus" || f.Name == "$bitwise_not":
		return f.SQL + "(" + parts[0] + ")"
	case isOperator(f) && len(parts) == 1 && strings.HasPrefix(f.SQL, "IS"):
		return "(" + parts[0] + ") " + f.SQL
	case f.Name == "COALESCE" || f.Name == "GREATEST" || f.Name == "LEAST":
		return f.Name + "([T1, ...])"
	case f.Name == "$concat_op" && sig.Args[0].Type.Kind == types.Array:
		return "(" + parts[0] + ") || (" + parts[1] + ")"
	case isOperator(f) && len(parts) == 2 && !strings.ContainsAny(f.SQL, "()[]"):
		return parts[0] + " " + f.SQL + " " + parts[1]
	}
	return display(f) + "(" + strings.Join(parts, ", ") + ")"
}

// templateText returns t as messages write it.
func templateText(sig *functions.Signature, t *functions.Template) string {
	switch {
	case t == nil || isAny(t):
		return "ANY"
	case t.Type != nil:
		return t.Type.String()
	case t.Any != "":
		return canonical(sig, t.Any)
	case t.Part:
		return "DATE_TIME_PART"
	case t.Interval:
		return "INTERVAL INT64 DATE_TIME_PART"
	case t.Result != nil:
		parts := make([]string, len(t.Lambda))
		for i := range t.Lambda {
			parts[i] = templateText(sig, &t.Lambda[i])
		}
		params := strings.Join(parts, ", ")
		if len(parts) != 1 {
			params = "(" + params + ")"
		}
		return "FUNCTION<" + params + "->" + templateText(sig, t.Result) + ">"
	case t.Kind == types.Array:
		return "ARRAY<" + templateText(sig, t.Elem) + ">"
	case t.Kind == types.Map:
		return "MAP<" + templateText(sig, t.Key) + ", " + templateText(sig, t.Elem) + ">"
	}
	return t.Kind.String()
}

// canonical returns what messages call the name of a type in sig: T1, T2, in the order
// in which they stand.
func canonical(sig *functions.Signature, name string) string {
	var names []string
	var see func(t *functions.Template)
	see = func(t *functions.Template) {
		if t == nil {
			return
		}
		if t.Any != "" && !slices.Contains(names, t.Any) {
			names = append(names, t.Any)
		}
		see(t.Key)
		see(t.Elem)
		for i := range t.Lambda {
			see(&t.Lambda[i])
		}
		see(t.Result)
	}
	for i := range sig.Args {
		see(&sig.Args[i].Type)
	}
	if at := slices.Index(names, name); at >= 0 {
		return fmt.Sprintf("T%d", at+1)
	}
	return name
}

// special refuses arguments of functions that have messages of their own for them.
func (a *analyzer) special(f *functions.Function, args []argument, pos syntax.Pos) {
	switch f.Name {
	case "ARRAY_CONCAT", "ARRAY_CONCAT_AGG":
		for i := range args {
			switch x := args[i].expr; {
			case x == nil:
			case x.Type().Kind == types.Array:
				continue
			case isLiteral(x) && !isUntyped(x):
				a.fail(pos, "The argument to ARRAY_CONCAT (or ARRAY_CONCAT_AGG) must be an array type but was literal %s", describe(&args[i]))
			}
			a.fail(pos, "The argument to ARRAY_CONCAT (or ARRAY_CONCAT_AGG) must be an array type but was %s", describe(&args[i]))
		}
	case "MIN", "MAX":
		for i := range args {
			if args[i].lambda != nil {
				a.fail(pos, "%s is not defined for arguments of type LAMBDA", f.Name)
			}
		}
	case "ARRAY_IS_DISTINCT":
		if len(args) > 0 && args[0].expr != nil && args[0].expr.Type().Kind != types.Array && !isUntyped(args[0].expr) {
			a.fail(pos, "ARRAY_IS_DISTINCT cannot be used on non-array type %s", args[0].expr.Type())
		}
	}
}

// The parts that functions of dates and timestamps take. WEEK stands for WEEK(MONDAY)
// and its like, too.
var (
	dateStep  = []string{"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"}
	dateTrunc = []string{"YEAR", "ISOYEAR", "QUARTER", "MONTH", "WEEK", "ISOWEEK", "DAY"}
	dateRead  = []string{"YEAR", "ISOYEAR", "QUARTER", "MONTH", "WEEK", "ISOWEEK", "DAY", "DAYOFWEEK", "DAYOFYEAR"}
	lastDay   = []string{"YEAR", "ISOYEAR", "QUARTER", "MONTH", "WEEK", "ISOWEEK"}
	timeStep  = []string{"DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "NANOSECOND"}
)

// checkPart refuses a date part that f, called with list, does not take.
func (a *analyzer) checkPart(f *functions.Function, list []algebra.Expr, pos syntax.Pos) {
	var parts []string
	when := "" // what the message says of the argument's type
	verb := f.Name
	switch f.Name {
	case "DATE_ADD", "DATE_SUB":
		parts, when = dateStep, " when the argument is DATE type"
	case "DATE_DIFF":
		parts, when = dateTrunc, " when the argument is DATE type"
	case "TIMESTAMP_ADD", "TIMESTAMP_SUB", "TIMESTAMP_DIFF":
		parts, when = timeStep, " when the argument is TIMESTAMP type"
	case "DATE_TRUNC":
		parts = dateTrunc
	case "TIMESTAMP_TRUNC":
		parts = append(dateTrunc[:len(dateTrunc):len(dateTrunc)], timeStep[1:]...)
	case "LAST_DAY":
		parts = lastDay
	case "$extract":
		if len(list) == 0 || list[0] == nil || list[0].Type().Kind != types.Date {
			return
		}
		parts, verb = dateRead, "EXTRACT from DATE"
	default:
		return
	}
	if len(list) > 0 && list[0] != nil && list[0].Type().Kind == types.Timestamp && strings.HasPrefix(f.Name, "DATE_") {
		return
	}
	at := 1
	if strings.HasSuffix(f.Name, "_DIFF") || strings.HasSuffix(f.Name, "_ADD") || strings.HasSuffix(f.Name, "_SUB") {
		at = 2
	}
	if at >= len(list) {
		return
	}
	l, ok := list[at].(*algebra.Literal)
	if !ok {
		return
	}
	name, _, _ := strings.Cut(l.Value.Str, "(")
	if !slices.Contains(parts, name) {
		a.fail(pos, "%s does not support the %s date part%s", verb, l.Value.Str, when)
	}
}
