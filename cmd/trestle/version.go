package main

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// version prints what the binary knows of its build.
func version(p *process, args []string) int {
	if len(args) == 1 && slices.Contains(helpFlags, args[0]) {
		fmt.Fprint(p.stdout, "Usage: trestle version\n\nPrints the version, the revision of the source, and what the program was built with and for.\n")
		return exitOK
	}
	if len(args) > 0 {
		return p.misused(fmt.Errorf("unexpected argument %q: version takes none", args[0]))
	}
	v, goVersion, revision := ops.BuildInfo()
	fmt.Fprintf(p.stdout, "trestle %s\nrevision %s\n%s %s/%s\n", v, revision, goVersion, runtime.GOOS, runtime.GOARCH)
	return exitOK
}
