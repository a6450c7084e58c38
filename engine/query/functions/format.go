package functions

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// maxFormatWidth is how long FORMAT's result and its pattern, and how wide one field, may
// be, in bytes: 1 MiB.
const maxFormatWidth = 1 << 20

// maxFloatPrecision is as many digits behind the point as any FLOAT64 has.
const maxFloatPrecision = 1074

// A formatPattern is a compiled pattern of FORMAT.
type formatPattern struct {
	text  string
	parts []formatPart
}

// A formatPart is text, and the field that follows it.
type formatPart struct {
	text string // written before the field
	verb byte   // 0 for none
	// The flags: -, +, space, #, 0 and '.
	left, plus, space, alt, zero, group bool
	// Width and precision; precision is -1 if there is none. They come from arguments if
	// the indexes are not negative.
	width, precision       int
	widthArg, precisionArg int
	arg                    int
}

func errFormatLong() error {
	return Errorf("Output string too long while evaluating FORMAT; limit %d", maxFormatWidth)
}

// compileFormat reads a pattern for arguments of the given types, which follow it.
func compileFormat(text string, args []*types.Type) (*formatPattern, error) {
	if len(text) > maxFormatWidth {
		return nil, errFormatLong()
	}
	invalid := func() (*formatPattern, error) { return nil, Errorf("Invalid FORMAT string: \"%s\"", text) }
	p := &formatPattern{text: strings.Clone(text)}
	next := 0
	// typed returns an error unless argument i is of one of the kinds.
	typed := func(i int, expected string, kinds ...types.Kind) error {
		for _, k := range kinds {
			if args[i].Kind == k {
				return nil
			}
		}
		return Errorf("Invalid type for argument %d to FORMAT; Expected %s; Got %s", i+2, expected, args[i].Kind)
	}
	for rest := p.text; rest != ""; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			p.parts = append(p.parts, formatPart{text: rest})
			break
		}
		part := formatPart{text: rest[:i], precision: -1, widthArg: -1, precisionArg: -1}
		rest = part.flags(rest[i+1:])
		flagged := part.left || part.plus || part.space || part.alt || part.zero || part.group

		// The width.
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		sized := digits > 0
		switch {
		case digits > 0:
			w, err := strconv.Atoi(rest[:digits])
			if err != nil || w > maxFormatWidth {
				return nil, Errorf("Width %s exceeds the maximum supported output width of FORMAT. Limit: %d", rest[:digits], maxFormatWidth)
			}
			part.width, rest = w, rest[digits:]
		case strings.HasPrefix(rest, "*"):
			sized = true
			if next < len(args) {
				if err := typed(next, "integer", types.Int64); err != nil {
					return nil, err
				}
				part.widthArg = next
			}
			next++
			rest = rest[1:]
		}

		// The precision: "." alone is 0.
		if strings.HasPrefix(rest, ".") {
			sized, rest = true, rest[1:]
			digits = len(rest) - len(strings.TrimLeft(rest, "0123456789"))
			switch {
			case digits > 0:
				n, err := strconv.Atoi(rest[:digits])
				if err != nil {
					n = math.MaxInt
				}
				part.precision, rest = n, rest[digits:]
			case strings.HasPrefix(rest, "*"):
				if next < len(args) {
					if err := typed(next, "integer", types.Int64); err != nil {
						return nil, err
					}
					part.precisionArg = next
				}
				next++
				rest = rest[1:]
			default:
				part.precision = 0
			}
		}
		if rest == "" || rest[0] == '\n' {
			return invalid()
		}
		verb, size := utf8.DecodeRuneInString(rest)
		rest = rest[size:]
		if verb == '%' {
			if flagged || sized {
				return invalid()
			}
			part.text += "%"
			p.parts = append(p.parts, part)
			continue
		}
		if part.precision >= 0 {
			var err error
			if part.precision, err = checkPrecision(int64(part.precision), byte(verb)); err != nil {
				return nil, err
			}
		}
		if next < len(args) {
			var err error
			switch verb {
			case 'd', 'i', 'o', 'x', 'X':
				err = typed(next, "integer", types.Int64)
			case 'u':
				err = typed(next, "UINT")
			case 'f', 'F', 'e', 'E', 'g', 'G':
				err = typed(next, "FLOAT64", types.Float64, types.Float32)
			case 's':
				err = typed(next, "STRING", types.String)
			case 'p', 'P':
				err = typed(next, "PROTO or JSON", types.Proto)
			case 't', 'T':
			default:
				err = Errorf("Invalid format specifier character \"%c\" in FORMAT string: \"%s\"", verb, text)
			}
			if err != nil {
				return nil, err
			}
		}
		part.verb, part.arg = byte(verb), next
		p.parts = append(p.parts, part)
		next++
	}
	switch {
	case next > len(args):
		return nil, Errorf("Too few arguments to FORMAT for pattern \"%s\"; Expected %d; Got %d", text, next+1, len(args)+1)
	case next < len(args):
		return nil, Errorf("Too many arguments to FORMAT for pattern \"%s\"; Expected %d; Got %d", text, next+1, len(args)+1)
	}
	return p, nil
}

// flags reads the flags at the beginning of s, and returns the rest.
func (p *formatPart) flags(s string) string {
	for i := range len(s) {
		switch s[i] {
		case '-':
			p.left = true
		case '+':
			p.plus = true
		case ' ':
			p.space = true
		case '#':
			p.alt = true
		case '0':
			p.zero = true
		case '\'':
			p.group = true
		default:
			return s[i:]
		}
	}
	return ""
}

// checkPrecision returns the precision that counts for a verb. Of %g any is as good as
// the largest that changes something.
func checkPrecision(n int64, verb byte) (int, error) {
	limit := int64(maxFormatWidth)
	switch verb {
	case 'g', 'G':
		return int(min(n, maxFloatPrecision)), nil
	case 'e', 'E', 'f', 'F':
		limit = maxFloatPrecision
	}
	if n > limit {
		return 0, Errorf("Precision value is too big%d", limit)
	}
	return int(n), nil
}

// checkFormat says what is wrong with a pattern of FORMAT, or "".
func checkFormat(text string, args []*types.Type) string {
	if _, err := compileFormat(text, args); err != nil {
		return err.Error()
	}
	return ""
}

func evalFormat(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	p, ok := c.State.(*formatPattern)
	if !ok || p.text != args[0].Str {
		var err error
		if p, err = compileFormat(args[0].Str, c.Types[1:]); err != nil {
			return types.Null, err
		}
		c.State = p
	}
	var out []byte
	for i := range p.parts {
		part := &p.parts[i]
		out = append(out, part.text...)
		if part.verb != 0 {
			var null bool
			var err error
			if out, null, err = part.append(out, c.Types[1:], args[1:]); err != nil || null {
				return types.Null, err
			}
		}
		if len(out) > maxFormatWidth {
			return types.Null, errFormatLong()
		}
	}
	if err := grow(c, len(out)); err != nil {
		return types.Null, err
	}
	return types.NewString(string(out)), nil
}

// append appends the field. It returns true if the whole result is NULL.
func (p *formatPart) append(out []byte, ts []*types.Type, args []types.Value) ([]byte, bool, error) {
	spec := *p
	if p.widthArg >= 0 {
		w := args[p.widthArg]
		if !w.Valid {
			return out, true, nil
		}
		if w.Int > maxFormatWidth || w.Int < -maxFormatWidth {
			return out, false, errFormatLong()
		}
		if spec.width = int(w.Int); spec.width < 0 {
			spec.width, spec.left = -spec.width, true
		}
	}
	if p.precisionArg >= 0 {
		n := args[p.precisionArg]
		if !n.Valid {
			return out, true, nil
		}
		var err error
		if spec.precision, err = checkPrecision(max(n.Int, -1), p.verb); err != nil {
			return out, false, err
		}
	}
	v, t := args[p.arg], ts[p.arg]
	switch p.verb {
	case 't', 'T':
		if size := textSize(t, v); size > maxFormatWidth {
			return out, false, errFormatLong()
		}
		if p.verb == 't' {
			return spec.text1(out, string(appendText(nil, t, v))), false, nil
		}
		return spec.text1(out, string(appendLiteral(nil, t, v))), false, nil
	}
	if !v.Valid {
		return out, true, nil
	}
	switch p.verb {
	case 's':
		// As in C, text ends at a zero byte.
		s, _, _ := strings.Cut(v.Str, "\x00")
		return spec.text1(out, s), false, nil
	case 'p', 'P':
		return spec.text1(out, string(appendMessage(nil, t, v.Str))), false, nil
	case 'f', 'F', 'e', 'E', 'g', 'G':
		return spec.float(out, v.Float), false, nil
	}
	return spec.integer(out, v.Int), false, nil
}

// textSize is at least how long %t makes v, roughly: it keeps huge values from being
// written before they are found to be too long.
func textSize(t *types.Type, v types.Value) int {
	n := len(v.Str) + len(v.List)
	for i, x := range v.List {
		if n > maxFormatWidth {
			break
		}
		n += textSize(elementType(t, i), x)
	}
	return n
}

// text1 appends at most precision characters of s, padded with spaces to the width.
func (p *formatPart) text1(out []byte, s string) []byte {
	if p.precision >= 0 {
		s = substr(s, 1, int64(p.precision), false)
	}
	padding := p.width - utf8.RuneCountInString(s)
	if !p.left {
		out = pads(out, ' ', padding)
	}
	out = append(out, s...)
	if p.left {
		out = pads(out, ' ', padding)
	}
	return out
}

func pads(out []byte, c byte, n int) []byte {
	for ; n > 0; n-- {
		out = append(out, c)
	}
	return out
}

// integer appends n as %d, %i, %o, %x or %X does. Other than in C, a negative number is
// written with a sign in any base, and groups have four digits in bases 8 and 16.
func (p *formatPart) integer(out []byte, n int64) []byte {
	magnitude := uint64(n)
	if n < 0 {
		magnitude = -magnitude
	}
	base, size, separator, prefix := 10, 3, byte(','), ""
	switch p.verb {
	case 'o':
		base, size, prefix = 8, 4, "0"
	case 'x', 'X':
		base, size, separator, prefix = 16, 4, ':', "0"+string(p.verb)
	}
	var buf [24]byte
	digits := strconv.AppendUint(buf[:0], magnitude, base)
	if p.verb == 'X' {
		for i, d := range digits {
			if d >= 'a' {
				digits[i] = d - 0x20
			}
		}
	}
	if p.precision == 0 && n == 0 && base == 10 && !p.group {
		digits = digits[:0]
	}
	zeros := max(0, p.precision-len(digits))
	if zeros > 0 && base == 8 {
		prefix = ""
	}
	if !p.alt {
		prefix = ""
	}
	total := zeros + len(digits)
	separators := 0
	if p.group && total > 0 {
		separators = (total - 1) / size
	}
	sign := p.sign(n < 0)
	padding := p.width - total - separators - len(prefix) - len(sign)
	zero := p.zero && !p.left && (p.precision < 0 || base != 10 || p.group)
	if !p.left && !zero {
		out = pads(out, ' ', padding)
	}
	out = append(append(out, sign...), prefix...)
	if zero {
		out = pads(out, '0', padding)
	}
	for i := range total {
		if separators > 0 && i > 0 && (total-i)%size == 0 {
			out = append(out, separator)
		}
		if i < zeros {
			out = append(out, '0')
		} else {
			out = append(out, digits[i-zeros])
		}
	}
	if p.left {
		out = pads(out, ' ', padding)
	}
	return out
}

func (p *formatPart) sign(negative bool) string {
	switch {
	case negative:
		return "-"
	case p.plus:
		return "+"
	case p.space:
		return " "
	}
	return ""
}

// float appends f as %f, %e or %g does; %F, %E and %G in upper case.
func (p *formatPart) float(out []byte, f float64) []byte {
	sign := p.sign(math.Signbit(unsigned(f)) && !math.IsNaN(f))
	f = math.Abs(f)
	var text []byte
	switch {
	case math.IsNaN(f):
		text = []byte("nan")
	case math.IsInf(f, 0):
		text = []byte("inf")
	default:
		precision := p.precision
		if precision < 0 {
			precision = 6
		}
		text = appendPrintf(nil, f, p.verb|0x20, precision, p.alt)
	}
	if p.verb < 'a' {
		text = []byte(strings.ToUpper(string(text)))
	}
	whole := 0
	for whole < len(text) && text[whole] >= '0' && text[whole] <= '9' {
		whole++
	}
	separators := 0
	if p.group && whole > 0 {
		separators = (whole - 1) / 3
	}
	padding := p.width - len(text) - separators - len(sign)
	zero := p.zero && !p.left && whole > 0
	if !p.left && !zero {
		out = pads(out, ' ', padding)
	}
	out = append(out, sign...)
	if zero {
		out = pads(out, '0', padding)
	}
	for i, d := range text[:whole] {
		if separators > 0 && i > 0 && (whole-i)%3 == 0 {
			out = append(out, ',')
		}
		out = append(out, d)
	}
	out = append(out, text[whole:]...)
	if p.left {
		out = pads(out, ' ', padding)
	}
	return out
}

// appendPrintf appends a finite f as C's printf does with f, e or g and a precision. alt
// is the flag #: a point always, and no zero of %g left out.
func appendPrintf(dst []byte, f float64, verb byte, precision int, alt bool) []byte {
	if verb != 'g' {
		at := len(dst)
		dst = strconv.AppendFloat(dst, f, verb, precision, 64)
		if alt && precision == 0 {
			end := len(dst)
			for i := at; i < len(dst); i++ {
				if dst[i] == 'e' {
					end = i
					break
				}
			}
			dst = append(dst[:end:end], append([]byte{'.'}, dst[end:]...)...)
		}
		return dst
	}
	precision = max(precision, 1)
	scientific := strconv.AppendFloat(nil, f, 'e', precision-1, 64)
	e := strings.LastIndexByte(string(scientific), 'e')
	exponent, _ := strconv.Atoi(string(scientific[e+1:]))
	number, tail := scientific[:e:e], scientific[e:]
	if exponent >= -4 && exponent < precision {
		number, tail = strconv.AppendFloat(nil, f, 'f', precision-1-exponent, 64), nil
	}
	if strings.IndexByte(string(number), '.') >= 0 {
		if !alt {
			number = []byte(strings.TrimRight(strings.TrimRight(string(number), "0"), "."))
		}
	} else if alt {
		number = append(number, '.')
	}
	return append(append(dst, number...), tail...)
}

func init() {
	register(stringFunction("FORMAT", "Returns a pattern with its % fields replaced by the other arguments, as printf does; %t writes any value, %T as a literal.",
		&Signature{Args: []Arg{{Type: tString}, {Type: arbitrary, Repeated: true}}, Result: tString, Nulls: true, Pattern: checkFormat, Eval: evalFormat}))
}

// appendMessage appends a PROTO as text, or what is wrong with it.
func appendMessage(dst []byte, t *types.Type, s string) []byte {
	v, err := formatMessage(nil, t, s)
	if err != nil {
		return fmt.Appendf(dst, "<%v>", err)
	}
	return append(dst, v.Str...)
}
