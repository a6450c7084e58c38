package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// healthcheck asks a process of any role whether it is ready.
func healthcheck(p *process, args []string) int {
	flags := settings.NewClusterFlags("healthcheck", settings.Probe)
	url := flags.String("url", "", "what to get; by default /readyz of http-listen")
	live := flags.Bool("live", false, "ask whether the process answers instead of whether it is ready")
	timeout := flags.Duration("timeout", 2*time.Second, "how long to wait")
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, "Usage: trestle healthcheck [--url URL] [--live] [--timeout 2s] [settings of the server]\n\nExits with 0 if the server is ready, else prints the reasons and exits with 1.")
		return exitOK
	}
	if err != nil {
		return p.misused(err)
	}
	if *url == "" {
		if cfg.HTTPListen == "" {
			return p.misused(fmt.Errorf("http-listen (%s) is off, so there is no health to ask for", cfg.Origin("http-listen")))
		}
		path := "/readyz"
		if *live {
			path = "/livez"
		}
		scheme, _, _ := strings.Cut(httpURL(&cfg.Serve), ":")
		*url = scheme + "://" + dialable(cfg.HTTPListen) + path
	}
	c := http.Client{Timeout: *timeout}
	if !flags.Changed("url") {
		// It is asked on this machine, and told nothing; its certificate may be for
		// other names only.
		c.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}} //nolint:gosec // see above
	}
	resp, err := c.Get(*url)
	if err != nil {
		return p.failed(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return p.failed(fmt.Errorf("read the answer of %s: %w", *url, err))
	}
	if resp.StatusCode != http.StatusOK {
		return p.failed(fmt.Errorf("%s: %s\n%s", *url, resp.Status, strings.TrimSpace(string(body))))
	}
	fmt.Fprint(p.stdout, string(body))
	return exitOK
}
