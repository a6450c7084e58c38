package functions

import (
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// maxCastFormat is how long the format of a CAST of dates may be, in bytes.
const maxCastFormat = 16 << 10

// The categories of elements of a format.
const (
	literalElement = "LITERAL"
	yearElement    = "YEAR"
	monthElement   = "MONTH"
	dayElement     = "DAY"
	hourElement    = "HOUR"
	minuteElement  = "MINUTE"
	secondElement  = "SECOND"
	amElement      = "MERIDIAN_INDICATOR"
	zoneElement    = "TIME_ZONE"
)

// formatElements has the category of each element by its name. Those of the last lines are
// known, and not supported.
var formatElements = map[string]string{
	"-": literalElement, ".": literalElement, "/": literalElement, ",": literalElement,
	"'": literalElement, ";": literalElement, ":": literalElement,
	"YYYY": yearElement, "YYY": yearElement, "YY": yearElement, "Y": yearElement, "RRRR": yearElement, "RR": yearElement, "Y,YYY": yearElement,
	"MM": monthElement, "MON": monthElement, "MONTH": monthElement,
	"DDD": dayElement, "DD": dayElement, "D": dayElement, "DAY": dayElement, "DY": dayElement,
	"HH": hourElement, "HH12": hourElement, "HH24": hourElement,
	"MI": minuteElement,
	"SS": secondElement, "SSSSS": secondElement,
	"FF1": secondElement, "FF2": secondElement, "FF3": secondElement, "FF4": secondElement, "FF5": secondElement,
	"FF6": secondElement, "FF7": secondElement, "FF8": secondElement, "FF9": secondElement,
	"AM": amElement, "PM": amElement, "A.M.": amElement, "P.M.": amElement,
	"TZH": zoneElement, "TZM": zoneElement,

	"IYYY": yearElement, "IYY": yearElement, "IY": yearElement, "I": yearElement, "SYYYY": yearElement, "YEAR": yearElement, "SYEAR": yearElement,
	"RM": monthElement, "J": dayElement, "CC": "CENTURY", "SCC": "CENTURY", "Q": "QUARTER", "IW": "WEEK", "WW": "WEEK", "W": "WEEK",
	"AD": "ERA_INDICATOR", "BC": "ERA_INDICATOR", "A.D.": "ERA_INDICATOR", "B.C.": "ERA_INDICATOR",
	"SP": "MISC", "TH": "MISC", "SPTH": "MISC", "THSP": "MISC", "FM": "MISC",
}

// A dateElement is one element of a format.
type dateElement struct {
	name     string // in upper case; " " of spaces, `"` of quoted text
	category string
	literal  string // what a literal, spaces included, stands for
	style    letterCase
}

// A letterCase is that of the letters that an element writes.
type letterCase uint8

const (
	upperCase letterCase = iota
	lowerCase
	titleCase
)

// String returns the element as messages do.
func (e dateElement) String() string {
	switch {
	case e.name == `"`:
		return `'"` + escapeC(e.literal) + `"'`
	case e.category == literalElement:
		return "'" + e.literal + "'"
	}
	return "'" + e.name + "'"
}

// A dateFormat is a compiled format of a CAST from or to DATE or TIMESTAMP.
type dateFormat struct {
	text     string
	elements []dateElement
	date     bool
	parse    bool
	// low and high are how many digits each element reads, of a format that parses.
	low, high []int
}

func compileDateFormat(text string, date, parse bool) (*dateFormat, error) {
	if len(text) > maxCastFormat {
		return nil, Errorf("Format string too long; limit %d", maxCastFormat)
	}
	f := &dateFormat{text: strings.Clone(text), date: date, parse: parse}
	for at := 0; at < len(text); {
		e, n, err := nextDateElement(f.text[at:])
		if err != nil {
			return nil, Errorf("%w at %d", err, at)
		}
		f.elements = append(f.elements, e)
		at += n
	}
	if parse {
		return f, f.checkParse()
	}
	return f, f.checkFormat()
}

// nextDateElement reads the longest element at the beginning of s, and returns how
// long it is.
func nextDateElement(s string) (dateElement, int, error) {
	switch s[0] {
	case ' ':
		n := len(s) - len(strings.TrimLeft(s, " "))
		return dateElement{name: " ", category: literalElement, literal: s[:n]}, n, nil
	case '"':
		return quotedElement(s)
	}
	upper := strings.ToUpper(s[:min(5, len(s))])
	for n := len(upper); n > 0; n-- {
		category, ok := formatElements[upper[:n]]
		if !ok {
			continue
		}
		e := dateElement{name: upper[:n], category: category}
		switch {
		case category == literalElement:
			e.literal = s[:n]
		case s[0] >= 'a':
			e.style = lowerCase
		case n > 1 && s[1] >= 'a' && category != amElement && category != "ERA_INDICATOR":
			e.style = titleCase
		}
		return e, n, nil
	}
	return dateElement{}, 0, Errorf("Cannot find matched format element")
}

func quotedElement(s string) (dateElement, int, error) {
	var text []byte
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return dateElement{name: `"`, category: literalElement, literal: string(text)}, i + 1, nil
		case '\\':
			i++
			if i < len(s) {
				if s[i] != '\\' && s[i] != '"' {
					return dateElement{}, 0, Errorf("Unsupported escape sequence \\%c in text", s[i])
				}
				text = append(text, s[i])
			}
		default:
			text = append(text, s[i])
		}
	}
	return dateElement{}, 0, Errorf("Cannot find matching \" for quoted literal")
}

// checkFormat refuses elements that a DATE does not have.
func (f *dateFormat) checkFormat() error {
	for _, e := range f.elements {
		switch e.category {
		case literalElement, yearElement, monthElement, dayElement:
		default:
			if f.date {
				return Errorf("DATE does not support %s", e)
			}
		}
	}
	return nil
}

// parses tells whether an element is one of those that a format that parses has.
func (e dateElement) parses() bool {
	switch e.name {
	case "DDD", "D", "DAY", "DY", "AM", "PM", "RM", "J", "IYYY", "IYY", "IY", "I", "SYYYY", "YEAR", "SYEAR":
		return false
	}
	switch e.category {
	case literalElement, yearElement, monthElement, dayElement, hourElement, minuteElement, secondElement, amElement, zoneElement:
		return true
	}
	return false
}

// checkParse refuses what cannot be parsed: unknown elements, and two that say the same.
func (f *dateFormat) checkParse() error {
	first, second := map[string]dateElement{}, map[string]dateElement{} // by category
	names := map[string]dateElement{}
	for _, e := range f.elements {
		if !e.parses() {
			return Errorf("Format element %s is not supported for parsing", e)
		}
		if e.category == literalElement {
			continue
		}
		name := e.name
		if strings.HasPrefix(name, "FF") {
			name = "FF"
		}
		if _, ok := names[name]; ok {
			return Errorf("Format element %s appears more than once in the format string", e)
		}
		names[name] = e
		if _, ok := first[e.category]; !ok {
			first[e.category] = e
		} else if _, ok := second[e.category]; !ok {
			second[e.category] = e
		}
	}
	if f.date {
		for _, category := range []string{hourElement, minuteElement, secondElement, amElement, zoneElement} {
			if e, ok := first[category]; ok {
				return Errorf("Format element in category %s (%s) is not allowed for output type DATE", category, e)
			}
		}
	}
	for _, category := range []string{amElement, yearElement, monthElement, dayElement, hourElement, minuteElement} {
		if e, ok := second[category]; ok {
			return Errorf("More than one format element in category %s exist: %s and %s", category, first[category], e)
		}
	}
	am, hasAM := first[amElement]
	if e, ok := names["HH24"]; ok && hasAM {
		return Errorf("Format element in category %s (%s) and format element %s cannot exist simultaneously", amElement, am, e)
	}
	twelve, has12 := names["HH"]
	if !has12 {
		twelve, has12 = names["HH12"]
	}
	switch {
	case has12 && !hasAM:
		return Errorf("Format element in category %s is required when format element %s exists", amElement, twelve)
	case hasAM && !has12:
		return Errorf("Format element of type HH/HH12 is required when format element in category %s (%s) exists", amElement, am)
	}
	if e, ok := names["SSSSS"]; ok {
		for _, category := range []string{hourElement, minuteElement} {
			if other, ok := first[category]; ok {
				return Errorf("Format element in category %s (%s) and format element %s cannot exist simultaneously", category, other, e)
			}
		}
		if other, ok := names["SS"]; ok {
			return Errorf("Format elements %s and %s cannot exist simultaneously", e, other)
		}
	}
	f.digits()
	return nil
}

// digits sets how many digits each element reads: as many as its name says, and fewer
// unless more digits follow at once.
func (f *dateFormat) digits() {
	n := len(f.elements)
	f.low, f.high = make([]int, n), make([]int, n)
	follow := false // a digit follows
	for i := n - 1; i >= 0; i-- {
		e := f.elements[i]
		most := 0
		switch e.name {
		case "YYYY", "RRRR":
			if most = 5; follow {
				most = 4
			}
		case "HH12", "HH24", "TZH", "TZM":
			most = 2
		case "YYY", "YY", "Y", "RR", "MM", "DD", "HH", "MI", "SS", "SSSSS":
			most = len(e.name)
		default:
			if strings.HasPrefix(e.name, "FF") {
				most = int(e.name[2] - '0')
			}
		}
		f.low[i], f.high[i] = min(1, most), most
		if follow {
			f.low[i] = most
		}
		switch e.name {
		case `"`:
			if e.literal != "" {
				follow = e.literal[0] >= '0' && e.literal[0] <= '9'
			}
		case "TZH":
			follow = false
		default:
			follow = most > 0 || e.name == "Y,YYY"
		}
	}
}

// dateFormatOf returns the format of a Call, compiled: that of the last row if it is the
// same.
func dateFormatOf(c *Call, text string, date, parse bool) (*dateFormat, error) {
	if c != nil {
		if f, ok := c.State.(*dateFormat); ok && f.text == text && f.date == date && f.parse == parse {
			return f, nil
		}
	}
	f, err := compileDateFormat(text, date, parse)
	if err == nil && c != nil {
		c.State = f
	}
	return f, err
}

// formatDateTime is CAST(… AS STRING FORMAT format) of a DATE, as its midnight, or a
// TIMESTAMP.
func formatDateTime(c *Call, format string, micros int64, z *timeZone, date bool) (types.Value, error) {
	f, err := dateFormatOf(c, format, date, false)
	if err != nil {
		return types.Null, err
	}
	local, offset := z.localMinutes(micros)
	days := floorDiv(local, microsPerDay)
	clock := local - days*microsPerDay
	year, month, day := civilOf(days)
	seconds := clock / microsPerSecond
	hour := seconds / 3600
	out := make([]byte, 0, len(format)+16)
	for _, e := range f.elements {
		at := len(out)
		switch e.name {
		case "YYYY", "RRRR":
			out = appendPadded(out, year, 4)
		case "YYY":
			out = appendPadded(out, year%1000, 3)
		case "YY", "RR":
			out = appendPadded(out, year%100, 2)
		case "Y":
			out = appendPadded(out, year%10, 1)
		case "MM":
			out = appendPadded(out, int64(month), 2)
		case "MON":
			out = append(out, monthNames[month][:3]...)
		case "MONTH":
			out = append(out, monthNames[month]...)
		case "D":
			out = appendPadded(out, int64(weekdayOf(days)+1), 1)
		case "DD":
			out = appendPadded(out, int64(day), 2)
		case "DDD":
			out = appendPadded(out, int64(yearDayOf(days)), 3)
		case "DAY":
			out = append(out, weekdayNames[weekdayOf(days)]...)
		case "DY":
			out = append(out, weekdayNames[weekdayOf(days)][:3]...)
		case "HH", "HH12":
			out = appendPadded(out, (hour+11)%12+1, 2)
		case "HH24":
			out = appendPadded(out, hour, 2)
		case "MI":
			out = appendPadded(out, seconds/60%60, 2)
		case "SS":
			out = appendPadded(out, seconds%60, 2)
		case "SSSSS":
			out = appendPadded(out, seconds, 5)
		case "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "FF7", "FF8", "FF9":
			out = appendPadded(out, clock%microsPerSecond*1000, 9)[:at+int(e.name[2]-'0')]
		case "AM", "PM":
			out = append(out, [...]string{"AM", "PM"}[hour/12]...)
		case "A.M.", "P.M.":
			out = append(out, [...]string{"A.M.", "P.M."}[hour/12]...)
		case "TZH":
			sign, h := byte('+'), offset/3600
			if offset < 0 {
				sign, h = '-', -offset/3600
			}
			out = appendPadded(append(out, sign), h, 2)
		case "TZM":
			out = appendPadded(out, max(offset, -offset)/60%60, 2)
		default:
			if e.category != literalElement {
				return types.Null, Errorf("Unsupported format element %s", e)
			}
			out = append(out, e.literal...)
			continue
		}
		for i := at; i < len(out); i++ {
			switch ch := out[i]; {
			case e.style == lowerCase && ch >= 'A' && ch <= 'Z':
				out[i] = ch + 0x20
			case e.style == upperCase && ch >= 'a' && ch <= 'z':
				out[i] = ch - 0x20
			}
		}
	}
	return types.NewString(string(out)), nil
}

// skipSpaces returns s without white space at its beginning.
func skipSpaces(s string) string { return strings.TrimLeftFunc(s, isSpace) }

// A parsedTime is what the elements of a format have read.
type parsedTime struct {
	year                 int64
	month, day           int
	hour, minute, second int64
	hour12               int64 // 0 if it was not read
	afternoon            bool
	fraction             int64 // microseconds
	zoned, negative      bool
	zoneHour, zoneMinute int64
}

// parseDateTime is CAST(STRING AS DATE or TIMESTAMP FORMAT format). What the format does
// not say is that of the first of this month, at midnight in z.
func parseDateTime(c *Call, format, s string, z *timeZone, date bool) (types.Value, error) {
	f, err := dateFormatOf(c, format, date, true)
	if err != nil {
		return types.Null, err
	}
	if c == nil || c.Now == 0 {
		return types.Null, Errorf("current timestamp is not set")
	}
	today := floorDiv(z.local(c.Now), microsPerDay)
	p := parsedTime{day: 1}
	p.year, p.month, _ = civilOf(today)
	rest := skipSpaces(s)
	done := 0
	for rest != "" && done < len(f.elements) {
		after, ok := p.read(f, done, rest)
		if !ok {
			return types.Null, Errorf("Failed to parse input timestamp string at %d with format element %s", len(s)-len(rest), f.elements[done])
		}
		rest = after
		done++
	}
	rest = skipSpaces(rest)
	for done < len(f.elements) && f.elements[done].name == `"` && f.elements[done].literal == "" {
		done++
	}
	switch {
	case rest != "":
		return types.Null, Errorf("Illegal non-space trailing data '%s' in timestamp string", rest)
	case done < len(f.elements):
		return types.Null, Errorf("Entire timestamp string has been parsed before dealing with format element %s", f.elements[done])
	}
	if p.hour12 != 0 {
		p.hour = p.hour12 % 12
		if p.afternoon {
			p.hour += 12
		}
	}
	if !isValidDay(p.year, p.month, p.day) {
		return types.Null, Errorf("Invalid result from year, month, day values after parsing")
	}
	if p.zoned {
		offset := p.zoneHour*60 + p.zoneMinute
		sign := byte('+')
		if p.negative {
			sign = '-'
		}
		if offset > 14*60 {
			return types.Null, Errorf("Invalid time zone: %c%02d%02d", sign, p.zoneHour, p.zoneMinute)
		}
		if p.negative {
			offset = -offset
		}
		z = &timeZone{fixed: offset * 60}
	}
	days := daysOf(p.year, p.month, p.day)
	if date {
		if !isValidDate(days) {
			return types.Null, Errorf("The parsing result is out of valid time range")
		}
		return types.NewInt(days), nil
	}
	t := z.at(days*secondsPerDay+p.hour*3600+p.minute*60+p.second)*microsPerSecond + p.fraction
	if !isValidTimestamp(t) {
		return types.Null, Errorf("The parsing result is out of valid time range")
	}
	return types.NewInt(t), nil
}

// read reads the element i of f at the beginning of s, and returns what follows.
func (p *parsedTime) read(f *dateFormat, i int, s string) (rest string, ok bool) {
	e := f.elements[i]
	// number reads an element's digits, of a number between low and high.
	number := func(s string, least, most int64) (int64, string, bool) {
		n, rest, ok := takeDigits(s, f.low[i], f.high[i])
		return n, rest, ok && n >= least && n <= most
	}
	var n int64
	switch e.name {
	case " ":
		rest = skipSpaces(s)
		return rest, len(rest) < len(s)
	case "YYYY", "RRRR":
		p.year, rest, ok = number(s, 0, 10000)
	case "YYY", "YY", "Y":
		power := [...]int64{1, 10, 100, 1000}[len(e.name)]
		n, rest, ok = number(s, 0, power-1)
		p.year += n - p.year%power
	case "RR":
		n, rest, ok = number(s, 0, 99)
		century := p.year / 100
		switch now := p.year % 100; {
		case n < 50 && now >= 50:
			century++
		case n >= 50 && now < 50:
			century--
		}
		p.year = century*100 + n
	case "Y,YYY":
		if n, rest, ok = takeDigits(s, 1, 2); !ok || n > 10 || !strings.HasPrefix(rest, ",") {
			return s, false
		}
		p.year = n * 1000
		n, rest, ok = takeDigits(rest[1:], 3, 3)
		p.year += n
	case "MM":
		n, rest, ok = number(s, 1, 12)
		p.month = int(n)
	case "MON", "MONTH":
		for m, name := range monthNames[1:] {
			if e.name == "MON" {
				name = name[:3]
			}
			if len(s) >= len(name) && strings.EqualFold(s[:len(name)], name) {
				p.month = m + 1
				return s[len(name):], true
			}
		}
		return s, false
	case "DD":
		n, rest, ok = number(s, 1, 31)
		p.day = int(n)
	case "HH", "HH12":
		p.hour12, rest, ok = number(s, 1, 12)
	case "HH24":
		p.hour, rest, ok = number(s, 0, 23)
	case "MI":
		p.minute, rest, ok = number(s, 0, 59)
	case "SS":
		p.second, rest, ok = number(s, 0, 59)
	case "SSSSS":
		n, rest, ok = number(s, 0, secondsPerDay-1)
		p.hour, p.minute, p.second = n/3600, n/60%60, n%60
	case "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "FF7", "FF8", "FF9":
		n, rest, ok = takeDigits(s, f.low[i], f.high[i])
		for read := len(s) - len(rest); read != 6; {
			if read < 6 {
				n, read = n*10, read+1
			} else {
				n, read = n/10, read-1
			}
		}
		p.fraction = n
	case "A.M.", "P.M.":
		if len(s) < 4 {
			return s, false
		}
		p.afternoon = strings.EqualFold(s[:4], "P.M.")
		return s[4:], p.afternoon || strings.EqualFold(s[:4], "A.M.")
	case "TZH":
		p.zoned = true
		if s[0] != '+' && s[0] != '-' && s[0] != ' ' {
			return s, false
		}
		p.negative = s[0] == '-'
		p.zoneHour, rest, ok = number(s[1:], 0, 14)
	case "TZM":
		p.zoned = true
		p.zoneMinute, rest, ok = number(s, 0, 59)
	default:
		return strings.CutPrefix(s, e.literal)
	}
	return rest, ok && utf8.ValidString(rest)
}
