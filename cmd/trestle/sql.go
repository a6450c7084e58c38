package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/cmd/trestle/internal/sqlshell"
	"github.com/trestledb/trestle/compat/sqlclient"
	"github.com/trestledb/trestle/engine/schema"
)

const sqlHelp = `Runs SQL on any server of the Cloud Bigtable API: the statements of --command or
--file, else those that are typed. In the shell \? lists the commands, such as \d
for the tables.

Without --instance it takes the server's only one. Connections to this machine, and
to $BIGTABLE_EMULATOR_HOST, are made without TLS unless --ca or --credentials are
given.`

// sqlFlags are the flags of `trestle sql`.
type sqlFlags struct {
	login
	endpoint, admin             string
	plaintext                   bool
	project, instance, profile  string
	command, file, format       string
	params                      []string
	timing                      bool
	timeout                     time.Duration
	fromEnvironment, givenCerts bool
}

// sqlCommand is a shell for SQL.
func sqlCommand(p *process) *cobra.Command {
	f := new(sqlFlags)
	own := pflag.NewFlagSet("sql", pflag.ContinueOnError)
	own.SortFlags = false
	own.StringVarP(&f.endpoint, "endpoint", "e", defaultEndpoint(p.environ), "`HOST:PORT` of the server")
	own.StringVar(&f.admin, "admin-endpoint", "", "`HOST:PORT` of the admin API; by default that of --endpoint, or Google's for Google's")
	own.BoolVar(&f.plaintext, "plaintext", false, "connect without TLS")
	f.flags(own, p)
	own.StringVar(&f.project, "project", "default", "`ID` of the project")
	own.StringVar(&f.instance, "instance", "", "`ID` of the instance, or its full name")
	own.StringVar(&f.profile, "app-profile", "", "`ID` of the app profile")
	own.StringVarP(&f.command, "command", "c", "", "run these `STATEMENTS`, separated by semicolons, and end")
	own.StringVarP(&f.file, "file", "f", "", "run the statements of this `FILE`, and end; - is standard input")
	own.StringVar(&f.format, "format", "table", "form of results: "+strings.Join(sqlshell.Formats, ", "))
	own.StringArrayVar(&f.params, "param", nil, "parameter `NAME=TEXT` (a STRING), NAME:TYPE=TEXT, or NAME:TYPE for NULL; can be repeated")
	own.BoolVar(&f.timing, "timing", false, "show how long statements take")
	own.DurationVar(&f.timeout, "timeout", 0, "how long statements may take, together; 0: as long as they take")
	given := func(c *cobra.Command) {
		f.fromEnvironment = env(p, "BIGTABLE_EMULATOR_HOST") != "" && !c.Flags().Changed("endpoint")
		f.givenCerts = c.Flags().Changed("ca") || c.Flags().Changed("credentials")
	}
	c := p.verb("sql", "run SQL on a server, or a shell for it", sqlHelp, own, func(c *cobra.Command, _ []string) int {
		given(c)
		return f.run(p)
	})
	_ = c.RegisterFlagCompletionFunc("instance", func(c *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		given(c)
		return completedBy(typed, f.dialAdmin, instanceArgs(f.project))
	})
	return c
}

func (f *sqlFlags) run(p *process) int {
	params := sqlshell.Params{}
	var errs []error
	for _, text := range f.params {
		errs = append(errs, params.Set(text))
	}
	if !slices.Contains(sqlshell.Formats, f.format) {
		errs = append(errs, fmt.Errorf("--format is %q; %s are known", f.format, strings.Join(sqlshell.Formats, ", ")))
	}
	if f.command != "" && f.file != "" {
		errs = append(errs, errors.New("--command and --file exclude each other"))
	}
	if err := errors.Join(errs...); err != nil {
		return p.misused(err)
	}
	ctx := context.Background()
	if !f.typed() {
		// A signal ends a shell in which nothing runs; it does not hear one while it reads.
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
	}
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("it was not done within %v (--timeout)", f.timeout))
		defer cancel()
	}
	if err := f.shell(ctx, p, params); err != nil {
		return p.failed(explain(ctx, describe(err)))
	}
	return exitOK
}

// shell runs what is to be run.
func (f *sqlFlags) shell(ctx context.Context, p *process, params sqlshell.Params) error {
	opts, err := f.dial()
	if err != nil {
		return err
	}
	data, err := grpc.NewClient(f.endpoint, opts...)
	if err != nil {
		return err
	}
	defer data.Close()
	admin := data
	if at := f.adminEndpoint(); at != f.endpoint {
		if admin, err = grpc.NewClient(at, opts...); err != nil {
			return err
		}
		defer admin.Close()
	}
	instance := f.instance
	switch {
	case instance == "":
		if instance, err = sqlshell.FindInstance(ctx, admin); err != nil {
			return err
		}
	case !strings.HasPrefix(instance, "projects/"):
		instance = "projects/" + f.project + "/instances/" + instance
	}
	s := &sqlshell.Shell{Client: &sqlshell.Client{Client: sqlclient.Client{Conn: data, Instance: instance, Profile: f.profile}, Admin: admin},
		Out: p.stdout, Err: p.stderr, Format: f.format, Timing: f.timing, Params: params}
	switch {
	case f.command != "":
		return s.Run(ctx, strings.NewReader(f.command))
	case f.file != "" && f.file != "-":
		in, err := os.Open(f.file)
		if err != nil {
			return err
		}
		defer in.Close()
		return s.Run(ctx, in)
	}
	if s.Prompt = f.typed(); s.Prompt {
		fmt.Fprintf(p.stderr, "%s at %s; \\? for help\n", instance, f.endpoint)
	}
	return s.Run(ctx, os.Stdin)
}

// typed tells whether a person types the statements.
func (f *sqlFlags) typed() bool { return f.command == "" && f.file == "" && isTerminal(os.Stdin) }

// adminEndpoint is where the admin API is.
func (f *sqlFlags) adminEndpoint() string {
	if f.admin == "" && strings.HasPrefix(f.endpoint, "bigtable.googleapis.com") {
		return "bigtableadmin.googleapis.com:443"
	}
	return cmp.Or(f.admin, f.endpoint)
}

// dialAdmin connects to the admin API.
func (f *sqlFlags) dialAdmin() (*grpc.ClientConn, error) {
	opts, err := f.dial()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(f.adminEndpoint(), opts...)
}

// dial returns how connections are made.
func (f *sqlFlags) dial() ([]grpc.DialOption, error) {
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(schema.MaxRow))}
	if f.plaintext || !f.givenCerts && (f.fromEnvironment || settings.IsLoopback(f.endpoint)) {
		if !f.given() {
			return opts, nil
		}
	} else {
		cfg, err := f.tls()
		if err != nil {
			return nil, err
		}
		opts[0] = grpc.WithTransportCredentials(credentials.NewTLS(cfg))
	}
	key, err := f.key(f.plaintext)
	if err != nil {
		return nil, err
	}
	if key != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(key))
	}
	return opts, nil
}
