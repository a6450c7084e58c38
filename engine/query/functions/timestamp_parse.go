package functions

import (
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// A formatParser reads a string as the elements of a format say.
type formatParser struct {
	data   string // what has not been read
	format string // the whole format
	// position is the number of the element that is being read, from 1. Where elements
	// contradict each other, the last one counts.
	position int

	year, month, day     int64
	hour, minute, second int64
	micros               int64

	century                  int64
	useCentury, ownCentury   bool // year lacks its century; %C gave that
	twelve, afternoon        bool // hour is that of a dial
	unix                     int64
	hasUnix                  bool
	zone                     *timeZone
	precision                int // digits of a second that count
	hasOffset                bool
	offset                   int64 // minutes
	yearAt, monthAt, dayAt   int   // position of the last element that says it
	civil                    bool  // an element of the civil calendar was seen
	weekday, week, yearDay   partAt
	isoYear, isoWeek, isoDay partAt
	weekStartsOn             int
}

// A partAt is what an element said, and its position: 0 if there was none.
type partAt struct {
	value int64
	at    int
}

// parseFormat reads s, which has the given format, as a timestamp. Parts that the
// format lacks are those of 1970-01-01 00:00:00 in zone. precision is how many digits of
// a second count, at most 6.
func parseFormat(format, s string, zone *timeZone, precision int) (int64, error) {
	p := &formatParser{
		data: strings.TrimSuffix(s, "\x00"), zone: zone, precision: precision,
		year: 1970, month: 1, day: 1,
	}
	format = strings.TrimSuffix(format, "\x00")
	p.format = format
	p.skipSpace()
	for p.data != "" && format != "" {
		c := format[0]
		if isBlank(c) {
			p.skipSpace()
			format = trimSpace(format)
			continue
		}
		if c != '%' {
			if p.data[0] != c {
				return 0, p.mismatch(format, s)
			}
			p.data, format = p.data[1:], format[1:]
			continue
		}
		if len(format) == 1 {
			return 0, Errorf("Format string cannot end with a single '%%'")
		}
		p.position++
		rest, ok, err := p.element(format[1:])
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, parseFailure(s)
		}
		format = rest
	}
	p.skipSpace()
	for format != "" {
		if isBlank(format[0]) {
			format = format[1:]
			continue
		}
		if format == "%" {
			return 0, Errorf("Format string cannot end with a single '%%'")
		}
		if format[0] != '%' || format[1] != 'n' && format[1] != 't' {
			break
		}
		format = format[2:]
	}
	if p.data != "" || format != "" {
		return 0, parseFailure(s)
	}
	return p.result()
}

// mismatch is the error of a character of format, the rest of p.format, that is not that
// of the data, the rest of s.
func (p *formatParser) mismatch(format, s string) error {
	show := func(c byte) string { return strings.ToValidUTF8(string([]byte{c}), "\ufffd") }
	index := len(strings.TrimSuffix(s, "\x00")) - len(p.data)
	return Errorf("Mismatch between format character '%s' and string character '%s' at string index: %d with format: '%s'",
		show(format[0]), show(p.data[0]), index, p.format)
}

func parseFailure(s string) error {
	return Errorf("Failed to parse input string %s", strconv.Quote(s))
}

func isBlank(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func trimSpace(s string) string {
	for s != "" && isBlank(s[0]) {
		s = s[1:]
	}
	return s
}

func (p *formatParser) skipSpace() { p.data = trimSpace(p.data) }

// number reads up to width digits, as a number between low and high.
func (p *formatParser) number(width int, low, high int64, out *int64) bool {
	n, rest, ok := takeDigits(p.data, 1, min(width, 18))
	if !ok || n < low || n > high {
		return false
	}
	p.data, *out = rest, n
	return true
}

// spacedNumber is number behind any spaces.
func (p *formatParser) spacedNumber(width int, low, high int64, out *int64) bool {
	p.skipSpace()
	return p.number(width, low, high, out)
}

func (p *formatParser) char(c byte) bool {
	if p.data == "" || p.data[0] != c {
		return false
	}
	p.data = p.data[1:]
	return true
}

// part reads a number for a part that is looked at in the end.
func (p *formatParser) part(width int, low, high int64, out *partAt) bool {
	out.at = p.position
	return p.number(width, low, high, &out.value)
}

// element reads the element at the start of format, of which the % is gone. It returns
// what follows, and false if the data does not match it.
func (p *formatParser) element(format string) (rest string, ok bool, err error) {
	letter, rest := format[0], format[1:]
	next := strings.HasPrefix(rest, "%")
	switch letter {
	case 'E':
		return p.extended(rest)
	case 'O':
		if rest == "" || strings.IndexByte("BbdeHhImMSuUVwWy", rest[0]) < 0 {
			return rest, false, nil
		}
		letter, rest = rest[0], rest[1:]
		next = strings.HasPrefix(rest, "%")
	}
	ok, err = p.letter(letter, next)
	return rest, ok, err
}

// extended reads what follows %E.
func (p *formatParser) extended(format string) (rest string, ok bool, err error) {
	has := func(s string) bool {
		if !strings.HasPrefix(format, s) {
			return false
		}
		rest = format[len(s):]
		return true
	}
	switch {
	case has("z"):
		if strings.HasPrefix(p.data, "Z") {
			p.data, p.offset, p.hasOffset = p.data[1:], 0, true
			return rest, true, nil
		}
		ok, err = p.zoneOffset(true)
		return rest, ok, err
	case has("*S"):
		return rest, p.number(2, 0, 60, &p.second) && p.fraction(18), nil
	case has("4Y"):
		before := len(p.data)
		ok = p.number(4, 0, 9999, &p.year) && before-len(p.data) == 4
		p.sawYear()
		return rest, ok, nil
	case len(format) > 1 && format[0] >= '0' && int(format[0]-'0') <= p.precision && format[1] == 'S':
		ok = p.number(2, 0, 60, &p.second)
		if digits := int(format[0] - '0'); ok && digits > 0 {
			ok = p.fraction(digits)
		}
		return format[2:], ok, nil
	case format == "" || strings.IndexByte("cCxXyY", format[0]) < 0:
		return format, false, nil
	}
	ok, err = p.letter(format[0], strings.HasPrefix(format[1:], "%"))
	return format[1:], ok, err
}

// fraction reads a point and up to digits digits behind it, if there is a point.
func (p *formatParser) fraction(digits int) bool {
	if !p.char('.') {
		return true
	}
	n, micros := 0, int64(0)
	for n < len(p.data) && p.data[n] >= '0' && p.data[n] <= '9' && (digits == 18 || n < digits) {
		if n < p.precision {
			micros = micros*10 + int64(p.data[n]-'0')
		}
		n++
	}
	for i := min(n, p.precision); i < 6; i++ {
		micros *= 10
	}
	p.data, p.micros = p.data[n:], micros
	return n > 0
}

// zoneOffset reads (+|-)HH[[:]MM].
func (p *formatParser) zoneOffset(colon bool) (bool, error) {
	if p.data == "" || p.data[0] != '+' && p.data[0] != '-' {
		return false, nil
	}
	negative := p.data[0] == '-'
	hours, rest, ok := takeDigits(p.data[1:], 2, 2)
	if !ok || hours > 23 {
		return false, nil
	}
	p.data = rest
	if colon {
		rest = strings.TrimPrefix(rest, ":")
	}
	minutes, rest, ok := takeDigits(rest, 2, 2)
	if ok && minutes <= 59 {
		p.data = rest
	} else {
		minutes = 0
	}
	p.offset, p.hasOffset = hours*60+minutes, true
	if negative {
		p.offset = -p.offset
	}
	if p.offset > 14*60 || p.offset < -14*60 {
		return false, Errorf("Timezone offset out of valid range -14:00 to +14:00: %s", appendZone(nil, p.offset*60, ":"))
	}
	return true, nil
}

// sawYear notes that year is complete.
func (p *formatParser) sawYear() {
	p.useCentury, p.ownCentury, p.civil, p.yearAt = false, false, true, p.position
}

func (p *formatParser) fullYear(next bool) bool {
	width, high := 5, int64(10000)
	if next {
		width, high = 4, 9999
	}
	p.sawYear()
	return p.number(width, 0, high, &p.year)
}

func (p *formatParser) shortYear() bool {
	if !p.number(2, 0, 99, &p.year) {
		return false
	}
	if !p.ownCentury {
		p.century = 19
		if p.year < 69 {
			p.century = 20
		}
	}
	p.useCentury, p.civil, p.yearAt = true, true, p.position
	return true
}

func (p *formatParser) readMonth() bool {
	p.civil, p.monthAt = true, p.position
	return p.number(2, 1, 12, &p.month)
}

func (p *formatParser) readDay() bool {
	p.civil, p.dayAt = true, p.position
	return p.number(2, 1, 31, &p.day)
}

func (p *formatParser) dialHour() bool {
	if !p.spacedNumber(2, 1, 12, &p.hour) {
		return false
	}
	p.hour %= 12
	p.twelve = true
	return true
}

func (p *formatParser) halfDay() bool {
	if len(p.data) < 2 || p.data[1]|0x20 != 'm' {
		return false
	}
	switch p.data[0] | 0x20 {
	case 'a':
		p.afternoon = false
	case 'p':
		p.afternoon = true
	default:
		return false
	}
	p.data = p.data[2:]
	return true
}

func (p *formatParser) clock(seconds bool) bool {
	p.twelve = false
	ok := p.spacedNumber(2, 0, 23, &p.hour) && p.char(':') && p.spacedNumber(2, 0, 59, &p.minute)
	if ok && seconds {
		ok = p.char(':') && p.spacedNumber(2, 0, 61, &p.second)
	}
	return ok
}

// name reads one of names, in full or its first three letters, in any case, and
// returns its index or -1.
func (p *formatParser) name(names []string) int {
	for i, name := range names {
		for _, n := range []string{name, name[:min(3, len(name))]} {
			if n != "" && len(p.data) >= len(n) && strings.EqualFold(p.data[:len(n)], n) {
				p.data = p.data[len(n):]
				return i
			}
		}
	}
	return -1
}

func (p *formatParser) readWeekday() bool {
	i := p.name(weekdayNames[:])
	p.weekday = partAt{int64(i), p.position}
	return i >= 0
}

func (p *formatParser) monthName() bool {
	i := p.name(monthNames[:])
	p.civil, p.monthAt, p.month = true, p.position, int64(i)
	return i > 0
}

// letter reads the element of one letter. next says that another element follows
// without anything between.
func (p *formatParser) letter(letter byte, next bool) (bool, error) {
	switch letter {
	case '%':
		return p.char('%'), nil
	case 'A', 'a':
		return p.readWeekday(), nil
	case 'B', 'b', 'h':
		return p.monthName(), nil
	case 'C':
		width, high := 3, int64(100)
		if next {
			width, high = 2, 99
		}
		if !p.useCentury {
			p.year = 0
		}
		p.useCentury, p.ownCentury, p.civil, p.yearAt = true, true, true, p.position
		return p.number(width, 0, high, &p.century), nil
	case 'c':
		ok := p.readWeekday()
		p.weekday.at = 0
		p.skipSpace()
		ok = ok && p.monthName()
		p.skipSpace()
		ok = ok && p.readDay()
		p.skipSpace()
		ok = ok && p.clock(true)
		p.skipSpace()
		return ok && p.fullYear(true), nil
	case 'D', 'x':
		p.skipSpace()
		ok := p.readMonth() && p.char('/')
		p.skipSpace()
		ok = ok && p.readDay() && p.char('/')
		p.skipSpace()
		return ok && p.shortYear(), nil
	case 'd':
		return p.readDay(), nil
	case 'e':
		p.skipSpace()
		return p.readDay(), nil
	case 'F':
		p.skipSpace()
		ok := p.fullYear(true) && p.char('-')
		p.skipSpace()
		ok = ok && p.readMonth() && p.char('-')
		p.skipSpace()
		return ok && p.readDay(), nil
	case 'G':
		return p.part(18, 0, 99999, &p.isoYear), nil
	case 'g':
		ok := p.part(2, 0, 99, &p.isoYear)
		if p.isoYear.value <= 68 {
			p.isoYear.value += 2000
		} else {
			p.isoYear.value += 1900
		}
		return ok, nil
	case 'H':
		p.twelve = false
		return p.number(2, 0, 23, &p.hour), nil
	case 'I', 'l':
		return p.dialHour(), nil
	case 'J':
		return p.part(3, 1, 371, &p.isoDay), nil
	case 'j':
		p.civil = true
		return p.part(3, 1, 366, &p.yearDay), nil
	case 'k':
		p.twelve = false
		return p.spacedNumber(2, 0, 23, &p.hour), nil
	case 'M':
		return p.number(2, 0, 59, &p.minute), nil
	case 'm':
		return p.readMonth(), nil
	case 'n', 't':
		p.skipSpace()
		return true, nil
	case 'P', 'p':
		return p.halfDay(), nil
	case 'Q':
		var quarter int64
		p.civil, p.monthAt, p.dayAt = true, p.position, p.position
		ok := p.number(1, 1, 4, &quarter)
		p.month, p.day = quarter*3-2, 1
		return ok, nil
	case 'R':
		return p.clock(false), nil
	case 'r':
		ok := p.dialHour() && p.char(':') && p.number(2, 0, 59, &p.minute) && p.char(':') && p.number(2, 0, 60, &p.second)
		p.skipSpace()
		return ok && p.halfDay(), nil
	case 'S':
		return p.number(2, 0, 60, &p.second), nil
	case 's':
		return p.unixSeconds(), nil
	case 'T', 'X':
		return p.clock(true), nil
	case 'U', 'W':
		p.civil, p.weekStartsOn = true, 0
		if letter == 'W' {
			p.weekStartsOn = 1
		}
		return p.part(2, 0, 53, &p.week), nil
	case 'u':
		ok := p.part(1, 1, 7, &p.weekday)
		p.weekday.value %= 7
		return ok, nil
	case 'V':
		return p.part(2, 1, 53, &p.isoWeek), nil
	case 'w':
		return p.part(1, 0, 6, &p.weekday), nil
	case 'Y':
		return p.fullYear(next), nil
	case 'y':
		return p.shortYear(), nil
	case 'Z':
		n := 0
		for n < len(p.data) && !isBlank(p.data[n]) {
			n++
		}
		z, err := loadZone(p.data[:n])
		p.data, p.zone, p.offset, p.hasOffset = p.data[n:], z, 0, false
		return err == nil, err
	case 'z':
		return p.zoneOffset(false)
	}
	return false, nil
}

// unixSeconds reads %s: up to 12 characters.
func (p *formatParser) unixSeconds() bool {
	negative := p.char('-')
	width := 12
	if negative {
		width = 11
	}
	n, rest, ok := takeDigits(p.data, 1, width)
	if negative {
		n = -n
	}
	p.data, p.unix, p.hasUnix = rest, n, true
	p.civil, p.yearAt, p.monthAt, p.dayAt = true, p.position, p.position, p.position
	return ok
}

// result returns the timestamp that was read.
func (p *formatParser) result() (int64, error) {
	if p.hasUnix {
		if p.unix < minTimestamp/microsPerSecond || p.unix > maxTimestamp/microsPerSecond {
			return 0, Errorf("Invalid result from parsing function")
		}
		return p.unix * microsPerSecond, nil
	}
	if p.twelve && p.afternoon {
		p.hour += 12
	}
	if p.hasOffset {
		p.zone = nil
	}
	switch p.second {
	case 60:
		p.second, p.micros = 59, microsPerSecond
	case 61:
		return 0, Errorf("Out-of-range datetime field in parsing function")
	}
	if p.useCentury {
		p.year += p.century * 100
	}
	days, err := p.date()
	if err != nil {
		return 0, err
	}
	seconds := days*secondsPerDay + p.hour*3600 + p.minute*60 + p.second
	out := (p.zone.at(seconds)-p.offset*60)*microsPerSecond + p.micros
	if !isValidTimestamp(out) {
		return 0, Errorf("Invalid result from parsing function")
	}
	return out, nil
}

// date returns the day that was read. Elements of weeks and days of the year count
// as far as they stand behind those of years, months and days. Those of ISO 8601
// count if no others are there.
func (p *formatParser) date() (int64, error) {
	switch {
	case !p.civil && p.isoYear.at > 0:
		return p.isoDate()
	case p.week.at == 0 && p.yearDay.at == 0:
		if !isValidDay(p.year, int(p.month), int(p.day)) {
			return 0, Errorf("Out-of-range datetime field in parsing function")
		}
		return daysOf(p.year, int(p.month), int(p.day)), nil
	}
	var days int64
	at := p.week.at
	if p.yearDay.at > 0 && (p.yearDay.at > p.week.at || p.weekday.at == 0) {
		if p.yearDay.value == 366 && !isLeap(p.year) {
			return 0, Errorf("Year %d has 365 days, but the specified day of year was %d", p.year, p.yearDay.value)
		}
		at, days = p.yearDay.at, daysOf(p.year, 1, 1)+p.yearDay.value-1
	} else {
		first := daysOf(p.year, 1, 1)
		last := daysOf(p.year, 12, 31)
		if p.week.value < int64(weekOfYear(first, p.weekStartsOn)) || p.week.value > int64(weekOfYear(last, p.weekStartsOn)) {
			return 0, Errorf("Week number %d is invalid for year %d", p.week.value, p.year)
		}
		days = weekStart(first+6, p.weekStartsOn) + 7*(p.week.value-1)
		if p.weekday.at > 0 {
			days += floorMod(p.weekday.value-int64(p.weekStartsOn), 7)
		}
	}
	year, month, day := civilOf(days)
	if p.yearAt < at {
		p.year = year
	}
	if p.monthAt < at {
		p.month = int64(month)
	}
	if p.dayAt < at {
		p.day = int64(day)
	}
	if !isValidDay(p.year, int(p.month), int(p.day)) {
		return 0, Errorf("Out-of-range datetime field in parsing function; year: %d, month: %d, day: %d", p.year, p.month, p.day)
	}
	return daysOf(p.year, int(p.month), int(p.day)), nil
}

// isoDate returns the day of a year of ISO 8601 and a day or week in it.
func (p *formatParser) isoDate() (int64, error) {
	year := p.isoYear.value
	if year > 10000 {
		return 0, Errorf("Invalid result from parsing function")
	}
	first := isoYearStart(year)
	length := isoYearStart(year+1) - first
	if p.isoDay.at > 0 && (p.isoDay.at > p.isoWeek.at || p.weekday.at == 0) {
		if p.isoDay.value > length {
			return 0, Errorf("ISO Year %d has %d days, but the specified day of year was %d", year, length, p.isoDay.value)
		}
		return first + p.isoDay.value - 1, nil
	}
	if p.isoWeek.at == 0 {
		return first, nil
	}
	if p.isoWeek.value*7 > length {
		return 0, Errorf("Invalid ISO week %d specified for ISO year %d", p.isoWeek.value, year)
	}
	days := first + 7*(p.isoWeek.value-1)
	if p.weekday.at > 0 {
		days += (p.weekday.value + 6) % 7
	}
	return days, nil
}

// checkDateFormat refuses elements that a date does not have.
func checkDateFormat(format string) error {
	for i := 0; i+1 < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		i++
		at := i
		if (format[i] == 'E' || format[i] == 'O') && i+1 < len(format) {
			i++
			if format[at] == 'E' && (format[i] == '*' || format[i] >= '0' && format[i] <= '9') && i+1 < len(format) {
				i++
			}
		}
		if strings.IndexByte(timeElements, format[i]) >= 0 {
			return Errorf("Invalid format: %%%s is not allowed for the DATE type.", format[at:i+1])
		}
	}
	return nil
}

func parseDateFormat(_ *Call, args []types.Value) (types.Value, error) {
	if err := checkDateFormat(args[0].Str); err != nil {
		return types.Null, err
	}
	micros, err := parseFormat(args[0].Str, args[1].Str, nil, 6)
	if err != nil {
		return types.Null, err
	}
	return types.NewInt(floorDiv(micros, microsPerDay)), nil
}

func parseTimestampFormat(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 2)
	if err != nil {
		return types.Null, err
	}
	precision := int64(6)
	if hasArg(c, args, 3) {
		if precision = args[3].Int; precision < 0 || precision > 12 || precision%3 != 0 {
			return types.Null, Errorf("Invalid precision of a timestamp: %d", precision)
		}
	}
	micros, err := parseFormat(args[0].Str, args[1].Str, zone, int(min(precision, 6)))
	if err != nil {
		return types.Null, err
	}
	return types.NewInt(micros), nil
}

// dateFromString is DATE(string): the date of the timestamp that the string has, as
// it stands there.
func dateFromString(_ *Call, args []types.Value) (types.Value, error) {
	if days, err := parseDate(args[0].Str); err == nil {
		return types.NewInt(days), nil
	}
	micros, err := parseTimestamp(args[0].Str, nil)
	if err != nil {
		return types.Null, err
	}
	return types.NewInt(floorDiv(micros, microsPerDay)), nil
}

func timestampFromString(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 1)
	if err != nil {
		return types.Null, err
	}
	s := args[0].Str
	if hasArg(c, args, 1) && namesZone(s) {
		return types.Null, Errorf("Timezone is not allowed in \"%s\"", s)
	}
	micros, err := parseTimestamp(s, zone)
	if err != nil {
		return types.Null, err
	}
	return types.NewInt(micros), nil
}

// namesZone tells whether a timestamp has a time zone of its own: something behind the
// digits of its date and time.
func namesZone(s string) bool {
	_, _, _, rest, ok := takeDate(s, 5)
	if !ok || len(rest) < 2 {
		return false
	}
	if _, tail, ok := takeClock(rest[1:]); ok {
		return tail != ""
	}
	return rest[1] == '+' || rest[1] == '-'
}
