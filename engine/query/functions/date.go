package functions

import (
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// The limit of GENERATE_ARRAY and its siblings.
const maxGenerated = 16000

// A partSet is a set of date parts.
type partSet uint32

const (
	weekParts partSet = 1<<partWeek | 1<<partWeekMonday | 1<<partWeekTuesday | 1<<partWeekWednesday | 1<<partWeekThursday |
		1<<partWeekFriday | 1<<partWeekSaturday | 1<<partISOWeek
	longParts  = weekParts | 1<<partMonth | 1<<partQuarter | 1<<partYear | 1<<partISOYear // days or more
	clockParts = 1<<partHour | 1<<partMinute | 1<<partSecond | 1<<partMillisecond | 1<<partMicrosecond

	addDateParts          = 1<<partDay | 1<<partWeek | 1<<partMonth | 1<<partQuarter | 1<<partYear
	dateParts             = longParts | 1<<partDay
	addTimestampParts     = clockParts | 1<<partDay
	truncTimestampParts   = clockParts | dateParts
	extractDateParts      = dateParts | 1<<partDayOfWeek | 1<<partDayOfYear
	extractTimestampParts = extractDateParts | clockParts | 1<<partNanosecond
)

// partCheck returns the Signature.Part of a function that takes the parts of a set.
// behind follows the message: that of functions for several types names the type.
func partCheck(function, behind string, set partSet) func(part string) string {
	return func(part string) string {
		p := partOf(part)
		if p == partWeek {
			part = "WEEK"
		}
		if p == noPart || set>>p&1 == 0 {
			return function + " does not support the " + part + " date part" + behind
		}
		return ""
	}
}

const (
	ofDate      = " when the argument is DATE type"
	ofTimestamp = " when the argument is TIMESTAMP type"
)

// unsupportedPart is the error of a part that Signature.Part should have refused.
func unsupportedPart(function, part string) error {
	return fault.New(fault.Invalid, "%s does not support the %s date part", function, part)
}

func addDateOverflow(day, n int64, part string) error {
	return Errorf("Adding %d %s to date %s causes overflow", n, part, dateString(day))
}

// addDate returns day and n parts: DATE_ADD.
func addDate(day, n int64, part string) (int64, error) {
	if n > math.MaxInt32 || n < math.MinInt32 {
		return 0, addDateOverflow(day, n, part)
	}
	var out int64
	ok := true
	switch partOf(part) {
	case partDay:
		out = day + n
	case partWeek:
		out = day + 7*n
	case partMonth:
		out, ok = addMonths(day, n)
	case partQuarter:
		out, ok = addMonths(day, 3*n)
	case partYear:
		out, ok = addMonths(day, 12*n)
	default:
		return 0, unsupportedPart("DATE_ADD", part)
	}
	if !ok || !isValidDate(out) {
		return 0, addDateOverflow(day, n, part)
	}
	return out, nil
}

// subDate returns day less n parts: DATE_SUB.
func subDate(day, n int64, part string) (int64, error) {
	switch partOf(part) {
	case partDay, partWeek, partMonth, partQuarter, partYear:
	default:
		return 0, unsupportedPart("DATE_SUB", part)
	}
	if n == math.MinInt64 {
		return 0, Errorf("Subtracting %d %s from date %s causes overflow", n, part, dateString(day))
	}
	return addDate(day, -n, part)
}

// diffDates returns how many boundaries of part lie between b and a: DATE_DIFF.
func diffDates(a, b int64, part string) (int64, error) {
	p := partOf(part)
	if first, ok := p.isWeek(); ok {
		return (weekStart(a, first) - weekStart(b, first)) / 7, nil
	}
	switch p {
	case partDay:
		return a - b, nil
	case partISOYear:
		y1, _ := isoYearWeek(a)
		y2, _ := isoYearWeek(b)
		return y1 - y2, nil
	}
	y1, m1, _ := civilOf(a)
	y2, m2, _ := civilOf(b)
	switch p {
	case partYear:
		return y1 - y2, nil
	case partQuarter:
		return (y1*12+int64(m1)-1)/3 - (y2*12+int64(m2)-1)/3, nil
	case partMonth:
		return (y1-y2)*12 + int64(m1-m2), nil
	}
	return 0, unsupportedPart("DATE_DIFF", part)
}

// truncDay returns the first day of the part that day lies in, and false for parts
// that have no first day. It may lie before the year 1.
func truncDay(day int64, p datePart) (int64, bool) {
	if first, ok := p.isWeek(); ok {
		return weekStart(day, first), true
	}
	switch p {
	case partDay:
		return day, true
	case partISOYear:
		year, _ := isoYearWeek(day)
		return isoYearStart(year), true
	}
	year, month, _ := civilOf(day)
	switch p {
	case partYear:
		return daysOf(year, 1, 1), true
	case partQuarter:
		return daysOf(year, (month-1)/3*3+1, 1), true
	case partMonth:
		return daysOf(year, month, 1), true
	}
	return 0, false
}

func truncDate(day int64, part string) (int64, error) {
	out, ok := truncDay(day, partOf(part))
	if !ok {
		return 0, unsupportedPart("DATE_TRUNC", part)
	}
	if !isValidDate(out) {
		return 0, Errorf("Truncating date %s to %s resulted in an out of range date value: %d", dateString(day), part, out)
	}
	return out, nil
}

// lastDay returns the last day of the part that day lies in: LAST_DAY.
func lastDay(day int64, part string) (int64, error) {
	p := partOf(part)
	var out int64
	year, month, _ := civilOf(day)
	switch p {
	case partYear:
		out = daysOf(year, 12, 31)
	case partQuarter:
		month = (month-1)/3*3 + 3
		out = daysOf(year, month, daysInMonth(year, month))
	case partMonth:
		out = daysOf(year, month, daysInMonth(year, month))
	case partISOYear:
		iso, _ := isoYearWeek(day)
		out = isoYearStart(iso+1) - 1
	default:
		first, ok := p.isWeek()
		if !ok {
			return 0, unsupportedPart("LAST_DAY", part)
		}
		out = weekStart(day, first) + 6
	}
	if !isValidDate(out) {
		return 0, Errorf("Last day of date %s to %s resulted in an out of range date value: %d", dateString(day), part, out)
	}
	return out, nil
}

// extractDay returns a part of a day, and false if days have no such part.
func extractDay(day int64, p datePart) (int64, bool) {
	switch p {
	case partISOYear:
		year, _ := isoYearWeek(day)
		return year, true
	case partISOWeek:
		_, week := isoYearWeek(day)
		return int64(week), true
	case partDayOfWeek:
		return int64(weekdayOf(day)) + 1, true
	case partDayOfYear:
		return int64(yearDayOf(day)), true
	}
	if first, ok := p.isWeek(); ok {
		return int64(weekOfYear(day, first)), true
	}
	year, month, dom := civilOf(day)
	switch p {
	case partYear:
		return year, true
	case partQuarter:
		return int64(month-1)/3 + 1, true
	case partMonth:
		return int64(month), true
	case partDay:
		return int64(dom), true
	}
	return 0, false
}

func extractFromDate(_ *Call, args []types.Value) (types.Value, error) {
	n, ok := extractDay(args[0].Int, partOf(args[1].Str))
	if !ok {
		return types.Null, unsupportedPart("EXTRACT from DATE", args[1].Str)
	}
	return types.NewInt(n), nil
}

func extractFromDateKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a, p := args[0], partOf(args[1].Value(0).Str)
	return eachRow(sel, n, func(i int) error {
		if a.IsNull(i) {
			out.SetNull(i)
			return nil
		}
		x, ok := extractDay(a.Ints[a.At(i)], p)
		if !ok {
			return errRow
		}
		out.Ints[i] = x
		return nil
	})
}

// partEval returns the Eval of a function of an integer and a date part.
func partEval(f func(x int64, part string) (int64, error)) func(*Call, []types.Value) (types.Value, error) {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		out, err := f(args[0].Int, args[1].Str)
		if err != nil {
			return types.Null, err
		}
		return types.NewInt(out), nil
	}
}

// addEval returns the Eval of a function of an integer and an interval.
func addEval(f func(x, n int64, part string) (int64, error)) func(*Call, []types.Value) (types.Value, error) {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		out, err := f(args[0].Int, args[1].Int, args[2].Str)
		if err != nil {
			return types.Null, err
		}
		return types.NewInt(out), nil
	}
}

// addKernel returns the Kernel of the same.
func addKernel(f func(x, n int64, part string) (int64, error)) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a, b, part := args[0], args[1], args[2].Value(0).Str
		return eachRow(sel, n, func(i int) (err error) {
			if a.IsNull(i) || b.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Ints[i], err = f(a.Ints[a.At(i)], b.Ints[b.At(i)], part)
			return err
		})
	}
}

// truncKernel returns the Kernel of a function of an integer and a date part.
func truncKernel(f func(x int64, part string) (int64, error)) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a, part := args[0], args[1].Value(0).Str
		return eachRow(sel, n, func(i int) (err error) {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Ints[i], err = f(a.Ints[a.At(i)], part)
			return err
		})
	}
}

// diffEval returns the Eval of a function of two integers and a date part.
func diffEval(f func(a, b int64, part string) (int64, error)) func(*Call, []types.Value) (types.Value, error) {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		out, err := f(args[0].Int, args[1].Int, args[2].Str)
		if err != nil {
			return types.Null, err
		}
		return types.NewInt(out), nil
	}
}

func currentDate(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 0)
	if err != nil {
		return types.Null, err
	}
	return types.NewInt(floorDiv(zone.local(c.Now), microsPerDay)), nil
}

func dateFromParts(_ *Call, args []types.Value) (types.Value, error) {
	y, m, d := args[0].Int, args[1].Int, args[2].Int
	if y < 1 || y > 9999 || m < 1 || m > 12 || d < 1 || d > 31 || !isValidDay(y, int(m), int(d)) {
		return types.Null, Errorf("Input calculates to invalid date: %04d-%02d-%02d", y, m, d)
	}
	return types.NewInt(daysOf(y, int(m), int(d))), nil
}

func dateFromTimestamp(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 1)
	if err != nil {
		return types.Null, err
	}
	day, ok := dateOfTimestamp(args[0].Int, noPart, zone)
	if !ok {
		return types.Null, Errorf("Invalid date extracted from timestamp %s", timestampString(args[0].Int, zone))
	}
	return types.NewInt(day), nil
}

func sameValue(_ *Call, args []types.Value) (types.Value, error) { return args[0], nil }

func dateFromUnixDate(_ *Call, args []types.Value) (types.Value, error) {
	if !isValidDate(args[0].Int) {
		return types.Null, Errorf("DATE_FROM_UNIX_DATE range is %d to %d but saw %d", minDate, maxDate, args[0].Int)
	}
	return args[0], nil
}

// generate fills an array from start to end: next returns the element after the n'th,
// and false if there is none.
func generate(c *Call, start, end, step int64, next func(n int, x int64) (int64, bool)) (types.Value, error) {
	if step == 0 {
		return types.Null, Errorf("Sequence step cannot be 0.")
	}
	out := []types.Value{}
	if start < end && step < 0 || start > end && step > 0 {
		return types.NewList(out), nil
	}
	if start == end {
		return types.NewList(append(out, types.NewInt(start))), nil
	}
	for x := start; start <= end && x <= end || start > end && x >= end; {
		if len(out) >= maxGenerated {
			return types.Null, Errorf("Cannot generate arrays with more than %d elements.", maxGenerated)
		}
		if len(out) == cap(out) {
			if err := growList(c, 2*len(out)); err != nil {
				return types.Null, err
			}
		}
		out = append(out, types.NewInt(x))
		var ok bool
		if x, ok = next(len(out), x); !ok {
			// What overflows lies beyond end anyway.
			break
		}
	}
	return types.NewList(out), nil
}

func generateDateArray(c *Call, args []types.Value) (types.Value, error) {
	step, part := int64(1), "DAY"
	if hasArg(c, args, 2) {
		step, part = args[2].Int, args[3].Str
	}
	switch partOf(part) {
	case partDay, partWeek, partMonth, partQuarter, partYear:
	default:
		return types.Null, unsupportedPart("GENERATE_DATE_ARRAY", part)
	}
	return generate(c, args[0].Int, args[1].Int, step, func(_ int, x int64) (int64, bool) {
		x, err := addDate(x, step, part)
		return x, err == nil
	})
}

func init() {
	day, text, integer := T(types.DateType), T(types.StringType), T(types.Int64Type)
	stamp := T(types.TimestampType)
	part, interval := Template{Part: true}, Template{Interval: true}
	zone := Arg{Type: text, Optional: true}
	register(
		&Function{
			Name: "CURRENT_DATE", Category: "Date", Doc: "Returns the date of the statement's time.", Stable: true,
			Signatures: []*Signature{{Args: []Arg{zone}, Result: day, Eval: currentDate}},
		},
		&Function{
			Name: "DATE", Category: "Date", Doc: "Returns a date made of a year, month and day, or the date of a timestamp.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: stamp}, zone}, Result: day, Eval: dateFromTimestamp, Kernel: inZone(1, dateOfTimestamp)},
				{Args: []Arg{{Type: integer}, {Type: integer}, {Type: integer}}, Result: day, Eval: dateFromParts},
				{Args: []Arg{{Type: day}}, Result: day, Eval: sameValue},
				{Args: []Arg{{Type: text}}, Result: day, Eval: dateFromString},
			},
		},
		&Function{
			Name: "DATE_ADD", Category: "Date", Doc: "Returns a date an interval later.",
			Signatures: []*Signature{{Part: partCheck("DATE_ADD", ofDate, addDateParts), Args: []Arg{{Type: day}, {Type: interval}}, Result: day, Eval: addEval(addDate), Kernel: addKernel(addDate)}},
		},
		&Function{
			Name: "DATE_SUB", Category: "Date", Doc: "Returns a date an interval earlier.",
			Signatures: []*Signature{{Part: partCheck("DATE_SUB", ofDate, addDateParts), Args: []Arg{{Type: day}, {Type: interval}}, Result: day, Eval: addEval(subDate), Kernel: addKernel(subDate)}},
		},
		&Function{
			Name: "DATE_DIFF", Category: "Date", Doc: "Returns how many boundaries of a date part lie between two dates.",
			Signatures: []*Signature{
				{Part: partCheck("DATE_DIFF", ofDate, dateParts), Args: []Arg{{Type: day}, {Type: day}, {Type: part}}, Result: integer, Eval: diffEval(diffDates), Kernel: addKernel(diffDates)},
				{Part: partCheck("DATE_DIFF", ofTimestamp, addTimestampParts), Args: []Arg{{Type: stamp}, {Type: stamp}, {Type: part}}, Result: integer, Eval: diffEval(diffTimestamps), Kernel: addKernel(diffTimestamps)},
			},
		},
		&Function{
			Name: "DATE_TRUNC", Category: "Date", Doc: "Returns the first day of the date part that a date lies in.",
			Signatures: []*Signature{
				{Part: partCheck("DATE_TRUNC", "", dateParts), Args: []Arg{{Type: day}, {Type: part}}, Result: day, Eval: partEval(truncDate), Kernel: truncKernel(truncDate)},
				{Part: partCheck("DATE_TRUNC", "", truncTimestampParts), Args: []Arg{{Type: stamp}, {Type: part}, zone}, Result: stamp, Eval: truncTimestampEval, Kernel: inZone(2, truncTimestamp)},
			},
		},
		&Function{
			Name: "LAST_DAY", Category: "Date", Doc: "Returns the last day of the date part that a date lies in; of the month, if none is named.",
			Signatures: []*Signature{{
				Part: partCheck("LAST_DAY", "", longParts), Args: []Arg{{Type: day}, {Type: part, Optional: true}}, Result: day,
				Eval: func(c *Call, args []types.Value) (types.Value, error) {
					part := "MONTH"
					if hasArg(c, args, 1) {
						part = args[1].Str
					}
					out, err := lastDay(args[0].Int, part)
					if err != nil {
						return types.Null, err
					}
					return types.NewInt(out), nil
				},
			}},
		},
		&Function{
			Name: "DATE_FROM_UNIX_DATE", Category: "Date", Doc: "Returns the date that lies that many days after 1970-01-01.",
			Signatures: []*Signature{{Args: []Arg{{Type: integer}}, Result: day, Eval: dateFromUnixDate}},
		},
		&Function{
			Name: "UNIX_DATE", Category: "Date", Doc: "Returns how many days after 1970-01-01 a date lies.",
			Signatures: []*Signature{{Args: []Arg{{Type: day}}, Result: integer, Eval: sameValue}},
		},
		&Function{
			Name: "$extract", SQL: "EXTRACT", Category: "Date", Doc: "Returns a part of a date or a timestamp.",
			Signatures: []*Signature{
				{Part: partCheck("EXTRACT from DATE", "", extractDateParts), Args: []Arg{{Type: day}, {Type: part}}, Result: integer, Eval: extractFromDate, Kernel: extractFromDateKernel},
				{Part: partCheck("EXTRACT from TIMESTAMP", "", extractTimestampParts), Args: []Arg{{Type: stamp}, {Type: part}, zone}, Result: integer, Eval: extractFromTimestamp, Kernel: inZone(2, extractPart)},
			},
		},
		&Function{
			Name: "$extract_date", SQL: "EXTRACT", Category: "Date", Doc: "Returns the date of a timestamp: EXTRACT(DATE FROM timestamp).",
			Signatures: []*Signature{{Args: []Arg{{Type: stamp}, zone}, Result: day, Eval: dateFromTimestamp, Kernel: inZone(1, dateOfTimestamp)}},
		},
		&Function{
			Name: "FORMAT_DATE", Category: "Date", Doc: "Returns a date written as a format says.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: text}, {Type: day}}, Result: text, Eval: formatDate},
				{Args: []Arg{{Type: text}, {Type: stamp}, zone}, Result: text, Eval: formatTimestamp},
			},
		},
		&Function{
			Name: "PARSE_DATE", Category: "Date", Doc: "Returns the date that a string has in a format.",
			Signatures: []*Signature{{Args: []Arg{{Type: text}, {Type: text}}, Result: day, Eval: parseDateFormat}},
		},
		&Function{
			Name: "GENERATE_DATE_ARRAY", Category: "Array", Doc: "Returns an array of the dates from one to another, in steps.",
			Signatures: []*Signature{{Part: partCheck("GENERATE_DATE_ARRAY", "", addDateParts), Args: []Arg{{Type: day}, {Type: day}, {Type: interval, Optional: true}}, Result: ArrayT(day), Eval: generateDateArray}},
		},
	)
}
