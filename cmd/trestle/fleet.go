package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/fault"
)

// serverCommand shows tablet servers, and takes their tablets away.
func serverCommand(p *process) *cobra.Command {
	return p.group("server", "list tablet servers, or drain them",
		"Shows the tablet servers of a cluster, and moves tablets away from them.",
		p.asks(adminVerb{use: "list", short: "print the tablet servers that live", limit: changeLimit, run: (*adminClient).servers}),
		p.asks(adminVerb{use: "drain SERVER", short: "move all tablets away from a server and give it none, and wait for that", limit: changeLimit,
			long: "Moves all tablets away from a server, which gets none from then on, and waits\nuntil it has none. The server can be stopped then.", run: (*adminClient).drain}),
		p.asks(adminVerb{use: "undrain SERVER", short: "let a server have tablets again", limit: time.Minute, run: (*adminClient).undrain}),
	)
}

func (c *adminClient) servers([]string) error {
	var got ops.ServerList
	if err := c.call(c.ctx, http.MethodGet, "/admin/servers", nil, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	return printServers(c.p.screen(), got.Servers)
}

func printServers(out io.Writer, list []ops.TabletServer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tADDRESS\tINCARN\tTABLETS\tSIZE\tREAD/S\tWRITE/S\tSTATE")
	for _, s := range list {
		state := "serves"
		if s.Draining {
			state = "draining"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s%s\n", s.Name, s.Address, s.Incarnation, s.Tablets, byteSize(s.Bytes),
			rate(s.RowsReadPerSecond), rate(s.RowsWrittenPerSecond), cmp.Or(s.Error, state), flaw(s.Error != ""))
	}
	return w.Flush()
}

func (c *adminClient) drain(args []string) error {
	err := c.await("/admin/servers/drain", ops.ServerName{Server: args[0]}, "drain "+args[0])
	switch {
	case err != nil && c.ctx.Err() != nil:
		return fmt.Errorf("drain %s: %w; it goes on all the same, until trestle server undrain %[1]s (is there a master?)", args[0], err)
	case err == nil && !c.json:
		fmt.Fprintf(c.p.stdout, "%s has no tablets and gets none: stop it, or let it have some again: trestle server undrain %[1]s\n", args[0])
	}
	return err
}

func (c *adminClient) undrain(args []string) error {
	var got ops.ServerName
	if err := c.call(c.ctx, http.MethodPost, "/admin/servers/undrain", ops.ServerName{Server: args[0]}, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	_, err := fmt.Fprintf(c.p.stdout, "%s gets tablets again\n", args[0])
	return err
}

// Servers implements ops.Fleet.
func (o clusterOperator) Servers(ctx context.Context) (out []ops.TabletServer, err error) {
	servers, err := o.Client.Servers(ctx)
	for _, s := range servers {
		out = append(out, describeServer(s))
	}
	return out, err
}

// describeServer describes a server to an operator.
func describeServer(s client.Server) ops.TabletServer {
	t := ops.TabletServer{Name: s.Name, Incarnation: s.Incarnation, Address: s.Addr, Draining: s.Draining}
	if s.Err != nil {
		t.Error = s.Err.Error()
	}
	if sum := s.Sum; sum != nil {
		t.Tablets, t.Bytes, t.RowsReadPerSecond, t.RowsWrittenPerSecond = sum.Tablets, sum.Bytes, sum.Reads, sum.Writes
	}
	return t
}

// A soleOperator is a clusterOperator of one server, which has all tablets.
type soleOperator struct{ clusterOperator }

// AskAll implements ops.Asker: there is no other process.
func (soleOperator) AskAll(context.Context, string, []byte, func(string, []byte, error)) error {
	return nil
}

// Master implements ops.Asker: there is none.
func (soleOperator) Master(context.Context) (string, time.Duration, error) { return "", 0, nil }

var errSole = fault.New(fault.FailedPrecondition, "there is one server, which has all tablets")

// MoveTablet implements ops.Operator.
func (soleOperator) MoveTablet(context.Context, string, []byte, string, bool) error { return errSole }

// Drain implements ops.Fleet.
func (soleOperator) Drain(context.Context, string) error { return errSole }

// Undrain implements ops.Fleet.
func (soleOperator) Undrain(context.Context, string) error { return errSole }
