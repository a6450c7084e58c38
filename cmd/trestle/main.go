package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // authorities of the web where the system has none: an image FROM scratch

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // it was tried and did not work
	exitUsage   = 2 // the command line or the configuration is wrong
)

// A process is what a command gets from the operating system.
type process struct {
	stdout, stderr io.Writer
	environ        []string
}

func main() {
	keepToOwner()
	os.Exit(run(&process{os.Stdout, os.Stderr, os.Environ()}, os.Args))
}

func run(p *process, argv []string) int {
	args := argv[1:]
	// As "cbtemulator", or with flags where the verb would be, the program takes
	// the place of Google's emulator; as "gcloud", of the command that starts it.
	switch strings.TrimSuffix(filepath.Base(argv[0]), ".exe") {
	case "cbtemulator":
		return emulate(p, args)
	case "gcloud":
		return gcloudEmulator(p, args)
	}
	root := newRoot(p)
	switch {
	case len(args) == 0:
		help(p.stderr, root)
		return exitUsage
	case slices.Contains([]string{"-version", "--version"}, args[0]):
		args = []string{"version"}
	case slices.Contains([]string{"-h", "-help", "--help"}, args[0]):
		args = []string{"--help"}
	case strings.HasPrefix(args[0], "-"):
		return emulate(p, args)
	}
	if !slices.Contains([]string{"help", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}, args[0]) {
		c, words, rest := commandOf(root, args)
		if err := renamed(words); err != nil {
			return p.misused(err)
		}
		args = append(words, settings.DoubleDash(c.Flags(), rest)...)
	}
	root.SetArgs(args)
	err := root.Execute()
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	}
	return p.misused(err)
}

// An exitCode is the error of a command that has said what was wrong.
type exitCode int

// Error implements error.
func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// misused reports a wrong command line or configuration.
func (p *process) misused(err error) int {
	p.report(err)
	return exitUsage
}

// failed reports what did not work.
func (p *process) failed(err error) int {
	p.report(err)
	return exitFailure
}

// report writes err to stderr, one line for each error that was joined.
func (p *process) report(err error) {
	s := p.screenOn(p.stderr)
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(s, "trestle: %s%s\n", strings.TrimSuffix(line, "\n"), wrong)
	}
}
