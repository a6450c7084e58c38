package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// inspectCommand prints a file of a data directory as text.
func inspectCommand(p *process) *cobra.Command {
	kinds := slices.Sorted(maps.Keys(dumpers))
	c := p.verb("inspect "+strings.Join(kinds, "|")+" PATH", "print a commit log, an SSTable, a change file or the METADATA of a data directory",
		"Prints what is stored at PATH as text. It reads only, also beside a running\nserver.", nil, func(_ *cobra.Command, args []string) int {
			dump, ok := dumpers[args[0]]
			if !ok {
				return p.misused(fmt.Errorf("%q is not a kind of file: give %s", args[0], strings.Join(kinds, ", ")))
			}
			w := bufio.NewWriter(p.stdout)
			err := dump(w, args[1])
			// What could be read is shown also when the rest could not.
			if flushErr := w.Flush(); err == nil {
				err = flushErr
			}
			if err != nil {
				return p.failed(fmt.Errorf("inspect %s %s: %w", args[0], args[1], err))
			}
			return exitOK
		})
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return kinds, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
	return c
}

// A dumper prints the file or directory at path.
type dumper func(w io.Writer, path string) error
