package functions

import (
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/query/types"
)

func TestCivil(t *testing.T) {
	for days := int64(minDate); days <= maxDate; days += 97 {
		y, m, d := civilOf(days)
		want := time.Unix(days*secondsPerDay, 0).UTC()
		if int(y) != want.Year() || m != int(want.Month()) || d != want.Day() {
			t.Fatalf("civilOf(%d) = %d-%d-%d, want %s", days, y, m, d, want)
		}
		if back := daysOf(y, m, d); back != days {
			t.Fatalf("daysOf(%d, %d, %d) = %d, want %d", y, m, d, back, days)
		}
		if weekdayOf(days) != int(want.Weekday()) || yearDayOf(days) != want.YearDay() {
			t.Fatalf("%s: weekday %d, day of the year %d", want, weekdayOf(days), yearDayOf(days))
		}
		iy, iw := isoYearWeek(days)
		if wy, ww := want.ISOWeek(); int(iy) != wy || iw != ww {
			t.Fatalf("isoYearWeek(%s) = %d, %d, want %d, %d", want, iy, iw, wy, ww)
		}
	}
}

func TestDates(t *testing.T) {
	interval := func(n int64, part string) []typed { return []typed{tInt(n), tPart(part)} }
	with := func(first []typed, more ...typed) []typed { return append(first, more...) }
	checkScalars(t, []scalarCase{
		{"CURRENT_DATE", nil, "2025-11-24"},
		{"CURRENT_DATE", list(tText("+12")), "2025-11-25"},
		{"CURRENT_DATE", list(tText("foo")), "!Invalid time zone: foo"},
		{"CURRENT_DATE", list(tText("")), "!Invalid empty time zone"},
		{"CURRENT_DATE", list(tNull(types.StringType)), "NULL"},
		{"DATE", list(tInt(2016), tInt(12), tInt(25)), "2016-12-25"},
		{"DATE", list(tInt(2015), tInt(2), tInt(29)), "!Input calculates to invalid date: 2015-02-29"},
		{"DATE", list(tInt(0), tInt(1), tInt(1)), "!Input calculates to invalid date: 0000-01-01"},
		{"DATE", list(tTime("2016-12-25 05:30:00+07"), tText("America/Los_Angeles")), "2016-12-24"},
		{"DATE", list(tTime("2016-12-25 05:30:00+00")), "2016-12-25"},
		{"DATE", list(tTime("0001-01-01 00:00:00+00"), tText("-01")), "!Invalid date extracted from timestamp 0000-12-31 23:00:00-01"},
		{"DATE", list(tText("2020-09-01 12:34:56.789-08")), "2020-09-01"},
		{"DATE", list(tText("1999-10-20")), "1999-10-20"},
		{"DATE_ADD", with(list(tDay("2008-12-25")), interval(5, "DAY")...), "2008-12-30"},
		{"DATE_ADD", with(list(tDay("2008-01-31")), interval(1, "MONTH")...), "2008-02-29"},
		{"DATE_ADD", with(list(tDay("2008-02-29")), interval(1, "YEAR")...), "2009-02-28"},
		{"DATE_ADD", with(list(tDay("2008-02-29")), interval(-1, "QUARTER")...), "2007-11-29"},
		{"DATE_ADD", with(list(tDay("2008-12-25")), interval(2, "WEEK")...), "2009-01-08"},
		{"DATE_ADD", with(list(tDay("9999-12-31")), interval(1, "DAY")...), "!Adding 1 DAY to date 9999-12-31 causes overflow"},
		{"DATE_ADD", with(list(tDay("9999-12-31")), interval(9223372036854775807, "MONTH")...), "!Adding 9223372036854775807 MONTH to date 9999-12-31 causes overflow"},
		{"DATE_ADD", with(list(tDay("2000-01-01")), interval(2000000000, "YEAR")...), "!Adding 2000000000 YEAR to date 2000-01-01 causes overflow"},
		{"DATE_ADD", with(list(tDay("2000-01-01")), interval(1, "HOUR")...), "!DATE_ADD does not support the HOUR date part"},
		{"DATE_SUB", with(list(tDay("2008-12-25")), interval(5, "DAY")...), "2008-12-20"},
		{"DATE_SUB", with(list(tDay("0001-01-01")), interval(1, "DAY")...), "!Adding -1 DAY to date 0001-01-01 causes overflow"},
		{"DATE_SUB", with(list(tDay("0001-01-01")), interval(-9223372036854775808, "DAY")...), "!Subtracting -9223372036854775808 DAY from date 0001-01-01 causes overflow"},
		{"DATE_DIFF", list(tDay("2010-07-07"), tDay("2008-12-25"), tPart("DAY")), "559"},
		{"DATE_DIFF", list(tDay("2017-10-15"), tDay("2017-10-14"), tPart("DAY")), "1"},
		{"DATE_DIFF", list(tDay("2017-10-15"), tDay("2017-10-14"), tPart("WEEK")), "1"},
		{"DATE_DIFF", list(tDay("2017-12-30"), tDay("2014-12-30"), tPart("YEAR")), "3"},
		{"DATE_DIFF", list(tDay("2017-12-30"), tDay("2014-12-30"), tPart("ISOYEAR")), "2"},
		{"DATE_DIFF", list(tDay("2017-12-18"), tDay("2017-12-17"), tPart("WEEK")), "0"},
		{"DATE_DIFF", list(tDay("2017-12-18"), tDay("2017-12-17"), tPart("WEEK(MONDAY)")), "1"},
		{"DATE_DIFF", list(tDay("2017-12-18"), tDay("2017-12-17"), tPart("ISOWEEK")), "1"},
		{"DATE_DIFF", list(tDay("2000-01-01"), tDay("2001-01-01"), tPart("WEEK")), "-53"},
		{"DATE_DIFF", list(tDay("2001-03-01"), tDay("2000-12-31"), tPart("MONTH")), "3"},
		{"DATE_DIFF", list(tDay("2001-03-31"), tDay("2001-04-01"), tPart("QUARTER")), "-1"},
		{"DATE_DIFF", list(tDay("9999-12-31"), tDay("0001-01-01"), tPart("DAY")), "3652058"},
		{"DATE_TRUNC", list(tDay("2008-12-25"), tPart("MONTH")), "2008-12-01"},
		{"DATE_TRUNC", list(tDay("2017-11-05"), tPart("WEEK(MONDAY)")), "2017-10-30"},
		{"DATE_TRUNC", list(tDay("2015-06-15"), tPart("ISOYEAR")), "2014-12-29"},
		{"DATE_TRUNC", list(tDay("2015-06-15"), tPart("QUARTER")), "2015-04-01"},
		{"DATE_TRUNC", list(tDay("2017-11-08"), tPart("WEEK")), "2017-11-05"},
		{"DATE_TRUNC", list(tDay("0001-01-01"), tPart("WEEK")), "!Truncating date 0001-01-01 to WEEK resulted in an out of range date value: -719163"},
		{"LAST_DAY", list(tDay("2008-11-25")), "2008-11-30"},
		{"LAST_DAY", list(tDay("2008-11-25"), tPart("YEAR")), "2008-12-31"},
		{"LAST_DAY", list(tDay("2008-11-10"), tPart("WEEK(SUNDAY)")), "2008-11-15"},
		{"LAST_DAY", list(tDay("2008-11-10"), tPart("WEEK(MONDAY)")), "2008-11-16"},
		{"LAST_DAY", list(tDay("2008-11-10"), tPart("QUARTER")), "2008-12-31"},
		{"LAST_DAY", list(tDay("2008-11-10"), tPart("ISOYEAR")), "2008-12-28"},
		{"LAST_DAY", list(tDay("9999-12-31"), tPart("WEEK")), "!Last day of date 9999-12-31 to WEEK resulted in an out of range date value: 2932897"},
		{"DATE_FROM_UNIX_DATE", list(tInt(14238)), "2008-12-25"},
		{"DATE_FROM_UNIX_DATE", list(tInt(2932897)), "!DATE_FROM_UNIX_DATE range is -719162 to 2932896 but saw 2932897"},
		{"UNIX_DATE", list(tDay("2008-12-25")), "14238"},
		{"UNIX_DATE", list(tDay("0001-01-01")), "-719162"},
		{"$extract", list(tDay("2013-12-25"), tPart("DAY")), "25"},
		{"$extract", list(tDay("2015-12-30"), tPart("ISOYEAR")), "2015"},
		{"$extract", list(tDay("2016-01-01"), tPart("ISOWEEK")), "53"},
		{"$extract", list(tDay("2016-01-01"), tPart("WEEK")), "0"},
		{"$extract", list(tDay("2016-01-03"), tPart("WEEK")), "1"},
		{"$extract", list(tDay("2017-11-05"), tPart("WEEK")), "45"},
		{"$extract", list(tDay("2017-11-05"), tPart("WEEK(MONDAY)")), "44"},
		{"$extract", list(tDay("2017-11-06"), tPart("WEEK(MONDAY)")), "45"},
		{"$extract", list(tDay("2016-01-21"), tPart("DAYOFWEEK")), "5"},
		{"$extract", list(tDay("2016-03-01"), tPart("DAYOFYEAR")), "61"},
		{"$extract", list(tDay("2016-03-01"), tPart("QUARTER")), "1"},
		{"$extract", list(tDay("2016-03-01"), tPart("HOUR")), "!EXTRACT from DATE does not support the HOUR date part"},
		{"GENERATE_DATE_ARRAY", list(tDay("2016-10-05"), tDay("2016-10-08")), "[2016-10-05, 2016-10-06, 2016-10-07, 2016-10-08]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-10-05"), tDay("2016-10-09")), interval(2, "DAY")...), "[2016-10-05, 2016-10-07, 2016-10-09]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-10-05"), tDay("2016-10-01")), interval(-3, "DAY")...), "[2016-10-05, 2016-10-02]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-10-05"), tDay("2016-10-05")), interval(8, "DAY")...), "[2016-10-05]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-10-10"), tDay("2016-10-05")), interval(1, "DAY")...), "[]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-01-01"), tDay("2016-12-31")), interval(2, "MONTH")...), "[2016-01-01, 2016-03-01, 2016-05-01, 2016-07-01, 2016-09-01, 2016-11-01]"},
		{"GENERATE_DATE_ARRAY", with(list(tDay("2016-01-01"), tDay("2017-01-01")), interval(0, "DAY")...), "!Sequence step cannot be 0."},
		{"GENERATE_DATE_ARRAY", with(list(tDay("9999-12-30"), tDay("9999-12-31")), interval(1, "DAY")...), "[9999-12-30, 9999-12-31]"},
		{"GENERATE_DATE_ARRAY", list(tDay("0001-01-01"), tDay("9999-12-31")), "!Cannot generate arrays with more than 16000 elements."},
		{"FORMAT_DATE", list(tText("%x"), tDay("2008-12-25")), "12/25/08"},
		{"FORMAT_DATE", list(tText("%b-%d-%Y"), tDay("2008-12-25")), "Dec-25-2008"},
		{"FORMAT_DATE", list(tText("%b %Y"), tDay("2008-12-25")), "Dec 2008"},
		{"FORMAT_DATE", list(tText("%H:%M %E4Y %E*S %Ez %Q %%"), tDay("2008-12-25")), "%H:%M 2008 %E*S %Ez 4 %"},
		{"FORMAT_DATE", list(tText("%A %a %B %j %U %W %V %G %g %u %w %C %y %e %D %F %J"), tDay("2008-01-06")), "Sunday Sun January 006 01 00 01 2008 08 7 0 20 08  6 01/06/08 2008-01-06 007"},
		{"FORMAT_DATE", list(tText("%-d %_d %4d %^a %10Y|%"), tDay("2008-01-06")), "6  6 0006 SUN 0000002008|%"},
		{"FORMAT_DATE", list(tText("%Y %E4Y"), tDay("0001-01-06")), "1 0001"},
		{"PARSE_DATE", list(tText("%Y%m%d"), tText("20081225")), "2008-12-25"},
		{"PARSE_DATE", list(tText("%x"), tText("12/25/08")), "2008-12-25"},
		{"PARSE_DATE", list(tText("%A %b %e %Y"), tText("Thursday Dec 25 2008")), "2008-12-25"},
		{"PARSE_DATE", list(tText("%A %e %B"), tText("Thursday 25 december")), "1970-12-25"},
		{"PARSE_DATE", list(tText("%Y %A %b %e"), tText("Thursday Dec 25 2008")), "!Failed to parse input string \"Thursday Dec 25 2008\""},
		{"PARSE_DATE", list(tText("%F"), tText("2000-12-30")), "2000-12-30"},
		{"PARSE_DATE", list(tText("%F"), tText("2000-12-32")), "!Failed to parse input string \"2000-12-32\""},
		{"PARSE_DATE", list(tText("%F"), tText("2001-02-29")), "!Out-of-range datetime field in parsing function"},
		{"PARSE_DATE", list(tText("%W%y"), tText("92")), "!Failed to parse input string \"92\""},
		{"PARSE_DATE", list(tText("%W%y"), tText("92\r\x00")), "!Failed to parse input string \"92\\r\\x00\""},
		{"PARSE_DATE", list(tText("%W%y"), tText("092")), "2002-03-04"},
		{"PARSE_DATE", list(tText("%W%y"), tText("0902")), "2002-03-04"},
		{"PARSE_DATE", list(tText("%U%g"), tText("82")), "!Failed to parse input string \"82\""},
		{"PARSE_DATE", list(tText("%Y-%j"), tText("2020-366")), "2020-12-31"},
		{"PARSE_DATE", list(tText("%Y-%j"), tText("2019-366")), "!Year 2019 has 365 days, but the specified day of year was 366"},
		{"PARSE_DATE", list(tText("%G-W%V-%u"), tText("2015-W53-5")), "2016-01-01"},
		{"PARSE_DATE", list(tText("%G-W%V"), tText("2014-W53")), "!Invalid ISO week 53 specified for ISO year 2014"},
		{"PARSE_DATE", list(tText("%G %J"), tText("2015 371")), "2016-01-03"},
		{"PARSE_DATE", list(tText("%Y %U %a"), tText("2016 01 Tue")), "2016-01-05"},
		{"PARSE_DATE", list(tText("%Y %U"), tText("2016 53")), "!Week number 53 is invalid for year 2016"},
		{"PARSE_DATE", list(tText("%Y-%Q"), tText("2016-3")), "2016-07-01"},
		{"PARSE_DATE", list(tText("%C%y"), tText("1869")), "1869-01-01"},
		{"PARSE_DATE", list(tText("%y"), tText("68")), "2068-01-01"},
		{"PARSE_DATE", list(tText("%y"), tText("69")), "1969-01-01"},
		{"PARSE_DATE", list(tText("%H"), tText("01")), "!Invalid format: %H is not allowed for the DATE type."},
		{"PARSE_DATE", list(tText("%E*S"), tText("01")), "!Invalid format: %E*S is not allowed for the DATE type."},
		{"PARSE_DATE", list(tText("%Y%"), tText("2000x")), "!Format string cannot end with a single '%'"},
		{"PARSE_DATE", list(tText("a%Y"), tText("2000")), "!Mismatch between format character 'a' and string character '2' at string index: 0 with format: 'a%Y'"},
		{"PARSE_DATE", list(tText("%Y"), tText("0000")), "!Invalid result from parsing function"},
		{"PARSE_DATE", list(tText(" %Y %n "), tText("  2000 ")), "2000-01-01"},
		{"PARSE_DATE", list(tText("%Y"), tText("")), "!Failed to parse input string \"\""},
		{"PARSE_DATE", list(tText("%q"), tText("1")), "!Failed to parse input string \"1\""},
	})
}

func TestTimestamps(t *testing.T) {
	checkScalars(t, []scalarCase{
		{"CURRENT_TIMESTAMP", nil, "2025-11-24 16:00:00+00"},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00+00")), "2008-12-25 15:30:00+00"},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00"), tText("America/Los_Angeles")), "2008-12-25 23:30:00+00"},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00 UTC")), "2008-12-25 15:30:00+00"},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00+01"), tText("UTC")), "!Timezone is not allowed in \"2008-12-25 15:30:00+01\""},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00Z"), tText("UTC")), "!Timezone is not allowed in \"2008-12-25 15:30:00Z\""},
		{"TIMESTAMP", list(tText("2008-12-25 15:30:00.123456789")), "!Invalid timestamp: '2008-12-25 15:30:00.123456789'"},
		{"TIMESTAMP", list(tDay("2008-12-25")), "2008-12-25 00:00:00+00"},
		{"TIMESTAMP", list(tDay("2008-12-25"), tText("America/Los_Angeles")), "2008-12-25 08:00:00+00"},
		{"TIMESTAMP", list(tDay("0001-01-01"), tText("+01")), "!Cannot convert date 0001-01-01 to timestamp"},
		{"TIMESTAMP_ADD", list(tTime("2008-12-25 15:30:00+00"), tInt(10), tPart("MINUTE")), "2008-12-25 15:40:00+00"},
		{"TIMESTAMP_ADD", list(tTime("2008-12-25 15:30:00+00"), tInt(-1), tPart("DAY")), "2008-12-24 15:30:00+00"},
		{"TIMESTAMP_ADD", list(tTime("9999-12-31 23:59:59.999999+00"), tInt(1), tPart("MICROSECOND")), "!Adding 1 MICROSECOND to timestamp 9999-12-31 23:59:59.999999+00 causes overflow"},
		{"TIMESTAMP_ADD", list(tTime("9999-12-31 00:00:00+00"), tInt(1), tPart("DAY")), "!Adding 1 DAY to timestamp 9999-12-31 00:00:00.000000+00 causes overflow"},
		{"TIMESTAMP_ADD", list(tTime("2000-01-01 00:00:00+00"), tInt(9223372036854775807), tPart("DAY")), "!TIMESTAMP_ADD interval value  9223372036854775807 at DAY precision causes overflow"},
		{"TIMESTAMP_ADD", list(tTime("2000-01-01 00:00:00+00"), tInt(9223372036854775807), tPart("MICROSECOND")), "!Adding 9223372036854775807 MICROSECOND to timestamp 2000-01-01 00:00:00.000000+00 causes overflow"},
		{"TIMESTAMP_ADD", list(tTime("2000-01-01 00:00:00+00"), tInt(9223372036854775807), tPart("MILLISECOND")), "!Converting timestamp interval 9223372036854775807 at TIMESTAMP_MILLISECOND scale to TIMESTAMP_MICROSECOND scale causes overflow"},
		{"TIMESTAMP_ADD", list(tTime("2000-01-01 00:00:00+00"), tInt(1), tPart("MONTH")), "!TIMESTAMP_ADD does not support the MONTH date part"},
		{"TIMESTAMP_SUB", list(tTime("2008-12-25 15:30:00+00"), tInt(10), tPart("MINUTE")), "2008-12-25 15:20:00+00"},
		{"TIMESTAMP_SUB", list(tTime("0001-01-01 00:00:00+00"), tInt(1), tPart("SECOND")), "!Adding -1 SECOND to timestamp 0001-01-01 00:00:00.000000+00 causes overflow"},
		{"TIMESTAMP_DIFF", list(tTime("2010-07-07 10:20:00+00"), tTime("2008-12-25 15:30:00+00"), tPart("HOUR")), "13410"},
		{"TIMESTAMP_DIFF", list(tTime("2018-08-14"), tTime("2018-10-14"), tPart("DAY")), "-61"},
		{"TIMESTAMP_DIFF", list(tTime("2001-02-01 01:00:00"), tTime("2001-02-01 00:00:01"), tPart("HOUR")), "0"},
		{"TIMESTAMP_TRUNC", list(tTime("2008-12-25 15:30:00+00"), tPart("DAY"), tText("UTC")), "2008-12-25 00:00:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("2008-12-25 15:30:00+00"), tPart("DAY"), tText("America/Los_Angeles")), "2008-12-25 08:00:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("2017-11-06 00:00:00+12"), tPart("WEEK(MONDAY)"), tText("UTC")), "2017-10-30 00:00:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("2017-11-06 00:00:00+12"), tPart("WEEK(MONDAY)"), tText("Pacific/Auckland")), "2017-11-05 11:00:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("2015-06-15 00:00:00+00"), tPart("ISOYEAR")), "2014-12-29 00:00:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("2000-02-03 04:05:06.789"), tPart("HOUR"), tText("+05:30")), "2000-02-03 03:30:00+00"},
		{"TIMESTAMP_TRUNC", list(tTime("1969-12-31 23:59:59.9999"), tPart("SECOND")), "1969-12-31 23:59:59+00"},
		{"TIMESTAMP_TRUNC", list(tTime("0001-01-01 00:00:00"), tPart("WEEK")), "!Truncating 0001-01-01 00:00:00+00 to the nearest week causes overflow"},
		{"TIMESTAMP_TRUNC", list(tTime("0001-01-01 23:00:00"), tPart("WEEK(MONDAY)"), tText("+05")), "!Truncating to the nearest WEEK_MONDAY causes underflow at timezone Fixed/UTC+05:00:00"},
		{"TIMESTAMP_TRUNC", list(tTime("9999-12-31 23:00:00"), tPart("ISOYEAR"), tText("+05")), "!Invalid date value: 2932897"},
		{"$extract", list(tTime("2008-12-25 05:30:00+00"), tPart("DAY"), tText("UTC")), "25"},
		{"$extract", list(tTime("2008-12-25 05:30:00+00"), tPart("DAY"), tText("America/Los_Angeles")), "24"},
		{"$extract", list(tTime("2008-12-25 05:30:07.123456"), tPart("MICROSECOND")), "123456"},
		{"$extract", list(tTime("1969-12-31 23:59:58.123456"), tPart("MILLISECOND")), "123"},
		{"$extract", list(tTime("2008-12-25 05:30:07.123456"), tPart("NANOSECOND")), "123456000"},
		{"$extract", list(tTime("2008-12-25 05:30:07"), tPart("HOUR"), tText("Asia/Kolkata")), "11"},
		{"$extract", list(tTime("2008-12-25 05:30:07"), tPart("SECOND")), "7"},
		{"$extract", list(tTime("2007-12-31 12:00:00"), tPart("ISOYEAR")), "2008"},
		{"$extract", list(tTime("2007-12-31 12:00:00"), tPart("DATE")), "!EXTRACT from TIMESTAMP does not support the DATE date part"},
		{"$extract_date", list(tTime("2007-12-31 23:00:00"), tText("+01")), "2008-01-01"},
		{"STRING", list(tTime("2008-12-25 15:30:00+00"), tText("UTC")), "2008-12-25 15:30:00+00"},
		{"STRING", list(tTime("2014-02-28 18:20:30+00"), tText("Australia/Eucla")), "2014-03-01 03:05:30+08:45"},
		{"STRING", list(tTime("2014-02-28 18:20:30+00"), tText("UTC+1234")), "2014-03-01 06:54:30+12:34"},
		{"STRING", list(tTime("2014-02-28 18:20:30+00"), tText("America/Vancouver")), "2014-02-28 10:20:30-08"},
		{"STRING", list(tTime("1883-11-18 00:00:00+00"), tText("America/Los_Angeles")), "1883-11-17 16:08:00-07:52"},
		{"STRING", list(tDay("2000-01-02")), "2000-01-02"},
		{"UNIX_SECONDS", list(tTime("1970-01-01 00:00:01.8+00")), "1"},
		{"UNIX_SECONDS", list(tTime("1969-12-31 23:59:59.999+00")), "-1"},
		{"UNIX_MILLIS", list(tTime("2008-12-25 15:30:00+00")), "1230219000000"},
		{"UNIX_MILLIS", list(tTime("1970-01-01 00:00:00.0018+00")), "1"},
		{"UNIX_MICROS", list(tTime("2008-12-25 15:30:00+00")), "1230219000000000"},
		{"TIMESTAMP_SECONDS", list(tInt(1230219000)), "2008-12-25 15:30:00+00"},
		{"TIMESTAMP_SECONDS", list(tInt(253402300800)), "!Input value 253402300800 cannot be converted into a TIMESTAMP, because it would be out of the allowed range between -62135596800000000 to 253402300799999999 (microseconds)"},
		{"TIMESTAMP_SECONDS", list(tInt(-62135596800)), "0001-01-01 00:00:00+00"},
		{"TIMESTAMP_MILLIS", list(tInt(1230219000000)), "2008-12-25 15:30:00+00"},
		{"TIMESTAMP_MICROS", list(tInt(1230219000000001)), "2008-12-25 15:30:00.000001+00"},
		{"TIMESTAMP_FROM_UNIX_MILLIS", list(tInt(1230219000123)), "2008-12-25 15:30:00.123+00"},
		{"GENERATE_TIMESTAMP_ARRAY", list(tTime("2016-10-05 00:00:00"), tTime("2016-10-07 00:00:00"), tInt(1), tPart("DAY")), "[2016-10-05 00:00:00+00, 2016-10-06 00:00:00+00, 2016-10-07 00:00:00+00]"},
		{"GENERATE_TIMESTAMP_ARRAY", list(tTime("2016-10-06 00:00:00"), tTime("2016-10-01 00:00:00"), tInt(-2), tPart("DAY")), "[2016-10-06 00:00:00+00, 2016-10-04 00:00:00+00, 2016-10-02 00:00:00+00]"},
		{"GENERATE_TIMESTAMP_ARRAY", list(tTime("2016-10-05 00:00:00"), tTime("2016-10-05 00:00:00"), tInt(1), tPart("HOUR")), "[2016-10-05 00:00:00+00]"},
		{"GENERATE_TIMESTAMP_ARRAY", list(tTime("2016-10-05 00:00:00"), tTime("2016-10-07 00:00:00"), tInt(0), tPart("HOUR")), "!Sequence step cannot be 0."},
		{"GENERATE_TIMESTAMP_ARRAY", list(tTime("2016-10-05 00:00:00"), tTime("2016-10-07 00:00:00"), tInt(1), tPart("MONTH")), "!GENERATE_TIMESTAMP_ARRAY does not support the MONTH date part"},
		{"FORMAT_TIMESTAMP", list(tText("%c"), tTime("2050-12-25 15:30:55+00"), tText("UTC")), "Sun Dec 25 15:30:55 2050"},
		{"FORMAT_TIMESTAMP", list(tText("%b-%d-%Y"), tTime("2050-12-25 15:30:55+00")), "Dec-25-2050"},
		{"FORMAT_TIMESTAMP", list(tText("%Y-%m-%dT%H:%M:%SZ"), tTime("2050-12-25 15:30:55"), tText("UTC")), "2050-12-25T15:30:55Z"},
		{"FORMAT_TIMESTAMP", list(tText("%E4Y-%m-%d%ET%H:%M:%E*S%Ez"), tTime("2050-12-25 15:30:55.1200"), tText("+05:30")), "2050-12-25T21:00:55.12+05:30"},
		{"FORMAT_TIMESTAMP", list(tText("%E3S %E6S %E0S %E9S %E*f %E2f"), tTime("2050-12-25 15:30:05.123456")), "05.123 05.123456 05 05.123456000 123456 12"},
		{"FORMAT_TIMESTAMP", list(tText("%z %Z|%s|%k|%l|%I|%p|%P|%R|%r|%T|%X|%n%t"), tTime("1970-01-01 14:00:00"), tText("America/Los_Angeles")), "-0800 UTC-8|50400| 6| 6|06|AM|am|06:00|06:00:00 AM|06:00:00|06:00:00|\n\t"},
		{"FORMAT_TIMESTAMP", list(tText("%Z"), tTime("1970-01-01 14:00:00"), tText("+05:30")), "UTC+0530"},
		{"FORMAT_TIMESTAMP", list(tText("%Z %Ez"), tTime("1970-01-01 14:00:00")), "UTC +00:00"},
		{"FORMAT_TIMESTAMP", list(tText("%:z %::z %:::z %:y"), tTime("1970-01-01 14:00:00"), tText("+05:30")), "+05:30 +05:30:00 +05:30 %:y"},
		{"FORMAT_TIMESTAMP", list(tText("%:::z"), tTime("1970-01-01 14:00:00"), tText("-05")), "-05"},
		{"FORMAT_TIMESTAMP", list(tText("%f %i %v"), tTime("1970-01-01 14:00:00")), "%f %i %v"},
		{"PARSE_TIMESTAMP", list(tText("%a %b %e %I:%M:%S %Y"), tText("Thu Dec 25 07:30:00 2008")), "2008-12-25 07:30:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%c"), tText("Thu Dec 25 07:30:00 2008")), "2008-12-25 07:30:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%Y-%m-%dT%H:%M:%E*S%Ez"), tText("2017-01-01T13:54:59.123456789Z")), "2017-01-01 13:54:59.123456+00"},
		{"PARSE_TIMESTAMP", list(tText("%Y-%m-%dT%H:%M:%E*S%Ez"), tText("2017-01-01T13:54:59-08:30")), "2017-01-01 22:24:59+00"},
		{"PARSE_TIMESTAMP", list(tText("%Y-%m-%dT%H:%M:%E3S%Ez"), tText("2017-01-01T13:54:59.123456Z")), "!Failed to parse input string \"2017-01-01T13:54:59.123456Z\""},
		{"PARSE_TIMESTAMP", list(tText("%F %T %z"), tText("2017-01-01 13:54:59 +0730")), "2017-01-01 06:24:59+00"},
		{"PARSE_TIMESTAMP", list(tText("%F %T %z"), tText("2017-01-01 13:54:59 +2000")), "!Timezone offset out of valid range -14:00 to +14:00: +20:00"},
		{"PARSE_TIMESTAMP", list(tText("%F %T %Z"), tText("2017-01-01 13:54:59 America/Los_Angeles")), "2017-01-01 21:54:59+00"},
		{"PARSE_TIMESTAMP", list(tText("%F %T"), tText("2017-01-01 13:54:60"), tText("America/Los_Angeles")), "2017-01-01 21:55:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%s"), tText("-1")), "1969-12-31 23:59:59+00"},
		{"PARSE_TIMESTAMP", list(tText("%F %I:%M %p"), tText("2017-01-01 12:30 AM")), "2017-01-01 00:30:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%F %r"), tText("2017-01-01 12:30:05 pm")), "2017-01-01 12:30:05+00"},
		{"PARSE_TIMESTAMP", list(tText("%F %l%p"), tText("2017-01-01  5PM")), "2017-01-01 17:00:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%Y-%e"), tText("2000- 5")), "2000-01-05 00:00:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%Y-%d"), tText("2000- 5")), "!Failed to parse input string \"2000- 5\""},
		{"PARSE_TIMESTAMP", list(tText("%F %T"), tText("2008- 1- 2  7: 3: 0")), "2008-01-02 07:03:00+00"},
		{"PARSE_TIMESTAMP", list(tText("%T"), tText("07:30:61")), "!Out-of-range datetime field in parsing function"},
		{"PARSE_TIMESTAMP", list(tText("%Ez"), tText("+07:")), "!Failed to parse input string \"+07:\""},
		{"PARSE_TIMESTAMP", list(tText("%E4Y"), tText("999")), "!Failed to parse input string \"999\""},
		{"PARSE_TIMESTAMP", list(tText(""), tText("")), "1970-01-01 00:00:00+00"},
	})
}

// TestZones compares times at which clocks are changed with those of package time.
func TestZones(t *testing.T) {
	z, err := loadZone("America/Los_Angeles")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ local, utc string }{
		{"2017-03-12 01:59:59", "2017-03-12 09:59:59+00"},
		{"2017-03-12 02:30:00", "2017-03-12 10:30:00+00"}, // no clock shows it
		{"2017-03-12 03:00:00", "2017-03-12 10:00:00+00"},
		{"2017-11-05 01:30:00", "2017-11-05 08:30:00+00"}, // clocks show it twice
		{"2017-11-05 02:00:00", "2017-11-05 10:00:00+00"},
		{"1800-01-01 00:00:00", "1800-01-01 07:52:58+00"},
	} {
		local := tTime(c.local).v.Int / microsPerSecond
		if got := timestampString(z.at(local)*microsPerSecond, nil); got != c.utc {
			t.Errorf("%s in Los Angeles is %s, want %s", c.local, got, c.utc)
		}
	}
	for _, name := range []string{"", "Local", "../etc/passwd", "+15", "+14:01", "UTC+", "Nowhere/At_All", "+1:2:3", "utc+1"} {
		if _, err := loadZone(name); err == nil {
			t.Errorf("%q is a time zone", name)
		}
	}
}

func FuzzParseTimestamp(f *testing.F) {
	f.Add("%Y-%m-%dT%H:%M:%E*S%Ez", "2017-01-01T13:54:59.123456789Z")
	f.Add("%c %G %V %u %J %j %U", "Thu Dec 25 07:30:00 2008 2008 1 1 3 4 5")
	f.Add("%s%Z%r", "-1UTC 1:2:3 am")
	f.Fuzz(func(t *testing.T, format, s string) {
		if micros, err := parseFormat(format, s, nil, 6); err == nil && !isValidTimestamp(micros) {
			t.Errorf("PARSE_TIMESTAMP(%q, %q) = %d", format, s, micros)
		}
		text := appendFormat(nil, format, newClock(int64(len(s))*1e12, nil), len(s)%2 == 0)
		if len(text) > len(format)*(maxFieldWidth+1) {
			t.Errorf("FORMAT_TIMESTAMP(%q) has %d bytes", format, len(text))
		}
	})
}

func TestParts(t *testing.T) {
	for _, c := range []struct{ name, part, want string }{
		{"DATE_ADD", "MONTH", ""},
		{"DATE_ADD", "HOUR", "DATE_ADD does not support the HOUR date part when the argument is DATE type"},
		{"DATE_ADD", "WEEK(MONDAY)", "DATE_ADD does not support the WEEK(MONDAY) date part when the argument is DATE type"},
		{"DATE_DIFF", "ISOYEAR", ""},
		{"DATE_TRUNC", "WEEK(SUNDAY)", ""},
		{"DATE_TRUNC", "DAYOFWEEK", "DATE_TRUNC does not support the DAYOFWEEK date part"},
		{"LAST_DAY", "DAY", "LAST_DAY does not support the DAY date part"},
		{"TIMESTAMP_ADD", "MONTH", "TIMESTAMP_ADD does not support the MONTH date part when the argument is TIMESTAMP type"},
		{"TIMESTAMP_TRUNC", "MICROSECOND", ""},
		{"TIMESTAMP_TRUNC", "NANOSECOND", "TIMESTAMP_TRUNC does not support the NANOSECOND date part"},
		{"TIMESTAMP_DIFF", "WEEK(SUNDAY)", "TIMESTAMP_DIFF does not support the WEEK date part when the argument is TIMESTAMP type"},
		{"$extract", "HOUR", "EXTRACT from DATE does not support the HOUR date part"},
		{"$extract", "DAYOFYEAR", ""},
		{"GENERATE_DATE_ARRAY", "WEEK", ""},
		{"GENERATE_TIMESTAMP_ARRAY", "YEAR", "GENERATE_TIMESTAMP_ARRAY does not support the YEAR date part"},
	} {
		if got := Lookup(c.name).Signatures[0].Part(c.part); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.name, c.part, got, c.want)
		}
	}
	// What Part lets through, Eval computes.
	for name, f := range map[string]*Function{"DATE_TRUNC": Lookup("DATE_TRUNC"), "LAST_DAY": Lookup("LAST_DAY"), "$extract": Lookup("$extract"), "TIMESTAMP_TRUNC": Lookup("TIMESTAMP_TRUNC")} {
		for _, s := range f.Signatures {
			for _, part := range []string{
				"YEAR", "ISOYEAR", "QUARTER", "MONTH", "WEEK", "WEEK(MONDAY)", "WEEK(SATURDAY)", "ISOWEEK", "DAY", "DAYOFWEEK", "DAYOFYEAR",
				"HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "NANOSECOND", "DATE", "TIME", "CENTURY",
			} {
				_, err := s.Eval(&Call{}, []types.Value{types.NewInt(12345), types.NewString(part)})
				if refused := s.Part(part) != ""; refused != (err != nil) {
					t.Errorf("%s, %s: Part refuses it: %t, Eval says %v", name, part, refused, err)
				}
			}
		}
	}
}
