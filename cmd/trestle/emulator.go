package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// emulate takes the place of Google's cbtemulator: the same flags, defaults and
// output, on a temporary directory. Google's Java library starts it with the
// host in brackets, as "-host [127.0.0.1] -port N".
func emulate(p *process, args []string) int {
	f := flag.NewFlagSet("trestle", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	host := f.String("host", "localhost", "the address to bind to on the local machine")
	port := f.Int("port", 9000, "the port number to bind to on the local machine")
	address := f.String("address", "", "address:port number or unix socket path to listen on. Has priority over host/port")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(p.stdout)
			fmt.Fprint(p.stdout, "Usage: trestle -host HOST -port PORT\n\nDoes what Google's cbtemulator does. `trestle help` names the other commands.\n\n")
			f.PrintDefaults()
			return exitOK
		}
		return p.misused(fmt.Errorf("%w; without a command trestle takes the flags of cbtemulator: -host, -port, -address; see `trestle help`", err))
	}
	if f.NArg() > 0 {
		return p.misused(fmt.Errorf("unexpected argument %q; a command comes before its flags, see `trestle help`", f.Arg(0)))
	}
	listen := net.JoinHostPort(strings.Trim(*host, "[]"), strconv.Itoa(*port))
	if *address != "" {
		listen = *address
	}
	return runEmulator(p, listen)
}

// runEmulator is the emulator on an address until a signal ends it.
func runEmulator(p *process, listen string) int {
	cfg := settings.Serve{
		Temporary: true, Emulator: true, Insecure: true,
		// Nothing outlives the process, so there is nothing to wait for.
		Durability: settings.Async,
		AuditLog:   settings.Off,
		Memory:     settings.MachineMemory() / 4,
		Zone:       "local-a", Cluster: "trestle",
		Listen: listen,
	}
	log := newLogger(p.stderr, settings.Text, slog.LevelWarn)
	ctx, release := untilSignal(log, stopLimit)
	defer release()
	var addr string
	err := runServer(ctx, cfg, log, openStack, func(at announcement) {
		addr = at.grpc
		fmt.Fprintf(p.stdout, "Cloud Bigtable emulator running on %s\n", addr)
	}, func() {
		fmt.Fprintf(p.stdout, "Cloud Bigtable emulator running on %s is now shutting down\n", addr)
	})
	if err != nil {
		return p.failed(err)
	}
	return exitOK
}

// gcloudEmulator takes the place of one command of gcloud, `gcloud beta
// emulators bigtable start --host-port HOST:PORT`, with which testcontainers and
// compose files start Google's emulator. Flags that every command of gcloud has
// change nothing here.
func gcloudEmulator(p *process, args []string) int {
	f := pflag.NewFlagSet("gcloud", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	hostPort := f.String("host-port", "localhost:8086", "`HOST:PORT` to listen on")
	for _, name := range []string{"project", "verbosity", "format", "account", "configuration"} {
		f.String(name, "", "without effect")
	}
	f.BoolP("quiet", "q", false, "without effect")
	f.Bool("log-http", false, "without effect")
	f.Bool("user-output-enabled", true, "without effect")
	const is = "this gcloud is Trestle: it knows `gcloud beta emulators bigtable start [--host-port HOST:PORT]` only"
	if err := f.Parse(args); errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(p.stdout, "Usage: gcloud beta emulators bigtable start [--host-port HOST:PORT]\n\nStarts Trestle in place of Google's Bigtable emulator, on data that is gone\nafterwards.\n\n%s", f.FlagUsagesWrapped(helpWidth))
		return exitOK
	} else if err != nil {
		return p.misused(fmt.Errorf("%w; %s", settings.FlagError(f.Name(), f, err), is))
	}
	words := f.Args()
	if len(words) > 0 && (words[0] == "beta" || words[0] == "alpha") {
		words = words[1:]
	}
	if !slices.Equal(words, []string{"emulators", "bigtable", "start"}) {
		return p.misused(errors.New(is))
	}
	host, port, err := net.SplitHostPort(*hostPort)
	if err != nil {
		return p.misused(fmt.Errorf("--host-port: %q is not HOST:PORT", *hostPort))
	}
	if host == "" {
		host = "localhost"
	}
	return runEmulator(p, net.JoinHostPort(host, port))
}
