package sql

import (
	"fmt"
	"strings"
)

// A Result is what a case expects.
type Result struct {
	// Code and Message are of an error, in the words of google.rpc.Code in lower case.
	// Message may end in " [at line:column]".
	Code, Message string
	// Type is what stands before the values, such as ARRAY<STRUCT<a INT64>>.
	Type *Type
	// Rows is an array of the rows.
	Rows *Value
}

// A Type is a type in GoogleSQL's notation. Of an ARRAY within a row it does not have
// the element.
type Type struct {
	Name   string // ARRAY, STRUCT, INT64, PROTO, …
	Fields []Field
	Elem   *Type
}

// A Field is one field of a STRUCT.
type Field struct {
	Name string // "" if it has none
	Type *Type
}

// A Value is a value in GoogleSQL's notation.
type Value struct {
	// Kind is "array", "struct", "map", "string", "bytes", "null" or "word": all else, as it was
	// written.
	Kind string
	Text string   // of a string, BYTES or a word
	List []*Value // of a map: key, value, key, value
	// Unordered is set of an array whose order means nothing.
	Unordered bool
}

// Notation reads the expected result of a case.
func Notation(text string) (*Result, error) {
	if rest, ok := strings.CutPrefix(text, "ERROR: "); ok {
		code, message, ok := strings.Cut(strings.TrimPrefix(rest, "generic::"), ": ")
		if !ok {
			return nil, fmt.Errorf("no code in %q", text)
		}
		// Behind the place come the line of the statement and a caret under the place.
		if i := strings.Index(message, " [at "); i >= 0 {
			if n := strings.IndexByte(message[i:], ']'); n >= 0 {
				message = message[:i+n+1]
			}
		}
		return &Result{Code: code, Message: message}, nil
	}
	p := &reader{text: text}
	r := &Result{Type: p.typeName()}
	r.Rows = p.array()
	p.space()
	if rest := p.text[p.i:]; p.err == nil && rest != "" && !strings.HasPrefix(rest, "NOTE:") && rest[0] != '#' {
		p.fail("the end")
	}
	return r, p.err
}

// A reader reads the notation. Once err is set, it reads nothing.
type reader struct {
	text string
	i    int
	err  error
}

func (p *reader) fail(want string) {
	if p.err == nil {
		rest := p.text[p.i:]
		p.err = fmt.Errorf("offset %d: want %s at %q", p.i, want, rest[:min(len(rest), 40)])
	}
}

func (p *reader) space() {
	for p.i < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.i]) >= 0 {
		p.i++
	}
}

// accept skips spaces, and s if it follows.
func (p *reader) accept(s string) bool {
	p.space()
	if p.err != nil || !strings.HasPrefix(p.text[p.i:], s) {
		return false
	}
	p.i += len(s)
	return true
}

func (p *reader) expect(s string) {
	if !p.accept(s) {
		p.fail(s)
	}
}

// word reads up to one of stop.
func (p *reader) word(stop string) string {
	p.space()
	n := strings.IndexAny(p.text[p.i:], stop)
	if n < 0 {
		n = len(p.text) - p.i
	}
	w := strings.TrimSpace(p.text[p.i : p.i+n])
	p.i += n
	return w
}

// typeName reads a type.
func (p *reader) typeName() *Type {
	if p.err != nil {
		return nil
	}
	t := &Type{Name: p.word("<>,[ \n\t(")}
	if t.Name == "" {
		p.fail("a type")
		return nil
	}
	if !p.accept("<") {
		return t
	}
	switch t.Name {
	case "STRUCT":
		for !p.accept(">") {
			if p.err != nil {
				return nil
			}
			t.Fields = append(t.Fields, p.field())
			p.accept(",")
		}
	case "ARRAY":
		if p.accept(">") {
			break
		}
		t.Elem = p.typeName()
		p.expect(">")
	default: // PROTO<name>, ENUM<name>, RANGE<…>
		p.word(">")
		p.expect(">")
	}
	return t
}

// field reads [name] type.
func (p *reader) field() Field {
	p.space()
	if strings.HasPrefix(p.text[p.i:], "`") {
		p.i++
		name := p.word("`")
		p.expect("`")
		return Field{Name: name, Type: p.typeName()}
	}
	// A name is followed by a type, a type by what ends or opens one.
	start := p.i
	name := p.word("<>, \n\t")
	p.space()
	if p.i < len(p.text) && strings.IndexByte("<>,", p.text[p.i]) < 0 {
		return Field{Name: name, Type: p.typeName()}
	}
	p.i = start
	return Field{Type: p.typeName()}
}

// array reads [known order: a, b] or (NULL).
func (p *reader) array() *Value {
	v := &Value{Kind: "array"}
	if p.accept("(NULL)") {
		v.Kind = "null"
		return v
	}
	p.expect("[")
	if p.accept("unknown order:") {
		v.Unordered = true
	} else {
		p.accept("known order:")
	}
	for p.err == nil && !p.accept("]") {
		v.List = append(v.List, p.value())
		if !p.accept(",") {
			p.expect("]")
			break
		}
	}
	return v
}

func (p *reader) value() *Value {
	p.space()
	rest := p.text[p.i:]
	switch {
	case p.accept("{"):
		v := &Value{Kind: "struct"}
		for p.err == nil && !p.accept("}") {
			v.List = append(v.List, p.value())
			if p.accept(":") {
				v.Kind = "map"
				v.List = append(v.List, p.value())
			}
			if !p.accept(",") {
				p.expect("}")
				break
			}
		}
		return v
	case strings.HasPrefix(rest, "ARRAY<"):
		p.typeName()
		return p.array()
	case strings.HasPrefix(rest, "b\""), strings.HasPrefix(rest, "b'"):
		p.i++
		return &Value{Kind: "bytes", Text: p.quoted()}
	case strings.HasPrefix(rest, "\""), strings.HasPrefix(rest, "'"):
		return &Value{Kind: "string", Text: p.quoted()}
	}
	v := &Value{Kind: "word", Text: p.word(",]}")}
	switch {
	case v.Text == "NULL":
		v.Kind, v.Text = "null", ""
	case v.Text == "" || strings.ContainsAny(v.Text, "{[<\n"):
		p.fail("a value")
	}
	return v
}

// quoted reads a string with C's escapes.
func (p *reader) quoted() string {
	q := p.text[p.i]
	var b strings.Builder
	for p.i++; p.i < len(p.text); p.i++ {
		c := p.text[p.i]
		switch {
		case c == q:
			p.i++
			return b.String()
		case c == '\\' && p.i+1 < len(p.text):
			p.i++
			p.escape(&b)
		default:
			b.WriteByte(c)
		}
	}
	p.fail("the end of a string")
	return ""
}

func (p *reader) escape(b *strings.Builder) {
	number := func(digits, base int) {
		var v int
		if p.i+digits > len(p.text) {
			p.fail("digits")
			return
		}
		if _, err := fmt.Sscanf(p.text[p.i:p.i+digits], map[int]string{8: "%o", 16: "%x"}[base], &v); err != nil {
			p.fail("digits")
		}
		b.WriteByte(byte(v))
		p.i += digits - 1
	}
	switch c := p.text[p.i]; c {
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case 'x':
		p.i++
		number(2, 16)
	case '0', '1', '2', '3':
		number(3, 8)
	default:
		b.WriteByte(c)
	}
}

// String writes v for messages.
func (v *Value) String() string {
	var parts []string
	for _, e := range v.List {
		parts = append(parts, e.String())
	}
	list := strings.Join(parts, " ")
	switch v.Kind {
	case "array":
		if v.Unordered {
			return "[?" + list + "]"
		}
		return "[" + list + "]"
	case "struct", "map":
		return "{" + list + "}"
	case "null":
		return "NULL"
	case "word":
		return v.Text
	}
	return fmt.Sprintf("%s%q", v.Kind[:1], v.Text)
}

// String writes t for messages.
func (t *Type) String() string {
	s := t.Name
	var parts []string
	for _, f := range t.Fields {
		parts = append(parts, strings.TrimSpace(f.Name+" "+f.Type.String()))
	}
	if t.Elem != nil {
		parts = append(parts, t.Elem.String())
	}
	if len(parts) > 0 {
		s += "<" + strings.Join(parts, ", ") + ">"
	}
	return s
}
