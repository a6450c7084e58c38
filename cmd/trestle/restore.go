package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/gateway/admin"
)

const restoreHelp = `Makes TABLE of BACKUP and waits until it is there. BACKUP is
PROJECT/INSTANCE/CLUSTER/BACKUP, TABLE is PROJECT/INSTANCE/TABLE; both may be full names.

With --to-time the table becomes what the backup's table was at that time: all that was
committed up to it, to the microsecond. It needs a backup from before, whose table has kept
its changes since (see docs/change-streams.md). Nobody sees the table before it is complete.`

// restoreCommand makes a table of a backup.
func restoreCommand(p *process) *cobra.Command {
	f := pflag.NewFlagSet("restore", pflag.ContinueOnError)
	f.SortFlags = false
	var l login
	to := f.String("to-time", "", "`TIME` to bring the table to, RFC 3339 or how long ago; that of the backup if empty")
	server := f.String("server", "127.0.0.1:8086", "`HOST:PORT` of the server")
	plaintext := f.Bool("plaintext", false, "connect without TLS")
	asJSON := f.Bool("json", false, "print JSON")
	l.flags(f, p)
	c := p.verb("restore BACKUP TABLE", "make a table of a backup, as it was at a time", restoreHelp, f, func(_ *cobra.Command, args []string) int {
		ctx, stop := commandContext(0)
		defer stop()
		req, err := restoreRequest(args[0], args[1])
		if err == nil && *to != "" {
			var at time.Time
			if at, err = pastTime("to-time", *to, time.Now()); err == nil {
				ctx = metadata.AppendToOutgoingContext(ctx, admin.RestoreTimeHeader, at.UTC().Format(time.RFC3339Nano))
			}
		}
		if err == nil {
			err = p.telling("restore "+req.TableId, func(*progress) error { return l.restore(ctx, *server, *plaintext, req) })
		}
		if err != nil {
			return p.failed(describe(err))
		}
		table := req.Parent + "/tables/" + req.TableId
		if *asJSON {
			_ = printJSON(p.stdout, map[string]string{"backup": req.GetBackup(), "table": table})
			return exitOK
		}
		fmt.Fprintf(p.stdout, "restored %s\n", table)
		return exitOK
	})
	completeArg(c, 0, func() (*grpc.ClientConn, error) { return l.dial(*server, *plaintext) }, backupArgs)
	return c
}

// restoreRequest returns what asks for a table of a backup.
func restoreRequest(backup, table string) (*adminpb.RestoreTableRequest, error) {
	if !strings.HasPrefix(backup, "projects/") {
		parts := strings.Split(backup, "/")
		if len(parts) != 4 {
			return nil, fmt.Errorf("%q is not of the form PROJECT/INSTANCE/CLUSTER/BACKUP", backup)
		}
		backup = fmt.Sprintf("projects/%s/instances/%s/clusters/%s/backups/%s", parts[0], parts[1], parts[2], parts[3])
	}
	table, err := fullTable(table)
	if err != nil {
		return nil, err
	}
	parent, id, ok := strings.Cut(table, "/tables/")
	if !ok {
		return nil, fmt.Errorf("%q is no name of a table", table)
	}
	return &adminpb.RestoreTableRequest{Parent: parent, TableId: id, Source: &adminpb.RestoreTableRequest_Backup{Backup: backup}}, nil
}

// restore asks a server for a table of a backup, and waits for it. An interrupt cancels it.
func (l *login) restore(ctx context.Context, server string, plaintext bool, req *adminpb.RestoreTableRequest) error {
	conn, err := l.dial(server, plaintext)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	op, err := adminpb.NewBigtableTableAdminClient(conn).RestoreTable(ctx, req)
	if err != nil {
		return err
	}
	ops, name := longrunningpb.NewOperationsClient(conn), op.GetName()
	for wait := 20 * time.Millisecond; !op.GetDone(); wait = min(2*wait, 2*time.Second) {
		select {
		case <-time.After(wait):
			if op, err = ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: name}); err == nil {
				continue
			}
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if ctx.Err() == nil {
			return err
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, cerr := ops.CancelOperation(last, &longrunningpb.CancelOperationRequest{Name: name})
		return errors.Join(context.Cause(ctx), cerr)
	}
	if s := op.GetError(); s != nil {
		return status.ErrorProto(s)
	}
	return nil
}
