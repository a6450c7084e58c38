package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// versionCommand prints what the binary knows of its build.
func versionCommand(p *process) *cobra.Command {
	own := pflag.NewFlagSet("version", pflag.ContinueOnError)
	asJSON := own.Bool("json", false, "print JSON")
	return p.verb("version", "print the version, the revision of the source, and what it was built with and for", "", own, func(*cobra.Command, []string) int {
		v, goVersion, revision := ops.BuildInfo()
		if *asJSON {
			_ = printJSON(p.stdout, map[string]string{"version": v, "revision": revision, "go": goVersion, "system": runtime.GOOS, "processor": runtime.GOARCH})
			return exitOK
		}
		fmt.Fprintf(p.stdout, "trestle %s\nrevision %s\n%s %s/%s\n", v, revision, goVersion, runtime.GOOS, runtime.GOARCH)
		return exitOK
	})
}
