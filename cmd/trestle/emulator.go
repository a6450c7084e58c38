package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"

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
	cfg := settings.Serve{
		Temporary: true, Emulator: true, Insecure: true,
		// Nothing outlives the process, so there is nothing to wait for.
		Durability: settings.Async,
		Memory:     settings.MachineMemory() / 4,
		Zone:       "local-a", Cluster: "trestle",
		Listen: net.JoinHostPort(strings.Trim(*host, "[]"), strconv.Itoa(*port)),
	}
	if *address != "" {
		cfg.Listen = *address
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
