package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// inspect prints a file of a data directory as text.
func inspect(p *process, args []string) int {
	kinds := strings.Join(slices.Sorted(maps.Keys(dumpers)), "|")
	use := fmt.Sprintf("Usage: trestle inspect %s PATH", kinds)
	if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
		fmt.Fprintln(p.stdout, use+"\n\nPrints what is stored at PATH as text. It reads only, also beside a running server.")
		return exitOK
	}
	if len(args) != 2 {
		return p.misused(fmt.Errorf("inspect takes a kind and a path\n%s", use))
	}
	dump, ok := dumpers[args[0]]
	if !ok {
		return p.misused(fmt.Errorf("%q is not a kind of file\n%s", args[0], use))
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
}

// A dumper prints the file or directory at path.
type dumper func(w io.Writer, path string) error
