package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

const rootHelp = `Trestle stores wide-column tables and speaks the Cloud Bigtable API.

Start with:

  trestle serve

trestle -host H -port N does what Google's cbtemulator does, on data that is
gone afterwards.`

// newRoot returns the tree of all commands.
func newRoot(p *process) *cobra.Command {
	cobra.MousetrapHelpText = "" // who double-clicks it on Windows gets what others get
	cobra.EnableCommandSorting = false
	helpVerb := helpCommand(p)
	root := p.group("trestle", "store wide-column tables and speak the Cloud Bigtable API", rootHelp,
		serveCommand(p), tabletServerCommand(p), masterCommand(p), gatewayCommand(p), devClusterCommand(p),
		tabletCommand(p), tableCommand(p), viewsCommand(p), serverCommand(p), backupCommand(p), restoreCommand(p), streamCommand(p), logCommand(p), clusterCommand(p), iamCommand(p),
		sqlCommand(p), configCommand(p), topCommand(p), doctorCommand(p), debugCommand(p), checkCommand(p), inspectCommand(p), benchCommand(p), healthcheckCommand(p),
		completionCommand(p), manualCommand(p), versionCommand(p), helpVerb)
	root.RunE = func(_ *cobra.Command, args []string) error {
		return fmt.Errorf("%q is not a command%s; `trestle help` lists them", args[0], near(root, args[0]))
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpVerb)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { help(c.OutOrStdout(), c) })
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return settings.FlagError(c.CommandPath(), c.Flags(), err)
	})
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	return root
}

// verb returns a command that does something. use is its name and those of its
// arguments, in brackets if one can be left out, and with dots if the last can be
// several. short says what it does, in lower case; long, if not empty, says it in
// full. flags may be nil.
func (p *process) verb(use, short, long string, flags *pflag.FlagSet, run func(c *cobra.Command, args []string) int) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: takes(use), DisableFlagsInUseLine: true}
	c.RunE = func(_ *cobra.Command, args []string) error {
		if code := run(c, args); code != exitOK {
			return exitCode(code)
		}
		return nil
	}
	c.Flags().SortFlags = false
	if flags != nil {
		c.Flags().AddFlagSet(flags)
	}
	flags = c.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		if values := choices(f); values != nil {
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	return c
}

// choices returns the values that a flag takes, if its kind lists them.
func choices(f *pflag.Flag) []string {
	if kind := f.Value.Type(); strings.Contains(kind, "|") {
		return strings.Split(kind, "|")
	}
	return nil
}

// takes returns what checks the number of arguments: those that use names.
func takes(use string) cobra.PositionalArgs {
	names := strings.Fields(use)[1:]
	least, most := 0, len(names)
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			least++
		}
		if strings.Contains(n, "...") {
			most = -1
		}
	}
	return func(c *cobra.Command, args []string) error {
		switch n := len(args); {
		case len(names) == 0 && n > 0:
			return fmt.Errorf("unexpected argument %q: %s takes only flags", args[0], c.CommandPath())
		case n < least, most >= 0 && n > most:
			return fmt.Errorf("%s takes %s, and was given %d arguments", c.CommandPath(), strings.Join(names, " "), n)
		}
		return nil
	}
}

// group returns a command that has others below it.
func (p *process) group(name, short, long string, verbs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: name, Short: short, Long: long, Args: cobra.ArbitraryArgs, SuggestionsMinimumDistance: 2}
	g.FParseErrWhitelist.UnknownFlags = true // the verb that is missing is more to the point
	g.AddCommand(verbs...)
	g.RunE = func(_ *cobra.Command, args []string) error {
		var names []string
		for _, v := range g.Commands() {
			names = append(names, v.Name())
		}
		err := fmt.Errorf("%s takes a verb: %s", g.CommandPath(), strings.Join(names, ", "))
		if len(args) > 0 {
			err = fmt.Errorf("there is no verb %q%s; %w", args[0], near(g, args[0]), err)
		}
		return err
	}
	return g
}

// near returns "; did you mean …?" if a command below g has a name like that.
func near(g *cobra.Command, name string) string {
	if s := g.SuggestionsFor(name); len(s) > 0 {
		return fmt.Sprintf("; did you mean %s?", strings.Join(s, " or "))
	}
	return ""
}

// commandOf divides a command line: into the words that lead to a command, wherever
// flags stand among them, and the rest. If the last word is none of the verbs of a
// group, the command is the group. c.Flags() has all flags of the command.
func commandOf(root *cobra.Command, args []string) (c *cobra.Command, words, rest []string) {
	i := 0
	c = root
	for ; i < len(args) && c.HasSubCommands() && args[i] != "--"; i++ {
		if strings.HasPrefix(args[i], "-") {
			rest = append(rest, args[i])
			if _, value := settings.FlagAt(func(name string) *pflag.Flag { return longFlag(c, name) }, args[i]); value && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}
		words = append(words, args[i])
		at := slices.IndexFunc(c.Commands(), func(v *cobra.Command) bool { return v.Name() == args[i] })
		if at < 0 {
			i++
			break
		}
		c = c.Commands()[at]
	}
	c.InitDefaultHelpFlag()
	c.InheritedFlags() // which makes them flags of c
	return c, words, append(rest, args[i:]...)
}

// longFlag returns a flag of a command or those below it, or else of any command, nil
// if there is none of that name. Below a group either all flags of a name take a value,
// or none does.
func longFlag(c *cobra.Command, name string) (f *pflag.Flag) {
	var find func(c *cobra.Command)
	find = func(c *cobra.Command) {
		f = cmp.Or(f, c.Flags().Lookup(name), c.PersistentFlags().Lookup(name))
		for _, below := range c.Commands() {
			find(below)
		}
	}
	for ; c != nil && f == nil; c = c.Parent() {
		find(c)
	}
	return f
}

// spellings are those of earlier builds that are spelled otherwise now.
var spellings = map[string]string{
	"tablets":                  "trestle tablet",
	"drop-damaged-log":         "trestle log drop-damaged",
	"cluster drain":            "trestle server drain",
	"cluster undrain":          "trestle server undrain",
	"cluster split":            "trestle tablet split",
	"cluster merge":            "trestle tablet merge",
	"cluster move":             "trestle tablet move",
	"cluster flush":            "trestle tablet flush",
	"cluster compact":          "trestle tablet compact",
	"cluster drop-damaged-log": "trestle log drop-damaged",
	"cluster check":            "trestle check --online",
}

// renamed returns an error that has the new spelling of the words of a command of an
// earlier build.
func renamed(words []string) error {
	for n := 1; n <= min(2, len(words)); n++ {
		old := strings.Join(words[:n], " ")
		if now := spellings[old]; now != "" {
			return fmt.Errorf("trestle %s is %s now", old, now)
		}
	}
	return nil
}

// helpCommand prints the help of the command that the words behind it lead to, as
// --help behind the words does.
func helpCommand(p *process) *cobra.Command {
	c := p.verb("help [COMMAND...]", "print what a command does, and its flags", "", nil, func(h *cobra.Command, args []string) int {
		c, words, _ := commandOf(h.Root(), args)
		switch {
		case len(words) == 0 && len(args) > 0: // trestle help --help
			c = h
		case c.HasSubCommands() && c.CommandPath() != strings.Join(append([]string{"trestle"}, words...), " "):
			return p.misused(c.RunE(c, words[len(words)-1:]))
		}
		help(p.stdout, c)
		return exitOK
	})
	c.DisableFlagParsing = true // so that help in front of a whole command line helps too
	c.ValidArgsFunction = func(h *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		c, _, _ := commandOf(h.Root(), args)
		for _, v := range c.Commands() {
			if !v.Hidden {
				names = append(names, cobra.CompletionWithDesc(v.Name(), v.Short))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

// helpWidth is how wide help is: that of a terminal that nobody has made wider.
const helpWidth = 80

// help writes what a command does and takes: its own flags first, the settings
// that it shares with others last.
func help(w io.Writer, c *cobra.Command) {
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", usageLine(c), longHelp(c))
	if c.HasAvailableSubCommands() {
		what := "Verbs"
		if !c.HasParent() {
			what = "Commands"
		}
		fmt.Fprintf(w, "\n%s:\n", what)
		verbs := verbsOf(c)
		words := make([]string, len(verbs))
		width := 0
		for i, v := range verbs {
			words[i] = strings.TrimPrefix(v.CommandPath(), c.CommandPath()+" ")
			if _, args, _ := strings.Cut(v.Use, " "); c.HasParent() && args != "" {
				words[i] += " " + args
			}
			width = max(width, len(words[i]))
		}
		for i, v := range verbs {
			for _, text := range wrap(v.Short, helpWidth-width-4) {
				fmt.Fprintf(w, "  %-*s  %s\n", width, words[i], text)
				words[i] = ""
			}
		}
		fmt.Fprintf(w, "\n%s %s --help tells more of each.\n", c.CommandPath(), strings.ToUpper(strings.TrimSuffix(what, "s")))
	}
	own, shared, group := flagsOf(c)
	printFlags(w, "Flags", own)
	printFlags(w, "Flags of every verb", group)
	printFlags(w, "Settings, which the environment (TRESTLE_NAME) and --config can give too", shared)
}

// printFlags writes what flags mean, if there are any. Unlike pflag it goes on to
// break lines behind a word that is longer than a line, such as a URL.
func printFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	const indent = 26
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0s" && f.DefValue != "[]" && f.DefValue != "0" {
			usage += " (default " + f.DefValue + ")"
		}
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if len(name) > indent-4 {
			fmt.Fprintf(w, "  %s\n", name)
			name = ""
		}
		for _, line := range wrap(usage, helpWidth-indent) {
			fmt.Fprintf(w, "  %-*s%s\n", indent-2, name, line)
			name = ""
		}
	})
}

// usageLine is how a command is typed.
func usageLine(c *cobra.Command) string {
	switch _, args, _ := strings.Cut(c.Use, " "); {
	case !c.HasParent():
		return "trestle COMMAND [flags]"
	case c.HasSubCommands():
		return c.CommandPath() + " VERB [flags]"
	case args != "":
		return c.CommandPath() + " " + args + " [flags]"
	}
	return c.CommandPath() + " [flags]"
}

// longHelp is what a command does, in full.
func longHelp(c *cobra.Command) string {
	text := c.Long
	if text == "" {
		text = sentence(c.Short)
	}
	parts := strings.Split(text, "\n\n")
	for i, part := range parts {
		if !strings.HasPrefix(part, " ") && !strings.Contains(part, "\n ") { // else it is set as it is to be
			parts[i] = strings.Join(wrap(part, helpWidth), "\n")
		}
	}
	return strings.Join(parts, "\n\n")
}

// sentence makes one of the short help of a command, nothing of none.
func sentence(short string) string {
	if short == "" {
		return ""
	}
	return strings.ToUpper(short[:1]) + short[1:] + "."
}

// verbsOf returns what can be typed after a command: of the root the commands, of
// others everything below that does something.
func verbsOf(c *cobra.Command) (out []*cobra.Command) {
	for _, v := range c.Commands() {
		switch {
		case v.Hidden:
		case c.HasParent() && v.HasSubCommands():
			out = append(out, verbsOf(v)...)
		default:
			out = append(out, v)
		}
	}
	return out
}

// flagsOf returns the flags of a command by whose they are: its own, settings, and
// those of the group that it is in.
func flagsOf(c *cobra.Command) (own, shared, group *pflag.FlagSet) {
	set := func() *pflag.FlagSet {
		f := pflag.NewFlagSet(c.Name(), pflag.ContinueOnError)
		f.SortFlags = false
		return f
	}
	own, shared, group = set(), set(), set()
	if c.HasSubCommands() {
		return own, shared, c.PersistentFlags()
	}
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) { group.AddFlag(f) })
	c.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "help" || group.Lookup(f.Name) != nil:
		case settings.IsSetting(f):
			shared.AddFlag(f)
		default:
			own.AddFlag(f)
		}
	})
	return own, shared, group
}

// wrap breaks text into lines of at most width characters.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// shells are those for which there are completion scripts.
var shells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
}

const completionHelp = `Prints what makes a shell complete the command line of trestle. For this session
of bash, which needs the package bash-completion:

  source <(trestle completion bash)`

// completionCommand prints the script by which a shell completes command lines.
func completionCommand(p *process) *cobra.Command {
	names := slices.Sorted(maps.Keys(shells))
	c := p.verb("completion SHELL", "print the completion script of bash, zsh or fish", completionHelp, nil, func(c *cobra.Command, args []string) int {
		script := shells[args[0]]
		if script == nil {
			return p.misused(errors.New("trestle completion takes the name of a shell: " + strings.Join(names, ", ")))
		}
		if err := script(c.Root(), p.stdout); err != nil {
			return p.failed(err)
		}
		return exitOK
	})
	c.ValidArgs = names
	return c
}
