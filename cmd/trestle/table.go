package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

const tableHelp = `Shows tables, and shows and sets the locality groups of one.

Families in a locality group have SSTables of their own: reads of other families
do not touch them. The group "default" has the families that are in no other.
Settings apply to SSTables written from now on, in-memory to all; "default" is
the server's. TABLE is the full name of a table or, if no other table is called
so, the last part of it.`

// tableCommand shows tables, and sets the locality groups of one.
func tableCommand(p *process) *cobra.Command {
	// verb returns one that is about --table; with, the words of with, it has --group,
	// --families, and the settings of a group.
	verb := func(name, short string, with ...string) *cobra.Command {
		f := pflag.NewFlagSet(name, pflag.ContinueOnError)
		f.SortFlags = false
		var g ops.GroupChange
		f.StringVar(&g.Table, "table", "", "the `TABLE`")
		if len(with) > 0 {
			f.StringVar(&g.Group, "group", "", "the locality `GROUP`")
		}
		if slices.Contains(with, "families") {
			f.StringSliceVar(&g.Families, "families", nil, "families, separated by commas")
		}
		var block, compression, bloom string
		var inMemory bool
		if slices.Contains(with, "settings") {
			f.StringVar(&block, "block-size", "", "length of a block before compression, such as 8KiB, or default")
			f.StringVar(&compression, "compression", "", "none, snappy, minlz, zstd or default")
			f.StringVar(&bloom, "bloom", "", "bits per row of the Bloom filter, off or default")
			f.BoolVar(&inMemory, "in-memory", false, "keep the SSTables in memory, as far as there is room")
		}
		fresh := ""
		if name == "create-group" {
			fresh = "GROUP"
		}
		return p.asks(adminVerb{use: name, short: short, flags: f, limit: changeLimit, fresh: fresh,
			check: func([]string) error {
				if f.Changed("in-memory") {
					g.InMemory = &inMemory
				}
				return errors.Join(groupSettings(&g, block, compression, bloom), checkTableVerb(name, &g))
			},
			run: func(c *adminClient, _ []string) error { return c.table(&g) }})
	}
	return p.group("table", "list tables, or show and set the locality groups of one", tableHelp,
		p.asks(adminVerb{use: "list", short: "print the tables", limit: changeLimit, run: (*adminClient).tables}),
		verb("describe", "print the locality groups of a table"),
		verb("create-group", "make a group, of --families if given, with settings", "group", "families", "settings"),
		verb("set-group", "change settings of a group", "group", "settings"),
		verb("assign", "move --families to a group", "group", "families"),
		verb("delete-group", "remove a group that has no families", "group"),
	)
}

// tables prints the tables that the caller may know of.
func (c *adminClient) tables([]string) error {
	var got ops.TabletList
	if err := c.call(c.ctx, http.MethodGet, "/admin/tablets", nil, &got); err != nil {
		return err
	}
	type table struct {
		Table   string `json:"table"`
		Tablets int    `json:"tablets"`
		Bytes   int64  `json:"bytes"`
	}
	list := []table{}
	for _, t := range got.Tablets {
		if n := len(list); n == 0 || list[n-1].Table != t.Table {
			list = append(list, table{Table: t.Table})
		}
		last := &list[len(list)-1]
		last.Tablets++
		last.Bytes += t.Bytes
	}
	if c.json {
		return c.print(map[string]any{"tables": list})
	}
	w := tabwriter.NewWriter(c.p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLETS\tSIZE\tTABLE") // the name, which can be long, last
	for _, t := range list {
		fmt.Fprintf(w, "%d\t%s\t%s\n", t.Tablets, byteSize(t.Bytes), t.Table)
	}
	return w.Flush()
}

// groupSettings puts the settings into c that are not empty.
func groupSettings(c *ops.GroupChange, block, compression, bloom string) error {
	const deflt = "default"
	var errs []error
	if block != "" {
		n := int64(0)
		if block != deflt {
			var err error
			if n, err = settings.ParseBytes(block); err == nil && (n <= 0 || n > 1<<30) {
				err = errors.New("it must be positive, and not beyond reason")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("--block-size %s: %w", block, err))
			}
		}
		size := int(n)
		c.BlockBytes = &size
	}
	if compression != "" {
		if compression == deflt {
			compression = ""
		}
		c.Compression = &compression
	}
	if bloom != "" {
		bits := 0
		switch bloom {
		case deflt:
		case "off":
			bits = -1
		default:
			n, err := strconv.Atoi(bloom)
			if err != nil || n <= 0 {
				errs = append(errs, fmt.Errorf("--bloom %s: give a number of bits, off or default", bloom))
			}
			bits = n
		}
		c.BloomBits = &bits
	}
	return errors.Join(errs...)
}

// checkTableVerb returns what is wrong with the flags of a verb.
func checkTableVerb(verb string, g *ops.GroupChange) error {
	switch {
	case g.Table == "":
		return errors.New("give --table")
	case g.Group == "" && verb != "describe":
		return errors.New("give --group")
	case verb == "set-group" && g.BlockBytes == nil && g.Compression == nil && g.BloomBits == nil && g.InMemory == nil:
		return errors.New("set-group takes settings: --block-size, --compression, --bloom, --in-memory")
	case verb == "assign" && len(g.Families) == 0:
		return errors.New("assign takes --families")
	}
	return nil
}

// table describes a table, after a change unless that is not what the verb is for.
func (c *adminClient) table(g *ops.GroupChange) error {
	var got ops.Table
	var err error
	if c.verb == "describe" {
		err = c.call(c.ctx, http.MethodGet, "/admin/table?table="+url.QueryEscape(g.Table), nil, &got)
	} else {
		err = c.call(c.ctx, http.MethodPost, "/admin/table/"+c.verb, g, &got)
	}
	if err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	return printGroups(c.p.stdout, &got)
}

func printGroups(out io.Writer, t *ops.Table) error {
	fmt.Fprintln(out, t.Table)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  GROUP\tFAMILIES\tBLOCKS\tCODEC\tBLOOM\tMEMORY\tSIZE\tRUNS\tFILES")
	for _, g := range t.Groups {
		if g.Name == "" {
			fmt.Fprintf(w, "  (to be divided)\tany\t\t\t\t\t%s\t%d\t%d\n", byteSize(g.Bytes), g.Runs, g.Files)
			continue
		}
		block, compression, bloom, memory := "default", g.Compression, "default", "-"
		if g.BlockBytes > 0 {
			block = byteSize(int64(g.BlockBytes))
		}
		if compression == "" {
			compression = "default"
		}
		switch {
		case g.BloomBits < 0:
			bloom = "off"
		case g.BloomBits > 0:
			bloom = fmt.Sprintf("%d bits", g.BloomBits)
		}
		if g.InMemory {
			memory = byteSize(g.InMemoryBytes)
		}
		families := strings.Join(g.Families, ",")
		if families == "" {
			families = "-"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", g.Name, families, block, compression, bloom, memory, byteSize(g.Bytes), g.Runs, g.Files)
	}
	return w.Flush()
}
