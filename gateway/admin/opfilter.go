package admin

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
)

// A filter is a predicate on the resources of a listing.
type filter func(protoreflect.Message) bool

// filterFields say what a filter may speak of.
type filterFields struct {
	// roots are the fields with which paths begin.
	roots []string
	// names are those that hold resource names, which a filter may also give by
	// their last part. With any, ":" and a quoted value asks for the exact text.
	names []string
}

var operationFields = filterFields{roots: []string{"name", "done", "error", "response", "metadata"}}

const (
	// maxFilterDepth bounds the nesting of parentheses and NOTs.
	maxFilterDepth = 50
	// maxListingText bounds a filter or an order_by, in bytes. What is made of either
	// takes twenty times the memory, and a stack as deep as the filter has terms.
	maxListingText = 16 << 10
)

// checkListingText refuses a filter or an order_by that is longer than callers write.
func checkListingText(field, s string) error {
	if len(s) > maxListingText {
		return refuse(fault.Invalid, field, "Error in field '%s' : Must be at most %d bytes long, but is %d", field, maxListingText, len(s))
	}
	return nil
}

// parseFilter reads the filter of a listing, the common subset of AIP-160:
//
//	expression  = sequence { "AND" sequence }
//	sequence    = factor { factor }                 all of them
//	factor      = term { "OR" term }
//	term        = [ "NOT" | "-" ] ( "(" expression ")" | restriction )
//	restriction = path ( "=" | "!=" | "<" | "<=" | ">" | ">=" | ":" ) value
//
// ":" asks whether a text contains the value; ":*" whether the field is set.
// Words compare without case.
func parseFilter(s string, fields filterFields) (filter, error) {
	if err := checkListingText("filter", s); err != nil {
		return nil, err
	}
	p := &filterParser{in: s, fields: fields}
	if p.next(); p.tok == "" && p.err == "" {
		return func(protoreflect.Message) bool { return true }, nil
	}
	f := p.expression(0)
	if p.err == "" && p.tok != "" {
		p.fail("unexpected '" + p.tok + "'")
	}
	if p.err != "" {
		return nil, refuse(fault.Invalid, "filter", "Error in field 'filter' : %s", p.err)
	}
	return f, nil
}

type filterParser struct {
	fields filterFields
	in     string
	tok    string // "" at the end
	quoted bool   // tok was a quoted string
	err    string
}

func (p *filterParser) fail(msg string) {
	if p.err == "" {
		p.err = msg
	}
	p.in, p.tok = "", ""
}

// next reads a token: a parenthesis, an operator, a quoted string, or a word.
func (p *filterParser) next() {
	p.in = strings.TrimLeftFunc(p.in, unicode.IsSpace)
	p.quoted = false
	if p.in == "" {
		p.tok = ""
		return
	}
	n := 1
	switch c := p.in[0]; {
	case c == '"' || c == '\'':
		var b strings.Builder
		for ; n < len(p.in) && p.in[n] != c; n++ {
			if p.in[n] == '\\' && n+1 < len(p.in) {
				n++
			}
			b.WriteByte(p.in[n])
		}
		if n >= len(p.in) {
			p.fail("unterminated string")
			return
		}
		p.tok, p.quoted, p.in = b.String(), true, p.in[n+1:]
		return
	case strings.IndexByte("()=:", c) >= 0:
	case strings.IndexByte("<>!", c) >= 0:
		if len(p.in) > 1 && p.in[1] == '=' {
			n = 2
		}
	default:
		n = strings.IndexFunc(p.in, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("()=:<>!\"'", r) })
		if n < 0 {
			n = len(p.in)
		}
		if n == 0 { // not reached: the cases above took what ends a word
			_, n = utf8.DecodeRuneInString(p.in)
		}
	}
	p.tok, p.in = p.in[:n], p.in[n:]
}

func (p *filterParser) word(w string) bool { return !p.quoted && strings.EqualFold(p.tok, w) }

func (p *filterParser) expression(depth int) filter {
	f := p.sequence(depth)
	for p.word("AND") {
		p.next()
		f = both(f, p.sequence(depth))
	}
	return f
}

func (p *filterParser) sequence(depth int) filter {
	f := p.factor(depth)
	for p.err == "" && (p.tok != "" || p.quoted) && !p.word("AND") && !p.word("OR") && !p.word(")") {
		f = both(f, p.factor(depth))
	}
	return f
}

func (p *filterParser) factor(depth int) filter {
	f := p.term(depth)
	for p.word("OR") {
		p.next()
		g, h := f, p.term(depth)
		f = func(m protoreflect.Message) bool { return g(m) || h(m) }
	}
	return f
}

func both(f, g filter) filter {
	return func(m protoreflect.Message) bool { return f(m) && g(m) }
}

func (p *filterParser) term(depth int) filter {
	never := func(protoreflect.Message) bool { return false }
	if depth > maxFilterDepth {
		p.fail("nested too deeply")
		return never
	}
	switch {
	case p.word("NOT"), !p.quoted && strings.HasPrefix(p.tok, "-"):
		if p.tok[0] == '-' && len(p.tok) > 1 {
			p.tok = p.tok[1:]
		} else {
			p.next()
		}
		f := p.term(depth + 1)
		return func(m protoreflect.Message) bool { return !f(m) }
	case p.word("("):
		p.next()
		f := p.expression(depth + 1)
		if !p.word(")") {
			p.fail("missing ')'")
			return never
		}
		p.next()
		return f
	}
	return p.restriction(never)
}

func (p *filterParser) restriction(never filter) filter {
	path := strings.Split(p.tok, ".")
	if p.quoted || !isOneOf(path[0], p.fields.roots...) {
		p.fail("unknown field '" + p.tok + "'")
		return never
	}
	p.next()
	op := p.tok
	if p.quoted || !isOneOf(op, "=", "!=", "<", "<=", ">", ">=", ":") {
		p.fail("expected an operator but found '" + p.tok + "'")
		return never
	}
	p.next()
	if p.tok == "" && !p.quoted || !p.quoted && isOneOf(p.tok, "(", ")", "=", "!=", "<", "<=", ">", ">=", ":", "!") {
		p.fail("expected a value after '" + op + "'")
		return never
	}
	want, present := p.tok, op == ":" && p.word("*")
	name := len(path) == 1 && isOneOf(path[0], p.fields.names...)
	if op == ":" && p.quoted && len(p.fields.names) > 0 {
		op = "="
	}
	// An unquoted value may hold colons: type.googleapis.com/..., 2026-01-02T03:04:05Z.
	for !p.quoted && strings.HasPrefix(p.in, ":") {
		p.next()
		want += p.tok
		if p.in != "" && !unicode.IsSpace(rune(p.in[0])) && p.in[0] != ')' {
			p.next()
			want += p.tok
		}
	}
	p.next()
	return func(m protoreflect.Message) bool {
		v := lookup(m, path)
		if v == nil {
			return op == "!="
		}
		if present {
			return true
		}
		is := compare(v, op, want)
		if full, ok := v.(string); ok && name && (op == "=" || op == "!=") {
			last := compare(full[strings.LastIndexByte(full, '/')+1:], op, want)
			return op == "=" && (is || last) || op == "!=" && is && last
		}
		return is
	}
}

func isOneOf(s string, of ...string) bool {
	for _, o := range of {
		if s == o {
			return true
		}
	}
	return false
}

// lookup returns the value at path, which may lead through an Any, as a bool,
// int64, float64, string or time.Time; or struct{}{} for another that is set;
// or nil.
func lookup(m protoreflect.Message, path []string) any {
	if a, ok := m.Interface().(*anypb.Any); ok {
		if path[0] == "@type" && len(path) == 1 {
			return a.GetTypeUrl()
		}
		inner, err := a.UnmarshalNew()
		if err != nil {
			return nil
		}
		m = inner.ProtoReflect()
	}
	fds := m.Descriptor().Fields()
	fd := fds.ByName(protoreflect.Name(path[0]))
	if fd == nil {
		fd = fds.ByJSONName(path[0])
	}
	if fd == nil {
		return nil
	}
	if fd.IsList() || fd.IsMap() {
		if len(path) > 1 || !m.Has(fd) {
			return nil
		}
		return struct{}{}
	}
	v := m.Get(fd)
	if fd.Message() != nil {
		if !m.Has(fd) {
			return nil
		}
		if ts, ok := v.Message().Interface().(*timestamppb.Timestamp); ok && len(path) == 1 {
			return ts.AsTime()
		}
		if len(path) > 1 {
			return lookup(v.Message(), path[1:])
		}
		return struct{}{}
	}
	if len(path) > 1 {
		return nil
	}
	switch x := v.Interface().(type) {
	case bool, string, int64, float64:
		return x
	case int32:
		return int64(x)
	case uint32:
		return int64(x)
	case uint64:
		return int64(x)
	case float32:
		return float64(x)
	case []byte:
		return string(x)
	case protoreflect.EnumNumber:
		if e := fd.Enum().Values().ByNumber(x); e != nil {
			return string(e.Name())
		}
		return int64(x)
	}
	return nil
}

// compare tells whether v op want. A value that want cannot be read as is
// different, and neither smaller nor larger.
func compare(v any, op, want string) bool {
	var c int
	ok := true
	switch v := v.(type) {
	case bool:
		b, err := strconv.ParseBool(strings.ToLower(want))
		ok = err == nil && isOneOf(op, "=", "!=", ":")
		if v != b {
			c = 1
		}
	case int64:
		n, err := strconv.ParseInt(want, 10, 64)
		ok, c = err == nil, cmp.Compare(v, n)
	case float64:
		n, err := strconv.ParseFloat(want, 64)
		ok, c = err == nil, cmp.Compare(v, n)
	case time.Time:
		t, err := time.Parse(time.RFC3339Nano, want)
		ok, c = err == nil, v.Compare(t)
	case string:
		if op == ":" {
			return strings.Contains(strings.ToLower(v), strings.ToLower(want))
		}
		c = strings.Compare(strings.ToLower(v), strings.ToLower(want))
	default:
		ok = false
	}
	if !ok {
		return op == "!="
	}
	switch op {
	case "=", ":":
		return c == 0
	case "!=":
		return c != 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}
