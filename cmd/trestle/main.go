package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	_ "golang.org/x/crypto/x509roots/fallback" // authorities of the web where the system has none: an image FROM scratch
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

// A command is one verb of the command line.
type command struct {
	name string
	help string // one line; empty hides the command
	run  func(p *process, args []string) int
}

func commands() []command {
	return []command{
		{"serve", "run a server on a data directory", serve},
		{"tabletserver", "run a tablet server of a cluster", runTabletServer},
		{"master", "run a master of a cluster, or one that waits to be it", runMaster},
		{"gateway", "answer clients of a cluster, or from the tables of an HBase (--backend)", runGateway},
		{"dev-cluster", "run a whole cluster on this machine, each server a process", devCluster},
		{"cluster", "show a cluster, drain servers, move and change tablets", clusterCommand},
		{"config", "print the settings of serve and where each comes from", config},
		{"iam", "manage service accounts, keys and policies", iam},
		{"tablets", "list, split, merge, compact, flush or verify the tablets of a server", tablets},
		{"table", "show and set the locality groups of a table", table},
		{"backup", "export a backup out of a server's store, or import one into it", backupCommand},
		{"check", "verify a data directory that no server has open, or a cluster, serving or stopped", checkCommand},
		{"drop-damaged-log", "give up what is damaged in the commit log of a data directory that no server has open", dropDamagedLog},
		{"inspect", "print a commit log, an SSTable or the METADATA of a data directory", inspect},
		{"bench", "measure a server, and check what it answers", runBench},
		{"healthcheck", "exit with 0 if a server is ready (for containers without a shell)", healthcheck},
		{"completion", "print the completion script of bash, zsh or fish", completion},
		{"manual", "", manual},
		{"version", "print the version", version},
	}
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
	if len(args) == 0 {
		usage(p.stderr)
		return exitUsage
	}
	switch verb := args[0]; verb {
	case "help", "-h", "-help", "--help":
		usage(p.stdout)
		return exitOK
	case "-version", "--version":
		return version(p, nil)
	default:
		for _, c := range commands() {
			if c.name == verb {
				return c.run(p, args[1:])
			}
		}
		if strings.HasPrefix(verb, "-") {
			return emulate(p, args)
		}
		return p.misused(fmt.Errorf("%q is not a command; `trestle help` lists them", verb))
	}
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Trestle stores wide-column tables and speaks the Cloud Bigtable API.\n\nUsage: trestle COMMAND [flags]\n\n")
	for _, c := range commands() {
		if c.help != "" {
			fmt.Fprintf(w, "  %-16s %s\n", c.name, c.help)
		}
	}
	fmt.Fprint(w, `
  trestle COMMAND --help   the flags of a command
  trestle -host H -port N  what Google's cbtemulator does, on data that is gone afterwards

Start with:

  trestle serve
`)
}

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
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(p.stderr, "trestle: %s\n", strings.TrimSuffix(line, "\n"))
	}
}

// helpFlags ask a command that has no flags for help.
var helpFlags = []string{"-h", "-help", "--help"}

// helpAsked tells whether err of a flag set is a request for help.
func helpAsked(err error) bool { return errors.Is(err, pflag.ErrHelp) }
