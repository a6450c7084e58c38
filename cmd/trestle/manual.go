package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// manualCommand writes the pages of the manual and the completion scripts into a
// directory, for those who make packages.
func manualCommand(p *process) *cobra.Command {
	c := p.verb("manual DIR", "write pages of the manual and completion scripts into a directory", "", nil, func(c *cobra.Command, args []string) int {
		if err := writeManual(c.Root(), args[0]); err != nil {
			return p.failed(err)
		}
		return exitOK
	})
	c.Hidden = true
	return c
}

func writeManual(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	write := func(name string, content func(io.Writer) error) error {
		var b strings.Builder
		return errors.Join(content(&b), os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644))
	}
	err := write("trestle.1", func(w io.Writer) error { mainPage(w, root); return nil })
	for _, c := range verbsOf(root) {
		err = errors.Join(err, write("trestle-"+c.Name()+".1", func(w io.Writer) error { page(w, c); return nil }))
	}
	for shell, script := range shells {
		err = errors.Join(err, write("trestle."+shell, func(w io.Writer) error { return script(root, w) }))
	}
	return err
}

// roff returns text as a page of the manual has it.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer("\\", "\\e", "-", "\\-", "`", "\\(ga").Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = "\\&" + l
		}
	}
	return strings.Join(lines, "\n")
}

func pageHead(w io.Writer, name, does string) {
	version, _, _ := ops.BuildInfo()
	fmt.Fprintf(w, ".TH %s 1 \"\" \"trestle %s\" \"Trestle\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), version, roff(name), roff(does))
}

func mainPage(w io.Writer, root *cobra.Command) {
	pageHead(w, "trestle", root.Short)
	fmt.Fprint(w, ".SH SYNOPSIS\n.B trestle\n.I COMMAND\n[flags]\n.SH COMMANDS\n")
	for _, c := range verbsOf(root) {
		fmt.Fprintf(w, ".TP\n.BR trestle\\-%s (1)\n%s\n", roff(c.Name()), roff(c.Short))
	}
	fmt.Fprintf(w, ".SH ENVIRONMENT\nEach setting of a server can be given as a variable: that of \\-\\-data\\-dir is TRESTLE_DATA_DIR.\nA flag wins over the environment, that over the file of \\-\\-config.\n"+
		".SH FILES\n.TP\n.I /etc/trestle/trestle.yaml\nsettings of the services of the package, one \"name: value\" a line\n"+
		".SH EXIT STATUS\n.TP\n%d\nit worked\n.TP\n%d\nit was tried and did not work\n.TP\n%d\nthe command line or the configuration is wrong\n", exitOK, exitFailure, exitUsage)
}

// page writes the page of a command: of a group with a part for each verb, and the
// settings, which verbs share, once.
func page(w io.Writer, c *cobra.Command) {
	pageHead(w, "trestle-"+c.Name(), c.Short)
	fmt.Fprintf(w, ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(usageLine(c)), roff(longHelp(c)))
	own, shared, group := flagsOf(c)
	options(w, "OPTIONS", own)
	if c.HasSubCommands() {
		options(w, "OPTIONS OF EVERY VERB", group)
		fmt.Fprint(w, ".SH VERBS\n")
		for _, v := range verbsOf(c) {
			fmt.Fprintf(w, ".SS %s\n.nf\n%s\n.fi\n", roff(usageLine(v)), roff(longHelp(v)))
			own, settings, _ := flagsOf(v)
			options(w, "", own)
			settings.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && shared.Lookup(f.Name) == nil { // one verb hides what another takes
					shared.AddFlag(f)
				}
			})
		}
	}
	options(w, "SETTINGS", shared)
	fmt.Fprint(w, ".SH SEE ALSO\n.BR trestle (1)\n")
}

func options(w io.Writer, title string, flags *pflag.FlagSet) {
	if title != "" && flags.HasAvailableFlags() {
		fmt.Fprintf(w, ".SH %s\n", title)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(w, ".TP\n.B %s\n%s", roff(strings.TrimSpace("--"+f.Name+" "+kind)), roff(usage))
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " (default %s)", roff(f.DefValue))
		}
		fmt.Fprintln(w)
	})
}
