package functions

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// badValue returns the error of a string that is no value of a type. Messages have at
// most 32 bytes of the string, and those that do not print escaped.
func badValue(kind, s string) error {
	if len(s) > 32 {
		return Errorf("Bad %s value: %s...", kind, escapeC(s[:32]))
	}
	return Errorf("Bad %s value: %s", kind, escapeC(s))
}

// escapeC writes s as the inside of a literal of C: bytes that are not printable ASCII in
// octal.
func escapeC(s string) string {
	var b []byte
	for i, c := range []byte(s) {
		var e []byte
		switch c {
		case '\n':
			e = []byte(`\n`)
		case '\r':
			e = []byte(`\r`)
		case '\t':
			e = []byte(`\t`)
		case '"', '\'', '\\':
			e = []byte{'\\', c}
		default:
			if c >= ' ' && c < 0x7f {
				if b != nil {
					b = append(b, c)
				}
				continue
			}
			e = []byte{'\\', '0' + c>>6, '0' + c>>3&7, '0' + c&7}
		}
		if b == nil {
			b = append(make([]byte, 0, len(s)+16), s[:i]...)
		}
		b = append(b, e...)
	}
	if b == nil {
		return s
	}
	return string(b)
}

func parseBool(s string) (types.Value, error) {
	switch {
	case strings.EqualFold(s, "true"):
		return types.NewBool(true), nil
	case strings.EqualFold(s, "false"):
		return types.NewBool(false), nil
	}
	return types.Null, badValue("bool", s)
}

// spaces are those of C's isspace.
const spaces = " \t\n\v\f\r"

// parseInt64 reads an integer in decimal or, after 0x, in hexadecimal, with spaces
// around.
func parseInt64(s string) (types.Value, error) {
	text := strings.Trim(s, spaces)
	sign := ""
	if text != "" && (text[0] == '-' || text[0] == '+') {
		sign, text = text[:1], text[1:]
	}
	base := 10
	if len(text) > 2 && text[0] == '0' && text[1]|0x20 == 'x' {
		base, text = 16, text[2:]
	}
	// ParseInt would take another sign.
	if text == "" || text[0] == '-' || text[0] == '+' {
		return types.Null, badValue("int64", strings.TrimLeft(s, " "))
	}
	if sign == "-" {
		text = sign + text
	}
	n, err := strconv.ParseInt(text, base, 64)
	if err != nil {
		return types.Null, badValue("int64", strings.TrimLeft(s, " "))
	}
	return types.NewInt(n), nil
}

// parseFloat reads a FLOAT64 (bits 64) or FLOAT32, with spaces around. A number that is
// too large is infinite.
func parseFloat(s string, bits int) (types.Value, error) {
	kind := "double"
	if bits == 32 {
		kind = "float"
	}
	text := strings.Trim(s, spaces)
	hex, exponent := false, false
	for i, c := range []byte(text) {
		switch {
		case c >= '0' && c <= '9' || c == '.' || c == '-' || c == '+' || c|0x20 == 'e':
		case c|0x20 == 'x' && i > 0 && text[i-1] == '0':
			hex = true
		case hex && c|0x20 >= 'a' && c|0x20 <= 'f':
		case hex && c|0x20 == 'p':
			exponent = true
		default:
			f, ok := parseSpecial(text)
			if !ok {
				return types.Null, badValue(kind, s)
			}
			return types.NewFloat(f), nil
		}
	}
	if hex && !exponent {
		text += "p0" // that ParseFloat insists on
	}
	f, err := strconv.ParseFloat(text, bits)
	if err != nil && !math.IsInf(f, 0) {
		return types.Null, badValue(kind, s)
	}
	return types.NewFloat(f), nil
}

// parseSpecial reads [+-]inf, [+-]infinity, [+-]nan and [+-]nan(word), in any case.
func parseSpecial(s string) (float64, bool) {
	sign := 1
	if s != "" && (s[0] == '-' || s[0] == '+') {
		if s[0] == '-' {
			sign = -1
		}
		s = s[1:]
	}
	switch s = strings.ToLower(s); s {
	case "inf", "infinity":
		return math.Inf(sign), true
	case "nan":
		return math.NaN(), true
	}
	word, isNaN := strings.CutPrefix(s, "nan(")
	word, closed := strings.CutSuffix(word, ")")
	notWord := func(c rune) bool { return c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') }
	if isNaN && closed && !strings.ContainsFunc(word, notWord) {
		return math.NaN(), true
	}
	return 0, false
}

// floatToInt rounds f to an INT64, halves away from zero.
func floatToInt(f float64) (types.Value, error) {
	if !isFinite(f) {
		return types.Null, Errorf("Illegal conversion of non-finite floating point number to an integer: %s", shortFloat(f))
	}
	r := math.Round(f)
	// The bounds are -2^63 and 2^63: the latter is the first that does not fit.
	if r < -(1<<63) || r >= 1<<63 {
		return types.Null, Errorf("int64 out of range: %s", shortFloat(f))
	}
	return types.NewInt(int64(r)), nil
}

// toFloat32Value rounds f to a FLOAT32.
func toFloat32Value(f float64) (types.Value, error) {
	if math.Abs(f) > math.MaxFloat32 && !math.IsInf(f, 0) { // even if it would round to the largest
		return types.Null, Errorf("float out of range: %s", shortFloat(f))
	}
	return types.NewFloat(float64(float32(f))), nil
}

func appendInt(dst []byte, i int64) []byte { return strconv.AppendInt(dst, i, 10) }

// castMap makes a MAP of its entries after a cast: two keys may have become one.
func castMap(t *types.Type, entries []types.Value) (types.Value, error) {
	type entry struct{ key, value types.Value }
	list := make([]entry, 0, len(entries)/2)
	for i := 0; i+1 < len(entries); i += 2 {
		list = append(list, entry{entries[i], entries[i+1]})
	}
	slices.SortStableFunc(list, func(a, b entry) int { return types.Compare(t.Key, a.key, b.key) })
	for i, e := range list {
		if i > 0 && types.SameGroup(t.Key, list[i-1].key, e.key) {
			return types.Null, Errorf("Duplicate map keys are not allowed, but got multiple instances of key: %s", keyLiteral(t.Key, e.key))
		}
		entries[2*i], entries[2*i+1] = e.key, e.value
	}
	return types.NewList(entries), nil
}

// Enums.

// enumName returns the name of a value of the ENUM t: the first if it has several, the
// number if it has none.
func enumName(t *types.Type, number int64) string {
	for _, v := range t.Enumeration.Values {
		if int64(v.Number) == number {
			return v.Name
		}
	}
	return strconv.FormatInt(number, 10)
}

func castToEnum(from, to *types.Type, v types.Value) (types.Value, error) {
	e := to.Enumeration
	switch from.Kind {
	case types.Int64:
		if int64(int32(v.Int)) == v.Int && (e.Open || slices.ContainsFunc(e.Values, func(x types.EnumValue) bool { return int64(x.Number) == v.Int })) {
			return v, nil
		}
		return types.Null, Errorf("Out of range cast of integer %d to enum type %s", v.Int, to)
	case types.String:
		for _, x := range e.Values {
			if x.Name == v.Str {
				return types.NewInt(int64(x.Number)), nil
			}
		}
		return types.Null, Errorf("Out of range cast of string '%s' to enum type %s%s", v.Str, to, suggestName(v.Str, e))
	}
	return types.Null, Errorf("Unsupported cast from %s to %s", from, to)
}

// suggestName returns the part of a message that proposes a name of e.
func suggestName(name string, e *types.Enumeration) string {
	for _, x := range e.Values {
		if strings.EqualFold(x.Name, name) {
			return "; Did you mean '" + x.Name + "'? (Note: ENUM values are case sensitive)"
		}
	}
	// A name is proposed if at most one character of five differs.
	if len(name) > 64 {
		return ""
	}
	best, least := "", (len(name)+4)/5+1
	for _, x := range e.Values {
		if len(x.Name) > 64 {
			continue
		}
		if d := editDistance([]rune(strings.ToLower(name)), []rune(strings.ToLower(x.Name)), least); d < least {
			best, least = x.Name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; Did you mean '" + best + "'?"
}

// editDistance returns how many characters must be inserted, deleted or replaced to
// make b of a, or limit if that is less.
func editDistance[T comparable](a, b []T, limit int) int {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) >= limit {
		return limit
	}
	// row[j] is the distance between what was seen of b and a[:j].
	row := make([]int, len(a)+1)
	for j := range row {
		row[j] = j
	}
	for i, y := range b {
		diagonal := row[0]
		row[0] = i + 1
		least := row[0]
		for j, x := range a {
			d := diagonal
			if x != y {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
			least = min(least, d)
		}
		if least >= limit {
			return limit
		}
	}
	return min(row[len(a)], limit)
}

// Dates and timestamps.

// parseDate reads YYYY-[M]M-[D]D.
func parseDate(s string) (int64, error) {
	year, month, day, rest, ok := takeDate(s, 4)
	if !ok || rest != "" || !isValidDay(year, month, day) {
		return 0, Errorf("Invalid date: '%s'", escapeC(s))
	}
	if year < 1 {
		return 0, Errorf("Date value out of range: '%s'", s)
	}
	return daysOf(year, month, day), nil
}

// takeDate reads a date, with a year of four to yearDigits digits, at the start of s.
func takeDate(s string, yearDigits int) (year int64, month, day int, rest string, ok bool) {
	if len(s) < 8 {
		return 0, 0, 0, s, false
	}
	var m, d int64
	if year, rest, ok = takeDigits(s, 4, yearDigits); !ok {
		return 0, 0, 0, s, false
	}
	if rest, ok = strings.CutPrefix(rest, "-"); !ok {
		return 0, 0, 0, s, false
	}
	if m, rest, ok = takeDigits(rest, 1, 2); !ok {
		return 0, 0, 0, s, false
	}
	if rest, ok = strings.CutPrefix(rest, "-"); !ok {
		return 0, 0, 0, s, false
	}
	if d, rest, ok = takeDigits(rest, 1, 2); !ok {
		return 0, 0, 0, s, false
	}
	return year, int(m), int(d), rest, true
}

// takeClock reads [H]H:[M]M:[S]S[.DDDDDD], as microseconds, at the start of s: -1 is no
// time of a day. A 60th second is the first of the next minute.
func takeClock(s string) (micros int64, rest string, ok bool) {
	h, rest, ok := takeDigits(s, 1, 2)
	if !ok || !strings.HasPrefix(rest, ":") {
		return 0, s, false
	}
	m, rest, ok := takeDigits(rest[1:], 1, 2)
	if !ok || !strings.HasPrefix(rest, ":") {
		return 0, s, false
	}
	sec, rest, ok := takeDigits(rest[1:], 1, 2)
	if !ok {
		return 0, s, false
	}
	var fraction int64
	if tail, has := strings.CutPrefix(rest, "."); has {
		var after string
		if fraction, after, ok = takeDigits(tail, 1, 9); !ok {
			return 0, s, false
		}
		digits := len(tail) - len(after)
		if digits > 6 {
			return 0, s, false
		}
		for ; digits < 6; digits++ {
			fraction *= 10
		}
		rest = after
	}
	if h > 23 || m > 59 || sec > 60 {
		return -1, rest, true
	}
	return ((h*60+m)*60+sec)*microsPerSecond + fraction, rest, true
}

// parseTimestamp reads a date, perhaps a time of the day, and perhaps a time zone: z is
// that of texts without one.
//
//	YYYY-[M]M-[D]D[( |T)[H]H:[M]M:[S]S[.DDDDDD]][Z|(+|-)H[H][:M[M]]| zone name]
func parseTimestamp(s string, z *timeZone) (int64, error) {
	bad := func() (int64, error) { return 0, Errorf("Invalid timestamp: '%s'", escapeC(s)) }
	year, month, day, rest, ok := takeDate(s, 5)
	if !ok {
		return bad()
	}
	var clock int64
	if rest != "" {
		if rest[0] != ' ' && rest[0]|0x20 != 't' || len(rest) < 3 {
			return bad()
		}
		rest = rest[1:]
		switch c := rest[0]; {
		case c >= '0' && c <= '9':
			if clock, rest, ok = takeClock(rest); !ok {
				return bad()
			}
		case c != '+' && c != '-':
			return bad()
		}
	}
	if rest != "" {
		var err error
		if z, ok, err = takeZone(rest); err != nil {
			return 0, err
		}
		if !ok {
			return bad()
		}
	}
	// The form is right.
	if clock < 0 || year > 10000 || !isValidDay(year, month, day) {
		return 0, Errorf("Invalid timestamp string \"%s\"", s)
	}
	seconds, micros := floorDiv(clock, microsPerSecond), floorMod(clock, microsPerSecond)
	t := z.at(daysOf(year, month, day)*secondsPerDay+seconds)*microsPerSecond + micros
	if !isValidTimestamp(t) {
		return 0, Errorf("Invalid timestamp string \"%s\"", s)
	}
	return t, nil
}

// takeZone reads the time zone at the end of a timestamp. It returns false if s does not
// have the form of one.
func takeZone(s string) (*timeZone, bool, error) {
	if tail, ok := strings.CutPrefix(s, " UTC"); ok {
		if tail == "" {
			return nil, true, nil
		}
		s = tail
	}
	switch s[0] {
	case '+', '-':
		z, err := loadZone(s)
		return z, true, err
	case 'Z', 'z':
		return nil, len(s) == 1, nil
	case ' ':
		if len(s) < 2 || s[1] == '+' || s[1] == '-' {
			return nil, false, nil
		}
		z, err := loadZone(s[1:])
		return z, true, err
	}
	return nil, false, nil
}

// dateToTimestamp returns the time at which a day begins in z.
func dateToTimestamp(day int64, z *timeZone) (types.Value, error) {
	t := z.at(day*secondsPerDay) * microsPerSecond
	if !isValidTimestamp(t) {
		return types.Null, Errorf("Cannot convert Date %s to Timestamp: out of range", dateString(day))
	}
	return types.NewInt(t), nil
}
