package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/trestledb/trestle/cmd/trestle/internal/bench"
	"github.com/trestledb/trestle/engine/schema"
)

// benchCommand measures a server.
func benchCommand(p *process) *cobra.Command {
	f := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	f.SortFlags = false
	var o bench.Options
	d := bench.Options{}.WithDefaults()
	f.StringVar(&o.Endpoint, "endpoint", defaultEndpoint(p.environ), "server to measure (A)")
	f.StringVar(&o.Against, "against", "", "second server (B), measured in turns with the first")
	f.BoolVar(&o.Sessions, "sessions", false, "send the MutateRow and the reads of one row of A through sessions; with --against the same server, compares both ways")
	f.BoolVar(&o.ChangeStream, "change-stream", false, "give the tables of A a change stream; with --against the same server, compares tables with and without")
	ceiling := f.Bool("ceiling", false, "measure a bare gRPC server with messages of the same sizes too, in turns; the client checks as much")
	f.StringSliceVar(&o.Workloads, "workload", d.Workloads, "workloads or groups, separated by commas")
	f.DurationVar(&o.Duration, "duration", d.Duration, "time for each workload on each server")
	f.Uint64Var(&o.Ops, "ops", 0, "end a workload after so many operations; 0: after --duration")
	f.DurationVar(&o.Warmup, "warmup", d.Warmup, "time before each workload that is not measured")
	f.IntVar(&o.Slices, "slices", 0, "turns of each server; 0: 5 if there is more than one server")
	f.IntVar(&o.Concurrency, "concurrency", d.Concurrency, "calls at a time")
	f.IntVar(&o.Connections, "connections", d.Connections, "connections to each server")
	f.Float64Var(&o.Rate, "rate", 0, "operations to start per second; 0: as many as are answered")
	f.Uint64Var(&o.Rows, "rows", d.Rows, "rows of the tables")
	f.IntVar(&o.ValueBytes, "value-bytes", d.ValueBytes, "size of a value")
	f.IntVar(&o.Batch, "batch", d.Batch, "rows of a MutateRows request")
	f.Uint64Var(&o.ScanRows, "scan-rows", d.ScanRows, "rows of a scan")
	f.IntVar(&o.Splits, "splits", d.Splits, "tablets that tables are created with")
	f.Uint64Var(&o.Seed, "seed", d.Seed, "another seed gives other random numbers")
	f.StringVar(&o.Project, "project", d.Project, "project of the tables")
	f.StringVar(&o.Instance, "instance", d.Instance, "instance of the tables; created if need be")
	f.BoolVar(&o.Keep, "keep", false, "leave the tables behind")
	f.BoolVar(&o.SkipFinalCheck, "skip-final-check", false, "do not read everything back after workloads that write")
	f.IntSliceVar(&o.PIDs, "pid", nil, "processes of --endpoint on this machine, to show their processor time")
	f.IntSliceVar(&o.AgainstPIDs, "against-pid", nil, "processes of --against on this machine")
	asJSON := f.Bool("json", false, "print the report as JSON")
	quiet := f.Bool("quiet", false, "no progress on stderr")
	profile := f.String("cpuprofile", "", "write a profile of the client to this file")
	echo := f.Bool("echo-server", false, "only run the bare gRPC server of --ceiling")
	return p.verb("bench", "measure a server, and check what it answers",
		"Measures a server and checks every answer: exits with 1 if one was wrong.\n\nWorkloads, each with its group (\"all\" is every one):\n"+strings.TrimRight(bench.Help(wrap), "\n"), f, func(*cobra.Command, []string) int {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if *echo {
				if err := serveEcho(ctx, p.stdout); err != nil {
					return p.failed(err)
				}
				return exitOK
			}
			if !*quiet {
				o.Progress = p.stderr
			}
			check := o.WithDefaults()
			if err := check.Validate(); err != nil {
				return p.misused(err)
			}
			if *ceiling {
				addr, child, err := startEcho(p)
				if err != nil {
					return p.failed(err)
				}
				defer child()
				o.Ceiling, o.CeilingPIDs = addr.addr, []int{addr.pid}
			}
			if *profile != "" {
				w, err := os.Create(*profile)
				if err != nil {
					return p.failed(err)
				}
				defer w.Close()
				if err := pprof.StartCPUProfile(w); err != nil {
					return p.failed(err)
				}
				defer pprof.StopCPUProfile()
			}
			rep, err := bench.Run(ctx, o)
			if rep != nil && len(rep.Results) > 0 {
				show := rep.WriteText
				if *asJSON {
					show = rep.WriteJSON
				}
				err = errors.Join(err, show(p.stdout), rep.Err())
			}
			if err != nil {
				return p.failed(err)
			}
			return exitOK
		})
}

// defaultEndpoint is what Bigtable clients take from the environment too.
func defaultEndpoint(environ []string) string {
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "BIGTABLE_EMULATOR_HOST="); ok && v != "" {
			return v
		}
	}
	return "127.0.0.1:8086"
}

const echoLine = "echo server on "

// serveEcho runs the bare server with the options of the gateway that have to
// do with speed, until ctx ends.
func serveEcho(ctx context.Context, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s%s\n", echoLine, l.Addr())
	return bench.ServeEcho(ctx, l,
		grpc.MaxRecvMsgSize(256<<20),
		grpc.MaxSendMsgSize(schema.MaxRow),
		grpc.MaxConcurrentStreams(1000),
		grpc.MaxHeaderListSize(64<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 20 * time.Second}),
		grpc.WaitForHandlers(true),
	)
}

// An echoServer is a child process.
type echoServer struct {
	addr string
	pid  int
}

// startEcho runs serveEcho in a process of its own, so that it has a scheduler
// and a garbage collector of its own as the measured server has.
func startEcho(p *process) (_ echoServer, stop func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return echoServer{}, nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(exe, "bench", "--echo-server")
	cmd.Env = p.environ
	cmd.Stderr = p.stderr
	cmd.SysProcAttr = childAttr()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return echoServer{}, nil, err
	}
	if err := cmd.Start(); err != nil {
		return echoServer{}, nil, fmt.Errorf("start the bare server: %w", err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), echoLine)
	if !ok {
		stop()
		return echoServer{}, nil, fmt.Errorf("the bare server did not start: %q: %w", line, err)
	}
	return echoServer{addr, cmd.Process.Pid}, stop, nil
}
