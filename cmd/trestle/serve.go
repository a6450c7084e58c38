package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// serve runs a server until it is told to stop.
func serve(p *process, args []string) int {
	flags := settings.NewFlags("serve")
	usage := "Usage: trestle serve [flags]\n\nRuns a server. Each flag can be given as TRESTLE_NAME in the environment too, or as a line\n\"name: value\" of the file --config; a flag wins over the environment, that over the file."
	return p.until(flags, args, usage, stopLimit, func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
		return runServer(ctx, cfg.Serve, log, openStack, func(at announcement) {
			fmt.Fprintf(p.stdout, "%-20s %s\n", announcedAPI, at.grpc)
			if at.http != "" {
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
				fmt.Fprintf(p.stdout, "export GOOGLE_APPLICATION_CREDENTIALS=%s\n", rootKey(at.cfg))
			case !cfg.AuthOn() && !cfg.TLS():
				fmt.Fprintf(p.stdout, "export BIGTABLE_EMULATOR_HOST=%s\n", dialable(at.grpc))
			}
			for _, h := range at.hints {
				fmt.Fprintf(p.stdout, "\n%s\n", h)
			}
		}, nil)
	})
}

// until runs a process with the settings that its flags say until a signal ends
// it, and returns its exit code. After a signal it has limit.
func (p *process) until(flags *settings.Flags, args []string, usage string, limit time.Duration, run func(context.Context, *settings.Set, *slog.Logger) error) int {
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, usage)
		return exitOK
	}
	if err != nil {
		return p.misused(err)
	}
	log := newLogger(p.stderr, cfg.LogFormat, cfg.LogLevel)
	ctx, release := untilSignal(log, limit)
	defer release()
	log.Info("settings", cfg.Attrs()...)
	if err := run(ctx, cfg, log); err != nil {
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

// httpURL is where the HTTP of a server is, which speaks TLS if others can reach
// it.
func httpURL(cfg *settings.Serve) string {
	if cfg.TLS() && !settings.IsLoopback(cfg.HTTPListen) {
		return "https://" + cfg.HTTPListen
	}
	return "http://" + cfg.HTTPListen
}

// printHelp writes a command's text and flags, or describes it if that is what the
// output is for.
func printHelp(p *process, f *pflag.FlagSet, text string) {
	if d, ok := p.stdout.(*described); ok {
		f.VisitAll(func(fl *pflag.Flag) { d.flags = append(d.flags, fl) })
		d.text.WriteString(text)
		return
	}
	fmt.Fprintf(p.stdout, "%s\n\n%s", text, f.FlagUsagesWrapped(110))
}

// config prints the effective settings of serve.
func config(p *process, args []string) int {
	flags := settings.NewFlags("config")
	reference := flags.Bool("reference", false, "print every setting with its default and meaning instead")
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, "Usage: trestle config [flags of serve]\n\nPrints the settings that serve would run with, as a file for --config, and where each comes from.")
		return exitOK
	}
	if *reference {
		if err := settings.PrintReference(p.stdout); err != nil {
			return p.failed(err)
		}
		return exitOK
	}
	if err != nil {
		return p.misused(err)
	}
	if err := cfg.Print(p.stdout); err != nil {
		return p.failed(err)
	}
	return exitOK
}
