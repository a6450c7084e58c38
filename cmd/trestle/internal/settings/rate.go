package settings

import (
	"fmt"
	"strconv"
)

// rate is a positive number per second, or Off, which is -1.
func rate(p *int64) value {
	return value{
		set: func(s string) error {
			if s == Off {
				*p = -1
				return nil
			}
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || n <= 0 {
				return fmt.Errorf("%q is neither a positive number nor %q", s, Off)
			}
			*p = n
			return nil
		},
		get: func() string {
			if *p < 0 {
				return Off
			}
			return strconv.FormatInt(*p, 10)
		},
		kind: "ROWS",
	}
}

// count is a positive number.
func count(p *int64) value {
	return value{
		set: func(s string) error {
			n, err := strconv.ParseInt(s, 10, 32)
			if err != nil || n <= 0 {
				return fmt.Errorf("%q is no positive number", s)
			}
			*p = n
			return nil
		},
		get:  func() string { return strconv.FormatInt(*p, 10) },
		kind: "N",
	}
}

// A ByteRate is a size for each second, as a flag.
type ByteRate int64

// Set implements pflag.Value.
func (r *ByteRate) Set(s string) error {
	if s == "0" {
		*r = 0
		return nil
	}
	n, err := ParseBytes(s)
	*r = ByteRate(n)
	return err
}

// String implements pflag.Value.
func (r *ByteRate) String() string { return formatBytes(int64(*r)) }

// Type implements pflag.Value.
func (r *ByteRate) Type() string { return "SIZE" }
