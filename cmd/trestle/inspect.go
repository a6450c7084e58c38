package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const inspectHelp = `It reads only, also beside a running server. In keys, \xNN stands for any byte
and \\ for a backslash.`

// inspectCommand prints files of a data directory.
func inspectCommand(p *process) *cobra.Command {
	file := func(kind, path, short string, dump func(w io.Writer, path string) error) *cobra.Command {
		return p.inspects(kind+" "+path, short, nil, func(path string) error {
			w := bufio.NewWriter(p.stdout)
			err := dump(w, path)
			// What could be read is shown also when the rest could not.
			if flushErr := w.Flush(); err == nil {
				err = flushErr
			}
			return err
		})
	}
	f := pflag.NewFlagSet("metadata", pflag.ContinueOnError)
	f.SortFlags = false
	wide := f.Bool("wide", false, "print all there is to know, and keys and values in full")
	asJSON := f.Bool("json", false, "print JSON")
	return p.group("inspect", "print a commit log, an SSTable, a change file or the METADATA of a data directory", "Prints what is stored. "+inspectHelp,
		file("changes", "FILE", "print a change file, or an index object of change files", dumpChanges),
		file("log", "DIR", "print a commit log, such as ulog of a data directory", dumpLog),
		p.inspects("metadata DIR", "print the lock service's items and the tablets of a data directory", f, func(dir string) error {
			return p.inspectMetadata(dir, *wide, *asJSON)
		}),
		file("sst", "FILE", "print an SSTable", dumpSSTable),
	)
}

// inspects returns a verb that prints what is at the path that is its argument.
func (p *process) inspects(use, short string, flags *pflag.FlagSet, run func(path string) error) *cobra.Command {
	return p.verb(use, short, sentence(short)+"\n\n"+inspectHelp, flags, func(c *cobra.Command, args []string) int {
		if err := run(args[0]); err != nil {
			return p.failed(fmt.Errorf("inspect %s %s: %w", c.Name(), args[0], err))
		}
		return exitOK
	})
}
