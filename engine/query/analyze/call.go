package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// call analyzes the call of a function of any kind.
func (a *analyzer) call(e *syntax.Call, v *env) algebra.Expr {
	path := e.Name.Names
	safe := len(path) > 1 && strings.EqualFold(path[0].Name, "SAFE")
	if safe {
		path = path[1:]
	}
	name := joined(path)
	args := e.Args
	if e.Base != nil {
		// Messages are about the place of the name.
		own := *e
		own.Pos = e.Name.At()
		e = &own
		args = append([]syntax.Argument{{Pos: e.Base.At(), X: e.Base}}, args...)
	}
	switch strings.ToUpper(name) {
	case "VIEW_PARAMETERS":
		if len(args) > 0 {
			a.fail(e.At(), "VIEW_PARAMETERS takes no arguments")
		}
		return &algebra.ViewParameters{T: types.MapOf(types.StringType, types.StringType)}
	case "GROUPING":
		return a.grouping(e, args, v)
	case "FLATTEN":
		return a.flatten(e, args, v)
	case "COUNT":
		if e.Star {
			name = "$count_star"
		}
	}
	f := functions.Lookup(name)
	if f == nil || strings.HasPrefix(name, "$") && !e.Star {
		switch upper := strings.ToUpper(name); upper {
		case "OFFSET", "ORDINAL", "SAFE_OFFSET", "SAFE_ORDINAL":
			a.fail(e.At(), "%s is not a function. It can only be used for array element access using array[%s(position)]", upper, upper)
		}
		prefix := ""
		if safe {
			prefix = "SAFE."
		}
		a.fail(e.At(), "Function not found: %s%s", typePath(path), suggest(name, func(yield func(string)) {
			yield(prefix + "flatten")
			functions.All(func(n string, _ *functions.Function) bool {
				if !strings.HasPrefix(n, "$") {
					yield(prefix + strings.ToLower(n))
				}
				return true
			})
		}))
	}
	if e.Star && f.Name != "$count_star" {
		star := e.At()
		if i := strings.IndexByte(a.text[min(int(star), len(a.text)):], '*'); i >= 0 {
			star += syntax.Pos(i)
		}
		a.fail(star, "Argument * can only be used in COUNT(*)")
	}
	switch {
	case e.Over != nil:
		if f.Kind != functions.Aggregate && f.Kind != functions.Window || f.NoOver {
			a.fail(e.At(), "%s does not support an OVER clause", functionNoun(f))
		}
		return a.windowCall(e, f, args, safe, v)
	case f.Kind == functions.Aggregate:
		return a.aggregateCall(e, f, args, safe, v)
	case f.Kind == functions.Window:
		a.fail(e.At(), "Analytic function %s cannot be called without an OVER clause", name)
	}
	a.plainOnly(e, display(f))
	list := a.arguments(f, args, v)
	if e.Base != nil {
		list[0].chained = true
	}
	return a.invoke(f, list, e.At(), safe)
}

// joined returns the names of a path with dots between them.
func joined(path []syntax.Identifier) string {
	if len(path) == 1 {
		return path[0].Name
	}
	var b strings.Builder
	for i, n := range path {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(n.Name)
	}
	return b.String()
}

// plainOnly refuses what only aggregates may have in their parentheses.
func (a *analyzer) plainOnly(e *syntax.Call, name string) {
	switch {
	case e.Distinct:
		a.fail(e.At(), "Non-aggregate function %s cannot be called with DISTINCT", name)
	case e.Nulls != "":
		a.fail(e.At(), "IGNORE NULLS and RESPECT NULLS are not supported on scalar functions")
	case len(e.OrderBy) > 0:
		a.fail(a.keyword("ORDER", e.OrderBy[0].Expr.At()), "ORDER BY in arguments is not supported on scalar functions")
	case e.Limit != nil:
		a.fail(a.keyword("LIMIT", e.Limit.At()), "LIMIT in arguments is not supported on scalar functions")
	case e.Having != nil:
		a.fail(e.Having.At(), "HAVING in arguments is not supported on scalar functions")
	case e.Where != nil:
		a.fail(a.keyword("WHERE", e.Where.At()), "WHERE in arguments is not supported on scalar functions")
	case e.GroupBy != nil:
		a.fail(e.GroupBy.At(), "GROUP BY in arguments is not supported on scalar functions")
	}
}

// arguments analyzes the arguments of a call of f.
func (a *analyzer) arguments(f *functions.Function, args []syntax.Argument, v *env) []argument {
	out := make([]argument, len(args))
	for i := range args {
		in := &args[i]
		arg := &out[i]
		arg.pos = in.X.At()
		if in.Name != nil {
			arg.name = in.Name.Name
		} else if i > 0 && out[i-1].name != "" {
			a.fail(in.X.At(), "Call to function %s must not specify positional arguments after named arguments; named arguments must be specified last in the argument list", display(f))
		}
		if in.Alias != nil {
			a.fail(in.Alias.At(), "Unexpected function call argument alias found at %s", in.Alias.Name)
		}
		switch x := in.X.(type) {
		case *syntax.Lambda:
			arg.lambda, arg.env = x, v
			for j, p := range x.Params {
				for _, q := range x.Params[:min(j, maxKeys)] {
					if strings.EqualFold(p.Name, q.Name) {
						a.fail(p.At(), "Lambda argument name `%s` is already defined", p.Name)
					}
				}
			}
			continue
		case *syntax.IntervalExpr:
			interval := a.interval(x, v)
			interval.name = arg.name
			*arg = interval
			continue
		case *syntax.Name:
			if takesPart(f, i, arg.name) {
				arg.part = a.part(strings.ToUpper(x.Name), x.At(), strings.HasPrefix(f.Name, "NORMALIZE"))
				continue
			}
		case *syntax.Call:
			if takesPart(f, i, arg.name) && len(x.Name.Names) == 1 && len(x.Args) == 1 {
				if day, ok := x.Args[0].X.(*syntax.Name); ok {
					arg.part = a.part(strings.ToUpper(x.Name.Names[0].Name)+"("+strings.ToUpper(day.Name)+")", x.At(), false)
					continue
				}
			}
		}
		if takesPart(f, i, arg.name) && isDateFunction(f) {
			a.fail(in.X.At(), "A valid date part name is required")
		}
		if takesInterval(f, i) {
			a.fail(in.X.At(), "Expected INTERVAL expression")
		}
		arg.expr = a.expr(in.X, v)
	}
	return out
}

// isDateFunction tells whether the parts that f takes are date parts.
func isDateFunction(f *functions.Function) bool { return !strings.HasPrefix(f.Name, "NORMALIZE") }

// takesInterval tells whether all signatures of f have an INTERVAL as their i'th argument.
func takesInterval(f *functions.Function, i int) bool {
	for _, s := range f.Signatures {
		if i >= len(s.Args) || !s.Args[i].Type.Interval {
			return false
		}
	}
	return true
}

// dateParts are the names of parts of dates and times.
var dateParts = []string{
	"YEAR", "MONTH", "DAY", "DAYOFWEEK", "DAYOFYEAR", "QUARTER", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "NANOSECOND", "PICOSECOND", "DATE", "WEEK",
	"DATETIME", "TIME", "ISOYEAR", "ISOWEEK",
}

// part returns a date part, written at pos, as an argument.
func (a *analyzer) part(name string, pos syntax.Pos, normalizes bool) algebra.Expr {
	if base, day, ok := strings.Cut(name, "("); normalizes {
		if !slices.Contains(normalForms, name) {
			a.fail(pos, "Argument is not a valid NORMALIZE mode: %s", name)
		}
	} else if !slices.Contains(dateParts, base) {
		a.fail(pos, "A valid date part name is required but found %s", base)
	} else if day = strings.TrimSuffix(day, ")"); ok && (base != "WEEK" || !slices.Contains(weekdays, day)) {
		a.fail(pos, "A valid date part argument for %s is required, but found %s", base, day)
	}
	return &algebra.Literal{Value: types.NewString(name), T: types.StringType}
}

var normalForms = []string{"NFC", "NFKC", "NFD", "NFKD"}

var weekdays = []string{"SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY"}

// takesPart tells whether a signature of f has a date part as its i'th argument, or
// as the one called name.
func takesPart(f *functions.Function, i int, name string) bool {
	for _, s := range f.Signatures {
		for j := range s.Args {
			if s.Args[j].Type.Part && (name == "" && j == i || name != "" && strings.EqualFold(s.Args[j].Name, name)) {
				return true
			}
		}
	}
	return false
}

// interval analyzes INTERVAL n part as an argument.
func (a *analyzer) interval(e *syntax.IntervalExpr, v *env) argument {
	if e.To != nil {
		a.fail(e.At(), "INTERVAL with TO is not supported")
	}
	if e.Part == nil {
		a.fail(e.At(), "INTERVAL needs a date part")
	}
	x := a.expr(e.Value, v)
	if l, ok := x.(*algebra.Literal); ok && l.T.Kind == types.String {
		n, err := functions.CastValue(nil, l.T, types.Int64Type, l.Value, nil, nil)
		if err != nil {
			a.fail(at(e.Value), "Could not cast literal %s to type INT64", quoteLiteral(l))
		}
		x = &algebra.Literal{Value: n, T: types.Int64Type}
	}
	if _, ok := a.convertible(x, types.Int64Type); !ok {
		a.fail(at(e.Value), "Interval value must be coercible to INT64 type")
	}
	return argument{pos: e.At(), expr: x, part: a.part(strings.ToUpper(e.Part.Name), e.Part.At(), false), interval: true}
}

// lambda analyzes a lambda, the names of whose parameters' types are bound. It
// returns nil if they are not.
func (a *analyzer) lambda(arg *argument, t *functions.Template, bound *bindings) *algebra.Lambda {
	out := &algebra.Lambda{}
	list := &names{}
	for i, p := range arg.lambda.Params {
		pt := bound.of(&t.Lambda[i])
		if pt == nil {
			return nil
		}
		c := a.column(p.Name, pt)
		out.Params = append(out.Params, c)
		list.cols = append(list.cols, column{name: p.Name, col: c})
	}
	v := arg.env.within(&scope{list: list, outer: arg.env.scope})
	out.Body = a.expr(arg.lambda.Body, v)
	return out
}

// extract analyzes EXTRACT.
func (a *analyzer) extract(e *syntax.Extract, v *env) algebra.Expr {
	name := strings.ToUpper(e.Part.Name)
	if e.Arg != nil {
		name += "(" + strings.ToUpper(e.Arg.Name) + ")"
	}
	x := a.arg(e.X, v)
	switch k := x.expr.Type().Kind; {
	case k == types.String && isLiteral(x.expr) && !isNull(x.expr):
		a.fail(e.At(), "EXTRACT does not support literal STRING arguments")
	case k == types.Date && name == "DATE":
		a.fail(e.At(), "EXTRACT from DATE does not support the DATE date part")
	case k == types.Date && e.Zone != nil:
		a.fail(e.At(), "EXTRACT from DATE does not support AT TIME ZONE")
	case k != types.Date && k != types.Timestamp && k != types.String && !isUntyped(x.expr):
		a.fail(x.pos, "EXTRACT does not support arguments of type: %s", x.expr.Type())
	}
	f := functions.Lookup("$extract")
	if name == "DATE" {
		f = functions.Lookup("$extract_date")
	}
	if f == nil {
		a.fail(e.At(), "EXTRACT is not supported")
	}
	args := []argument{x}
	if name != "DATE" || takesPart(f, 1, "") {
		args = append(args, argument{pos: e.Part.At(), part: a.part(name, e.Part.At(), false)})
	}
	if e.Zone != nil {
		args = append(args, a.arg(e.Zone, v))
	}
	return a.invoke(f, args, e.At(), false)
}

// flatten analyzes FLATTEN(path), which joins the arrays along a path.
func (a *analyzer) flatten(e *syntax.Call, args []syntax.Argument, v *env) algebra.Expr {
	if len(args) != 1 {
		a.fail(e.At(), "Number of arguments does not match for function FLATTEN. Supported signature: FLATTEN(ARRAY)")
	}
	x := a.path(args[0].X, v)
	if x.Type().Kind != types.Array {
		a.fail(e.At(), "No matching signature for function FLATTEN\n  Argument types: %s\n  Signature: FLATTEN(ARRAY<T1>)\n    Argument 1: expected array type but found %s", x.Type(), x.Type())
	}
	return x
}

// path analyzes an array that is written as a path of fields. It may lead through
// arrays: their elements' arrays are joined.
func (a *analyzer) path(x syntax.Expr, v *env) algebra.Expr {
	var steps []syntax.Expr
	for {
		switch s := x.(type) {
		case *syntax.Dot:
			if n, ok := s.Base.(*syntax.Name); ok {
				if h, ok := a.find(v.scope, n.Identifier); ok && h.table != nil {
					goto base
				}
			}
			steps = append(steps, s)
			x = s.Base
			continue
		case *syntax.Subscript:
			steps = append(steps, s)
			x = s.Base
			continue
		}
		break
	}
base:
	value := a.expr(x, v)
	var rel algebra.Rel
	var offset algebra.Column
	var keys []algebra.SortKey
	unnest := func() {
		elem := a.column("element", value.Type().Elem)
		offset = a.column("offset", types.Int64Type)
		off := offset
		if rel == nil {
			rel = &algebra.OneRow{}
		}
		rel = &algebra.Unnest{Input: rel, Arrays: []algebra.Expr{value}, Elems: []algebra.Column{elem}, Offset: &off}
		keys = append(keys, algebra.SortKey{Expr: &algebra.ColumnRef{Column: off}})
		value = &algebra.ColumnRef{Column: elem}
	}
	slices.Reverse(steps)
	for _, s := range steps {
		switch s := s.(type) {
		case *syntax.Dot:
			if value.Type().Kind == types.Array {
				unnest()
			}
			value = a.field(value, s.Name)
		case *syntax.Subscript:
			col := a.column("array", value.Type())
			list := &names{cols: []column{{name: "\x00array", col: col}}}
			got := a.subscript(&syntax.Subscript{Pos: s.Pos, Bracket: s.Bracket, Index: s.Index, Base: &syntax.Name{Identifier: syntax.Identifier{Pos: s.Pos, Name: "\x00array"}}},
				v.within(&scope{list: list, outer: v.scope}))
			base := value
			value = rewrite(got, func(x algebra.Expr) algebra.Expr {
				if r, ok := x.(*algebra.ColumnRef); ok && r.ID == col.ID {
					return base
				}
				return nil
			})
		}
	}
	if rel == nil {
		return value
	}
	if value.Type().Kind == types.Array {
		unnest()
	}
	out := a.column("", value.Type())
	rel = &algebra.Project{Input: rel, Computed: []algebra.Computed{{Column: out, Expr: value}}}
	rel = &algebra.Sort{Input: rel, Keys: keys}
	return &algebra.Subquery{Kind: algebra.ArrayQuery, Query: &algebra.Keep{Input: rel, Cols: []algebra.Column{out}}, Column: out.ID, Outer: freeColumns(rel), Ordered: true, T: types.ArrayOf(out.Type)}
}
