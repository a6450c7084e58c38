package sqlshell

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/compat/sqlclient"
	"github.com/trestledb/trestle/gateway/rest"
)

// Formats are the names of the forms of output.
var Formats = []string{"table", "csv", "json"}

// A printer shows a result.
type printer interface {
	begin(sqlclient.Columns) error
	row([]*bigtablepb.Value) error
	end() error
}

func newPrinter(format string, out io.Writer) printer {
	switch format {
	case "csv":
		return &csvPrinter{w: csv.NewWriter(out)}
	case "json":
		return &jsonPrinter{w: bufio.NewWriter(out)}
	}
	return &tablePrinter{out: out}
}

// text writes a value for people. nested says that it is part of another, where
// text needs quotes.
func text(v *bigtablepb.Value, t *bigtablepb.Type, nested bool) string {
	switch k := v.GetKind().(type) {
	case nil:
		return "NULL"
	case *bigtablepb.Value_BoolValue:
		return strconv.FormatBool(k.BoolValue)
	case *bigtablepb.Value_IntValue:
		return strconv.FormatInt(k.IntValue, 10)
	case *bigtablepb.Value_FloatValue:
		if t.GetFloat32Type() != nil {
			return rest.FloatText(k.FloatValue, 32)
		}
		return rest.FloatText(k.FloatValue, 64)
	case *bigtablepb.Value_StringValue:
		if nested {
			return strconv.Quote(k.StringValue)
		}
		return k.StringValue
	case *bigtablepb.Value_BytesValue:
		s := rest.BytesText(k.BytesValue)
		if nested {
			s = `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
		}
		return s
	case *bigtablepb.Value_TimestampValue:
		return k.TimestampValue.AsTime().Format("2006-01-02 15:04:05.999999Z07:00")
	case *bigtablepb.Value_DateValue:
		return fmt.Sprintf("%04d-%02d-%02d", k.DateValue.GetYear(), k.DateValue.GetMonth(), k.DateValue.GetDay())
	case *bigtablepb.Value_ArrayValue:
		var parts []string
		list := k.ArrayValue.GetValues()
		switch kind := t.GetKind().(type) {
		case *bigtablepb.Type_MapType:
			for _, e := range list {
				if kv := e.GetArrayValue().GetValues(); len(kv) == 2 {
					parts = append(parts, text(kv[0], kind.MapType.GetKeyType(), true)+": "+text(kv[1], kind.MapType.GetValueType(), true))
				}
			}
			return "{" + strings.Join(parts, ", ") + "}"
		case *bigtablepb.Type_StructType:
			for i, e := range list {
				f := kind.StructType.GetFields()[min(i, len(kind.StructType.GetFields())-1)]
				part := text(e, f.GetType(), true)
				if f.GetFieldName() != "" {
					part = f.GetFieldName() + ": " + part
				}
				parts = append(parts, part)
			}
			return "(" + strings.Join(parts, ", ") + ")"
		}
		for _, e := range list {
			parts = append(parts, text(e, t.GetArrayType().GetElementType(), true))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return "?"
}

// tablePage is how many rows of a table are seen before the widths of its columns
// are settled.
const tablePage = 1000

// A tablePrinter draws a table.
type tablePrinter struct {
	out     io.Writer
	columns sqlclient.Columns
	rows    [][]string
	widths  []int
	right   []bool
	settled bool
	n       int
}

func (p *tablePrinter) begin(c sqlclient.Columns) error {
	p.columns = c
	var names []string
	for _, col := range c {
		names = append(names, clean(col.GetName()))
		_, isInt := col.GetType().GetKind().(*bigtablepb.Type_Int64Type)
		_, isFloat := col.GetType().GetKind().(*bigtablepb.Type_Float64Type)
		_, isFloat32 := col.GetType().GetKind().(*bigtablepb.Type_Float32Type)
		p.right = append(p.right, isInt || isFloat || isFloat32)
	}
	p.rows = append(p.rows, names)
	return nil
}

// clean keeps a cell on its line.
func clean(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (p *tablePrinter) row(vs []*bigtablepb.Value) error {
	cells := make([]string, len(vs))
	for i, v := range vs {
		cells[i] = clean(text(v, p.columns[i].GetType(), false))
	}
	p.rows = append(p.rows, cells)
	p.n++
	if len(p.rows) >= tablePage {
		return p.flush()
	}
	return nil
}

func (p *tablePrinter) flush() error {
	head := !p.settled
	if head {
		p.widths = make([]int, len(p.columns))
		for _, r := range p.rows {
			for i, c := range r {
				p.widths[i] = max(p.widths[i], utf8.RuneCountInString(c))
			}
		}
		p.settled = true
	}
	var b strings.Builder
	for n, r := range p.rows {
		for i, c := range r {
			if i > 0 {
				b.WriteString(" |")
			}
			b.WriteByte(' ')
			space := strings.Repeat(" ", max(0, p.widths[i]-utf8.RuneCountInString(c)))
			switch {
			case p.right[i]:
				b.WriteString(space + c)
			case i == len(r)-1:
				b.WriteString(c)
			default:
				b.WriteString(c + space)
			}
		}
		b.WriteByte('\n')
		if head && n == 0 {
			for i, w := range p.widths {
				if i > 0 {
					b.WriteByte('+')
				}
				b.WriteString(strings.Repeat("-", w+2))
			}
			b.WriteByte('\n')
		}
	}
	p.rows = p.rows[:0]
	_, err := io.WriteString(p.out, b.String())
	return err
}

func (p *tablePrinter) end() error {
	if err := p.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(p.out, "(%s)\n", rows(p.n))
	return err
}

// rows returns a number of rows as people say it.
func rows(n int) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

// A csvPrinter writes RFC 4180, with a line of names first. NULL is an empty cell.
type csvPrinter struct {
	w       *csv.Writer
	columns sqlclient.Columns
}

func (p *csvPrinter) begin(c sqlclient.Columns) error {
	p.columns = c
	names := make([]string, len(c))
	for i, col := range c {
		names[i] = col.GetName()
	}
	return p.w.Write(names)
}

func (p *csvPrinter) row(vs []*bigtablepb.Value) error {
	cells := make([]string, len(vs))
	for i, v := range vs {
		if v.GetKind() != nil {
			cells[i] = text(v, p.columns[i].GetType(), false)
		}
	}
	return p.w.Write(cells)
}

func (p *csvPrinter) end() error {
	p.w.Flush()
	return p.w.Error()
}

// A jsonPrinter writes an object a line. sqlclient.Columns without a name, and further ones of
// the same name, are called by their number.
type jsonPrinter struct {
	w       *bufio.Writer
	columns sqlclient.Columns
	names   [][]byte
}

func (p *jsonPrinter) begin(c sqlclient.Columns) error {
	p.columns = c
	used := map[string]bool{}
	for i, col := range c {
		name := col.GetName()
		if name == "" || used[name] {
			name = fmt.Sprintf("column_%d", i+1)
		}
		used[name] = true
		p.names = append(p.names, quoted(name))
	}
	return nil
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string has JSON
	}
	return b
}

func (p *jsonPrinter) row(vs []*bigtablepb.Value) error {
	b := []byte("{")
	for i, v := range vs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, p.names[i]...), ':')
		b = rest.AppendValue(b, v, p.columns[i].GetType())
	}
	_, err := p.w.Write(append(b, '}', '\n'))
	return err
}

func (p *jsonPrinter) end() error { return p.w.Flush() }
