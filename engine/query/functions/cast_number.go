package functions

import (
	"math"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// A numberFormat is a compiled format of a CAST from a number to STRING.
type numberFormat struct {
	text string
	// elements are the digits (9, 0, X, x), commas, the point (. or V) and the exponent (e
	// or E).
	elements []byte
	point    int // the index of the point, or where it would be
	zero     int // that of the first 0, or -1
	whole    int // how many digits stand before the point
	scale    int // and behind it
	sign     string
	front    bool // S stands before the digits
	currency string
	blank    bool // B: zero is blank
	fill     bool // FM: no spaces
	exponent bool
	hex      bool
	special  string // TM or RN
}

func badFormat(format string, args ...any) error {
	return Errorf("Error in format string: "+format, args...)
}

// numberElements are the elements of a format, longer ones first.
var numberElements = [...]string{"EEEE", "TM9", "TME", "TM", "MI", "PR", "RN", "FM", "$", "0", "9", "X", ".", "D", ",", "G", "S", "B", "V", "C", "L"}

// The states of the parser.
const (
	beforeDigits = iota
	inWhole
	inFraction
	inHex
	behindExponent
	behindSign
	inRoman
	inMinimal
)

func compileNumberFormat(text string) (*numberFormat, error) {
	if len(text) > maxFormatWidth {
		return nil, badFormat("Format string too long; limit %d", maxFormatWidth)
	}
	f := &numberFormat{text: strings.Clone(text), point: -1, zero: -1}
	p := numberParser{f: f}
	for at := 0; at < len(text); {
		element := ""
		for _, e := range numberElements {
			if len(text)-at >= len(e) && strings.EqualFold(text[at:at+len(e)], e) {
				element = e
				break
			}
		}
		if element == "" {
			_, size := utf8Char(text[at:])
			return nil, badFormat("Invalid format element '%s'", text[at:at+size])
		}
		if err := p.add(element, text[at] >= 'a'); err != nil {
			return nil, err
		}
		at += len(element)
	}
	return f, p.finish()
}

func utf8Char(s string) (string, int) {
	size := nextChar(s, false)
	return s[:size], size
}

// A numberParser is the state of compileNumberFormat.
type numberParser struct {
	f          *numberFormat
	state      int
	digits     int
	nine, hex  bool
	group      bool
	decimal    string // the element that is the point
	hasDecimal bool
}

func errMinimal() error {
	return badFormat("'TM', 'TM9' or 'TME' cannot be combined with other format elements")
}

// add takes the next element. lower says that it is written in lower case.
func (p *numberParser) add(e string, lower bool) error {
	f := p.f
	switch e {
	case "FM":
		if f.fill {
			return badFormat("'FM' cannot be repeated")
		}
		f.fill = true
		return nil
	case "$", "C", "L":
		if f.currency != "" {
			return badFormat("There can be at most one of '$', 'C' or 'L'")
		}
		f.currency = e
		if e == "C" && lower {
			f.currency = "c"
		}
		return nil
	case "B":
		if f.blank {
			return badFormat("There can be at most one 'B'")
		}
		f.blank = true
		return nil
	case "0":
		if f.zero < 0 {
			f.zero = len(f.elements)
		}
		p.digits++
		f.elements = append(f.elements, '0')
	case "9":
		p.digits++
		f.elements = append(f.elements, '9')
	case "X":
		p.digits++
		f.elements = append(f.elements, pick(lower, 'x', 'X'))
	case "EEEE":
		f.elements = append(f.elements, pick(lower, 'e', 'E'))
	case ".", "D":
		f.elements = append(f.elements, '.')
	case "V":
		f.elements = append(f.elements, 'V')
	case ",", "G":
		f.elements = append(f.elements, ',')
	}
	switch p.state {
	case beforeDigits:
		return p.begin(e)
	case inWhole, inFraction:
		return p.number(e)
	case inHex:
		switch e {
		case "0", "X":
			return nil
		case "S", "MI", "PR":
			return p.backSign(e)
		}
		return badFormat("'X' cannot appear together with '%s'", e)
	case behindExponent:
		switch e {
		case "S", "MI", "PR":
			return p.backSign(e)
		case ",", "G":
			return badFormat("',' or 'G' cannot appear together with 'EEEE'")
		}
		return badFormat("'%s' cannot appear after 'EEEE'", e)
	case behindSign:
		switch e {
		case "0", "9", "X", "EEEE":
			if f.sign == "S" {
				return badFormat("'S' can only appear before or after all digits and 'EEEE'")
			}
			return badFormat("'%s' can only appear after all digits and 'EEEE'", f.sign)
		}
		return badFormat("Unexpected format element '%s'", e)
	case inRoman:
		return badFormat("'RN' cannot appear together with '%s'", e)
	}
	return errMinimal()
}

func pick(first bool, a, b byte) byte {
	if first {
		return a
	}
	return b
}

// begin takes the first element that is no flag.
func (p *numberParser) begin(e string) error {
	switch e {
	case "S":
		p.f.sign, p.f.front, p.state = "S", true, inWhole
	case "MI", "PR":
		return badFormat("'%s' can only appear after all digits and 'EEEE'", e)
	case "0", "9":
		p.nine, p.state = e == "9", inWhole
	case "X":
		p.hex, p.state = true, inHex
	case "RN":
		p.f.special, p.state = e, inRoman
	case ".", "D", "V":
		p.setPoint(e)
	case "TM", "TM9", "TME":
		p.f.special, p.state = "TM", inMinimal
	default:
		return badFormat("Unexpected '%s'", e)
	}
	return nil
}

func (p *numberParser) setPoint(e string) {
	p.decimal, p.hasDecimal, p.state = e, true, inFraction
	p.f.point = len(p.f.elements) - 1
}

func (p *numberParser) backSign(e string) error {
	if p.f.sign != "" {
		return badFormat("There can be at most one of 'S', 'MI', or 'PR'")
	}
	p.f.sign, p.state = e, behindSign
	return nil
}

// number takes an element of the digits before or behind the point.
func (p *numberParser) number(e string) error {
	fraction := p.state == inFraction
	switch e {
	case "S", "MI", "PR":
		return p.backSign(e)
	case "EEEE":
		if p.group {
			return badFormat("',' or 'G' cannot appear together with 'EEEE'")
		}
		p.f.exponent, p.state = true, behindExponent
		if !fraction {
			p.f.point = len(p.f.elements) - 1
		}
	case "X":
		switch {
		case fraction:
			return badFormat("'X' cannot appear together with '%s'", p.decimal)
		case p.nine:
			return badFormat("'X' cannot appear together with '9'")
		case p.group:
			return badFormat("'X' cannot appear together with ',' or 'G'")
		}
		p.hex, p.state = true, inHex
	case "0", "9":
		if fraction {
			p.f.scale++
		} else if e == "9" {
			p.nine = true
		}
	case ",", "G":
		if fraction {
			return badFormat("',' or 'G' cannot appear after '.', 'D' or 'V'")
		}
		p.group = true
	case ".", "D", "V":
		if fraction {
			return badFormat("There can be at most one of '.', 'D', or 'V'")
		}
		p.setPoint(e)
	case "TM", "TM9", "TME":
		if !fraction {
			return errMinimal()
		}
		return badFormat("Unexpected '%s'", e)
	default:
		return badFormat("Unexpected '%s'", e)
	}
	return nil
}

// finish checks the format as a whole.
func (p *numberParser) finish() error {
	f := p.f
	currency := strings.ToUpper(f.currency)
	switch {
	case f.special == "TM" && (currency != "" || f.blank || f.fill):
		return errMinimal()
	case currency != "" && p.hex:
		return badFormat("'X' cannot appear together with '%s'", currency)
	case currency != "" && f.special == "RN":
		return badFormat("'RN' cannot appear together with '%s'", currency)
	case f.blank && p.hex:
		return badFormat("'X' cannot appear together with 'B'")
	case f.blank && f.special == "RN":
		return badFormat("'RN' cannot appear together with 'B'")
	case f.special != "":
		return nil
	case p.digits == 0:
		return badFormat("Format string must contain at least one of 'X', '0' or '9'")
	case p.hex && p.digits > 16:
		return badFormat("Max number of 'X' is 16")
	}
	if f.hex = p.hex; f.hex {
		// A 0 has the case of the next X.
		x := byte('X')
		for i := len(f.elements) - 1; i >= 0; i-- {
			if f.elements[i] == '0' {
				f.elements[i] = x
			} else {
				x = f.elements[i]
			}
		}
		return nil
	}
	f.whole = p.digits - f.scale
	if f.point < 0 {
		f.point = len(f.elements)
	}
	if f.exponent && f.point > 1 {
		// Scientific notation has one digit before the point.
		f.elements = f.elements[f.point-1:]
		f.point = 1
	}
	return nil
}

// formatNumber is CAST(number AS STRING FORMAT format).
func formatNumber(c *Call, t *types.Type, v types.Value, format string) (types.Value, error) {
	var f *numberFormat
	if c != nil {
		f, _ = c.State.(*numberFormat)
	}
	if f == nil || f.text != format {
		var err error
		if f, err = compileNumberFormat(format); err != nil {
			return types.Null, err
		}
		if c != nil {
			c.State = f
		}
	}
	switch f.special {
	case "TM":
		return types.Null, Errorf("Text minimal output is not supported yet")
	case "RN":
		return types.Null, Errorf("Roman numeral is not supported yet")
	}
	if err := grow(c, len(f.elements)); err != nil {
		return types.Null, err
	}
	if f.hex {
		return types.NewString(f.hexadecimal(t, v)), nil
	}
	var n decimalText
	if t.Kind == types.Int64 {
		n = decimalOfInt(v.Int, f.scale, f.exponent)
	} else {
		if f.scale > maxFloatPrecision {
			return types.Null, Errorf("Precision value is too big%d", maxFloatPrecision)
		}
		n = decimalOfFloat(v.Float, f.scale, f.exponent)
	}
	return types.NewString(f.decimal(n)), nil
}

// A decimalText is a number in digits.
type decimalText struct {
	negative        bool
	whole, fraction string // whole is empty for 0
	exponent        string // sign and digits
	special         string // INF or NAN
}

func decimalOfFloat(f float64, scale int, exponent bool) decimalText {
	n := decimalText{negative: math.Signbit(unsigned(f))}
	switch {
	case math.IsNaN(f):
		return decimalText{special: "NAN"}
	case math.IsInf(f, 0):
		n.special = "INF"
		return n
	}
	verb := byte('f')
	if exponent {
		verb = 'e'
	}
	text := strconv.FormatFloat(math.Abs(f), verb, scale, 64)
	text, n.exponent, _ = strings.Cut(text, "e")
	n.whole, n.fraction, _ = strings.Cut(text, ".")
	if n.whole == "0" {
		n.whole = ""
	}
	return n
}

// decimalOfInt does the same for an integer, exactly.
func decimalOfInt(i int64, scale int, exponent bool) decimalText {
	n := decimalText{negative: i < 0}
	magnitude := uint64(i)
	if i < 0 {
		magnitude = -magnitude
	}
	digits := strconv.FormatUint(magnitude, 10)
	if !exponent {
		if n.fraction = strings.Repeat("0", scale); magnitude != 0 {
			n.whole = digits
		}
		return n
	}
	power := len(digits) - 1
	if len(digits) > scale+1 {
		// Round half away from zero.
		up := digits[scale+1] >= '5'
		kept := []byte(digits[:scale+1])
		for j := scale; up && j >= 0; j-- {
			if kept[j] == '9' {
				kept[j] = '0'
				continue
			}
			kept[j]++
			up = false
		}
		if digits = string(kept); up {
			digits, power = "1"+digits[:scale], power+1
		}
	}
	n.whole, n.fraction = digits[:1], digits[1:]+strings.Repeat("0", scale+1-len(digits))
	if n.whole == "0" {
		n.whole = ""
	}
	n.exponent = string(appendPadded([]byte{'+'}, int64(power), 2))
	return n
}

// decimal writes a number. One that does not fit becomes number signs.
func (f *numberFormat) decimal(n decimalText) string {
	if f.fill {
		n.fraction = strings.TrimRight(n.fraction, "0")
	}
	if n.special != "" {
		return f.notFinite(n)
	}
	blank := f.blank && n.whole == ""
	whole, padding := "", f.point
	if f.whole > 0 && (n.whole != "" || f.exponent || f.zero >= 0 && f.zero < f.point || n.fraction == "") {
		whole, padding = f.integer(n, blank)
	}
	fraction := f.fractionText(n, blank)
	return f.join(padding, n.negative, blank, false, whole+fraction)
}

// integer writes the digits before the point, from the last on, and returns how many
// elements are left for spaces.
func (f *numberFormat) integer(n decimalText, blank bool) (string, int) {
	digits := n.whole
	if digits == "" {
		digits = "0"
	}
	overflow := len(n.whole) > f.whole
	out := make([]byte, f.point)
	at, d := f.point, len(digits)-1
	for at > 0 && (d >= 0 || f.zero >= 0 && at-1 >= f.zero) {
		at--
		ch := byte(',')
		if f.elements[at] != ',' {
			switch {
			case overflow:
				ch = '#'
			case d >= 0:
				ch = digits[d]
			default:
				ch = '0'
			}
			d--
		}
		if blank && ch != '#' {
			ch = ' '
		}
		out[at] = ch
	}
	return string(out[at:]), at
}

// fractionText writes the point, the digits behind it, and the exponent.
func (f *numberFormat) fractionText(n decimalText, blank bool) string {
	overflow := len(n.whole) > f.whole
	var out []byte
	next := 0
	for _, e := range f.elements[f.point:] {
		switch e {
		case '.':
			out = append(out, pick(blank, ' ', '.'))
		case '0', '9':
			switch {
			case overflow:
				out = append(out, '#')
			case next < len(n.fraction):
				out = append(out, pick(blank, ' ', n.fraction[next]))
			}
			next++
		case 'e', 'E':
			switch {
			case overflow:
				out = append(out, "####"...)
			case blank:
				out = append(out, "    "...)
			default:
				out = append(append(out, e), n.exponent...)
			}
		}
	}
	return string(out)
}

// notFinite writes an infinity or NaN where the digits before the point stand, if these
// are three or more.
func (f *numberFormat) notFinite(n decimalText) string {
	if f.exponent {
		return f.join(len(f.elements), n.negative, false, n.special == "NAN", n.special)
	}
	overflow := f.point < 3
	var out []byte
	at := max(0, f.point-3)
	for i, e := range f.elements[at:f.point] {
		switch {
		case !overflow:
			out = append(out, n.special[i])
		case e == ',':
			out = append(out, ',')
		default:
			out = append(out, '#')
		}
	}
	for _, e := range f.elements[f.point:] {
		switch {
		case e == 'V':
		case !overflow:
			out = append(out, ' ')
		case e == '.':
			out = append(out, '.')
		default:
			out = append(out, '#')
		}
	}
	return f.join(at, n.negative, false, n.special == "NAN", string(out))
}

// join puts padding, sign and currency around a number. A blank number has spaces
// instead, and unsigned ones spaces for the sign.
func (f *numberFormat) join(padding int, negative, blank, unsigned bool, number string) string {
	prefix, suffix := "", ""
	sign := func(minus, plus string) string {
		switch {
		case blank || unsigned:
			return " "
		case negative:
			return minus
		}
		return plus
	}
	switch {
	case f.sign == "":
		prefix = sign("-", " ")
	case f.sign == "S" && f.front:
		prefix = sign("-", "+")
	case f.sign == "S":
		suffix = sign("-", "+")
	case f.sign == "MI":
		suffix = sign("-", " ")
	default:
		prefix, suffix = sign("<", " "), sign(">", " ")
	}
	currency := ""
	switch f.currency {
	case "$", "L":
		currency = "$"
	case "C":
		currency = "USD"
	case "c":
		currency = "usd"
	}
	if blank {
		currency = strings.Repeat(" ", len(currency))
	}
	s := strings.Repeat(" ", padding) + prefix + currency + number + suffix
	if f.fill {
		s = strings.Trim(s, spaces)
	}
	return s
}

// hexadecimal writes a number, rounded to an integer, in hexadecimal digits.
func (f *numberFormat) hexadecimal(t *types.Type, v types.Value) string {
	negative, magnitude, ok := v.Int < 0, uint64(v.Int), true
	if negative {
		magnitude = -magnitude
	}
	if t.IsFloat() {
		r := math.Round(math.Abs(v.Float))
		negative, ok = v.Float < 0, r < 1<<64
		if ok {
			magnitude = uint64(r)
		}
	}
	digits := strconv.FormatUint(magnitude, 16)
	overflow := !ok || len(digits) > len(f.elements)
	if overflow {
		digits = strings.Repeat("0", 17)
	}
	out := make([]byte, len(f.elements))
	at, d := len(out), len(digits)-1
	for at > 0 && (d >= 0 || f.zero >= 0 && at-1 >= f.zero) {
		at--
		ch := byte('0')
		if d >= 0 {
			ch = digits[d]
		}
		d--
		switch {
		case overflow:
			ch = '#'
		case ch >= 'a' && f.elements[at] == 'X':
			ch -= 0x20
		}
		out[at] = ch
	}
	return f.join(at, negative, false, false, string(out[at:]))
}
