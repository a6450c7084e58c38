package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

const tabletHelp = `Shows tablets and changes them. A tablet is named by its id, as list prints it, or
by its table and a row that it serves: --table TABLE --key KEY. With --all the
tablets of --table are meant.

TABLE is the full name of a table or, if no other is called so, the last part of
it. In KEY, \xNN stands for any byte and \\ for a backslash. An interrupt cancels
what was begun.`

// tabletCommand shows tablets and changes them.
func tabletCommand(p *process) *cobra.Command {
	split := newTablets("split")
	split.splits = true
	split.f.StringVar(&split.key, "key", "", "`KEY` of the row to split at, the first of the second part; if TABLET is given, its middle by default")
	merge, move := newTablets("merge").one(), newTablets("move").one()
	pin := move.f.Bool("pin", false, "leave it there until another move")
	drop := newTablets("drop-damaged") // any tablet of its table leads to the SSTable
	object := drop.f.String("object", "", "`NAME` of the SSTable, as verify names it")
	yes := drop.f.Bool("yes", false, "lose what the SSTable holds")
	list := pflag.NewFlagSet("list", pflag.ContinueOnError)
	list.SortFlags = false
	table := list.String("table", "", "only those of this `TABLE`")
	wide := list.Bool("wide", false, "print all there is to know, and keys in full")
	changes := list.Bool("changes", false, "print what is kept of changes, of tablets that keep any")
	change := func(t *tablets, use, short, long string, run func(c *adminClient, sel ops.Selection, args []string) error) *cobra.Command {
		return p.asks(adminVerb{use: use, short: short, long: long, flags: t.f, limit: changeLimit, check: t.check,
			run: func(c *adminClient, args []string) error { return run(c, t.selection(args), args) }})
	}
	job := func(name, short string) *cobra.Command {
		t := newTablets(name).one()
		t.f.BoolVar(&t.all, "all", false, "all tablets of --table")
		return p.asks(adminVerb{use: name + " [TABLET]", short: short, flags: t.f, check: t.check, run: func(c *adminClient, args []string) error {
			sel := t.selection(args)
			return c.await("/admin/tablets/"+name, sel, name+" "+called(sel))
		}})
	}
	move.after = 1
	return p.group("tablet", "list, split, merge, move, compact, flush or verify tablets", tabletHelp,
		p.asks(adminVerb{use: "list", short: "print the tablets of --table, or all", flags: list, limit: changeLimit,
			run: func(c *adminClient, _ []string) error { return c.list(*table, *wide, *changes) }}),
		change(split, "split [TABLET]", "split a tablet in two", "Splits a tablet at --key, or in its middle.", func(c *adminClient, sel ops.Selection, _ []string) error {
			return c.change(sel, func(got ops.Changed) string { return "split at " + got.Key })
		}),
		change(merge, "merge [TABLET]", "merge a tablet with the next one of its table", "Merges a tablet with the next one of its table, which is moved to its server first.", func(c *adminClient, sel ops.Selection, _ []string) error {
			return c.change(sel, func(got ops.Changed) string { return "merged with the next one the tablet of " + got.Key })
		}),
		change(move, "move [TABLET] SERVER", "move a tablet to a server", "Moves a tablet to the server of a name, as trestle server list prints it.", func(c *adminClient, sel ops.Selection, args []string) error {
			return c.change(ops.Move{Selection: sel, Server: args[len(args)-1], Pin: *pin}, func(got ops.Changed) string {
				return fmt.Sprintf("the tablet of %s is served by %s", got.Key, got.Server)
			})
		}),
		job("compact", "rewrite tablets without what is deleted or expired"),
		job("flush", "write memtables of tablets to SSTables"),
		job("verify", "check the checksums of all SSTables of tablets"),
		change(drop, "drop-damaged [TABLET]", "forget a damaged SSTable, and lose what only it holds", "Forgets the damaged SSTable --object of --table, or of the table of TABLET: what\nonly it holds is lost, and --yes confirms that.", func(c *adminClient, sel ops.Selection, _ []string) error {
			return c.dropDamaged(sel, *object, *yes)
		}),
	)
}

// tablets are the flags and arguments that name tablets.
type tablets struct {
	f          *pflag.FlagSet
	table, key string
	all        bool
	splits     bool // key is where the tablet is split, also that of an id
	after      int  // how many arguments follow that of a tablet
}

// newTablets returns those of a verb that takes a tablet by its id, or a table.
func newTablets(verb string) *tablets {
	t := &tablets{f: pflag.NewFlagSet(verb, pflag.ContinueOnError)}
	t.f.SortFlags = false
	t.f.StringVar(&t.table, "table", "", "the `TABLE`")
	return t
}

// one adds the flag that names one tablet of --table.
func (t *tablets) one() *tablets {
	t.f.StringVar(&t.key, "key", "", "`KEY` of a row of --table: the tablet that serves it is meant")
	return t
}

// check returns what is wrong with them that needs no server to see.
func (t *tablets) check(args []string) error {
	id, key := len(args) > t.after, t.f.Changed("key")
	switch {
	case id == (t.table != ""):
		return errors.New("name a tablet: either by its id TABLET, or by --table and --key")
	case id && key && !t.splits:
		return errors.New("--key goes with --table: TABLET names the tablet already")
	case id && t.all:
		return errors.New("--all goes with --table: TABLET names one tablet")
	case key && t.all:
		return errors.New("--key and --all exclude each other: one tablet of --table, or all")
	case !id && !key && !t.all && t.f.Lookup("all") != nil:
		return errors.New("give --key or --all: which tablets of --table are meant")
	case !id && !key && !t.all && t.f.Lookup("key") != nil:
		return errors.New("give --key: which tablet of --table is meant")
	}
	return nil
}

// selection returns what they name.
func (t *tablets) selection(args []string) ops.Selection {
	s := ops.Selection{Table: t.table, All: t.all}
	if len(args) > t.after {
		s.Tablet = args[0]
	}
	if t.f.Changed("key") {
		s.Key = &t.key
	}
	return s
}

// called is how a person calls what is selected.
func called(s ops.Selection) string {
	if s.Tablet != "" {
		return "tablet " + s.Tablet
	}
	return s.Table
}

func (c *adminClient) list(table string, wide, changes bool) error {
	var got ops.TabletList
	if err := c.call(c.ctx, http.MethodGet, "/admin/tablets?table="+url.QueryEscape(table), nil, &got); err != nil {
		return err
	}
	if changes {
		got.Tablets = slices.DeleteFunc(got.Tablets, func(t ops.Tablet) bool { return t.Changes == nil })
		got.Total = len(got.Tablets)
	}
	if c.json {
		return c.print(got)
	}
	for rest := got.Tablets; len(rest) > 0; {
		n, size := 0, int64(0)
		for n < len(rest) && rest[n].Table == rest[0].Table {
			if changes {
				size += rest[n].Changes.Bytes
			} else {
				size += rest[n].Bytes
			}
			n++
		}
		if len(rest) < len(got.Tablets) {
			fmt.Fprintln(c.p.stdout)
		}
		fmt.Fprintf(c.p.stdout, "%s: %s, %s\n", rest[0].Table, several(n, "tablet", "s"), byteSize(size))
		show := printTablets
		if changes {
			show = printChanges
		}
		if err := show(c.p.stdout, rest[:n], wide); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// printTablets prints a table that fits a terminal of 80 columns, unless it is to
// be wide.
func printTablets(out io.Writer, list []ops.Tablet, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	cluster := slices.ContainsFunc(list, func(t ops.Tablet) bool { return t.Server != "" })
	head, key := "  TABLET\tFROM\tTO\tSIZE\tREAD/S\tWRITE/S", keysFor(out, wide, 0)
	if wide {
		head = "  TABLET\tFROM\tTO\tSIZE\tMEMORY\tRUNS\tFILES\tREAD/S\tWRITE/S\tLAST MAJOR\tREDO"
	}
	if cluster {
		head += "\tSERVER"
	}
	fmt.Fprintln(w, head)
	for _, t := range list {
		fmt.Fprintf(w, "  %s\t[%s\t%s)\t%s", t.Tablet, key(t.Start), key(t.End), byteSize(t.Bytes))
		if wide {
			fmt.Fprintf(w, "\t%s\t%d\t%d", byteSize(t.MemtableBytes), t.Runs, t.Files)
		}
		fmt.Fprintf(w, "\t%s\t%s", rate(t.RowsReadPerSecond), rate(t.RowsWrittenPerSecond))
		if wide {
			major := "-"
			if t.LastMajor != nil {
				major = t.LastMajor.UTC().Format(clockTime)
			}
			fmt.Fprintf(w, "\t%s\t%s", major, cmp.Or(t.Redo, "-"))
		}
		if cluster {
			fmt.Fprintf(w, "\t%s", cmp.Or(t.Server, "-"))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// printChanges prints what tablets keep of changes.
func printChanges(out io.Writer, list []ops.Tablet, wide bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	key := keysFor(out, wide, 0)
	fmt.Fprintln(w, "  TABLET\tFROM\tTO\tSIZE\tFILES\tSINCE\tNEWEST IN FILE")
	for _, t := range list {
		newest := "-"
		if n := t.Changes.Newest; n != nil {
			newest = n.UTC().Format(clockTime)
		}
		fmt.Fprintf(w, "  %s\t[%s\t%s)\t%s\t%d\t%s\t%s\n", t.Tablet, key(t.Start), key(t.End), byteSize(t.Changes.Bytes), t.Changes.Files, t.Changes.Since.UTC().Format(clockTime), newest)
	}
	return w.Flush()
}

// keyMost is how much of a key a table of 80 columns has room for.
const keyMost = 12

// keysFor returns how a table that is written to out, and may be wide, shows keys: whole if
// it is, or there is no end to a line. A tablet has two keys. more is how many characters the
// other columns have beyond those that fit 80.
func keysFor(out io.Writer, wide bool, more int) func(string) string {
	width := widthOf(out)
	if wide || width == 0 {
		return func(key string) string { return key }
	}
	most := keyMost + max(0, width-80-more)/2
	return func(key string) string { return shortKey(key, most) }
}

// shortKey returns most characters of a key that has more: its beginning, which says
// what it is of, and its end, which tells it from the next one.
func shortKey(key string, most int) string {
	r := []rune(key)
	if len(r) <= most {
		return key
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

func rate(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

// change has a tablet changed, which said tells of.
func (c *adminClient) change(body any, said func(ops.Changed) string) error {
	var got ops.Changed
	if err := c.call(c.ctx, http.MethodPost, "/admin/tablets/"+c.verb, body, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	_, err := fmt.Fprintf(c.p.stdout, "%s: %s\n", got.Table, said(got))
	return err
}

// dropDamaged has a damaged SSTable forgotten.
func (c *adminClient) dropDamaged(sel ops.Selection, object string, yes bool) error {
	in := ops.Drop{Table: sel.Table, Tablet: sel.Tablet, Object: object}
	if yes {
		in.Confirm = object
	}
	var got ops.Dropped
	if err := c.call(c.ctx, http.MethodPost, "/admin/tablets/"+c.verb, in, &got); err != nil {
		if !yes && object != "" {
			err = fmt.Errorf("%w with --yes", err)
		}
		return err
	}
	if c.json {
		return c.print(got)
	}
	_, err := fmt.Fprintf(c.p.stdout, "%s: dropped %s: %d entries (%s) of rows from %s to %s are lost, where no other SSTable has them; deletions among them too\n",
		got.Table, object, got.Entries, byteSize(got.Bytes), got.First, got.Last)
	return err
}
