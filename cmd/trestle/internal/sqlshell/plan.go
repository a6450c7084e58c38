package sqlshell

import (
	"fmt"
	"io"
	"strings"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// isPlan tells whether a result is that of EXPLAIN: its first columns are an
// operator, indented as it is below others, and what it does.
func isPlan(c sqlclient.Columns) bool {
	return len(c) > 2 && c[0].GetName() == "operator" && c[1].GetName() == "detail"
}

// A planPrinter draws the operators of a plan as a tree, each with what is known of
// it.
type planPrinter struct {
	out     io.Writer
	columns sqlclient.Columns
}

func (p *planPrinter) begin(c sqlclient.Columns) error {
	p.columns = c
	return nil
}

func (p *planPrinter) row(vs []*bigtablepb.Value) error {
	operator := vs[0].GetStringValue()
	indent := operator[:len(operator)-len(strings.TrimLeft(operator, " "))]
	branch := indent
	if branch != "" {
		branch = indent[2:] + "└ "
	}
	var b strings.Builder
	b.WriteString(branch + operator[len(indent):])
	if d := vs[1].GetStringValue(); d != "" {
		b.WriteString("  " + clean(d))
	}
	var known []string
	for i := 2; i < len(vs); i++ {
		name := strings.ReplaceAll(p.columns[i].GetName(), "_", " ")
		switch s := text(vs[i], p.columns[i].GetType(), false); {
		case vs[i].GetKind() == nil, s == "", s == "0" && strings.HasSuffix(name, "bytes"):
		case name == "warning":
			fmt.Fprintf(&b, "\n%s    WARNING: %s", indent, clean(s))
		default:
			known = append(known, name+" "+clean(s))
		}
	}
	if len(known) > 0 {
		fmt.Fprintf(&b, "\n%s    %s", indent, strings.Join(known, ", "))
	}
	_, err := fmt.Fprintln(p.out, b.String())
	return err
}

func (p *planPrinter) end() error { return nil }
