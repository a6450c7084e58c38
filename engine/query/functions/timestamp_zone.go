package functions

import (
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // servers run in images without zone files; this costs 450 KB

	"github.com/trestledb/trestle/engine/query/types"
)

// A timeZone is a place of which the offset from UTC is known at any time. A nil
// *timeZone is UTC.
type timeZone struct {
	location *time.Location // nil: the offset is always that of fixed
	fixed    int64          // seconds east of UTC
}

// zones has the time zones of location by name. Only names that exist are kept, of
// which there are about 600.
var zones sync.Map

// maxZoneName is longer than the name of any time zone.
const maxZoneName = 64

// loadZone returns the time zone called name: one of the tz database, or an offset
// such as +08:30, -8, UTC+0830.
func loadZone(name string) (*timeZone, error) {
	if name == "" {
		return nil, Errorf("Invalid empty time zone")
	}
	if name == "UTC" {
		return nil, nil
	}
	if z, ok := zones.Load(name); ok {
		return z.(*timeZone), nil
	}
	if seconds, ok, valid := parseZoneOffset(name); ok {
		if !valid {
			return nil, Errorf("Invalid time zone: %s", name)
		}
		return &timeZone{fixed: seconds}, nil
	}
	if len(name) > maxZoneName || name == "Local" {
		return nil, Errorf("Invalid time zone: %s", name)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, Errorf("Invalid time zone: %s", name)
	}
	z := &timeZone{location: location}
	zones.Store(strings.Clone(name), z)
	return z, nil
}

// parseZoneOffset reads [UTC](+|-)H[H][[:]M[M]]. It returns false for ok if s is not of
// that form, and false for valid if the offset is more than 14 hours.
func parseZoneOffset(s string) (seconds int64, ok, valid bool) {
	s = strings.TrimPrefix(s, "UTC")
	if s == "" || s[0] != '+' && s[0] != '-' {
		return 0, false, false
	}
	negative := s[0] == '-'
	hours, rest, ok := takeDigits(s[1:], 1, 2)
	if !ok {
		return 0, false, false
	}
	minutes := int64(0)
	if rest != "" {
		rest = strings.TrimPrefix(rest, ":")
		if minutes, rest, ok = takeDigits(rest, 1, 2); !ok || rest != "" {
			return 0, false, false
		}
	}
	if hours > 14 || minutes > 59 || hours*60+minutes > 14*60 {
		return 0, true, false
	}
	seconds = (hours*60 + minutes) * 60
	if negative {
		seconds = -seconds
	}
	return seconds, true, true
}

// takeDigits reads between low and high decimal digits at the start of s, at most 18.
func takeDigits(s string, low, high int) (n int64, rest string, ok bool) {
	i := 0
	for i < len(s) && i < high && s[i] >= '0' && s[i] <= '9' {
		n = n*10 + int64(s[i]-'0')
		i++
	}
	return n, s[i:], i >= low
}

// String returns the name of z, as messages have it.
func (z *timeZone) String() string {
	switch {
	case z == nil:
		return "UTC"
	case z.location != nil:
		return z.location.String()
	}
	return "Fixed/UTC" + string(appendColonZone(nil, z.fixed, 2))
}

// offset returns how far east of UTC z is at a time, in seconds. unix is in seconds.
func (z *timeZone) offset(unix int64) int64 {
	switch {
	case z == nil:
		return 0
	case z.location == nil:
		return z.fixed
	}
	_, seconds := time.Unix(unix, 0).In(z.location).Zone()
	return int64(seconds)
}

// local returns the reading of a clock in z at a time, in microseconds since the
// epoch as if z were UTC.
func (z *timeZone) local(micros int64) int64 {
	if z == nil {
		return micros
	}
	return micros + z.offset(floorDiv(micros, microsPerSecond))*microsPerSecond
}

// localMinutes is local for offsets that are cut to whole minutes, as they are shown. It
// returns the offset, too, in seconds.
func (z *timeZone) localMinutes(micros int64) (local, offset int64) {
	if z == nil {
		return micros, 0
	}
	offset = z.offset(floorDiv(micros, microsPerSecond))
	offset -= offset % 60
	return micros + offset*microsPerSecond, offset
}

// at returns the time at which a clock in z reads local, both in seconds. Of a
// reading that comes twice it is the first time; one that never comes is read as if the
// clock had not been changed.
func (z *timeZone) at(local int64) int64 {
	switch {
	case z == nil:
		return local
	case z.location == nil:
		return local - z.fixed
	}
	before := z.offset(local - secondsPerDay)
	early := local - before
	if z.offset(early) == before {
		return early
	}
	after := z.offset(local + secondsPerDay)
	late := local - after
	if z.offset(late) == after {
		return late
	}
	return early
}

// appendTimestamp appends a timestamp as SQL writes it, in z: 2006-01-02
// 15:04:05.123+00. It has 0, 3 or 6 digits behind the point.
func appendTimestamp(dst []byte, micros int64, z *timeZone) []byte {
	local, offset := z.localMinutes(micros)
	dst = appendClock(dst, local, -1)
	return appendOffset(dst, offset)
}

// appendClock appends the date and time that a clock reads, with that many digits
// behind the point; -1 means as many as it needs of 0, 3 and 6.
func appendClock(dst []byte, local int64, digits int) []byte {
	days := floorDiv(local, microsPerDay)
	micros := local - days*microsPerDay
	dst = append(appendDate(dst, days), ' ')
	dst = appendTime(dst, micros/microsPerSecond)
	micros %= microsPerSecond
	if digits < 0 {
		switch {
		case micros == 0:
			digits = 0
		case micros%1000 == 0:
			digits = 3
		default:
			digits = 6
		}
	}
	switch digits {
	case 3:
		dst = appendPadded(append(dst, '.'), micros/1000, 3)
	case 6:
		dst = appendPadded(append(dst, '.'), micros, 6)
	}
	return dst
}

// appendTime appends the time of a day, in seconds, as 15:04:05.
func appendTime(dst []byte, seconds int64) []byte {
	h, m, s := seconds/3600, seconds/60%60, seconds%60
	return append(dst, byte('0'+h/10), byte('0'+h%10), ':', byte('0'+m/10), byte('0'+m%10), ':', byte('0'+s/10), byte('0'+s%10))
}

// appendOffset appends an offset, in seconds, as +08 or +08:30.
func appendOffset(dst []byte, offset int64) []byte {
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	h, m := offset/3600, offset/60%60
	dst = append(dst, sign, byte('0'+h/10), byte('0'+h%10))
	if m != 0 {
		dst = append(dst, ':', byte('0'+m/10), byte('0'+m%10))
	}
	return dst
}

// timestampString returns a timestamp as SQL writes it, in z.
func timestampString(micros int64, z *timeZone) string {
	var buf [40]byte
	return string(appendTimestamp(buf[:0], micros, z))
}

// zoneArg returns the time zone that the optional argument i names: UTC if it was left
// out.
func zoneArg(c *Call, args []types.Value, i int) (*timeZone, error) {
	if !hasArg(c, args, i) {
		return nil, nil
	}
	return loadZone(args[i].Str)
}
