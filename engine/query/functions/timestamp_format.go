package functions

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

var (
	weekdayNames = [...]string{"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"}
	monthNames   = [...]string{"", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"}
)

// maxFieldWidth bounds the width that a format may give an element.
const maxFieldWidth = 128

// timeElements are the elements of a format that a date does not have: FORMAT_DATE
// writes them as they are.
const timeElements = "cHIklMPpRrSsTXZz"

// A clock is what a clock shows, taken apart.
type clock struct {
	days                       int64
	year                       int64
	month, day                 int
	hour, minute, second       int64
	micros                     int64 // of the second
	offset                     int64 // seconds east of UTC
	unix                       int64 // seconds since the epoch
	isoYear                    int64
	isoWeek, yearDay, dayOfISO int
}

func newClock(micros int64, z *timeZone) *clock {
	local, offset := z.localMinutes(micros)
	c := &clock{days: floorDiv(local, microsPerDay), offset: offset, unix: floorDiv(micros, microsPerSecond)}
	rest := local - c.days*microsPerDay
	c.micros = rest % microsPerSecond
	c.hour, c.minute, c.second = rest/(3600*microsPerSecond), rest/(60*microsPerSecond)%60, rest/microsPerSecond%60
	c.year, c.month, c.day = civilOf(c.days)
	c.yearDay = int(c.days-daysOf(c.year, 1, 1)) + 1
	c.isoYear, c.isoWeek = isoYearWeek(c.days)
	c.dayOfISO = int(c.days-isoYearStart(c.isoYear)) + 1
	return c
}

// hour12 returns the hour on a dial: 12, 1, 2, …
func (c *clock) hour12() int64 {
	if h := c.hour % 12; h != 0 {
		return h
	}
	return 12
}

func formatDate(c *Call, args []types.Value) (types.Value, error) {
	return formatClock(c, args[0].Str, newClock(args[1].Int*microsPerDay, nil), true)
}

func formatTimestamp(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 2)
	if err != nil {
		return types.Null, err
	}
	return formatClock(c, args[0].Str, newClock(args[1].Int, zone), false)
}

func formatClock(c *Call, format string, t *clock, dateOnly bool) (types.Value, error) {
	// An element with a width writes at most 26 bytes for each of its own.
	if err := grow(c, 26*len(format)); err != nil {
		return types.Null, err
	}
	var buf [64]byte
	out := appendFormat(buf[:0], format, t, dateOnly)
	return types.NewString(string(out)), nil
}

// appendFormat writes t in the elements of format, which begin with %.
func appendFormat(dst []byte, format string, t *clock, dateOnly bool) []byte {
	for {
		i := strings.IndexByte(format, '%')
		if i < 0 || i+1 == len(format) {
			return append(dst, format...)
		}
		dst = append(dst, format[:i]...)
		format = format[i:]
		n := 0
		dst, n = appendElement(dst, format, t, dateOnly)
		format = format[n:]
	}
}

// The letters that %E and %O may stand before. They change nothing here.
const (
	afterE = "cCxXyYnprstuPRZ%"
	afterO = "BbdegGhHIjklmMSuUVwWyCTznprstPRZ%"
)

// appendElement writes the element at the start of format, and returns its length. What
// is no element is written as it stands.
func appendElement(dst []byte, format string, t *clock, dateOnly bool) ([]byte, int) {
	// %[flags][width][E|O]letter, where E has forms of its own.
	i, flag, width := 1, byte(0), 0
	for i < len(format) && strings.IndexByte("_-0^#", format[i]) >= 0 {
		flag = format[i]
		i++
	}
	for i < len(format) && format[i] >= '0' && format[i] <= '9' {
		width = min(width*10+int(format[i]-'0'), maxFieldWidth)
		i++
	}
	plain := flag == 0 && width == 0
	allowed := ""
	if i < len(format) && (format[i] == 'E' || format[i] == 'O') {
		allowed = afterO
		if format[i] == 'E' {
			allowed = afterE
			if plain {
				if out, n := appendExtended(dst, format[i+1:], t, dateOnly); n > 0 {
					return out, i + 1 + n
				}
			}
		}
		i++
	}
	if plain && allowed == "" {
		if colons := len(format[i:]) - len(strings.TrimLeft(format[i:], ":")); colons > 0 && colons <= 3 && strings.HasPrefix(format[i+colons:], "z") {
			return appendColonZone(dst, t.offset, colons), i + colons + 1
		}
	}
	at := len(dst)
	if i == len(format) {
		return adjust(append(dst, format...), at, flag, width, ' '), i
	}
	letter := format[i]
	i++
	ok := allowed == "" || strings.IndexByte(allowed, letter) >= 0
	switch {
	case flag == 0 && dateOnly && strings.IndexByte(timeElements, letter) >= 0:
		return append(dst, format[:i]...), i
	case !plain && (letter == 'Q' || letter == 'J'):
		ok = false
	}
	pad := byte(' ')
	if ok {
		dst, pad, ok = appendLetter(dst, letter, t)
	}
	if !ok {
		dst, pad = append(dst, format[:i]...), ' '
	}
	if plain {
		return dst, i
	}
	if flag == '#' && ok {
		switch letter {
		case 'A', 'a', 'B', 'b', 'h':
			flag = '^'
		case 'p', 'Z':
			return adjust(append(dst[:at], strings.ToLower(string(dst[at:]))...), at, 0, width, pad), i
		}
	}
	if letter == 'P' && flag == '^' {
		flag = 0
	}
	return adjust(dst, at, flag, width, pad), i
}

// adjust applies the flag and width of an element to what it wrote from at on. pad is what
// it is filled up with: '0' for most numbers, '_' for those that come with spaces.
func adjust(dst []byte, at int, flag byte, width int, pad byte) []byte {
	text := string(dst[at:])
	switch flag {
	case '^':
		text = strings.ToUpper(text)
	case '_', '-':
		if pad != ' ' {
			text = strings.TrimLeft(text, "0 ")
			if text == "" || text[0] < '0' || text[0] > '9' {
				text = "0" + text
			}
		}
		if flag == '_' {
			width = max(width, len(dst)-at)
		}
		pad = ' '
	case '0':
		if pad == '_' {
			text = strings.Replace(text, " ", "0", 1)
		}
		pad = '0'
	}
	if pad == '_' {
		pad = ' '
	}
	dst = dst[:at]
	for n := len(text); n < width; n++ {
		dst = append(dst, pad)
	}
	return append(dst, text...)
}

// appendExtended writes what follows %E, and returns how many bytes of format it is: 0
// if it is no form that E has of its own.
func appendExtended(dst []byte, format string, t *clock, dateOnly bool) ([]byte, int) {
	has := func(s string) bool { return strings.HasPrefix(format, s) }
	switch {
	case has("4Y"):
		return appendPadded(dst, t.year, 4), 2
	case has("T") && !dateOnly:
		return append(dst, 'T'), 1
	case has("z") && !dateOnly:
		return appendZone(dst, t.offset, ":"), 1
	case has("*z"):
		return appendColonZone(dst, t.offset, 2), 2
	case has("*S") && !dateOnly:
		return appendFraction(appendPadded(dst, t.second, 2), t.micros, -1, "."), 2
	case has("*f"):
		dst = appendFraction(dst, t.micros, -1, "")
		if t.micros == 0 {
			dst = append(dst, '0')
		}
		return dst, 2
	}
	i := 0
	digits := 0
	for i < len(format) && format[i] >= '0' && format[i] <= '9' {
		digits = min(digits*10+int(format[i]-'0'), maxFieldWidth)
		i++
	}
	switch {
	case i == 0 || i == len(format):
	case format[i] == 'S' && !(dateOnly && i == 1):
		return appendFraction(appendPadded(dst, t.second, 2), t.micros, min(digits, 18), "."), i + 1
	case format[i] == 'f':
		return appendFraction(dst, t.micros, min(digits, 18), ""), i + 1
	}
	return dst, 0
}

// appendFraction writes the microseconds of a second with that many digits behind
// point; -1 means as many as it needs.
func appendFraction(dst []byte, micros int64, digits int, point string) []byte {
	if digits == 0 || digits < 0 && micros == 0 {
		return dst
	}
	dst = append(dst, point...)
	at := len(dst)
	dst = appendPadded(dst, micros, 6)
	switch {
	case digits < 0:
		for dst[len(dst)-1] == '0' {
			dst = dst[:len(dst)-1]
		}
	case digits <= 6:
		dst = dst[:at+digits]
	default:
		for range digits - 6 {
			dst = append(dst, '0')
		}
	}
	return dst
}

// appendZone writes an offset as +08:30, with colon between hours and minutes.
func appendZone(dst []byte, offset int64, colon string) []byte {
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	dst = appendPadded(append(dst, sign), offset/3600, 2)
	return appendPadded(append(dst, colon...), offset/60%60, 2)
}

// appendColonZone writes %:z, %::z or %:::z: an offset with minutes, with seconds, or with
// no more than it needs.
func appendColonZone(dst []byte, offset int64, colons int) []byte {
	dst = appendZone(dst, offset, ":")
	switch {
	case colons == 2:
		return append(dst, ":00"...)
	case colons == 3 && offset%3600 == 0:
		return dst[:len(dst)-3]
	}
	return dst
}

// appendLetter writes the element of one letter. It returns what it is filled up with:
// '0' for numbers, '_' for those that come with spaces, ' ' for text. It returns false if
// there is no such element.
func appendLetter(dst []byte, letter byte, t *clock) (out []byte, pad byte, ok bool) {
	number := func(n int64, width int) ([]byte, byte, bool) { return appendPadded(dst, n, width), '0', true }
	spaced := func(n int64) ([]byte, byte, bool) {
		if n < 10 {
			dst = append(dst, ' ')
		}
		return appendPadded(dst, n, 1), '_', true
	}
	text := func(s string) ([]byte, byte, bool) { return append(dst, s...), ' ', true }
	format := func(f string) ([]byte, byte, bool) { return appendFormat(dst, f, t, false), ' ', true }
	weekday := weekdayOf(t.days)
	switch letter {
	case '%':
		return text("%")
	case 'A':
		return text(weekdayNames[weekday])
	case 'a':
		return text(weekdayNames[weekday][:3])
	case 'B':
		return text(monthNames[t.month])
	case 'b', 'h':
		return text(monthNames[t.month][:3])
	case 'C':
		return number(t.year/100, 1)
	case 'c':
		return format("%a %b %e %H:%M:%S %Y")
	case 'D', 'x':
		return format("%m/%d/%y")
	case 'd':
		return number(int64(t.day), 2)
	case 'e':
		return spaced(int64(t.day))
	case 'F':
		return format("%Y-%m-%d")
	case 'G':
		return number(t.isoYear, 1)
	case 'g':
		return number(floorMod(t.isoYear, 100), 2)
	case 'H':
		return number(t.hour, 2)
	case 'I':
		return number(t.hour12(), 2)
	case 'J':
		return number(int64(t.dayOfISO), 3)
	case 'j':
		return number(int64(t.yearDay), 3)
	case 'k':
		return spaced(t.hour)
	case 'l':
		return spaced(t.hour12())
	case 'M':
		return number(t.minute, 2)
	case 'm':
		return number(int64(t.month), 2)
	case 'n':
		return text("\n")
	case 'P', 'p':
		s := "AM"
		if t.hour >= 12 {
			s = "PM"
		}
		if letter == 'P' {
			s = strings.ToLower(s)
		}
		return text(s)
	case 'Q':
		return number(int64(t.month-1)/3+1, 1)
	case 'R':
		return format("%H:%M")
	case 'r':
		return format("%I:%M:%S %p")
	case 'S':
		return number(t.second, 2)
	case 's':
		if t.unix < 0 {
			dst = append(dst, '-')
			return appendPadded(dst, -t.unix, 1), '0', true
		}
		return number(t.unix, 1)
	case 'T', 'X':
		return format("%H:%M:%S")
	case 't':
		return text("\t")
	case 'U':
		return number(int64(weekOfYear(t.days, 0)), 2)
	case 'u':
		return number(int64((weekday+6)%7)+1, 1)
	case 'V':
		return number(int64(t.isoWeek), 2)
	case 'W':
		return number(int64(weekOfYear(t.days, 1)), 2)
	case 'w':
		return number(int64(weekday), 1)
	case 'Y':
		return number(t.year, 1)
	case 'y':
		return number(floorMod(t.year, 100), 2)
	case 'Z':
		dst = append(dst, "UTC"...)
		if t.offset == 0 {
			return dst, ' ', true
		}
		sign, offset := byte('+'), t.offset
		if offset < 0 {
			sign, offset = '-', -offset
		}
		dst = append(dst, sign)
		if minutes := offset / 60 % 60; minutes != 0 {
			dst = appendPadded(appendPadded(dst, offset/3600, 2), minutes, 2)
		} else {
			dst = appendPadded(dst, offset/3600, 1)
		}
		return dst, ' ', true
	case 'z':
		return appendZone(dst, t.offset, ""), ' ', true
	}
	return dst, 0, false
}
