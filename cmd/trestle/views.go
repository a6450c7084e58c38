package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway"
)

const viewsHelp = `Shows materialized views and how far they are, waits for one, and checks them.

A view is building while it looks at all rows of its source, behind while a part of
it is not kept up to date (its tablet moves, or a server is short of space or gone),
and else live. VIEW is the full name of a view or, if no other is called so, the last
part of it.`

// viewsCommand shows materialized views.
func viewsCommand(p *process) *cobra.Command {
	return p.group("views", "list materialized views, wait until one has caught up, or check them", viewsHelp,
		p.asks(adminVerb{use: "list", short: "print the views: phase, lag, sizes, rows that failed, the last error", limit: time.Minute, run: (*adminClient).views}),
		p.asks(adminVerb{use: "wait VIEW", short: "wait until a view shows everything that was acknowledged before", limit: changeLimit,
			check: func(args []string) error {
				if args[0] == "" {
					return errors.New("VIEW is empty")
				}
				return nil
			},
			run: func(c *adminClient, args []string) error {
				var got ops.ViewWait
				if err := c.callFor(c.ctx, "wait for "+args[0], http.MethodPost, "/admin/views/wait", ops.ViewWait{View: args[0]}, &got); err != nil {
					return err
				}
				if c.json {
					return c.print(got)
				}
				_, err := fmt.Fprintf(c.p.stdout, "%s has caught up\n", got.View)
				return err
			}}),
		p.asks(adminVerb{use: "check [VIEW]", short: "evaluate the query of a view, or of all, anew and compare", long: viewCheckHelp, run: (*adminClient).checkViews}),
	)
}

const viewCheckHelp = `Evaluates the query of a view, or of all views, over the whole source and compares
each row with the view. A row counts if it differs three times, each time once the view
has caught up: the source may be written to meanwhile. It changes nothing, reads the
source and the view as any client does, and keeps part of the result in memory
(32 MiB at most). Exits with 1 if rows differ.`

// viewCheckMemory bounds what a check keeps of rows of a view, and its evaluation.
const viewCheckMemory = 16 << 20

// viewChecks returns what compares the views of a client. dir is for what has no room in memory.
func viewChecks(c *client.Client, dir string) check.Views {
	return check.Views{Read: c.ReadRows, Wait: c.WaitView, Evaluators: gateway.ViewEvaluators(c, viewCheckMemory, dir), Memory: viewCheckMemory}
}

// CheckView implements ops.ViewKeeper.
func (o clusterOperator) CheckView(ctx context.Context, t *schema.Table, report func(ops.ViewFinding)) (int, error) {
	dir, err := os.MkdirTemp("", "trestle-check-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return viewChecks(o.Client, dir).Check(ctx, t, func(f check.Finding) { report(ops.ViewFinding{Where: f.Where, What: f.What, Do: f.Do}) })
}

// eachView compares the view that is named, or all, and tells of each.
func (c *adminClient) eachView(args []string, tell func(*ops.ViewChecked)) error {
	if len(args) == 0 {
		var all ops.ViewList
		if err := c.call(c.ctx, http.MethodGet, "/admin/views", nil, &all); err != nil {
			return err
		}
		for _, v := range all.Views {
			args = append(args, v.View)
		}
	}
	for _, name := range args {
		var got ops.ViewChecked
		if err := c.callFor(c.ctx, "check "+name, http.MethodPost, "/admin/views/check", ops.ViewWait{View: name}, &got); err != nil {
			return err
		}
		tell(&got)
	}
	return nil
}

// checkViews compares the view that is named, or all.
func (c *adminClient) checkViews(args []string) error {
	checked, differ := []ops.ViewChecked{}, 0
	err := c.eachView(args, func(got *ops.ViewChecked) {
		checked, differ = append(checked, *got), differ+got.Differ
		if c.json {
			return
		}
		for _, f := range got.Findings {
			fmt.Fprintf(c.p.screen(), "%s: %s. To do: %s%s\n", f.Where, f.What, f.Do, flaw(true))
		}
		fmt.Fprintf(c.p.screen(), "%s: %d rows, %d differ%s\n", got.View, got.Rows, got.Differ, flaw(got.Differ > 0))
	})
	if err == nil && c.json {
		err = c.print(map[string]any{"checked": checked})
	}
	if err == nil && differ > 0 {
		err = viewsDiffer(differ)
	}
	return err
}

// viewsDiffer is what ends a comparison in which n rows differ.
func viewsDiffer(n int) error {
	return fmt.Errorf("%d rows of views are not what their queries make them", n)
}

// views prints the materialized views that the caller may know of.
func (c *adminClient) views([]string) error {
	var got ops.ViewList
	if err := c.call(c.ctx, http.MethodGet, "/admin/views", nil, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	w := tabwriter.NewWriter(c.p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PHASE\tLAG\tROWS\tSTATE\tFAILED\tVIEW") // the name, which can be long, last
	for _, v := range got.Views {
		lag := time.Duration(v.LagSeconds * float64(time.Second)).Round(time.Millisecond)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", v.Phase, lag, byteSize(v.RowBytes), byteSize(v.StateBytes), v.FailedRows, v.View)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, v := range got.Views {
		for _, what := range []string{v.LastFailure, v.LastError} {
			if what != "" {
				fmt.Fprintf(c.p.stdout, "%s: %s\n", v.View[strings.LastIndexByte(v.View, '/')+1:], what)
			}
		}
	}
	return nil
}
