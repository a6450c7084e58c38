package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// versionCommand prints what the binary knows of its build.
func versionCommand(p *process) *cobra.Command {
	return p.verb("version", "print the version, the revision of the source, and what it was built with and for", "", nil, func(*cobra.Command, []string) int {
		v, goVersion, revision := ops.BuildInfo()
		fmt.Fprintf(p.stdout, "trestle %s\nrevision %s\n%s %s/%s\n", v, revision, goVersion, runtime.GOOS, runtime.GOARCH)
		return exitOK
	})
}
