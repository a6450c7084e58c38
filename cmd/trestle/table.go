package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

const tableHelp = `Usage: trestle table VERB --table TABLE [--group GROUP] [--families A,B] [settings] [--admin URL] [--ca FILE]
                          [--credentials FILE] [--json]

  describe      print the locality groups of a table
  create-group  make a group, of --families if given, with settings
  set-group     change settings of a group
  assign        move --families to a group
  delete-group  remove a group that has no families

Families in a locality group have SSTables of their own: reads of other families do not touch them. The group "default" has
the families that are in no other. Settings apply to SSTables written from now on, in-memory to all; "default" is the server's.
TABLE is the full name of a table or, if no other table is called so, the last part of it.`

var tableVerbs = []string{"describe", "create-group", "set-group", "assign", "delete-group"}

// table shows and sets the locality groups of a table.
func table(p *process, args []string) int {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	flags := settings.NewFlags("table " + verb)
	var c ops.GroupChange
	flags.StringVar(&c.Table, "table", "", "the table")
	flags.StringVar(&c.Group, "group", "", "the locality group")
	flags.StringSliceVar(&c.Families, "families", nil, "families, separated by commas")
	block := flags.String("block-size", "", "length of a block before compression, such as 8KiB, or default")
	compression := flags.String("compression", "", "none, snappy, minlz, zstd or default")
	bloom := flags.String("bloom", "", "bits per row of the Bloom filter, off or default")
	inMemory := flags.Bool("in-memory", false, "keep the SSTables in memory, as far as there is room")
	admin := flags.String("admin", "", "where the server's admin service is; by default http-listen")
	asJSON := flags.Bool("json", false, "print what the server answers")
	var l login
	l.flags(flags.FlagSet, p)
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, tableHelp)
		return exitOK
	}
	if flags.Changed("in-memory") {
		c.InMemory = inMemory
	}
	if err == nil {
		err = groupSettings(&c, *block, *compression, *bloom)
	}
	if err == nil {
		err = checkTableVerb(verb, &c)
	}
	if err != nil {
		return p.misused(err)
	}
	return p.withAdmin(cfg, *admin, &l, func(a *adminClient) error {
		a.json = *asJSON
		return a.table(verb, &c)
	})
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

// checkTableVerb returns what is wrong with a command line.
func checkTableVerb(verb string, c *ops.GroupChange) error {
	set := c.BlockBytes != nil || c.Compression != nil || c.BloomBits != nil || c.InMemory != nil
	switch verb {
	case "describe":
		if c.Group != "" || len(c.Families) > 0 || set {
			return errors.New("describe takes --table only")
		}
	case "create-group":
	case "set-group":
		if !set || len(c.Families) > 0 {
			return errors.New("set-group takes settings: --block-size, --compression, --bloom, --in-memory")
		}
	case "assign":
		if len(c.Families) == 0 || set {
			return errors.New("assign takes --families, and no settings")
		}
	case "delete-group":
		if len(c.Families) > 0 || set {
			return errors.New("delete-group takes --table and --group only")
		}
	default:
		return errors.New("table takes a verb: " + strings.Join(tableVerbs, ", "))
	}
	if c.Table == "" {
		return errors.New("give --table")
	}
	if c.Group == "" && verb != "describe" {
		return errors.New("give --group")
	}
	return nil
}

func (c *adminClient) table(verb string, change *ops.GroupChange) error {
	var got ops.Table
	var err error
	if verb == "describe" {
		err = c.call(c.ctx, http.MethodGet, "/admin/table?table="+url.QueryEscape(change.Table), nil, &got)
	} else {
		err = c.call(c.ctx, http.MethodPost, "/admin/table/"+verb, change, &got)
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
	fmt.Fprintln(w, "  GROUP\tFAMILIES\tBLOCKS\tCOMPRESSION\tBLOOM\tIN MEMORY\tSIZE\tRUNS\tFILES")
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
