package analyze

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// An argument is one of a function call. One of expr and lambda is set.
type argument struct {
	pos    syntax.Pos
	name   string // of name => value
	expr   algebra.Expr
	lambda *syntax.Lambda
	env    *env // in which the lambda's body stands
	// part is set of an INTERVAL, of which expr is the number, and of a date part, of which
	// expr is nil.
	part     algebra.Expr
	interval bool
	// chained is set of what stands before the dot of (x).F().
	chained bool
}

// A match is a signature that fits the arguments of a call.
type match struct {
	sig    *functions.Signature
	slots  []int // which argument each of the signature's expanded arguments is; -1 for none
	params []int // which of the signature's Args it is
	bound  bindings
	cost   cost
	args   []argument // those of the call, lambdas analyzed
}

// bindings are the types that a signature's names stand for.
type bindings struct {
	names [4]string
	types [4]*types.Type
	n     int
}

func (b *bindings) get(name string) *types.Type {
	for i := range b.n {
		if b.names[i] == name {
			return b.types[i]
		}
	}
	return nil
}

func (b *bindings) set(name string, t *types.Type) {
	for i := range b.n {
		if b.names[i] == name {
			b.types[i] = t
			return
		}
	}
	if b.n < len(b.names) {
		b.names[b.n], b.types[b.n] = name, t
		b.n++
	}
}

// resolve chooses the signature of f for args. It returns the arguments in the order
// of the signature, and the type of the result. pos is that of the call. Of a
// function of SAFE., and of others, errors are the same.
func (a *analyzer) resolve(f *functions.Function, args []argument, pos syntax.Pos) (*functions.Signature, []algebra.Expr, *types.Type) {
	for _, arg := range args {
		if arg.expr != nil && isNull(arg.expr) && isUntyped(arg.expr) && strings.HasPrefix(f.Name, "$") && refusesNull(f.Name) {
			a.fail(arg.pos, "Operands of %s cannot be literal NULL", display(f))
		}
	}
	a.special(f, args, pos)
	if f.Refuse != nil {
		ts := make([]*types.Type, len(args))
		for i, arg := range args {
			if arg.expr != nil && !isUntyped(arg.expr) {
				ts[i] = arg.expr.Type()
			}
		}
		if text := f.Refuse(ts); text != "" {
			a.fail(pos, "%s", text)
		}
	}
	var best *match
	var notes []string
	for _, sig := range f.Signatures {
		m, note := a.try(sig, args)
		notes = append(notes, note)
		if m == nil {
			continue
		}
		if best == nil || m.cost.less(best.cost) {
			best = m
			if m.cost == (cost{}) {
				break
			}
		}
	}
	if best == nil {
		for i, n := range notes {
			if text, ok := strings.CutPrefix(n, checked); ok && !f.Signatures[i].Internal {
				a.fail(pos, "%s", text)
			}
		}
		a.mismatch(f, args, pos, notes)
	}
	list := a.convert(f, best, best.args)
	a.checkPart(f, list, pos)
	return best.sig, list, a.result(best, best.args)
}

// refusesNull tells whether an operator does not take NULL itself as an operand.
func refusesNull(name string) bool {
	switch name {
	case "$less", "$less_or_equal", "$greater", "$greater_or_equal", "$equal", "$not_equal", "$like", "$add", "$subtract", "$multiply", "$divide", "$unary_minus", "$not", "$bitwise_not", "$bitwise_and", "$bitwise_or", "$bitwise_xor", "$concat_op":
		return true
	}
	return false
}

// assign says which of sig's arguments each of args is, or why that cannot be.
func assign(sig *functions.Signature, args []argument) (slots, params []int, note string) {
	positional := 0
	for positional < len(args) && args[positional].name == "" {
		positional++
	}
	// In messages an INTERVAL counts as two arguments.
	leastSaid, mostSaid, foundSaid := 0, 0, positional
	for i := range args[:positional] {
		if args[i].interval {
			foundSaid++
		}
	}
	for i := range sig.Args {
		if p := &sig.Args[i]; p.Type.Interval {
			mostSaid++
			if !p.Optional {
				leastSaid++
			}
		}
	}
	first, block := -1, 0 // of the arguments that repeat
	before, after, optional := 0, 0, 0
	for i, p := range sig.Args {
		switch {
		case p.Repeated:
			if first < 0 {
				first = i
			}
			block++
		case p.NamedOnly:
		case p.Optional:
			optional++
		case first >= 0:
			after++
		default:
			before++
		}
	}
	required := before + after
	if positional < required && positional == len(args) {
		return nil, nil, countNote(required+leastSaid, required+optional+mostSaid, foundSaid)
	}
	repeats := 0
	if first >= 0 {
		rest := positional - required
		if rest > 0 {
			repeats = rest / block
			if rest%block > optional {
				return nil, nil, fmt.Sprintf("Wrong number of repeated argument occurrences. Expected a multiple of %d but got %d", block, rest)
			}
		}
	} else if positional > required+optional {
		for i := range sig.Args {
			if p := &sig.Args[i]; p.NamedOnly && i == required+optional && positional <= len(sig.Args) {
				return nil, nil, fmt.Sprintf("Positional argument at %d is invalid because argument `%s` can only be referred to by name", i+1, p.Name)
			}
		}
		return nil, nil, countNote(required+leastSaid, required+optional+mostSaid, foundSaid)
	}
	slots = make([]int, 0, len(sig.Args)+repeats*block)
	params = make([]int, 0, cap(slots))
	used, spare := 0, positional-required-repeats*block
	for i := 0; i < len(sig.Args); i++ {
		p := &sig.Args[i]
		if p.Repeated {
			for range repeats {
				for j := range block {
					slots, params = append(slots, used), append(params, i+j)
					used++
				}
			}
			i += block - 1
			continue
		}
		slot := -1
		switch {
		case p.NamedOnly:
		case p.Optional:
			if spare > 0 {
				spare--
				slot = used
				used++
			}
		case used < positional:
			slot = used
			used++
		}
		slots, params = append(slots, slot), append(params, i)
	}
	for i := positional; i < len(args); i++ {
		at := -1
		for j, p := range params {
			if strings.EqualFold(sig.Args[p].Name, args[i].name) {
				at = j
			}
		}
		if at < 0 {
			return nil, nil, fmt.Sprintf("Named argument `%s` does not exist in signature", args[i].name)
		}
		if slots[at] >= 0 {
			if slots[at] < positional {
				return nil, nil, fmt.Sprintf("Named argument `%s` is invalid because this call has another positional argument in the same position", args[i].name)
			}
			return nil, nil, fmt.Sprintf("Duplicate named argument `%s`", args[i].name)
		}
		slots[at] = i
	}
	for j, p := range params {
		if slots[j] < 0 && !sig.Args[p].Optional {
			return nil, nil, fmt.Sprintf("Required positional argument number %d is missing", j+1)
		}
	}
	return slots, params, ""
}

func countNote(least, most, found int) string {
	noun := func(n int) string {
		if n == 1 {
			return "1 argument"
		}
		return fmt.Sprintf("%d arguments", n)
	}
	if found < least {
		return fmt.Sprintf("Signature requires at least %s, found %s", noun(least), noun(found))
	}
	return fmt.Sprintf("Signature accepts at most %s, found %s", noun(most), noun(found))
}

// A contribution is what an argument says of the type of a name.
type contribution struct {
	name string
	expr algebra.Expr
}

// typed stands for some value of type t.
func typed(t *types.Type) algebra.Expr {
	return &algebra.ColumnRef{Column: algebra.Column{Type: t}}
}

// checked begins the notes of Signature.Check: the arguments fit but for what it says,
// which is all that a message has to say.
const checked = "\x00"

// try fits args to sig. If they do not fit, it returns why.
func (a *analyzer) try(sig *functions.Signature, args []argument) (*match, string) {
	if n := len(sig.Args); len(args) == 0 && n > 0 && sig.Args[n-1].Repeated && sig.Result.Any != "" && sig.ResultOf == nil {
		return nil, "Unable to determine type for function return type of kind T1"
	}
	slots, params, note := assign(sig, args)
	if note != "" {
		if len(args) > 0 && args[0].chained && strings.Contains(note, ", found ") {
			note += " (including chained function call input)"
		}
		return nil, note
	}
	m := &match{sig: sig, slots: slots, params: params, args: args}
	var room [8]contribution
	said := room[:0]
	lambdas := false
	for i, slot := range slots {
		if slot < 0 {
			continue
		}
		t := &sig.Args[params[i]].Type
		arg := &args[slot]
		if note := shape(sig, t, arg); note != "" {
			return nil, fmt.Sprintf("Argument %d: %s", slot+1, note)
		}
		if arg.lambda != nil {
			lambdas = true
			continue
		}
		if t.Type != nil {
			if _, ok := a.convertible(arg.expr, t.Type); !ok {
				return nil, fmt.Sprintf("Argument %d: Unable to coerce type %s to expected type %s", slot+1, describe(arg), t.Type)
			}
			continue
		}
		if arg.expr == nil || t.Interval {
			continue
		}
		var ok bool
		if said, ok = contribute(said, t, arg.expr); !ok {
			if t.Kind == types.Array && arg.expr.Type().Kind != types.Array {
				return nil, fmt.Sprintf("Argument %d: expected array type but found %s", slot+1, describe(arg))
			}
			return nil, fmt.Sprintf("Argument %d: Unable to coerce type %s to expected type %s", slot+1, describe(arg), templateText(sig, t))
		}
	}
	if note := a.bind(m, said); note != "" {
		return nil, note
	}
	if lambdas {
		args = slices.Clone(args)
		m.args = args
		for i, slot := range slots {
			if slot < 0 || args[slot].lambda == nil {
				continue
			}
			t := &sig.Args[params[i]].Type
			l, note := a.tryLambda(&args[slot], t, &m.bound)
			if l == nil {
				return nil, fmt.Sprintf("Argument %d: %s", slot+1, note)
			}
			var ok bool
			if said, ok = contribute(said, t.Result, l.Body); !ok {
				return nil, fmt.Sprintf("Argument %d: %s", slot+1, wrongBody(l, templateText(sig, t.Result)))
			}
			args[slot].expr = l
		}
		if note := a.bind(m, said); note != "" {
			return nil, note
		}
	}
	for i, slot := range slots {
		if slot < 0 || args[slot].expr == nil {
			continue
		}
		t, arg := &sig.Args[params[i]].Type, &args[slot]
		e := arg.expr
		if l, ok := e.(*algebra.Lambda); ok {
			t, e = t.Result, l.Body
		}
		want := types.Int64Type
		if !t.Interval {
			want = m.bound.of(t)
		}
		if want == nil { // any struct, proto or enum
			continue
		}
		c, ok := a.convertible(e, want)
		if !ok {
			if l, isLambda := arg.expr.(*algebra.Lambda); isLambda {
				return nil, fmt.Sprintf("Argument %d: %s", slot+1, wrongBody(l, want.String()))
			}
			if t.Kind == types.Array && t.Elem != nil && t.Elem.Any != "" {
				return nil, fmt.Sprintf("Unable to coerce type %s to inferred array type %s for argument <array<T1>>", describe(arg), want)
			}
			return nil, fmt.Sprintf("Argument %d: Unable to coerce type %s to expected type %s", slot+1, describe(arg), want)
		}
		m.cost.add(c)
	}
	if r := &sig.Result; r.Kind == types.Array && r.Elem != nil && r.Elem.Any != "" && sig.ResultOf == nil {
		if t := m.bound.get(r.Elem.Any); t != nil && t.Kind == types.Array {
			return nil, fmt.Sprintf("<array<%[1]s>> is inferred to be array of array, which is not supported", r.Elem.Any)
		}
	}
	if sig.Check != nil {
		if note := sig.Check(a.argTypes(m, args)); note != "" {
			return nil, checked + note
		}
	}
	return m, ""
}

// shape compares what sort of argument arg is with what t wants.
func shape(sig *functions.Signature, t *functions.Template, arg *argument) string {
	switch {
	case t.Part != (arg.part != nil && !arg.interval):
		if t.Part {
			return "Expected a date part"
		}
		return "Unable to coerce a date part to expected type " + templateText(sig, t)
	case t.Interval != arg.interval:
		return fmt.Sprintf("Unable to coerce type %s to expected type %s", describe(arg), templateText(sig, t))
	case (t.Result != nil) != (arg.lambda != nil):
		if arg.lambda != nil {
			return fmt.Sprintf("expected %s, found LAMBDA", templateText(sig, t))
		}
		return fmt.Sprintf("expected %s, found %s", templateText(sig, t), describe(arg))
	case arg.lambda != nil && len(arg.lambda.Params) != len(t.Lambda):
		return fmt.Sprintf("lambda requires %d arguments but %d is provided", len(t.Lambda), len(arg.lambda.Params))
	}
	return ""
}

// isAny tells whether t takes any type, each argument its own.
func isAny(t *functions.Template) bool {
	return t.Type == nil && t.Any == "" && t.Kind == types.Invalid && t.Result == nil && !t.Part && !t.Interval
}

// contribute adds to said what e says of the names in t. It returns false if e is not
// of the kind that t demands.
func contribute(said []contribution, t *functions.Template, e algebra.Expr) ([]contribution, bool) {
	if t.Type != nil || isAny(t) {
		return said, true
	}
	if t.Any != "" {
		return append(said, contribution{t.Any, e}), true
	}
	if isUntyped(e) {
		return said, true
	}
	typ := e.Type()
	if typ.Kind != t.Kind {
		if l, ok := e.(*algebra.Literal); ok && l.T.Kind == types.String && t.Kind == types.Enum {
			return said, false
		}
		return said, false
	}
	ok := true
	switch t.Kind {
	case types.Array:
		if t.Elem == nil {
			return said, true
		}
		switch x, isArray := e.(*algebra.MakeArray); {
		case isEmptyArray(e):
		case isArray && t.Elem.Any != "":
			// The elements' literals are converted as literals are.
			if len(x.Elems) == 0 {
				return contribute(said, t.Elem, typed(typ.Elem))
			}
			if isLiteral(x) {
				return append(said, contribution{t.Elem.Any, literalOf(x, typ.Elem)}), true
			}
			return contribute(said, t.Elem, typed(typ.Elem))
		default:
			return contribute(said, t.Elem, typed(typ.Elem))
		}
	case types.Map:
		if t.Key != nil {
			said, ok = contribute(said, t.Key, typed(typ.Key))
		}
		if ok && t.Elem != nil {
			said, ok = contribute(said, t.Elem, typed(typ.Elem))
		}
	}
	return said, ok
}

// literalOf returns a literal element of x that has its element type, or a value of
// that type.
func literalOf(x *algebra.MakeArray, t *types.Type) algebra.Expr {
	for _, e := range x.Elems {
		if !isUntyped(e) && isLiteral(e) {
			return settled(e)
		}
	}
	return typed(t)
}

// settled returns e, whose NULLs are INT64 if it is a struct.
func settled(e algebra.Expr) algebra.Expr {
	s, ok := e.(*algebra.MakeStruct)
	if !ok {
		return e
	}
	out := &algebra.MakeStruct{Fields: make([]algebra.Expr, len(s.Fields)), T: s.T}
	for i, f := range s.Fields {
		if out.Fields[i] = settled(f); isUntyped(f) {
			out.Fields[i] = &algebra.Literal{T: types.Int64Type}
		}
	}
	return out
}

// bind gives each name the supertype of what was said of it.
func (a *analyzer) bind(m *match, said []contribution) string {
	var room [8]algebra.Expr
	var seen [8]string
	done := seen[:0]
	for i, c := range said {
		if slices.Contains(done, c.name) {
			continue
		}
		done = append(done, c.name)
		list := room[:0]
		for _, b := range said[i:] {
			if b.name == c.name {
				list = append(list, b.expr)
			}
		}
		t := a.supertype(list)
		if t == nil {
			name := canonical(m.sig, c.name)
			return fmt.Sprintf("Unable to find common supertype for templated argument <%s>\n      Input types for <%s>: {%s}", name, name, typeSet(list, false))
		}
		if t == untypedNull {
			t = types.Int64Type
		}
		m.bound.set(c.name, t)
	}
	return ""
}

// of returns the type that t stands for, nil for any of its kind.
func (b *bindings) of(t *functions.Template) *types.Type {
	switch {
	case t.Type != nil:
		return t.Type
	case t.Any != "":
		if u := b.get(t.Any); u != nil {
			return u
		}
		return types.Int64Type // of nothing but NULLs and empty arrays
	case t.Part:
		return types.StringType
	}
	switch t.Kind {
	case types.Array:
		if t.Elem != nil {
			if e := b.of(t.Elem); e != nil {
				return types.ArrayOf(e)
			}
		}
	case types.Map:
		if t.Key != nil && t.Elem != nil {
			if k, e := b.of(t.Key), b.of(t.Elem); k != nil && e != nil {
				return types.MapOf(k, e)
			}
		}
	}
	return nil
}

// argTypes returns the types of the arguments after conversion.
func (a *analyzer) argTypes(m *match, args []argument) []*types.Type {
	out := make([]*types.Type, 0, len(m.slots)+1)
	for i, slot := range m.slots {
		t := &m.sig.Args[m.params[i]].Type
		switch {
		case slot < 0:
			out = append(out, nil)
			if t.Interval {
				out = append(out, nil)
			}
		case t.Interval:
			out = append(out, types.Int64Type, types.StringType)
		case t.Result != nil:
			out = append(out, args[slot].expr.Type())
		default:
			u := m.bound.of(t)
			if u == nil {
				u = args[slot].expr.Type()
			}
			out = append(out, u)
		}
	}
	return out
}

func (a *analyzer) result(m *match, args []argument) *types.Type {
	if m.sig.ResultOf != nil {
		return m.sig.ResultOf(a.argTypes(m, args))
	}
	if t := m.bound.of(&m.sig.Result); t != nil {
		return t
	}
	return types.Int64Type
}

// convert returns the arguments in m's order, converted to its types. Optional ones at
// the end that were left out are not in it.
func (a *analyzer) convert(f *functions.Function, m *match, args []argument) []algebra.Expr {
	out := make([]algebra.Expr, 0, len(m.slots)+1)
	for i, slot := range m.slots {
		if slot < 0 {
			out = append(out, nil)
			if m.sig.Args[m.params[i]].Type.Interval {
				out = append(out, nil)
			}
			continue
		}
		p, arg := &m.sig.Args[m.params[i]], &args[slot]
		switch {
		case p.Type.Interval:
			out = append(out, a.coerce(arg.expr, types.Int64Type, arg.pos), arg.part)
			continue
		case p.Type.Part:
			out = append(out, arg.part)
			continue
		case arg.lambda != nil:
			l := arg.expr.(*algebra.Lambda)
			if want := m.bound.of(p.Type.Result); want != nil {
				l = &algebra.Lambda{Params: l.Params, Body: a.coerce(l.Body, want, arg.pos)}
			}
			out = append(out, l)
			continue
		}
		if p.Const && !isConstant(arg.expr) {
			a.fail(arg.pos, "%s must be a literal or query parameter", argumentNoun(f, m, arg, slot))
		}
		if p.NotNull && isNull(uncast(arg.expr)) {
			a.fail(arg.pos, "%s must be non-NULL", argumentNoun(f, m, arg, slot))
		}
		e := arg.expr
		if want := m.bound.of(&p.Type); want != nil {
			e = a.coerce(e, want, arg.pos)
		}
		if p.Range != nil {
			a.inRange(e, p.Range, arg.pos, argumentNoun(f, m, arg, slot))
		}
		out = append(out, e)
	}
	for len(out) > 0 && out[len(out)-1] == nil {
		out = out[:len(out)-1]
	}
	return out
}

// inRange refuses a constant argument, which noun names, outside the range: [least] or
// [least, most].
func (a *analyzer) inRange(e algebra.Expr, within []int64, pos syntax.Pos, noun string) {
	l, ok := a.fold(e).(*algebra.Literal)
	if !ok || !l.Value.Valid {
		return
	}
	n := l.Value.Float + float64(l.Value.Int)
	switch {
	case len(within) == 1 && n < float64(within[0]):
		a.fail(pos, "%s must be at least %d", noun, within[0])
	case len(within) == 2 && !(n >= float64(within[0]) && n <= float64(within[1])):
		a.fail(pos, "%s must be between %d and %d", noun, within[0], within[1])
	}
}

// tryLambda analyzes a lambda. If it cannot be, it returns why.
func (a *analyzer) tryLambda(arg *argument, t *functions.Template, bound *bindings) (l *algebra.Lambda, note string) {
	depth := a.depth
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		b, ok := r.(bailout)
		if !ok || !errors.Is(b.err, fault.Invalid) {
			panic(r)
		}
		a.depth = depth
		text := b.err.Error()
		if i := strings.LastIndex(text, " [at "); i >= 0 {
			text = text[:i]
		}
		l, note = nil, "failed to resolve lambda body, error: "+strings.ReplaceAll(text, "\n", "\n    ")
	}()
	if l = a.lambda(arg, t, bound); l == nil {
		note = "failed to infer the types of the lambda's arguments"
	}
	return l, note
}

// wrongBody says that a lambda returns something else than want.
func wrongBody(l *algebra.Lambda, want string) string {
	return fmt.Sprintf("failed to resolve lambda body, error: Lambda should return type %s, but returns %s", want, l.Body.Type())
}

// uncast returns e without the casts around it.
func uncast(e algebra.Expr) algebra.Expr {
	for {
		c, ok := e.(*algebra.Cast)
		if !ok {
			return e
		}
		e = c.X
	}
}

// argumentNoun returns what messages call an argument.
func argumentNoun(f *functions.Function, m *match, arg *argument, slot int) string {
	switch {
	case arg.name != "":
		return fmt.Sprintf("Argument '%s' to %s", arg.name, display(f))
	case len(m.slots) == 1:
		return "The argument to " + display(f)
	}
	return fmt.Sprintf("Argument %d to %s", slot+1, display(f))
}

// isConstant tells whether e is a literal or a parameter, also with a conversion
// around it.
func isConstant(e algebra.Expr) bool {
	switch e := e.(type) {
	case *algebra.Literal, *algebra.Param:
		return true
	case *algebra.Cast:
		return isConstant(e.X)
	case *algebra.MakeArray:
		for _, x := range e.Elems {
			if !isConstant(x) {
				return false
			}
		}
		return true
	case *algebra.MakeStruct:
		for _, x := range e.Fields {
			if !isConstant(x) {
				return false
			}
		}
		return true
	}
	return false
}
