package functions

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/query/types"
)

// formatMessage is CAST(PROTO AS STRING): protobuf's text format, in one line.
func formatMessage(c *Call, t *types.Type, s string) (types.Value, error) {
	out, err := appendProtoText(nil, t.Message, s, 0)
	if err == nil {
		err = grow(c, len(out))
	}
	if err != nil {
		return types.Null, err
	}
	return types.NewString(string(out)), nil
}

// A wireField is one field of an encoded message.
type wireField struct {
	number protowire.Number
	wire   protowire.Type
	value  string // with its length, of bytes, and with the tag that ends it, of a group
	field  *types.ProtoField
}

// wireFields returns the fields of s: those that m knows first, by number, each kind in
// their order.
func wireFields(m *types.Message, s string) ([]wireField, bool) {
	var list []wireField
	for s != "" {
		number, wire, n := protoTag(s)
		if n <= 0 {
			return nil, false
		}
		size := protoSize(number, wire, s[n:], 0)
		if size < 0 {
			return nil, false
		}
		f := wireField{number: number, wire: wire, value: s[n : n+size]}
		for i := range m.Fields {
			if m.Fields[i].Number == int32(number) && m.Fields[i].Type != nil {
				f.field = &m.Fields[i]
			}
		}
		list = append(list, f)
		s = s[n+size:]
	}
	slices.SortStableFunc(list, func(a, b wireField) int {
		if (a.field == nil) != (b.field == nil) {
			if a.field == nil {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.number, b.number)
	})
	return list, true
}

func appendProtoText(dst []byte, m *types.Message, s string, depth int) ([]byte, error) {
	fields, ok := wireFields(m, s)
	if !ok || depth > maxProtoDepth {
		return nil, Errorf("Invalid cast to string from type %s: not an encoded message", m.Name)
	}
	start := len(dst)
	for i, f := range fields {
		if len(dst) > start {
			dst = append(dst, ' ')
		}
		if f.field == nil {
			dst = appendUnknown(dst, f)
			continue
		}
		elem := f.field.Type
		if f.field.Repeated && elem.Kind == types.Array {
			elem = elem.Elem
		}
		want := fieldWire(f.field.Wire)
		if f.field.Repeated && f.wire == protowire.BytesType && want != protowire.BytesType && want != protowire.StartGroupType {
			_, n := protoVarint(f.value)
			for packed := f.value[n:]; packed != ""; {
				size := protoSize(f.number, want, packed, 0)
				if size <= 0 {
					return nil, badProto(f.field)
				}
				var err error
				if dst, err = appendProtoField(dst, f.field, elem, want, packed[:size], depth); err != nil {
					return nil, err
				}
				if packed = packed[size:]; packed != "" {
					dst = append(dst, ' ')
				}
			}
			continue
		}
		if f.wire != want {
			dst = appendUnknown(dst, f)
			continue
		}
		if !f.field.Repeated && elem.Kind != types.Proto && i+1 < len(fields) && fields[i+1].field == f.field {
			// The last one counts.
			if len(dst) > start {
				dst = dst[:len(dst)-1]
			}
			continue
		}
		var err error
		if dst, err = appendProtoField(dst, f.field, elem, f.wire, f.value, depth); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// appendUnknown writes a field that the schema does not have.
func appendUnknown(dst []byte, f wireField) []byte {
	dst = strconv.AppendInt(dst, int64(f.number), 10)
	switch f.wire {
	case protowire.BytesType:
		_, n := protoVarint(f.value)
		return append(append(append(dst, `: "`...), escapeC(f.value[n:])...), '"')
	case protowire.Fixed32Type:
		u, _ := protowire.ConsumeFixed32([]byte(f.value))
		return append(append(dst, ": 0x"...), appendHex(uint64(u), 8)...)
	case protowire.Fixed64Type:
		u, _ := protowire.ConsumeFixed64([]byte(f.value))
		return append(append(dst, ": 0x"...), appendHex(u, 16)...)
	case protowire.StartGroupType:
		return append(dst, " { }"...)
	}
	u, _ := protoVarint(f.value)
	return strconv.AppendUint(append(dst, ": "...), u, 10)
}

func appendHex(u uint64, digits int) string {
	s := strconv.FormatUint(u, 16)
	return strings.Repeat("0", digits-len(s)) + s
}

func appendProtoField(dst []byte, f *types.ProtoField, elem *types.Type, wire protowire.Type, value string, depth int) ([]byte, error) {
	v, ok, err := protoValue(f, elem, wire, value)
	if err != nil {
		return nil, err
	}
	if !ok {
		return appendUnknown(dst, wireField{number: protowire.Number(f.Number), wire: wire, value: value}), nil
	}
	if elem.Kind == types.Proto {
		dst = append(dst, textName(f, elem)...)
		dst = append(dst, " { "...)
		at := len(dst)
		if dst, err = appendProtoText(dst, elem.Message, v.Str, depth+1); err != nil {
			return nil, err
		}
		if len(dst) > at {
			dst = append(dst, ' ')
		}
		return append(dst, '}'), nil
	}
	dst = append(append(dst, f.Name...), ": "...)
	switch elem.Kind {
	case types.String:
		return appendProtoString(dst, v.Str), nil
	case types.Bytes:
		return append(append(append(dst, '"'), escapeC(v.Str)...), '"'), nil
	case types.Float32:
		return appendFloat(dst, v.Float, 32), nil
	case types.Float64:
		return appendFloat(dst, v.Float, 64), nil
	}
	return appendText(dst, elem, v), nil
}

// textName is what the text format calls a field: a group by the name of its type.
func textName(f *types.ProtoField, elem *types.Type) string {
	if f.Wire != types.WireGroup {
		return f.Name
	}
	return elem.Message.Name[strings.LastIndexByte(elem.Message.Name, '.')+1:]
}

// appendProtoString appends text as a literal of C that keeps what is not ASCII.
func appendProtoString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for s != "" {
		n := 0
		for n < len(s) && s[n] >= utf8.RuneSelf {
			n++
		}
		dst, s = append(dst, s[:n]...), s[n:]
		n = 0
		for n < len(s) && s[n] < utf8.RuneSelf {
			n++
		}
		dst, s = append(dst, escapeC(s[:n])...), s[n:]
	}
	return append(dst, '"')
}

// parseMessage is CAST(STRING AS PROTO): it reads protobuf's text format.
func parseMessage(c *Call, t *types.Type, s string) (types.Value, error) {
	if err := grow(c, len(s)); err != nil {
		return types.Null, err
	}
	p := textParser{all: s, rest: s}
	out := p.message(t.Message, "", 0)
	if p.err != nil {
		return types.Null, p.err
	}
	return types.NewString(string(out)), nil
}

// A textParser reads protobuf's text format.
type textParser struct {
	all, rest string
	err       error
}

func (p *textParser) fail(format string, args ...any) {
	if p.err != nil {
		return
	}
	done := p.all[:len(p.all)-len(p.rest)]
	line, column := 1+strings.Count(done, "\n"), len(done)-strings.LastIndexByte(done, '\n')
	p.err = Errorf("Error parsing proto: "+format+" [%d:%d]", append(args, line, column)...)
	p.rest = ""
}

// skip passes over spaces and comments.
func (p *textParser) skip() {
	for {
		p.rest = strings.TrimLeft(p.rest, spaces)
		if !strings.HasPrefix(p.rest, "#") {
			return
		}
		_, p.rest, _ = strings.Cut(p.rest, "\n")
	}
}

// take passes over token if it is next.
func (p *textParser) take(token string) bool {
	p.skip()
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = rest
	}
	return ok
}

// word returns the letters, digits and points that are next.
func (p *textParser) word() string {
	p.skip()
	n := 0
	for n < len(p.rest) {
		ch := p.rest[n]
		if ch != '_' && ch != '.' && (ch|0x20 < 'a' || ch|0x20 > 'z') && (ch < '0' || ch > '9') &&
			!((ch == '-' || ch == '+') && (n == 0 || p.rest[n-1]|0x20 == 'e')) {
			break
		}
		n++
	}
	w := p.rest[:n]
	p.rest = p.rest[n:]
	return w
}

// message reads fields up to end, and returns them encoded, by number.
func (p *textParser) message(m *types.Message, end string, depth int) []byte {
	if depth > maxProtoDepth {
		p.fail("Message is too deep")
		return nil
	}
	type chunk struct {
		number int32
		data   []byte
	}
	var chunks []chunk
	seen := map[int32]bool{}
	for p.err == nil {
		p.skip()
		if end != "" && p.take(end) {
			break
		}
		if p.rest == "" {
			if end != "" {
				p.fail("Expected \"%s\".", end)
			}
			break
		}
		name := p.word()
		if name == "" {
			p.fail("Expected identifier, got: %s", p.rest[:nextChar(p.rest, false)])
			break
		}
		f, elem := findTextField(m, name)
		if f == nil {
			p.fail("Message type \"%s\" has no field named \"%s\".", m.Name, name)
			break
		}
		if !f.Repeated && seen[f.Number] {
			p.fail("Non-repeated field \"%s\" is specified multiple times.", f.Name)
			break
		}
		seen[f.Number] = true
		var data []byte
		colon := p.take(":")
		switch {
		case !colon && elem.Kind != types.Proto:
			p.fail("Expected \":\", found \"%s\".", p.rest[:min(1, len(p.rest))])
		case f.Repeated && p.take("["):
			for first := true; p.err == nil && !p.take("]"); first = false {
				if !first && !p.take(",") {
					p.fail("Expected \"]\".")
				}
				data = p.field(data, f, elem, depth)
			}
		default:
			data = p.field(data, f, elem, depth)
		}
		chunks = append(chunks, chunk{f.Number, data})
		if !p.take(",") {
			p.take(";")
		}
	}
	slices.SortStableFunc(chunks, func(a, b chunk) int { return cmp.Compare(a.number, b.number) })
	var out []byte
	for _, ch := range chunks {
		out = append(out, ch.data...)
	}
	return out
}

// findTextField returns the field that the text format calls name, and the type of its
// elements.
func findTextField(m *types.Message, name string) (*types.ProtoField, *types.Type) {
	for i := range m.Fields {
		f := &m.Fields[i]
		elem := f.Type
		if elem == nil {
			continue
		}
		if f.Repeated && elem.Kind == types.Array {
			elem = elem.Elem
		}
		if f.Name == name || f.Wire == types.WireGroup && textName(f, elem) == name {
			return f, elem
		}
	}
	return nil, nil
}

// field reads one value and appends it with its tag.
func (p *textParser) field(dst []byte, f *types.ProtoField, elem *types.Type, depth int) []byte {
	number := protowire.Number(f.Number)
	if elem.Kind == types.Proto {
		end := "}"
		if !p.take("{") {
			if end = ">"; !p.take("<") {
				p.fail("Expected \"{\".")
				return dst
			}
		}
		body := p.message(elem.Message, end, depth+1)
		if f.Wire == types.WireGroup {
			dst = append(protowire.AppendTag(dst, number, protowire.StartGroupType), body...)
			return protowire.AppendTag(dst, number, protowire.EndGroupType)
		}
		return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), body)
	}
	dst = protowire.AppendTag(dst, number, fieldWire(f.Wire))
	if f.Wire == types.WireBytes {
		s, ok := p.quoted()
		switch {
		case !ok:
			p.fail("Expected string.")
		case elem.Kind == types.String && !utf8.ValidString(s):
			p.fail("String field \"%s\" contains invalid UTF-8.", f.Name)
		}
		return protowire.AppendString(dst, s)
	}
	word := p.word()
	if f.Wire == types.WireFloat || f.Wire == types.WireDouble {
		v, err := parseFloat(strings.TrimSuffix(word, "f"), 64)
		if err != nil {
			if v, err = parseFloat(word, 64); err != nil {
				p.fail("Expected double, got: %s", word)
			}
		}
		if f.Wire == types.WireFloat {
			return protowire.AppendFixed32(dst, math.Float32bits(float32(v.Float)))
		}
		return protowire.AppendFixed64(dst, math.Float64bits(v.Float))
	}
	n, ok := textInteger(f, elem, word)
	if !ok {
		p.fail("Invalid value for field \"%s\": %s", f.Name, word)
	}
	switch f.Wire {
	case types.WireZigZag:
		return protowire.AppendVarint(dst, protowire.EncodeZigZag(n))
	case types.WireFixed32, types.WireUnsignedFixed32:
		return protowire.AppendFixed32(dst, uint32(n))
	case types.WireFixed64:
		return protowire.AppendFixed64(dst, uint64(n))
	}
	return protowire.AppendVarint(dst, uint64(n))
}

// textInteger reads a BOOL, a name of an ENUM, or an integer: decimal, 0x or octal.
func textInteger(f *types.ProtoField, elem *types.Type, word string) (int64, bool) {
	switch elem.Kind {
	case types.Bool:
		switch word {
		case "true", "True", "t", "1":
			return 1, true
		case "false", "False", "f", "0":
			return 0, true
		}
		return 0, false
	case types.Enum:
		for _, v := range elem.Enumeration.Values {
			if v.Name == word {
				return int64(v.Number), true
			}
		}
		n, err := strconv.ParseInt(word, 10, 32)
		return n, err == nil && (elem.Enumeration.Open ||
			slices.ContainsFunc(elem.Enumeration.Values, func(v types.EnumValue) bool { return int64(v.Number) == n }))
	}
	if strings.Contains(word, "_") {
		return 0, false
	}
	bits := 64
	if f.Wire == types.WireFixed32 {
		bits = 32
	}
	n, err := strconv.ParseInt(word, 0, bits)
	return n, err == nil && (f.Wire != types.WireUnsigned32 && f.Wire != types.WireUnsignedFixed32 || n == int64(uint32(n)))
}

// quoted reads string literals, which are joined.
func (p *textParser) quoted() (string, bool) {
	var out []byte
	found := false
	for {
		p.skip()
		if p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\'' {
			return string(out), found
		}
		quote := p.rest[0]
		s := p.rest[1:]
		for {
			if s == "" || s[0] == '\n' {
				return "", false
			}
			if s[0] == quote {
				break
			}
			var n int
			if out, n = appendUnescaped(out, s); n == 0 {
				return "", false
			}
			s = s[n:]
		}
		p.rest, found = s[1:], true
	}
}

// appendUnescaped appends the character at the beginning of s, which may be an escape
// sequence of C, and returns how long it was: 0 for a wrong sequence.
func appendUnescaped(out []byte, s string) ([]byte, int) {
	if s[0] != '\\' {
		return append(out, s[0]), 1
	}
	if len(s) < 2 {
		return out, 0
	}
	switch ch := s[1]; ch {
	case 'n':
		return append(out, '\n'), 2
	case 'r':
		return append(out, '\r'), 2
	case 't':
		return append(out, '\t'), 2
	case 'a':
		return append(out, '\a'), 2
	case 'b':
		return append(out, '\b'), 2
	case 'f':
		return append(out, '\f'), 2
	case 'v':
		return append(out, '\v'), 2
	case '\\', '\'', '"', '?':
		return append(out, ch), 2
	case 'x', 'X':
		n := 2
		for n < len(s) && n < 4 && isHexDigit(s[n]) {
			n++
		}
		u, err := strconv.ParseUint(s[2:n], 16, 8)
		if err != nil {
			return out, 0
		}
		return append(out, byte(u)), n
	case 'u', 'U':
		n := 6
		if ch == 'U' {
			n = 10
		}
		if len(s) < n {
			return out, 0
		}
		u, err := strconv.ParseUint(s[2:n], 16, 32)
		if err != nil || !isRune(int64(u)) {
			return out, 0
		}
		return utf8.AppendRune(out, rune(u)), n
	}
	n := 1
	for n < len(s) && n < 4 && s[n] >= '0' && s[n] <= '7' {
		n++
	}
	u, err := strconv.ParseUint(s[1:n], 8, 8)
	if err != nil {
		return out, 0
	}
	return append(out, byte(u)), n
}
