package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// A value parses and prints one setting.
type value struct {
	set  func(string) error
	get  func() string // in a form that set accepts
	kind string        // shown in help; empty for a switch
}

func text(p *string) value {
	return value{
		set: func(s string) error {
			if s == "" {
				return errors.New("must not be empty")
			}
			*p = s
			return nil
		},
		get: func() string { return *p }, kind: "PATH",
	}
}

// file is a text that may be empty.
func file(p *string) value {
	return value{set: func(s string) error { *p = s; return nil }, get: func() string { return *p }, kind: "TEXT"}
}

// list is host names separated by commas, perhaps none.
func list(p *string) value {
	return value{
		set: func(s string) error {
			var words []string
			for w := range strings.SplitSeq(s, ",") {
				if w = strings.TrimSpace(w); s != "" && (w == "" || strings.ContainsAny(w, " /:") && net.ParseIP(w) == nil) {
					return fmt.Errorf("%q is not a list of host names", s)
				}
				words = append(words, w)
			}
			*p = strings.Join(words, ",")
			return nil
		},
		get: func() string { return *p }, kind: "NAMES",
	}
}

func boolean(p *bool) value {
	return value{
		set: func(s string) (err error) {
			if *p, err = strconv.ParseBool(s); err != nil {
				return fmt.Errorf("%q is neither true nor false", s)
			}
			return nil
		},
		get: func() string { return strconv.FormatBool(*p) },
	}
}

func oneOf(p *string, allowed ...string) value {
	return value{
		set: func(s string) error {
			for _, a := range allowed {
				if strings.EqualFold(s, a) {
					*p = a
					return nil
				}
			}
			return fmt.Errorf("%q is not one of %s", s, strings.Join(allowed, ", "))
		},
		get: func() string { return *p }, kind: strings.Join(allowed, "|"),
	}
}

func level(p *slog.Level) value {
	return value{
		set: func(s string) error {
			if err := p.UnmarshalText([]byte(s)); err != nil {
				return fmt.Errorf("%q is not one of debug, info, warn, error", s)
			}
			return nil
		},
		get: func() string { return strings.ToLower(p.String()) }, kind: "LEVEL",
	}
}

// resourceID is what Bigtable allows as the id of a cluster, and a zone's name
// fits it as well.
var resourceID = regexp.MustCompile(`^[a-z][-a-z0-9]{1,28}[a-z0-9]$`)

func name(p *string) value {
	return value{
		set: func(s string) error {
			if !resourceID.MatchString(s) {
				return fmt.Errorf("%q does not match %s", s, resourceID)
			}
			*p = s
			return nil
		},
		get: func() string { return *p }, kind: "NAME",
	}
}

// Off is the value of an address that is not to be listened on.
const Off = "off"

// address is HOST:PORT, or a path with a slash for a unix socket, or Off.
func address(p *string, optional bool) value {
	return value{
		set: func(s string) error {
			if optional && s == Off {
				*p = ""
				return nil
			}
			if !strings.Contains(s, "/") {
				_, port, err := net.SplitHostPort(s)
				if err != nil {
					return fmt.Errorf("%q is not HOST:PORT", s)
				}
				if _, err := strconv.ParseUint(port, 10, 16); err != nil {
					return fmt.Errorf("port %q of %q is not a number from 0 to 65535", port, s)
				}
			}
			*p = s
			return nil
		},
		get: func() string {
			if *p == "" {
				return Off
			}
			return *p
		},
		kind: "ADDR",
	}
}

// MinMemory is the least that memory can be set to.
const MinMemory = 16 << 20

func memory(p *int64) value {
	return value{
		set: func(s string) error {
			n, err := ParseBytes(s)
			if err != nil {
				return err
			}
			if n < MinMemory {
				return fmt.Errorf("%q is less than %s", s, formatBytes(MinMemory))
			}
			*p = n
			return nil
		},
		get: func() string { return formatBytes(*p) }, kind: "SIZE",
	}
}

var units = []struct {
	suffix string
	bytes  int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// ParseBytes reads "1048576", "64MiB", "1.5 GiB" or "25%". A percentage is of
// MachineMemory, rounded down to a MiB.
func ParseBytes(s string) (int64, error) {
	bad := fmt.Errorf("%q is not a size such as 1073741824, 512MiB, 2GiB or 25%%", s)
	t := strings.TrimSpace(s)
	if n, ok := strings.CutSuffix(t, "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
		if err != nil || !(f > 0 && f <= 100) {
			return 0, bad
		}
		return int64(float64(MachineMemory())*f/100) &^ (1<<20 - 1), nil
	}
	unit := int64(1)
	for _, u := range units {
		if n := len(t) - len(u.suffix); n > 0 && strings.EqualFold(t[n:], u.suffix) {
			t, unit = strings.TrimSpace(t[:n]), u.bytes
			break
		}
	}
	if unit == 1 {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil || n < 0 {
			return 0, bad
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || !(f >= 0 && f*float64(unit) < math.MaxInt64) {
		return 0, bad
	}
	return int64(f * float64(unit)), nil
}

// formatBytes writes n with the largest unit that divides it.
func formatBytes(n int64) string {
	for i := len(units) - 1; i >= 0; i-- {
		if u := units[i]; n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
