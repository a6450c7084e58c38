package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// healthcheckCommand asks a process of any role whether it is ready.
func healthcheckCommand(p *process) *cobra.Command {
	flags := settings.NewClusterFlags("healthcheck", settings.Probe)
	flags.Hide(func(name string) bool { return !slices.Contains([]string{"http-listen", "tls-auto", "tls-cert"}, name) })
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	url := own.String("url", "", "what to get; by default /readyz of http-listen")
	live := own.Bool("live", false, "ask whether the process answers instead of whether it is ready")
	timeout := own.Duration("timeout", 2*time.Second, "how long to wait")
	own.AddFlagSet(flags.FlagSet)
	return p.verb("healthcheck", "exit with 0 if a server is ready (for containers without a shell)",
		"Exits with 0 if the server is ready, else prints the reasons and exits with 1.", own, func(*cobra.Command, []string) int {
			cfg, err := flags.Load(p.environ)
			if err != nil {
				return p.misused(err)
			}
			return p.healthcheck(cfg, *url, *live, *timeout)
		})
}

func (p *process) healthcheck(cfg *settings.Set, url string, live bool, timeout time.Duration) int {
	local := url == ""
	if url == "" {
		if cfg.HTTPListen == "" {
			return p.misused(fmt.Errorf("http-listen (%s) is off, so there is no health to ask for", cfg.Origin("http-listen")))
		}
		path := "/readyz"
		if live {
			path = "/livez"
		}
		scheme, _, _ := strings.Cut(httpURL(&cfg.Serve), ":")
		url = scheme + "://" + dialable(cfg.HTTPListen) + path
	}
	c := http.Client{Timeout: timeout}
	if local {
		// It is asked on this machine, and told nothing; its certificate may be for
		// other names only.
		c.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}} //nolint:gosec // see above
	}
	resp, err := c.Get(url)
	if err != nil {
		return p.failed(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return p.failed(fmt.Errorf("read the answer of %s: %w", url, err))
	}
	if resp.StatusCode != http.StatusOK {
		return p.failed(fmt.Errorf("%s: %s\n%s", url, resp.Status, strings.TrimSpace(string(body))))
	}
	fmt.Fprint(p.stdout, string(body))
	return exitOK
}
