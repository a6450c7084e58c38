package main

import (
	"fmt"
	"runtime"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// version prints what the binary knows of its build.
func version(p *process, args []string) int {
	if len(args) > 0 {
		return p.misused(fmt.Errorf("unexpected argument %q: version takes none", args[0]))
	}
	v, goVersion, revision := ops.BuildInfo()
	fmt.Fprintf(p.stdout, "trestle %s\nrevision %s\n%s %s/%s\n", v, revision, goVersion, runtime.GOOS, runtime.GOARCH)
	return exitOK
}
