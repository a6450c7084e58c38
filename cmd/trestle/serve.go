package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

const serveHelp = `Runs a server. Each flag can be given as TRESTLE_NAME in the environment too, or
as a line "name: value" of the file --config; a flag wins over the environment,
that over the file.`

// serveCommand runs a server until it is told to stop.
func serveCommand(p *process) *cobra.Command {
	return p.process("serve", "run a server on a data directory", serveHelp, settings.NewFlags("serve"), stopLimit, func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
		return runServer(ctx, cfg.Serve, log, openStack, func(at announcement) {
			p, flush := p.atOnce()
			defer flush()
			fmt.Fprintf(p.stdout, "%-20s %s\n", announcedAPI, at.grpc)
			if at.http != "" {
				printConsole(p.stdout, at.cfg)
				fmt.Fprintf(p.stdout, "admin API as REST    %s/v2/\n", httpURL(at.cfg))
				fmt.Fprintf(p.stdout, "metrics and health   %s/metrics %[1]s/readyz\n", httpURL(at.cfg))
			}
			if at.debug != "" {
				fmt.Fprintf(p.stdout, "profiler             http://%s/debug/pprof/\n", at.debug)
			}
			fmt.Fprintf(p.stdout, "data directory       %s\n", at.dir)
			for _, n := range at.notices {
				fmt.Fprintf(p.stdout, "\n%s\n", n)
			}
			fmt.Fprintln(p.stdout)
			if cfg.TLSAuto {
				ca := autoTLS(at.cfg)
				fmt.Fprintf(p.stdout, "certificate authority %s\n\n%s\n", ca.CA(), strings.Join(ca.Exports(), "\n"))
			}
			switch {
			case cfg.AuthOn() && len(at.notices) > 0:
				fmt.Fprintf(p.stdout, "export GOOGLE_APPLICATION_CREDENTIALS=%s\n", servertls.Quote(rootKey(at.cfg)))
			case !cfg.AuthOn() && !cfg.TLS():
				fmt.Fprintf(p.stdout, "export BIGTABLE_EMULATOR_HOST=%s\n", dialable(at.grpc))
			}
			for _, h := range at.hints {
				fmt.Fprintf(p.stdout, "\n%s\n", h)
			}
		}, nil)
	})
}

// process returns a command that runs a process of a name.
func (p *process) process(name, short, long string, flags *settings.Flags, limit time.Duration, run func(context.Context, *settings.Set, *slog.Logger) error) *cobra.Command {
	return p.verb(name, short, long, flags.FlagSet, func(*cobra.Command, []string) int { return p.until(flags, limit, run) })
}

// until runs a process with the settings that its flags say until a signal ends
// it, and returns its exit code. After a signal it has limit.
func (p *process) until(flags *settings.Flags, limit time.Duration, run func(context.Context, *settings.Set, *slog.Logger) error) int {
	cfg, err := flags.Load(p.environ)
	if err != nil {
		return p.misused(err)
	}
	log := newLogger(p.stderr, cfg.LogFormat, cfg.LogLevel)
	ctx, release := untilSignal(log, limit)
	defer release()
	log.Info(settingsMessage, cfg.Attrs()...)
	if err := run(withSettings(ctx, cfg), cfg, log); err != nil {
		return p.failed(err)
	}
	return exitOK
}

// dialable returns addr with a host that a client on this machine can dial in
// place of one that stands for every interface.
func dialable(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix:" + addr
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// cbtFor is how cbt is called on this machine by who has exported what the server has
// printed. With BIGTABLE_EMULATOR_HOST it would use no TLS and no key.
func cbtFor(cfg *settings.Serve) string {
	if !cfg.TLS() && !cfg.AuthOn() {
		return "cbt"
	}
	cbt := "cbt -admin-endpoint " + dialable(cfg.Listen)
	if cfg.AuthOn() {
		cbt += " -creds " + servertls.Quote(rootKey(cfg))
	}
	return cbt
}

// httpURL is where the HTTP of a server is, which speaks TLS if others can reach
// it.
func httpURL(cfg *settings.Serve) string {
	if cfg.TLS() && !settings.IsLoopback(cfg.HTTPListen) {
		return "https://" + cfg.HTTPListen
	}
	return "http://" + cfg.HTTPListen
}

// roles are the commands that run a process, and its settings.
var roles = map[string]func(command string) *settings.Flags{
	"serve":        settings.NewFlags,
	"tabletserver": func(c string) *settings.Flags { return settings.NewClusterFlags(c, settings.TabletServer) },
	"master":       func(c string) *settings.Flags { return settings.NewClusterFlags(c, settings.Master) },
	"gateway":      func(c string) *settings.Flags { return settings.NewClusterFlags(c, settings.Gateway) },
}

// configCommand prints the effective settings of a role.
func configCommand(p *process) *cobra.Command {
	all := settings.NewClusterFlags("config", settings.Probe)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	reference := own.Bool("reference", false, "print every setting with its default and meaning instead")
	own.AddFlagSet(all.FlagSet)
	names := slices.Sorted(maps.Keys(roles))
	c := p.verb("config [ROLE]", "print the settings of a role and where each comes from",
		"Prints the settings that a process would run with, as a file for --config, and where each comes from. ROLE is "+strings.Join(names, ", ")+
			"; serve if it is left out. One file can be for all roles: each takes its own settings, and refuses what is a setting of none.", own,
		func(c *cobra.Command, args []string) int {
			role := "serve"
			if len(args) > 0 {
				role = args[0]
			}
			if roles[role] == nil {
				return p.misused(fmt.Errorf("%q is no role; there are %s", role, strings.Join(names, ", ")))
			}
			flags := roles[role](role)
			var errs []error
			c.Flags().Visit(func(f *pflag.Flag) {
				switch {
				case f.Name == "reference":
				case flags.Lookup(f.Name) == nil:
					errs = append(errs, fmt.Errorf("--%s is no setting of %s", f.Name, role))
				default:
					errs = append(errs, flags.Set(f.Name, f.Value.String()))
				}
			})
			cfg, err := flags.Load(p.environ)
			if err = errors.Join(append(errs, err)...); err != nil && !*reference {
				return p.misused(err)
			}
			if *reference {
				err = flags.PrintReference(p.stdout)
			} else {
				err = cfg.Print(p.stdout)
			}
			if err != nil {
				return p.failed(err)
			}
			return exitOK
		})
	c.ValidArgs = names
	return c
}
