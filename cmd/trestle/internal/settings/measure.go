package settings

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// timeOrOff is a time of a millisecond at least, or Off, which is 0.
func timeOrOff(p *time.Duration) value {
	return value{
		set: func(s string) error {
			if s == Off {
				*p = 0
				return nil
			}
			d, err := time.ParseDuration(s)
			if err != nil || d < time.Millisecond || d > 24*time.Hour {
				return fmt.Errorf("%q is neither a time between 1ms and 24h nor %q", s, Off)
			}
			*p = d
			return nil
		},
		get: func() string {
			if *p == 0 {
				return Off
			}
			return p.String()
		},
		kind: "TIME",
	}
}

// percent is a part of a whole, such as 0.5%.
func percent(p *float64) value {
	return value{
		set: func(s string) error {
			n, ok := strings.CutSuffix(s, "%")
			f, err := strconv.ParseFloat(n, 64)
			if !ok || err != nil || !(f >= 0 && f <= 100) {
				return fmt.Errorf("%q is not between 0%% and 100%%", s)
			}
			*p = f / 100
			return nil
		},
		get: func() string { return strconv.FormatFloat(*p*100, 'f', -1, 64) + "%" }, kind: "PERCENT",
	}
}

// collector is the URL of a collector of traces, or Off, which is empty.
func collector(p *string) value {
	return value{
		set: func(s string) error {
			if s == Off {
				*p = ""
				return nil
			}
			u, err := url.Parse(s)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
				return fmt.Errorf("%q is neither http://HOST:PORT nor https://HOST:PORT nor %q", s, Off)
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
		kind: "URL",
	}
}
