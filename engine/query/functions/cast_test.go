package functions

import (
	"math"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// A castCase is a CAST and what it returns, in the notation of showValue; a want that
// begins with "!" is an error.
type castCase struct {
	x            typed
	to           *types.Type
	format, zone string
	want         string
}

func checkCasts(t *testing.T, cases []castCase) {
	t.Helper()
	for _, c := range cases {
		var format, zone *types.Value
		if c.format != "" {
			format = &types.Value{Valid: c.format != "NULL", Str: c.format}
		}
		if c.zone != "" {
			zone = &types.Value{Valid: true, Str: c.zone}
		}
		if !CanCast(c.x.t, c.to) {
			t.Errorf("%s cannot be cast to %s", c.x.t, c.to)
		}
		v, err := CastValue(&Call{Now: testNow}, c.x.t, c.to, c.x.v, format, zone)
		got := showValue(c.to, v)
		if err != nil {
			got = "!" + strings.TrimPrefix(err.Error(), fault.KindOf(err).Error()+": ")
		}
		if got != c.want {
			t.Errorf("CAST(%s %s AS %s FORMAT %q) = %s, want %s", c.x.t, showValue(c.x.t, c.x.v), c.to, c.format, got, c.want)
		}
		kernel := CastKernel(c.x.t, c.to)
		if kernel == nil || format != nil {
			continue
		}
		out := types.NewVector(c.to, 1)
		kernelErr := kernel(nil, []*types.Vector{types.NewConst(c.x.t, c.x.v)}, out, nil, 1)
		if (kernelErr == nil) != (err == nil) || err == nil && showValue(c.to, out.Value(0)) != got {
			t.Errorf("CAST(%s AS %s): Kernel returns %s, %v", showValue(c.x.t, c.x.v), c.to, showValue(c.to, out.Value(0)), kernelErr)
		}
	}
}

var color = &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Name: "test.Color", Values: []types.EnumValue{
	{Name: "RED", Number: 0}, {Name: "GREEN", Number: 1}, {Name: "VERDE", Number: 1}, {Name: "BLUE_GREEN", Number: -1},
}}}

func TestCasts(t *testing.T) {
	var (
		boolean, integer, double, single = types.BoolType, types.Int64Type, types.Float64Type, types.Float32Type
		text, raw, date, timestamp       = types.StringType, types.BytesType, types.DateType, types.TimestampType
		open                             = &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Name: "test.Open", Open: true}}
	)
	enum := func(i int64) typed { return typed{t: color, v: types.NewInt(i)} }
	checkCasts(t, []castCase{
		{x: tInt(-1), to: boolean, want: "true"},
		{x: tText("fAlSe"), to: boolean, want: "false"},
		{x: tText(" true"), to: boolean, want: "!Bad bool value:  true"},
		{x: tText("abc"), to: boolean, want: "!Bad bool value: abc"},
		{x: tTruth(true), to: integer, want: "1"},
		{x: tTruth(true), to: text, want: "true"},

		{x: tText("-0x100"), to: integer, want: "-256"},
		{x: tText("0x1F"), to: integer, want: "31"},
		{x: tText(" +12 "), to: integer, want: "12"},
		{x: tText("0xFFFFFFFFFFFFFFFF"), to: integer, want: "!Bad int64 value: 0xFFFFFFFFFFFFFFFF"},
		{x: tText("9223372036854775808"), to: integer, want: "!Bad int64 value: 9223372036854775808"},
		{x: tText("-9223372036854775808"), to: integer, want: "-9223372036854775808"},
		{x: tText("--1"), to: integer, want: "!Bad int64 value: --1"},
		{x: tText("1_000"), to: integer, want: "!Bad int64 value: 1_000"},
		{x: tText(""), to: integer, want: "!Bad int64 value: "},
		{x: tText("0x"), to: integer, want: "!Bad int64 value: 0x"},
		{x: tText("1.5"), to: integer, want: "!Bad int64 value: 1.5"},
		{x: tText("é\n"), to: integer, want: `!Bad int64 value: \303\251\n`},
		{x: tText(strings.Repeat("x", 40)), to: integer, want: "!Bad int64 value: " + strings.Repeat("x", 32) + "..."},
		{x: tFloat(2.5), to: integer, want: "3"},
		{x: tFloat(-2.5), to: integer, want: "-3"},
		{x: tFloat(-9223372036854775808), to: integer, want: "-9223372036854775808"},
		{x: tFloat(9223372036854775808), to: integer, want: "!int64 out of range: 9.22337e+18"},
		{x: tFloat(math.NaN()), to: integer, want: "!Illegal conversion of non-finite floating point number to an integer: nan"},

		{x: tInt(1 << 53), to: double, want: "9.00719925474099e+15"},
		{x: tText("1e3"), to: double, want: "1000"},
		{x: tText(" -Infinity "), to: double, want: "-Inf"},
		{x: tText("NaN"), to: double, want: "NaN"},
		{x: tText("1e999"), to: double, want: "+Inf"},
		{x: tText("0x10"), to: double, want: "16"},
		{x: tText(" -0X1.8p1 "), to: double, want: "-3"},
		{x: tText("0x1p128"), to: single, want: "+Inf"},
		{x: tText("0x1_0"), to: double, want: "!Bad double value: 0x1_0"},
		{x: tText("0x"), to: double, want: "!Bad double value: 0x"},
		{x: tText("1x0"), to: double, want: "!Bad double value: 1x0"},
		{x: tText("1p3"), to: double, want: "!Bad double value: 1p3"},
		{x: tText("NaN(a_1)"), to: double, want: "NaN"},
		{x: tText("nan(-)"), to: double, want: "!Bad double value: nan(-)"},
		{x: tText("1_0"), to: double, want: "!Bad double value: 1_0"},
		{x: tText(""), to: double, want: "!Bad double value: "},
		{x: tText("abc"), to: single, want: "!Bad float value: abc"},
		{x: tFloat(3.7), to: single, want: "3.7"},
		{x: tFloat(1e39), to: single, want: "!float out of range: 1e+39"},
		{x: tSingle(3.7), to: double, want: "3.70000004768372"},

		{x: tFloat(1.1), to: text, want: "1.1"},
		{x: tFloat(0.1 + 0.2), to: text, want: "0.3"},
		{x: tFloat(1e20), to: text, want: "1e+20"},
		{x: tFloat(123456789012345680), to: text, want: "1.2345678901234568e+17"},
		{x: tFloat(math.Inf(-1)), to: text, want: "-inf"},
		{x: tFloat(math.NaN()), to: text, want: "nan"},
		{x: tFloat(math.Copysign(0, -1)), to: text, want: "0"},
		{x: tFloat(math.MaxFloat64), to: text, want: "1.7976931348623157e+308"},
		{x: tSingle(3.7), to: text, want: "3.7"},
		{x: tSingle(16777217), to: text, want: "16777216"},
		{x: tInt(-5), to: text, want: "-5"},
		{x: tRaw("a\xc3\xa9"), to: text, want: "aé"},
		{x: tRaw("\xe2\x28\xa1"), to: text, want: "!Invalid cast of bytes to UTF8 string"},
		{x: tText("é"), to: raw, want: `b"\u00e9"`},
		{x: tNull(integer), to: text, want: "NULL"},

		{x: tText("2014-1-3"), to: date, want: "2014-01-03"},
		{x: tText("2014-02-29"), to: date, want: "!Invalid date: '2014-02-29'"},
		{x: tText("0000-01-01"), to: date, want: "!Date value out of range: '0000-01-01'"},
		{x: tText("2014-01-03 "), to: date, want: "!Invalid date: '2014-01-03 '"},
		{x: tText("a"), to: date, want: "!Invalid date: 'a'"},
		{x: tDay("2014-01-03"), to: text, want: "2014-01-03"},
		{x: tDay("2014-01-03"), to: timestamp, want: "2014-01-03 00:00:00+00"},
		{x: tTime("1969-12-31 23:59:59.999999"), to: date, want: "1969-12-31"},

		{x: tText("2000-01-23 12:13:14+05"), to: timestamp, want: "2000-01-23 07:13:14+00"},
		{x: tText("2000-01-23 12:13:14.5+05:30"), to: timestamp, want: "2000-01-23 06:43:14.500+00"},
		{x: tText("2000-01-23T12:13:14.000001Z"), to: timestamp, want: "2000-01-23 12:13:14.000001+00"},
		{x: tText("2000-07-01 12:00:00 America/Los_Angeles"), to: timestamp, want: "2000-07-01 19:00:00+00"},
		{x: tText("2000-01-23 12:13:14 UTC"), to: timestamp, want: "2000-01-23 12:13:14+00"},
		{x: tText("2000-01-23 12:13:14 UTC+1"), to: timestamp, want: "2000-01-23 11:13:14+00"},
		{x: tText("2000-01-23"), to: timestamp, want: "2000-01-23 00:00:00+00"},
		{x: tText("2000-01-23 +08"), to: timestamp, want: "2000-01-22 16:00:00+00"},
		{x: tText("2000-1-3 1:2:3"), to: timestamp, want: "2000-01-03 01:02:03+00"},
		{x: tText("2016-12-31 23:59:60"), to: timestamp, want: "2017-01-01 00:00:00+00"},
		{x: tText("2000-01-23 12:13:14.1234567"), to: timestamp, want: "!Invalid timestamp: '2000-01-23 12:13:14.1234567'"},
		{x: tText("2000-01-23 12:13"), to: timestamp, want: "!Invalid timestamp: '2000-01-23 12:13'"},
		{x: tText("2000-01-23 24:00:00"), to: timestamp, want: `!Invalid timestamp string "2000-01-23 24:00:00"`},
		{x: tText("2000-01-23 12:13:14 +08"), to: timestamp, want: "!Invalid timestamp: '2000-01-23 12:13:14 +08'"},
		{x: tText("2000-01-23 12:13:14 Mars/Base"), to: timestamp, want: "!Invalid time zone: Mars/Base"},
		{x: tText("2000-01-23 12:13:14+15"), to: timestamp, want: "!Invalid time zone: +15"},
		{x: tText("2000-01-23 \té"), to: timestamp, want: `!Invalid timestamp: '2000-01-23 \t\303\251'`},
		{x: tText("2000-13-23 00:00:00 Nowhere"), to: timestamp, want: "!Invalid time zone: Nowhere"},
		{x: tText(" abc"), to: integer, want: "!Bad int64 value: abc"},
		{x: tText("0001-01-01 00:00:00+01"), to: timestamp, want: `!Invalid timestamp string "0001-01-01 00:00:00+01"`},
		{x: tText("9999-12-31 23:59:59.999999"), to: timestamp, want: "9999-12-31 23:59:59.999999+00"},
		{x: tText("10000-01-01 00:00:00+01"), to: timestamp, want: "9999-12-31 23:00:00+00"},
		{x: tText(""), to: timestamp, want: "!Invalid timestamp: ''"},
		{x: tTime("2014-01-31 18:12:34.123"), to: text, want: "2014-01-31 18:12:34.123+00"},

		{x: tInt(1), to: color, want: "1"},
		{x: tInt(10), to: color, want: "!Out of range cast of integer 10 to enum type test.Color"},
		{x: tInt(7), to: open, want: "7"},
		{x: tInt(7777777777), to: open, want: "!Out of range cast of integer 7777777777 to enum type test.Open"},
		{x: tText("VERDE"), to: color, want: "1"},
		{x: tText("Red"), to: color, want: "!Out of range cast of string 'Red' to enum type test.Color; Did you mean 'RED'? (Note: ENUM values are case sensitive)"},
		{x: tText("BLUE_GREY"), to: color, want: "!Out of range cast of string 'BLUE_GREY' to enum type test.Color; Did you mean 'BLUE_GREEN'?"},
		{x: tText("nothing_alike"), to: color, want: "!Out of range cast of string 'nothing_alike' to enum type test.Color"},
		{x: enum(1), to: text, want: "GREEN"},
		{x: enum(-1), to: integer, want: "-1"},

		{x: tTexts("100", "-"), to: types.ArrayOf(integer), want: "[100, NULL]"},
		{x: tTexts("100", "abc"), to: types.ArrayOf(integer), want: "!Error casting element at index 1 in ARRAY: Bad int64 value: abc"},
		{x: tRow(tText("1.1"), tFloat(1.1)), to: types.StructOf(types.Field{Type: double}, types.Field{Type: text}), want: "{1.1, 1.1}"},
		{x: tMap("10", 1, "9", 2), to: types.MapOf(integer, text), want: "[9, 2, 10, 1]"},
		{x: tMap("1", 1, " 1", 2), to: types.MapOf(integer, text), want: "!Duplicate map keys are not allowed, but got multiple instances of key: 1"},
	})
}

func TestCoercions(t *testing.T) {
	row := func(ts ...*types.Type) *types.Type {
		out := types.StructOf()
		for _, f := range ts {
			out.Fields = append(out.Fields, types.Field{Type: f})
		}
		return out
	}
	for _, c := range []struct {
		from, to *types.Type
		want     Coercion
	}{
		{types.Int64Type, types.Float64Type, ImplicitCoercion},
		{types.Int64Type, types.Float32Type, LiteralCoercion},
		{types.Float32Type, types.Float64Type, ImplicitCoercion},
		{types.Float64Type, types.Int64Type, ExplicitCast},
		{types.StringType, types.BytesType, LiteralCoercion},
		{types.StringType, types.TimestampType, ParameterCoercion},
		{types.StringType, color, ParameterCoercion},
		{types.DateType, types.TimestampType, ExplicitCast},
		{types.BoolType, types.Float64Type, NoCast},
		{types.BytesType, types.Int64Type, NoCast},
		{types.ArrayOf(types.Int64Type), types.ArrayOf(types.Float64Type), LiteralCoercion},
		{types.ArrayOf(types.Int64Type), types.StringType, NoCast},
		{row(types.Int64Type, types.StringType), row(types.Float64Type, types.StringType), ImplicitCoercion},
		{row(types.Int64Type), row(types.Int64Type, types.Int64Type), NoCast},
		{types.MapOf(types.Int64Type, types.Int64Type), types.MapOf(types.StringType, types.Int64Type), ExplicitCast},
	} {
		if got := CoercionOf(c.from, c.to); got != c.want {
			t.Errorf("%s to %s: %d, want %d", c.from, c.to, got, c.want)
		}
	}
}

func TestCastFormatBytes(t *testing.T) {
	text, raw := types.StringType, types.BytesType
	long := tRaw(strings.Repeat("abc", 30))
	checkCasts(t, []castCase{
		{tRaw("abc"), text, "base2", "", "011000010110001001100011"},
		{tRaw("abc"), text, "BASE8", "", "30261143"},
		{tRaw("\xff"), text, "BASE8", "", "377"},
		{tRaw("\x01\xff"), text, "BASE8", "", "000777"},
		{tRaw("abc"), text, "hex", "", "616263"},
		{tRaw("abc"), text, "base32", "", "MFRGG==="},
		{long, text, "base64m", "", strings.Repeat("YWJj", 19) + "\n" + strings.Repeat("YWJj", 11)},
		{tRaw("àbc"), text, "ascii", "", "!Failed to decode invalid ASCII string"},
		{tRaw("\xff"), text, "utf8", "", "!A string is not valid UTF-8."},
		{tRaw("abc"), text, "xyz", "", "!Invalid format 'xyz'"},
		{tRaw("abc"), text, "NULL", "", "NULL"},
		{tText("011000010110001001100011"), raw, "BaSe2", "", `b"abc"`},
		{tText("101"), raw, "base2", "", `b"\x05"`},
		{tText("2"), raw, "base2", "", "!Failed to decode invalid base2 string due to character '2' at offset 0"},
		{tText("2x 0013"), raw, "base2", "", "!Failed to decode invalid base2 string due to character '2' at offset 0"},
		{tText("2x00000130"), raw, "base2", "", "!Failed to decode invalid base2 string due to character '3' at offset 6"},
		{tText("30261143"), raw, "base8", "", `b"abc"`},
		{tText("377"), raw, "base8", "", `b"\xff"`},
		{tText("8"), raw, "base8", "", "!Failed to decode invalid base8 string"},
		{tText("616263"), raw, "base16", "", `b"abc"`},
		{tText("YWJj\nYWJj"), raw, "base64m", "", `b"abcabc"`},
		{tText("abc"), raw, "utf-8", "", `b"abc"`},
		{tText("àbc"), raw, "ascii", "", "!Failed to decode invalid ASCII string"},
		{tText("1"), raw, "abc", "", "!Invalid format 'abc'"},
	})
}

func TestCastFormatNumber(t *testing.T) {
	text := types.StringType
	x := tFloat(12.34)
	checkCasts(t, []castCase{
		{x, text, "999.9", "", "  12.3"},
		{x, text, "000.999", "", " 012.340"},
		{x, text, "9", "", " #"},
		{x, text, "9.9", "", " #.#"},
		{tInt(123), text, "999", "", " 123"},
		{tInt(-123), text, "999MI", "", "123-"},
		{tInt(-123), text, "999PR", "", "<123>"},
		{tInt(123), text, "S999", "", "+123"},
		{tInt(123), text, "999S", "", "123+"},
		{tInt(1234567), text, "9,999,999", "", " 1,234,567"},
		{tInt(12), text, "0,000", "", " 0,012"},
		{tInt(12), text, "9,999", "", "    12"},
		{tInt(12), text, "$99", "", " $12"},
		{tInt(12), text, "C99", "", " USD12"},
		{tInt(12), text, "FM999", "", "12"},
		{tFloat(1.2), text, "9V99", "", " 120"},
		{tFloat(0.12), text, "9.99", "", "  .12"},
		{tFloat(0), text, "9.99", "", "  .00"},
		{tFloat(0), text, "B9.99", "", "     "},
		{tFloat(1234), text, "9.99EEEE", "", " 1.23E+03"},
		{tInt(12355), text, "9.99eeee", "", " 1.24e+04"},
		{tInt(9999), text, "9.9EEEE", "", " 1.0E+04"},
		{tFloat(math.Inf(-1)), text, "999.9", "", "-INF  "},
		{tFloat(math.NaN()), text, "9999", "", "  NAN"},
		{tFloat(math.NaN()), text, "9.9", "", " #.#"},
		{tInt(255), text, "XX", "", " FF"},
		{tInt(255), text, "0xxx", "", " 00ff"},
		{tInt(255), text, "X", "", " #"},
		{tFloat(-254.6), text, "xxx", "", " -ff"},
		{tInt(math.MinInt64), text, "9999999999999999999", "", "-9223372036854775808"},
		{tInt(1), text, "abc", "", "!Error in format string: Invalid format element 'a'"},
		{tInt(1), text, "9MI9", "", "!Error in format string: 'MI' can only appear after all digits and 'EEEE'"},
		{tInt(1), text, "9X", "", "!Error in format string: 'X' cannot appear together with '9'"},
		{tInt(1), text, ".9.", "", "!Error in format string: There can be at most one of '.', 'D', or 'V'"},
		{tInt(1), text, "$", "", "!Error in format string: Format string must contain at least one of 'X', '0' or '9'"},
		{tInt(1), text, "TM9", "", "!Text minimal output is not supported yet"},
		{tInt(1), text, "NULL", "", "NULL"},
	})
}

func TestCastFormatDateTime(t *testing.T) {
	text, date, timestamp := types.StringType, types.DateType, types.TimestampType
	day, moment := tDay("2018-01-30"), tTime("2024-02-09 00:05:09.123456")
	checkCasts(t, []castCase{
		{day, text, "YYYY", "", "2018"},
		{day, text, "YYY-yy-Y-RR", "", "018-18-8-18"},
		{day, text, "DAY, DD MON YYYY", "", "TUESDAY, 30 JAN 2018"},
		{day, text, "Day Dy D DDD Month mon", "", "Tuesday Tue 3 030 January jan"},
		{day, text, `"the "DD"\"th\\"`, "", `the 30"th\`},
		{day, text, "HH", "", "!DATE does not support 'HH'"},
		{day, text, "YYYYmi", "", "!DATE does not support 'MI'"},
		{day, text, `"a`, "", `!Cannot find matching " for quoted literal at 0`},
		{moment, text, "a", "", "!Cannot find matched format element at 0"},
		{moment, text, "YYYY x", "", "!Cannot find matched format element at 5"},
		{moment, text, "HH24:MI:SS.FF6", "", "00:05:09.123456"},
		{moment, text, "HH12:MI AM a.m. SSSSS FF1 FF3 FF9", "", "12:05 AM a.m. 00309 1 123 123456000"},
		{moment, text, "YYYY-MM-DD HH24:MI TZH:TZM", "Asia/Kolkata", "2024-02-09 05:35 +05:30"},
		{moment, text, "TZHTZM", "America/New_York", "-0500"},
		{moment, text, "Q", "", "!Unsupported format element 'Q'"},
		{moment, text, strings.Repeat(" ", 16<<10+1), "", "!Format string too long; limit 16384"},

		{tText("18-12-03"), date, "YY-MM-DD", "", "2018-12-03"},
		{tText("2020-1-2"), date, "YYYY-MM-DD", "", "2020-01-02"},
		{tText("20200102"), date, "YYYYMMDD", "", "2020-01-02"},
		{tText("June 3, 2018"), date, "MONTH DD, YYYY", "", "2018-06-03"},
		{tText("03 dec 51"), date, "DD MON RR", "", "1951-12-03"},
		{tText("1,999-07-08"), date, "Y,YYY-MM-DD", "", "1999-07-08"},
		{tText(""), date, " ", "", "!Entire timestamp string has been parsed before dealing with format element ' '"},
		{tText("2020-02-30"), date, "YYYY-MM-DD", "", "!Invalid result from year, month, day values after parsing"},
		{tText("2020-13-01"), date, "YYYY-MM-DD", "", "!Failed to parse input timestamp string at 5 with format element 'MM'"},
		{tText("2020 x"), date, "YYYY", "", "!Illegal non-space trailing data 'x' in timestamp string"},
		{tText("1234"), date, "hh24", "", "!Format element in category HOUR ('HH24') is not allowed for output type DATE"},
		{tText("1234"), date, "YYYYYY", "", "!More than one format element in category YEAR exist: 'YYYY' and 'YY'"},
		{tText("1234"), date, "DAY", "", "!Format element 'DAY' is not supported for parsing"},
		{tText("1234"), date, "MMmm", "", "!Format element 'MM' appears more than once in the format string"},
		{tText("2134-05-06"), timestamp, "yyyy-mm-dd", "", "2134-05-06 00:00:00+00"},
		{tText("2134-05-06"), timestamp, "yyyy-mm-dd", "America/Los_Angeles", "2134-05-06 07:00:00+00"},
		{tText("2020-06-03 00:00:53.11"), timestamp, "YYYY-MM-DD HH24:MI:SS.FF2", "", "2020-06-03 00:00:53.110+00"},
		{tText("2020-06-03 11:05 p.m. -05:30"), timestamp, "YYYY-MM-DD HH12:MI A.M. TZH:TZM", "", "2020-06-04 04:35:00+00"},
		{tText("3662"), timestamp, "SSSSS", "", "2025-11-01 01:01:02+00"},
		{tText("11"), timestamp, "HH12", "", "!Format element in category MERIDIAN_INDICATOR is required when format element 'HH12' exists"},
		{tText("11"), timestamp, "HH24 A.M.", "", "!Format element in category MERIDIAN_INDICATOR ('A.M.') and format element 'HH24' cannot exist simultaneously"},
		{tText("1"), timestamp, "SSSSS:MI", "", "!Format element in category MINUTE ('MI') and format element 'SSSSS' cannot exist simultaneously"},
		{tText("+1430"), timestamp, "TZHTZM", "", "!Invalid time zone: +1430"},
		{tText("0000"), timestamp, "YYYY", "", "!The parsing result is out of valid time range"},
	})
}

func TestFormat(t *testing.T) {
	enum := typed{t: color, v: types.NewInt(1)}
	f := func(pattern string, list ...typed) []typed { return append(args(tText(pattern)), list...) }
	checkScalars(t, []scalarCase{
		{"FORMAT", f("%d %i", tInt(15), tInt(-23)), "15 -23"},
		{"FORMAT", f("%5d|%-5d|%05d|%+d|% d", tInt(1), tInt(2), tInt(3), tInt(4), tInt(5)), "    1|2    |00003|+4| 5"},
		{"FORMAT", f("%.4d|%8.4d|%08.4d", tInt(1), tInt(2), tInt(3)), "0001|    0002|    0003"},
		{"FORMAT", f("%'d|%'x|%'o", tInt(1234567), tInt(0x1234abcd), tInt(01234567)), "1,234,567|1234:abcd|123,4567"},
		{"FORMAT", f("%x|%X|%#x|%o|%#o|%x", tInt(255), tInt(255), tInt(255), tInt(8), tInt(8), tInt(-255)), "ff|FF|0xff|10|010|-ff"},
		{"FORMAT", f("%*i|%-*d|%0.*d", tInt(6), tInt(13), tInt(4), tInt(1), tInt(4), tInt(12)), "    13|1   |0012"},
		{"FORMAT", f("%d", tInt(math.MinInt64)), "-9223372036854775808"},
		{"FORMAT", f("%#.0g|%#g|%#.0e|%.1f", tFloat(1e16), tFloat(1), tFloat(1e-10), tFloat(-0.01)), "1.e+16|1.00000|1.e-10|-0.0"},
		{"FORMAT", f("%f|%g|%+e|%t", tFloat(math.Copysign(0, -1)), tFloat(math.Copysign(0, -1)), tFloat(math.Copysign(0, -1)), tFloat(math.Copysign(0, -1))), "0.000000|0|+0.000000e+00|-0.0"},
		{"FORMAT", f("%f|%.2f|%8.3f|%-8.1f|%08.2f|%.0f", tFloat(1.5), tFloat(2.345), tFloat(-3.14159), tFloat(2), tFloat(-1.5), tFloat(2.5)), "1.500000|2.35|  -3.142|2.0     |-0001.50|2"},
		{"FORMAT", f("%e|%E|%.1e", tFloat(12345.678), tFloat(0.00012), tFloat(0)), "1.234568e+04|1.200000E-04|0.0e+00"},
		{"FORMAT", f("%g|%g|%G|%.3g|%#g|%g", tFloat(0.0001), tFloat(1e6), tFloat(1e-7), tFloat(1234.5), tFloat(1), tFloat(100000)), "0.0001|1e+06|1E-07|1.23e+03|1.00000|100000"},
		{"FORMAT", f("%f|%F|%5f|%g", tFloat(math.Inf(1)), tFloat(math.Inf(-1)), tFloat(math.NaN()), tFloat(math.Inf(1))), "inf|-INF|  nan|inf"},
		{"FORMAT", f("%'.2f|%'f", tFloat(1234567.891), tFloat(-999)), "1,234,567.89|-999.000000"},
		{"FORMAT", f("%s|%5s|%-5s|%.2s", tText("дом"), tText("a"), tText("b"), tText("дом")), "дом|    a|b    |до"},
		{"FORMAT", f("%%|%s%%", tText("10")), "%|10%"},
		{"FORMAT", f("%t|%t|%t|%t", tInt(1), tFloat(1), tText("a'b"), tRaw("\x00a\"")), `1|1.0|a'b|\x00a\"`},
		{"FORMAT", f("%t|%t|%t|%t", tTruth(true), tDay("2011-02-03"), tTime("2014-01-02 12:30:00"), enum), "true|2011-02-03|2014-01-02 12:30:00+00|GREEN"},
		{"FORMAT", f("%t|%t", tTexts("a", "-"), tRow(tText("a"), tInt(1))), "[a, NULL]|(a, 1)"},
		{"FORMAT", f("%T|%T|%T|%T", tInt(1), tFloat(1e20), tText("a'b"), tRaw("\x00\"")), `1|1e+20|"a'b"|b'\x00"'`},
		{"FORMAT", f("%T|%T|%T|%T", tTruth(true), tDay("2011-02-03"), tTime("2014-01-02 12:30:00"), enum), `true|DATE "2011-02-03"|TIMESTAMP "2014-01-02 12:30:00+00"|"GREEN"`},
		{"FORMAT", f("%T|%T|%T", tTexts("a\n", "-"), tRow(tText("a"), tInt(1)), tRow(tInt(1))), `["a\n", NULL]|("a", 1)|STRUCT(1)`},
		{"FORMAT", f("%T|%T|%t", tFloat(math.NaN()), tSingle(math.Inf(-1)), tFloat(math.Inf(1))), `CAST("nan" AS FLOAT64)|CAST("-inf" AS FLOAT32)|inf`},
		{"FORMAT", f("%t|%5T|%t", tNull(types.Int64Type), tNull(types.StringType), tMap("a", 1)), `NULL| NULL|{a: 1}`},
		{"FORMAT", f("%d", tNull(types.Int64Type)), "NULL"},
		{"FORMAT", f("%*d", tNull(types.Int64Type), tInt(12)), "NULL"},
		{"FORMAT", args(tNull(types.StringType), tInt(1)), "NULL"},
		{"FORMAT", f("plain"), "plain"},

		{"FORMAT", f("%d", tText("a")), "!Invalid type for argument 2 to FORMAT; Expected integer; Got STRING"},
		{"FORMAT", f("%u", tInt(1)), "!Invalid type for argument 2 to FORMAT; Expected UINT; Got INT64"},
		{"FORMAT", f("%f", tInt(1)), "!Invalid type for argument 2 to FORMAT; Expected FLOAT64; Got INT64"},
		{"FORMAT", f("%s", tInt(1)), "!Invalid type for argument 2 to FORMAT; Expected STRING; Got INT64"},
		{"FORMAT", f("%d", tInt(1), tText("a")), "!Too many arguments to FORMAT for pattern \"%d\"; Expected 2; Got 3"},
		{"FORMAT", f("%d %d", tInt(1)), "!Too few arguments to FORMAT for pattern \"%d %d\"; Expected 3; Got 2"},
		{"FORMAT", f("%z", tInt(1)), "!Invalid format specifier character \"z\" in FORMAT string: \"%z\""},
		{"FORMAT", f("%"), "!Invalid FORMAT string: \"%\""},
		{"FORMAT", f("%5%"), "!Invalid FORMAT string: \"%5%\""},
		{"FORMAT", f("%*d", tInt(1<<40), tInt(1)), "!Output string too long while evaluating FORMAT; limit 1048576"},
		{"FORMAT", f("%99999999d", tInt(1)), "!Width 99999999 exceeds the maximum supported output width of FORMAT. Limit: 1048576"},
		{"FORMAT", f("%.2000f", tFloat(1)), "!Precision value is too big1074"},
	})
}

// pb is a message type with fields of each encoding.
func pb() *types.Type {
	inner := &types.Type{Kind: types.Proto, Message: &types.Message{Name: "test.Inner", Fields: []types.ProtoField{
		{Name: "n", Number: 1, Wire: types.WireVarint, Type: types.Int64Type},
	}}}
	return &types.Type{Kind: types.Proto, Message: &types.Message{Name: "test.Outer", Fields: []types.ProtoField{
		{Name: "id", Number: 1, Wire: types.WireVarint, Type: types.Int64Type},
		{Name: "name", Number: 2, Wire: types.WireBytes, Type: types.StringType},
		{Name: "raw", Number: 3, Wire: types.WireBytes, Type: types.BytesType},
		{Name: "ok", Number: 4, Wire: types.WireVarint, Type: types.BoolType},
		{Name: "x", Number: 5, Wire: types.WireDouble, Type: types.Float64Type},
		{Name: "y", Number: 6, Wire: types.WireFloat, Type: types.Float32Type},
		{Name: "zig", Number: 7, Wire: types.WireZigZag, Type: types.Int64Type},
		{Name: "fixed", Number: 8, Wire: types.WireFixed32, Type: types.Int64Type},
		{Name: "color", Number: 9, Wire: types.WireVarint, Type: color},
		{Name: "list", Number: 10, Wire: types.WireVarint, Repeated: true, Type: types.ArrayOf(types.Int64Type)},
		{Name: "inner", Number: 11, Wire: types.WireBytes, Type: inner},
		{Name: "inners", Number: 12, Wire: types.WireBytes, Repeated: true, Type: types.ArrayOf(inner)},
		{Name: "group", Number: 13, Wire: types.WireGroup, Type: &types.Type{Kind: types.Proto, Message: &types.Message{
			Name: "test.Outer.Group", Fields: inner.Message.Fields}}},
	}}}
}

func TestCastProto(t *testing.T) {
	outer := pb()
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"id: -5", "id: -5"},
		{`name:"дом\n" raw: '\001\xff' # a comment` + "\n ok: true, x: 1.5; y: 2 zig: -3 fixed: 0x10 color: GREEN",
			`id`},
		{"list: 1 list: [2, 3] inner { n: 1 } inners: {n:2} inners <n: 3> Group { n: 4 }", "list: 1 list: 2 list: 3 inner { n: 1 } inners { n: 2 } inners { n: 3 } Group { n: 4 }"},
		{"inner {}", "inner { }"},
		{"x: inf y: nan", "x: inf y: nan"},
		{"y: 1 id: 2", "id: 2 y: 1"},
	} {
		m, err := CastValue(nil, types.StringType, outer, types.NewString(c.text), nil, nil)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		want := c.want
		if want == "id" {
			want = `name: "дом\n" raw: "\001\377" ok: true x: 1.5 y: 2 zig: -3 fixed: 16 color: GREEN`
		}
		if got, err := CastValue(nil, outer, types.StringType, m, nil, nil); err != nil || got.Str != want {
			t.Errorf("%q: got %q, %v; want %q", c.text, got.Str, err, want)
		}
	}
	for text, want := range map[string]string{
		"nope: 1":                   `Error parsing proto: Message type "test.Outer" has no field named "nope". [1:5]`,
		"id: 1\nid:2":               `Error parsing proto: Non-repeated field "id" is specified multiple times. [2:3]`,
		"id: x":                     `Error parsing proto: Invalid value for field "id": x [1:6]`,
		"inner { n: 1":              `Error parsing proto: Expected "}". [1:13]`,
		"color: PINK":               `Error parsing proto: Invalid value for field "color": PINK [1:12]`,
		`name: "\xff"`:              `Error parsing proto: String field "name" contains invalid UTF-8. [1:13]`,
		strings.Repeat("inner{", 2): `Error parsing proto: Message type "test.Inner" has no field named "inner". [1:12]`,
	} {
		if _, err := CastValue(nil, types.StringType, outer, types.NewString(text), nil, nil); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	unknown := "\x08\x01\x08\x02\xa0\x06\x05\xaa\x06\x01a"
	if got, err := CastValue(nil, outer, types.StringType, types.NewString(unknown), nil, nil); err != nil || got.Str != `id: 2 100: 5 101: "a"` {
		t.Errorf("got %q, %v", got.Str, err)
	}
	if _, err := CastValue(nil, outer, types.StringType, types.NewString("\x08"), nil, nil); err == nil {
		t.Error("no error of bytes that are no message")
	}
}
