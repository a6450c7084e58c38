package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// completeLimit is how long the completion of a word waits for a server at most. Tests
// on busy machines have more time.
var completeLimit = time.Second

// completed returns the words of list that begin with typed, none if that fails or takes
// too long: a shell that waits for the end of a line shows no errors.
func completed(typed string, list func(ctx context.Context) ([]cobra.Completion, error)) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completeLimit)
	defer cancel()
	got := make(chan []cobra.Completion, 1)
	go func() {
		words, err := list(ctx)
		if err != nil {
			words = nil
		}
		got <- words
	}()
	select {
	case words := <-got:
		for _, w := range words {
			if strings.HasPrefix(w, typed) {
				out = append(out, w)
			}
		}
	case <-ctx.Done():
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// A lister lists what a word of a command line can be. f has the flags before it.
type lister func(c *adminClient, f *pflag.FlagSet) ([]cobra.Completion, error)

// listers are those of the words that usage lines and flags name so.
var listers = map[string]lister{
	"TABLE":  (*adminClient).tableWords,
	"GROUP":  (*adminClient).groupWords,
	"TABLET": (*adminClient).tabletWords,
	"SERVER": (*adminClient).serverWords,
	"VIEW":   (*adminClient).viewWords,
	"BACKUP": (*adminClient).backupWords,
}

// complete lets a shell complete the arguments and flags of a verb with what there is,
// except for fresh.
func (r *reach) complete(cmd *cobra.Command, fresh string) {
	words := func(name, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		list := listers[name]
		if list == nil || name == fresh {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completed(typed, func(ctx context.Context) ([]cobra.Completion, error) {
			cfg, cluster, err := r.load()
			if err != nil {
				return nil, err
			}
			c := &adminClient{p: r.p, ctx: ctx}
			release, err := r.open(c, cfg, cluster, false)
			if err != nil {
				return nil, err
			}
			defer func() { go release() }() // the shell does not wait for that
			return list(c, cmd.Flags())
		})
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := strings.Fields(cmd.Use)[1:]
		if f := cmd.Flags().Lookup("table"); f != nil && f.Changed && len(names) > 0 && names[0] == "[TABLET]" {
			names = names[1:] // --table stands for it
		}
		if len(args) >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words(strings.Trim(names[len(args)], "[]."), typed)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if kind, _ := pflag.UnquoteUsage(f); listers[kind] != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return words(kind, typed)
			})
		}
	})
}

// shortened returns full names, and before them the last parts that stand for only one.
func shortened(names []string) (out []cobra.Completion) {
	count := map[string]int{}
	for _, n := range names {
		count[lastPart(n)]++
	}
	for _, n := range names {
		if last := lastPart(n); last != n && count[last] == 1 {
			out = append(out, last)
		}
	}
	return append(out, names...)
}

func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func (c *adminClient) tableWords(*pflag.FlagSet) ([]cobra.Completion, error) {
	var got ops.TableList
	err := c.request(c.ctx, http.MethodGet, "/admin/tables", nil, &got)
	var names []string
	for _, t := range got.Tables {
		names = append(names, t.Table)
	}
	return shortened(names), err
}

func (c *adminClient) groupWords(f *pflag.FlagSet) (out []cobra.Completion, err error) {
	var got ops.Table
	err = c.request(c.ctx, http.MethodGet, "/admin/table?table="+url.QueryEscape(f.Lookup("table").Value.String()), nil, &got)
	for _, g := range got.Groups {
		if g.Name != "" {
			out = append(out, cobra.CompletionWithDesc(g.Name, strings.Join(g.Families, ",")))
		}
	}
	return out, err
}

func (c *adminClient) tabletWords(*pflag.FlagSet) (out []cobra.Completion, err error) {
	var got ops.TabletList
	err = c.request(c.ctx, http.MethodGet, "/admin/tablets", nil, &got)
	for _, t := range got.Tablets {
		out = append(out, cobra.CompletionWithDesc(t.Tablet, fmt.Sprintf("%s [%s, %s)", lastPart(t.Table), shortKey(t.Start, keyMost), shortKey(t.End, keyMost))))
	}
	return out, err
}

func (c *adminClient) serverWords(*pflag.FlagSet) (out []cobra.Completion, err error) {
	var got ops.ServerList
	err = c.request(c.ctx, http.MethodGet, "/admin/servers", nil, &got)
	for _, s := range got.Servers {
		state := fmt.Sprintf("%d tablets", s.Tablets)
		if s.Draining {
			state += ", draining"
		}
		out = append(out, cobra.CompletionWithDesc(s.Name, state))
	}
	return out, err
}

func (c *adminClient) viewWords(*pflag.FlagSet) ([]cobra.Completion, error) {
	var got ops.ViewList
	err := c.request(c.ctx, http.MethodGet, "/admin/views", nil, &got)
	var names []string
	for _, v := range got.Views {
		names = append(names, v.View)
	}
	return shortened(names), err
}

func (c *adminClient) backupWords(*pflag.FlagSet) (out []cobra.Completion, err error) {
	var got ops.BackupList
	err = c.request(c.ctx, http.MethodGet, "/admin/backups", nil, &got)
	for _, b := range got.Backups {
		out = append(out, cobra.CompletionWithDesc(b.Backup, "of "+lastPart(b.Table)+", "+b.Created.Format(clockTime)))
	}
	return out, err
}

// instancesOf returns the full names of the instances of a server.
func instancesOf(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
	got, err := adminpb.NewBigtableInstanceAdminClient(conn).ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: "projects/-"})
	for _, i := range got.GetInstances() {
		names = append(names, i.GetName())
	}
	return names, err
}

// tableNamesOf returns the full names of the tables of a server.
func tableNamesOf(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
	instances, err := instancesOf(ctx, conn)
	for _, i := range instances {
		req := &adminpb.ListTablesRequest{Parent: i}
		for {
			got, err := adminpb.NewBigtableTableAdminClient(conn).ListTables(ctx, req)
			if err != nil {
				return nil, err
			}
			for _, t := range got.GetTables() {
				names = append(names, t.GetName())
			}
			if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
	}
	return names, err
}

// backupNamesOf returns the full names of the backups of a server.
func backupNamesOf(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
	instances, err := instancesOf(ctx, conn)
	for _, i := range instances {
		req := &adminpb.ListBackupsRequest{Parent: i + "/clusters/-"}
		for {
			got, err := adminpb.NewBigtableTableAdminClient(conn).ListBackups(ctx, req)
			if err != nil {
				return nil, err
			}
			for _, b := range got.GetBackups() {
				names = append(names, b.GetName())
			}
			if req.PageToken = got.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
	}
	return names, err
}

// withoutWords returns names without the words between the ids, as PROJECT/INSTANCE/TABLE,
// and after them as they are.
func withoutWords(names []string) (out []cobra.Completion) {
	for _, n := range names {
		parts := strings.Split(n, "/")
		for i := 0; i < len(parts); i++ {
			parts = append(parts[:i], parts[i+1:]...)
		}
		out = append(out, strings.Join(parts, "/"))
	}
	return append(out, names...)
}

// A grpcLister lists what a word can be, as a server over gRPC says.
type grpcLister func(ctx context.Context, conn grpc.ClientConnInterface) ([]cobra.Completion, error)

// completedBy is completed of what list says of the server that dial leads to.
func completedBy(typed string, dial func() (*grpc.ClientConn, error), list grpcLister) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completed(typed, func(ctx context.Context) ([]cobra.Completion, error) {
		conn, err := dial()
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		return list(ctx, conn)
	})
}

// completeArg lets a shell complete the argument of a command that is at a place.
func completeArg(cmd *cobra.Command, at int, dial func() (*grpc.ClientConn, error), list grpcLister) {
	others := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case len(args) == at:
			return completedBy(typed, dial, list)
		case others != nil:
			return others(c, args, typed)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// tableArgs lists tables as stream and restore take them.
func tableArgs(ctx context.Context, conn grpc.ClientConnInterface) ([]cobra.Completion, error) {
	names, err := tableNamesOf(ctx, conn)
	return withoutWords(names), err
}

// backupArgs lists backups as restore takes them.
func backupArgs(ctx context.Context, conn grpc.ClientConnInterface) ([]cobra.Completion, error) {
	names, err := backupNamesOf(ctx, conn)
	return withoutWords(names), err
}

// resourceArgs lists what has a policy: projects with instances, instances and tables.
func resourceArgs(ctx context.Context, conn grpc.ClientConnInterface) (out []cobra.Completion, err error) {
	instances, err := instancesOf(ctx, conn)
	if err != nil {
		return nil, err
	}
	for _, i := range instances {
		if project, _, _ := strings.Cut(i, "/instances/"); !slices.Contains(out, project) {
			out = append(out, project)
		}
	}
	tables, err := tableNamesOf(ctx, conn)
	return slices.Concat(out, instances, tables), err
}

// instanceArgs lists instances as --instance of sql takes them: the ids of those of a
// project, and full names of all.
func instanceArgs(project string) grpcLister {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (out []cobra.Completion, err error) {
		names, err := instancesOf(ctx, conn)
		for _, n := range names {
			if id, ok := strings.CutPrefix(n, "projects/"+project+"/instances/"); ok {
				out = append(out, id)
			}
		}
		return append(out, names...), err
	}
}
