package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// A described command is one with what its --help knows. It is the output of the
// command that is asked.
type described struct {
	command
	text  strings.Builder
	flags []*pflag.Flag
	verbs []string // what may follow the command's name
}

// Write implements io.Writer, for commands that have no flags.
func (d *described) Write(b []byte) (int, error) { return d.text.Write(b) }

// describeCommands asks each command for its help.
func describeCommands() []*described {
	var out []*described
	for _, c := range commands() {
		if c.help == "" {
			continue
		}
		d := &described{command: c, verbs: verbsOf(c.name)}
		c.run(&process{d, io.Discard, nil}, []string{"--help"})
		out = append(out, d)
	}
	return out
}

// verbsOf returns the verbs of a command that has some.
func verbsOf(command string) []string {
	switch command {
	case "cluster":
		return slices.Sorted(maps.Keys(clusterVerbs))
	case "tablets":
		return slices.Sorted(maps.Keys(tabletVerbs))
	case "backup":
		return backupVerbs
	case "table":
		return tableVerbs
	case "inspect":
		return slices.Sorted(maps.Keys(dumpers))
	case "completion":
		return slices.Sorted(maps.Keys(completions))
	case "iam":
		var out []string
		for _, v := range iamVerbs {
			first, _, _ := strings.Cut(v.words, " ")
			out = append(out, first)
		}
		return slices.Compact(out)
	}
	return nil
}

// choices returns the values that a flag takes, if its kind lists them.
func choices(f *pflag.Flag) []string {
	if kind := f.Value.Type(); strings.Contains(kind, "|") {
		return strings.Split(kind, "|")
	}
	return nil
}

var completions = map[string]func(io.Writer, []*described){"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}

// completion prints the script by which a shell completes command lines.
func completion(p *process, args []string) int {
	shells := strings.Join(slices.Sorted(maps.Keys(completions)), "|")
	usage := "Usage: trestle completion " + shells + "\n\n" +
		"Prints what makes a shell complete the command line of trestle. For this session of bash:\n\n  source <(trestle completion bash)"
	if len(args) == 1 && slices.Contains(helpFlags, args[0]) {
		fmt.Fprintln(p.stdout, usage)
		return exitOK
	}
	if len(args) != 1 || completions[args[0]] == nil {
		return p.misused(errors.New("completion takes the name of a shell: " + shells))
	}
	completions[args[0]](p.stdout, describeCommands())
	return exitOK
}

// flagNames returns the flags as they are typed, and those of them that need a
// value.
func flagNames(flags []*pflag.Flag) (all, valued []string) {
	for _, f := range flags {
		all = append(all, "--"+f.Name)
		if f.NoOptDefVal == "" {
			valued = append(valued, "--"+f.Name)
		}
	}
	return all, valued
}

func bashCompletion(w io.Writer, commands []*described) {
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	fmt.Fprintf(w, `# bash completion of trestle, made by: trestle completion bash
_trestle() {
	local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verbs="" flags="" valued=""
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "%s" -- "$cur"))
		return
	fi
	case "${COMP_WORDS[1]} $prev" in
`, strings.Join(names, " "))
	for _, c := range commands {
		for _, f := range c.flags {
			if values := choices(f); values != nil {
				fmt.Fprintf(w, "\t\"%s --%s\") COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", c.name, f.Name, strings.Join(values, " "))
			}
		}
	}
	fmt.Fprint(w, "\tesac\n\tcase \"${COMP_WORDS[1]}\" in\n")
	for _, c := range commands {
		all, valued := flagNames(c.flags)
		fmt.Fprintf(w, "\t%s)\n\t\tverbs=\"%s\"\n\t\tflags=\"%s\"\n\t\tvalued=\"%s\" ;;\n", c.name, strings.Join(c.verbs, " "), strings.Join(all, " "), strings.Join(valued, " "))
	}
	fmt.Fprint(w, `	esac
	case " $valued " in *" $prev "*)
		COMPREPLY=($(compgen -f -- "$cur"))
		return ;;
	esac
	if [ "$COMP_CWORD" = 2 ] && [ -n "$verbs" ] && [ "${cur#-}" = "$cur" ]; then
		COMPREPLY=($(compgen -W "$verbs" -- "$cur"))
	elif [ "${cur#-}" != "$cur" ]; then
		COMPREPLY=($(compgen -W "$flags" -- "$cur"))
	else
		COMPREPLY=($(compgen -f -- "$cur"))
	fi
}
complete -o filenames -F _trestle trestle
`)
}

func zshCompletion(w io.Writer, commands []*described) {
	// Between single quotes, of which a text has none; a colon would end a name, a
	// bracket a text.
	plain := strings.NewReplacer("'", "’", "[", "(", "]", ")", ":", "\\:", "\\", "\\\\", "`", "")
	fmt.Fprint(w, "#compdef trestle\n# zsh completion of trestle, made by: trestle completion zsh\n_trestle() {\n\tlocal -a commands\n\tcommands=(\n")
	for _, c := range commands {
		fmt.Fprintf(w, "\t\t'%s:%s'\n", c.name, plain.Replace(c.help))
	}
	fmt.Fprint(w, "\t)\n\tif ((CURRENT == 2)); then\n\t\t_describe command commands\n\t\treturn\n\tfi\n\tlocal command=$words[2]\n\tshift words\n\t((CURRENT--))\n\tcase $command in\n")
	for _, c := range commands {
		fmt.Fprintf(w, "\t%s)\n\t\t_arguments", c.name)
		if c.verbs != nil {
			fmt.Fprintf(w, " \\\n\t\t\t'1:verb:(%s)'", strings.Join(c.verbs, " "))
		}
		for _, f := range c.flags {
			value := ":value:_files"
			switch values := choices(f); {
			case f.NoOptDefVal != "":
				value = ""
			case values != nil:
				value = ":value:(" + strings.Join(values, " ") + ")"
			}
			fmt.Fprintf(w, " \\\n\t\t\t'--%s[%s]%s'", f.Name, plain.Replace(f.Usage), value)
		}
		fmt.Fprint(w, " \\\n\t\t\t'*:file:_files' ;;\n")
	}
	fmt.Fprint(w, "\tesac\n}\nif [ \"$funcstack[1]\" = _trestle ]; then\n\t_trestle \"$@\"\nelse\n\tcompdef _trestle trestle\nfi\n")
}

func fishCompletion(w io.Writer, commands []*described) {
	quoted := func(s string) string { return "'" + strings.NewReplacer("\\", "\\\\", "'", "\\'").Replace(s) + "'" }
	fmt.Fprint(w, "# fish completion of trestle, made by: trestle completion fish\n")
	for _, c := range commands {
		fmt.Fprintf(w, "complete -c trestle -f -n __fish_use_subcommand -a %s -d %s\n", c.name, quoted(c.help))
	}
	for _, c := range commands {
		in := "-n '__fish_seen_subcommand_from " + c.name + "'"
		if c.verbs != nil {
			fmt.Fprintf(w, "complete -c trestle -f %s -a %s\n", in, quoted(strings.Join(c.verbs, " ")))
		}
		for _, f := range c.flags {
			value := " -r"
			switch values := choices(f); {
			case f.NoOptDefVal != "":
				value = ""
			case values != nil:
				value = " -x -a " + quoted(strings.Join(values, " "))
			}
			fmt.Fprintf(w, "complete -c trestle %s -l %s%s -d %s\n", in, f.Name, value, quoted(f.Usage))
		}
	}
}

// manual writes the pages of the manual and the completion scripts into a
// directory, for those who make packages.
func manual(p *process, args []string) int {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		return p.misused(errors.New("manual takes a directory, for pages of the manual and completion scripts"))
	}
	if err := writeManual(args[0]); err != nil {
		return p.failed(err)
	}
	return exitOK
}

func writeManual(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	commands := describeCommands()
	write := func(name string, content func(io.Writer)) error {
		var b strings.Builder
		content(&b)
		return os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644)
	}
	err := write("trestle.1", func(w io.Writer) { mainPage(w, commands) })
	for _, c := range commands {
		err = errors.Join(err, write("trestle-"+c.name+".1", func(w io.Writer) { page(w, c) }))
	}
	for shell, script := range completions {
		err = errors.Join(err, write("trestle."+shell, func(w io.Writer) { script(w, commands) }))
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

func mainPage(w io.Writer, commands []*described) {
	pageHead(w, "trestle", "store wide-column tables and speak the Cloud Bigtable API")
	fmt.Fprint(w, ".SH SYNOPSIS\n.B trestle\n.I COMMAND\n[flags]\n.SH COMMANDS\n")
	for _, c := range commands {
		fmt.Fprintf(w, ".TP\n.BR trestle\\-%s (1)\n%s\n", roff(c.name), roff(c.help))
	}
	fmt.Fprintf(w, ".SH ENVIRONMENT\nEach setting of a server can be given as a variable: that of \\-\\-data\\-dir is TRESTLE_DATA_DIR.\nA flag wins over the environment, that over the file of \\-\\-config.\n"+
		".SH FILES\n.TP\n.I /etc/trestle/trestle.yaml\nsettings of the services of the package, one \"name: value\" a line\n"+
		".SH EXIT STATUS\n.TP\n%d\nit worked\n.TP\n%d\nit was tried and did not work\n.TP\n%d\nthe command line or the configuration is wrong\n", exitOK, exitFailure, exitUsage)
}

func page(w io.Writer, c *described) {
	pageHead(w, "trestle-"+c.name, c.help)
	synopsis, text, _ := strings.Cut(strings.TrimPrefix(c.text.String(), "Usage: "), "\n")
	fmt.Fprintf(w, ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(synopsis), roff(strings.Trim(text, "\n")))
	if len(c.flags) > 0 {
		fmt.Fprint(w, ".SH OPTIONS\n")
	}
	for _, f := range c.flags {
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(w, ".TP\n.B %s\n%s", roff(strings.TrimSpace("--"+f.Name+" "+kind)), roff(usage))
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " (default %s)", roff(f.DefValue))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, ".SH SEE ALSO\n.BR trestle (1)\n")
}
