package functions

// Dates are days since 1970-01-01, timestamps microseconds since then, in the
// proleptic Gregorian calendar of the years 1 to 9999.
const (
	minDate = -719162 // 0001-01-01
	maxDate = 2932896 // 9999-12-31

	microsPerSecond = 1_000_000
	secondsPerDay   = 86_400
	microsPerDay    = secondsPerDay * microsPerSecond

	minTimestamp = minDate * microsPerDay
	maxTimestamp = (maxDate+1)*microsPerDay - 1
)

func isValidDate(days int64) bool { return days >= minDate && days <= maxDate }

func isValidTimestamp(micros int64) bool { return micros >= minTimestamp && micros <= maxTimestamp }

// floorDiv returns a / b rounded down, for a positive b.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// floorMod returns a - b*floorDiv(a, b).
func floorMod(a, b int64) int64 {
	m := a % b
	if m < 0 {
		m += b
	}
	return m
}

// civilOf returns the year, month and day of a date. Years are counted from March
// in between, so that the leap day is the last of a year.
func civilOf(days int64) (year int64, month, day int) {
	z := days + 719468
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = int(doy-(153*mp+2)/5) + 1
	month = int(mp) + 3
	year = yoe + era*400
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, day
}

// daysOf returns the date of a year, month (1 to 12) and day. A day beyond the end of
// the month counts on into the next.
func daysOf(year int64, month, day int) int64 {
	if month <= 2 {
		year--
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	mp := int64(month+9) % 12
	doy := (153*mp+2)/5 + int64(day) - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

func isLeap(year int64) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

var monthDays = [...]int{0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

func daysInMonth(year int64, month int) int {
	if month == 2 && isLeap(year) {
		return 29
	}
	return monthDays[month]
}

// isValidDay tells whether a month of a year has a day.
func isValidDay(year int64, month, day int) bool {
	return month >= 1 && month <= 12 && day >= 1 && day <= daysInMonth(year, month)
}

// weekdayOf returns the day of the week, Sunday as 0.
func weekdayOf(days int64) int { return int(floorMod(days+4, 7)) }

// yearDayOf returns the day of the year, from 1.
func yearDayOf(days int64) int {
	year, _, _ := civilOf(days)
	return int(days-daysOf(year, 1, 1)) + 1
}

// isoYearWeek returns the year and week of ISO 8601: weeks begin on Monday, and the first
// of a year is that of the year's first Thursday.
func isoYearWeek(days int64) (year int64, week int) {
	thursday := days - floorMod(days+3, 7) + 3
	year, _, _ = civilOf(thursday)
	return year, int(thursday-daysOf(year, 1, 1))/7 + 1
}

// isoYearStart returns the first day of a year of ISO 8601.
func isoYearStart(year int64) int64 { return weekStart(daysOf(year, 1, 4), 1) }

// weekStart returns the day on or before days that is the weekday first.
func weekStart(days int64, first int) int64 {
	return days - int64((weekdayOf(days)-first+7)%7)
}

// weekOfYear returns the week of the year, where weeks begin on the weekday first, and
// days before the first such day are in week 0.
func weekOfYear(days int64, first int) int {
	year, _, _ := civilOf(days)
	start := weekStart(daysOf(year, 1, 1)+6, first)
	if days < start {
		return 0
	}
	return int(days-start)/7 + 1
}

// addMonths returns the date n months later. A day that the month does not have
// becomes its last. It returns false for a year outside 1 to 9999.
func addMonths(days, n int64) (int64, bool) {
	const limit = 12 * 10000
	if n > limit || n < -limit {
		return 0, false
	}
	year, month, day := civilOf(days)
	m := year*12 + int64(month) - 1 + n
	year = floorDiv(m, 12)
	month = int(m-year*12) + 1
	if year < 1 || year > 9999 {
		return 0, false
	}
	return daysOf(year, month, min(day, daysInMonth(year, month))), true
}

// A datePart is a part of a date or time.
type datePart uint8

const (
	noPart datePart = iota
	partYear
	partISOYear
	partQuarter
	partMonth
	partWeek // and the weekday on which it begins: partWeek + 1 is WEEK(MONDAY)
	partWeekMonday
	partWeekTuesday
	partWeekWednesday
	partWeekThursday
	partWeekFriday
	partWeekSaturday
	partISOWeek
	partDay
	partDayOfWeek
	partDayOfYear
	partHour
	partMinute
	partSecond
	partMillisecond
	partMicrosecond
	partNanosecond
	partDate
	partTime
)

// partOf returns the part of a name in upper case.
func partOf(name string) datePart {
	switch name {
	case "YEAR":
		return partYear
	case "ISOYEAR":
		return partISOYear
	case "QUARTER":
		return partQuarter
	case "MONTH":
		return partMonth
	case "WEEK", "WEEK(SUNDAY)":
		return partWeek
	case "WEEK(MONDAY)":
		return partWeekMonday
	case "WEEK(TUESDAY)":
		return partWeekTuesday
	case "WEEK(WEDNESDAY)":
		return partWeekWednesday
	case "WEEK(THURSDAY)":
		return partWeekThursday
	case "WEEK(FRIDAY)":
		return partWeekFriday
	case "WEEK(SATURDAY)":
		return partWeekSaturday
	case "ISOWEEK":
		return partISOWeek
	case "DAY":
		return partDay
	case "DAYOFWEEK":
		return partDayOfWeek
	case "DAYOFYEAR":
		return partDayOfYear
	case "HOUR":
		return partHour
	case "MINUTE":
		return partMinute
	case "SECOND":
		return partSecond
	case "MILLISECOND":
		return partMillisecond
	case "MICROSECOND":
		return partMicrosecond
	case "NANOSECOND":
		return partNanosecond
	case "DATE":
		return partDate
	case "TIME":
		return partTime
	}
	return noPart
}

// isWeek tells whether p is a week of any kind, and on which weekday it begins.
func (p datePart) isWeek() (first int, ok bool) {
	switch {
	case p >= partWeek && p <= partWeekSaturday:
		return int(p - partWeek), true
	case p == partISOWeek:
		return 1, true
	}
	return 0, false
}

// enumName returns the name, which SQL writes as text, that some messages have for p:
// WEEK_MONDAY.
func (p datePart) enumName(text string) string {
	if p > partWeek && p <= partWeekSaturday {
		return "WEEK_" + text[len("WEEK("):len(text)-1]
	}
	return text
}

// appendPadded appends n, which is not negative, with at least width digits.
func appendPadded(dst []byte, n int64, width int) []byte {
	var buf [20]byte
	i := len(buf)
	for n > 0 || width > 0 || i == len(buf) {
		i--
		buf[i] = byte('0' + n%10)
		n /= 10
		width--
	}
	return append(dst, buf[i:]...)
}

// appendDate appends a date as SQL writes it: 2006-01-02.
func appendDate(dst []byte, days int64) []byte {
	year, month, day := civilOf(days)
	dst = appendPadded(dst, year, 4)
	dst = append(dst, '-', byte('0'+month/10), byte('0'+month%10), '-')
	return append(dst, byte('0'+day/10), byte('0'+day%10))
}

// dateString returns a date as SQL writes it.
func dateString(days int64) string {
	var buf [16]byte
	return string(appendDate(buf[:0], days))
}
