package functions

import (
	"math"

	"github.com/trestledb/trestle/engine/query/types"
)

// dateOfTimestamp returns the date that a clock in zone shows at a time, and false if
// it lies outside the years 1 to 9999.
func dateOfTimestamp(micros int64, _ datePart, zone *timeZone) (int64, bool) {
	day := floorDiv(zone.local(micros), microsPerDay)
	return day, isValidDate(day)
}

// timestampOfDate returns when a date begins in zone.
func timestampOfDate(day int64, zone *timeZone) (types.Value, error) {
	micros := zone.at(day*secondsPerDay) * microsPerSecond
	if !isValidTimestamp(micros) {
		return types.Null, Errorf("Cannot convert date %s to timestamp", dateString(day))
	}
	return types.NewInt(micros), nil
}

// longTimestamp writes a timestamp with all six digits, as the errors of arithmetic do.
func longTimestamp(micros int64) string {
	return string(append(appendClock(nil, micros, 6), "+00"...))
}

// unitMicros returns how many microseconds a part of fixed length has.
func unitMicros(p datePart) int64 {
	switch p {
	case partDay:
		return microsPerDay
	case partHour:
		return 3600 * 1_000_000
	case partMinute:
		return 60 * 1_000_000
	case partSecond:
		return 1_000_000
	case partMillisecond:
		return 1000
	case partMicrosecond:
		return 1
	}
	return 0
}

// addTimestamp returns a timestamp and n parts: TIMESTAMP_ADD. A day has 24 hours.
func addTimestamp(micros, n int64, part string) (int64, error) {
	unit := unitMicros(partOf(part))
	if unit == 0 {
		return 0, unsupportedPart("TIMESTAMP_ADD", part)
	}
	if seconds := unit / 1_000_000; seconds > 1 && (n > math.MaxInt64/seconds || n < math.MinInt64/seconds) {
		return 0, Errorf("TIMESTAMP_ADD interval value  %d at %s precision causes overflow", n, part)
	}
	if n > math.MaxInt64/unit || n < math.MinInt64/unit {
		scale := "SECOND"
		if unit == 1000 {
			scale = "MILLISECOND"
		} else {
			n *= unit / 1_000_000
		}
		return 0, Errorf("Converting timestamp interval %d at TIMESTAMP_%s scale to TIMESTAMP_MICROSECOND scale causes overflow", n, scale)
	}
	more := n * unit
	out := micros + more
	if (out < micros) != (more < 0) || !isValidTimestamp(out) {
		return 0, Errorf("Adding %d %s to timestamp %s causes overflow", n, part, longTimestamp(micros))
	}
	return out, nil
}

// subTimestamp returns a timestamp less n parts: TIMESTAMP_SUB.
func subTimestamp(micros, n int64, part string) (int64, error) {
	if unitMicros(partOf(part)) == 0 {
		return 0, unsupportedPart("TIMESTAMP_SUB", part)
	}
	if n == math.MinInt64 {
		return 0, Errorf("Subtracting %d %s from timestamp %s causes overflow", n, part, longTimestamp(micros))
	}
	return addTimestamp(micros, -n, part)
}

// diffTimestamps returns how many whole parts lie between b and a: TIMESTAMP_DIFF.
func diffTimestamps(a, b int64, part string) (int64, error) {
	unit := unitMicros(partOf(part))
	if unit == 0 {
		return 0, unsupportedPart("TIMESTAMP_DIFF", part)
	}
	return (a - b) / unit, nil
}

// truncTimestamp returns the beginning of the part, in zone, that a timestamp lies in:
// TIMESTAMP_TRUNC. It returns false if there is none.
func truncTimestamp(micros int64, p datePart, zone *timeZone) (int64, bool) {
	switch p {
	case partMicrosecond:
		return micros, true
	case partMillisecond, partSecond:
		return micros - floorMod(micros, unitMicros(p)), true
	case partMinute, partHour:
		// In the offset of that moment, which need not be that of the result.
		out := micros - floorMod(zone.local(micros), unitMicros(p))
		return out, isValidTimestamp(out)
	}
	day := floorDiv(zone.local(micros), microsPerDay)
	first, ok := truncDay(day, p)
	if !ok || p == partISOYear && !isValidDate(day) {
		return 0, false
	}
	out := zone.at(first*secondsPerDay) * microsPerSecond
	return out, isValidTimestamp(out)
}

// extractClock returns a part of the reading of a clock, in microseconds since
// 1970-01-01 00:00:00, and false if it has no such part.
func extractClock(local int64, p datePart) (int64, bool) {
	day, rest := floorDiv(local, microsPerDay), floorMod(local, microsPerDay)
	switch p {
	case partHour:
		return rest / (3600 * 1_000_000), true
	case partMinute:
		return rest / (60 * 1_000_000) % 60, true
	case partSecond:
		return rest / 1_000_000 % 60, true
	case partMillisecond:
		return rest / 1000 % 1000, true
	case partMicrosecond:
		return rest % 1_000_000, true
	case partNanosecond:
		return rest % 1_000_000 * 1000, true
	}
	return extractDay(day, p)
}

func extractFromTimestamp(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 2)
	if err != nil {
		return types.Null, err
	}
	n, ok := extractPart(args[0].Int, partOf(args[1].Str), zone)
	if !ok {
		return types.Null, unsupportedPart("EXTRACT from TIMESTAMP", args[1].Str)
	}
	return types.NewInt(n), nil
}

// A zoneColumn is the time zones that an optional argument of a Kernel names.
type zoneColumn struct {
	names *types.Vector // nil: zone is that of all rows
	zone  *timeZone
}

// zoneColumnOf returns the time zones of argument i.
func zoneColumnOf(args []*types.Vector, i int) zoneColumn {
	if i >= len(args) || args[i] == nil {
		return zoneColumn{}
	}
	if !args[i].Const || args[i].IsNull(0) {
		return zoneColumn{names: args[i]}
	}
	zone, err := loadZone(args[i].Strs[0])
	if err != nil {
		// It is an error of rows that are not NULL.
		return zoneColumn{names: args[i]}
	}
	return zoneColumn{zone: zone}
}

// at returns the time zone of row i, and false if it is NULL. There are names.
func (z *zoneColumn) at(i int) (*timeZone, bool, error) {
	if z.names.IsNull(i) {
		return nil, false, nil
	}
	zone, err := loadZone(z.names.Strs[z.names.At(i)])
	return zone, true, err
}

// inZone returns the Kernel of a function of a timestamp and, as argument at, a time
// zone. If that is the third argument, the second is a date part. f returns false for
// what Eval has an error.
func inZone(at int, f func(micros int64, p datePart, zone *timeZone) (int64, bool)) kernelFunc {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a, p, zones := args[0], noPart, zoneColumnOf(args, at)
		if at == 2 {
			p = partOf(args[1].Value(0).Str)
		}
		return eachRow(sel, n, func(i int) error {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			zone := zones.zone
			if zones.names != nil {
				z, ok, err := zones.at(i)
				if err != nil {
					return err
				}
				if !ok {
					out.SetNull(i)
					return nil
				}
				zone = z
			}
			x, ok := f(a.Ints[a.At(i)], p, zone)
			if !ok {
				return errRow
			}
			out.Ints[i] = x
			return nil
		})
	}
}

func extractPart(micros int64, p datePart, zone *timeZone) (int64, bool) {
	return extractClock(zone.local(micros), p)
}

func truncTimestampEval(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 2)
	if err != nil {
		return types.Null, err
	}
	p := partOf(args[1].Str)
	out, ok := truncTimestamp(args[0].Int, p, zone)
	if ok {
		return types.NewInt(out), nil
	}
	if truncTimestampParts>>p&1 == 0 {
		return types.Null, unsupportedPart("TIMESTAMP_TRUNC", args[1].Str)
	}
	day := floorDiv(zone.local(args[0].Int), microsPerDay)
	if _, week := p.isWeek(); week {
		if first, _ := truncDay(day, p); first < minDate {
			return types.Null, Errorf("Truncating %s to the nearest week causes overflow", timestampString(args[0].Int, zone))
		}
	}
	if p == partISOYear && !isValidDate(day) {
		return types.Null, Errorf("Invalid date value: %d", day)
	}
	return types.Null, Errorf("Truncating to the nearest %s causes underflow at timezone %s", p.enumName(args[1].Str), zone)
}

func timestampFromDate(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 1)
	if err != nil {
		return types.Null, err
	}
	return timestampOfDate(args[0].Int, zone)
}

func stringFromTimestamp(c *Call, args []types.Value) (types.Value, error) {
	zone, err := zoneArg(c, args, 1)
	if err != nil {
		return types.Null, err
	}
	return types.NewString(timestampString(args[0].Int, zone)), nil
}

// unixEval returns the Eval of UNIX_SECONDS and its siblings: a timestamp as a number of
// units.
func unixEval(unit int64) func(*Call, []types.Value) (types.Value, error) {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		return types.NewInt(floorDiv(args[0].Int, unit)), nil
	}
}

func unixKernel(unit int64) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		return eachRow(sel, n, func(i int) error {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Ints[i] = floorDiv(a.Ints[a.At(i)], unit)
			return nil
		})
	}
}

// fromUnix returns the timestamp that is n units after the epoch.
func fromUnix(n, unit int64) (int64, error) {
	if n < minTimestamp/unit || n > maxTimestamp/unit {
		return 0, Errorf("Input value %d cannot be converted into a TIMESTAMP, because it would be out of the allowed range between %d to %d (microseconds)",
			n, int64(minTimestamp), int64(maxTimestamp))
	}
	return n * unit, nil
}

func fromUnixEval(unit int64) func(*Call, []types.Value) (types.Value, error) {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		out, err := fromUnix(args[0].Int, unit)
		if err != nil {
			return types.Null, err
		}
		return types.NewInt(out), nil
	}
}

func fromUnixKernel(unit int64) func(*Call, []*types.Vector, *types.Vector, []int32, int) error {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		return eachRow(sel, n, func(i int) (err error) {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Ints[i], err = fromUnix(a.Ints[a.At(i)], unit)
			return err
		})
	}
}

func generateTimestampArray(c *Call, args []types.Value) (types.Value, error) {
	step, part := args[2].Int, args[3].Str
	if unitMicros(partOf(part)) == 0 {
		return types.Null, unsupportedPart("GENERATE_TIMESTAMP_ARRAY", part)
	}
	return generate(c, args[0].Int, args[1].Int, step, func(_ int, x int64) (int64, bool) {
		next, err := addTimestamp(x, step, part)
		return next, err == nil
	})
}

func init() {
	day, text, integer := T(types.DateType), T(types.StringType), T(types.Int64Type)
	stamp := T(types.TimestampType)
	part, interval := Template{Part: true}, Template{Interval: true}
	zone := Arg{Type: text, Optional: true}
	unix := func(name, what string, unit int64) *Function {
		return &Function{
			Name: name, Category: "Timestamp", Doc: "Returns how many " + what + " after the epoch a timestamp lies.",
			Signatures: []*Signature{{Args: []Arg{{Type: stamp}}, Result: integer, Eval: unixEval(unit), Kernel: unixKernel(unit)}},
		}
	}
	from := func(name, what string, unit int64) *Function {
		return &Function{
			Name: name, Category: "Timestamp", Doc: "Returns the timestamp that lies that many " + what + " after the epoch.",
			Signatures: []*Signature{{Args: []Arg{{Type: integer}}, Result: stamp, Eval: fromUnixEval(unit), Kernel: fromUnixKernel(unit)}},
		}
	}
	// fromOrSame is from for functions that take a timestamp, too.
	fromOrSame := func(name, what string, unit int64) *Function {
		f := from(name, what, unit)
		f.Signatures = append(f.Signatures, &Signature{Args: []Arg{{Type: stamp}}, Result: stamp, Eval: sameValue})
		return f
	}
	register(
		&Function{
			Name: "CURRENT_TIMESTAMP", Category: "Timestamp", Doc: "Returns the statement's time.", Stable: true,
			Signatures: []*Signature{{
				Result: stamp,
				Eval:   func(c *Call, _ []types.Value) (types.Value, error) { return types.NewInt(c.Now), nil },
			}},
		},
		&Function{
			Name: "TIMESTAMP", Category: "Timestamp", Doc: "Returns the timestamp that a string has, or at which a date begins.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: text}, zone}, Result: stamp, Eval: timestampFromString},
				{Args: []Arg{{Type: day}, zone}, Result: stamp, Eval: timestampFromDate},
				{Args: []Arg{{Type: stamp}}, Result: stamp, Eval: sameValue},
			},
		},
		&Function{
			Name: "TIMESTAMP_ADD", Category: "Timestamp", Doc: "Returns a timestamp an interval later.",
			Signatures: []*Signature{{Part: partCheck("TIMESTAMP_ADD", ofTimestamp, addTimestampParts), Args: []Arg{{Type: stamp}, {Type: interval}}, Result: stamp, Eval: addEval(addTimestamp), Kernel: addKernel(addTimestamp)}},
		},
		&Function{
			Name: "TIMESTAMP_SUB", Category: "Timestamp", Doc: "Returns a timestamp an interval earlier.",
			Signatures: []*Signature{{Part: partCheck("TIMESTAMP_SUB", ofTimestamp, addTimestampParts), Args: []Arg{{Type: stamp}, {Type: interval}}, Result: stamp, Eval: addEval(subTimestamp), Kernel: addKernel(subTimestamp)}},
		},
		&Function{
			Name: "TIMESTAMP_DIFF", Category: "Timestamp", Doc: "Returns how many whole parts lie between two timestamps.",
			Signatures: []*Signature{{
				Part: partCheck("TIMESTAMP_DIFF", ofTimestamp, addTimestampParts), Args: []Arg{{Type: stamp}, {Type: stamp}, {Type: part}}, Result: integer, Eval: diffEval(diffTimestamps), Kernel: addKernel(diffTimestamps),
			}},
		},
		&Function{
			Name: "TIMESTAMP_TRUNC", Category: "Timestamp", Doc: "Returns the beginning of the part that a timestamp lies in.",
			Signatures: []*Signature{{Part: partCheck("TIMESTAMP_TRUNC", "", truncTimestampParts), Args: []Arg{{Type: stamp}, {Type: part}, zone}, Result: stamp, Eval: truncTimestampEval, Kernel: inZone(2, truncTimestamp)}},
		},
		&Function{
			Name: "FORMAT_TIMESTAMP", Category: "Timestamp", Doc: "Returns a timestamp written as a format says.",
			Signatures: []*Signature{{Args: []Arg{{Type: text}, {Type: stamp}, zone}, Result: text, Eval: formatTimestamp}},
		},
		&Function{
			Name: "PARSE_TIMESTAMP", Category: "Timestamp", Doc: "Returns the timestamp that a string has in a format.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: text}, {Type: text}, zone}, Result: stamp, Eval: parseTimestampFormat},
				{
					Args:   []Arg{{Type: text}, {Type: text}, zone, {Name: "precision", Type: integer, NamedOnly: true}},
					Result: stamp, Eval: parseTimestampFormat, Internal: true,
				},
			},
		},
		&Function{
			Name: "STRING", Category: "Timestamp", Doc: "Returns a timestamp or a date as a string.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: stamp}, zone}, Result: text, Eval: stringFromTimestamp},
				{
					Args: []Arg{{Type: day}}, Result: text,
					Eval: func(_ *Call, args []types.Value) (types.Value, error) {
						return types.NewString(dateString(args[0].Int)), nil
					},
				},
			},
		},
		unix("UNIX_SECONDS", "seconds", 1_000_000),
		unix("UNIX_MILLIS", "milliseconds", 1000),
		unix("UNIX_MICROS", "microseconds", 1),
		from("TIMESTAMP_SECONDS", "seconds", 1_000_000),
		fromOrSame("TIMESTAMP_FROM_UNIX_SECONDS", "seconds", 1_000_000),
		from("TIMESTAMP_MILLIS", "milliseconds", 1000),
		fromOrSame("TIMESTAMP_FROM_UNIX_MILLIS", "milliseconds", 1000),
		from("TIMESTAMP_MICROS", "microseconds", 1),
		fromOrSame("TIMESTAMP_FROM_UNIX_MICROS", "microseconds", 1),
		&Function{
			Name: "GENERATE_TIMESTAMP_ARRAY", Category: "Array", Doc: "Returns an array of the timestamps from one to another, in steps.",
			Signatures: []*Signature{{Part: partCheck("GENERATE_TIMESTAMP_ARRAY", "", addTimestampParts), Args: []Arg{{Type: stamp}, {Type: stamp}, {Type: interval}}, Result: ArrayT(stamp), Eval: generateTimestampArray}},
		},
	)
}
