package functions

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// Describe writes a reference of all functions to w, in Markdown: one table for each
// category, with what messages show as signatures. docs/sql.md is made of it.
func Describe(w io.Writer) error {
	groups := map[string][]*Function{}
	for name, f := range All {
		// An alias is shown beside the name that it is of.
		if strings.EqualFold(name, f.Name) && len(documented(f)) > 0 {
			groups[f.Category] = append(groups[f.Category], f)
		}
	}
	categories := make([]string, 0, len(groups))
	for c := range groups {
		categories = append(categories, c)
	}
	slices.Sort(categories)
	for i, c := range categories {
		separator := "\n"
		if i == 0 {
			separator = ""
		}
		if _, err := fmt.Fprintf(w, "%s### %s\n\n| Function | Returns |\n|---|---|\n", separator, c); err != nil {
			return err
		}
		slices.SortFunc(groups[c], func(a, b *Function) int { return cmp.Compare(a.Name, b.Name) })
		for _, f := range groups[c] {
			if _, err := io.WriteString(w, f.row()); err != nil {
				return err
			}
		}
	}
	return nil
}

// documented returns the signatures that documents show.
func documented(f *Function) []*Signature {
	return slices.DeleteFunc(slices.Clone(f.Signatures), func(s *Signature) bool { return s.Internal })
}

// row returns the function's row of the table.
func (f *Function) row() string {
	var forms []string
	for _, s := range documented(f) {
		forms = append(forms, "`"+f.form(s)+"`")
	}
	text := strings.Join(slices.Compact(forms), "<br>")
	if len(f.Aliases) > 0 {
		text += "<br>also " + strings.Join(f.Aliases, ", ")
	}
	doc := f.Doc
	switch {
	case f.Volatile && f.Kind == Scalar:
		doc += " Each call may give another result."
	case f.Stable:
		doc += " It is the same for the whole statement."
	}
	return "| " + cell(text) + " | " + cell(doc) + " |\n"
}

// cell returns text for a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", `\|`), "\n", " ")
}

// form returns a signature as it is written: STRPOS(STRING, STRING) → INT64, or with an
// operator between its operands.
func (f *Function) form(s *Signature) string {
	var args []string
	for _, a := range s.Args {
		args = append(args, a.form())
	}
	result := ""
	if s.ResultOf == nil {
		result = " → " + s.Result.form()
	}
	operator := f.SQL
	if !strings.HasPrefix(f.Name, "$") || operator == "" {
		name := f.SQL
		if name == "" {
			name = f.Name
		}
		if strings.HasSuffix(name, ")") {
			return name + result
		}
		return name + "(" + strings.Join(args, ", ") + ")" + result
	}
	switch {
	case operator == "CASE":
		if f.Name == "$case_with_value" {
			return "CASE T1 WHEN T1 THEN T2 [...] [ELSE T2] END" + result
		}
		return "CASE WHEN BOOL THEN T1 [...] [ELSE T1] END" + result
	case operator == "BETWEEN":
		return args[0] + " BETWEEN " + args[1] + " AND " + args[2] + result
	case operator == "IN UNNEST" || strings.HasSuffix(f.Name, "_array") && operator != "IN":
		return args[0] + " " + strings.TrimSuffix(operator, " UNNEST") + " UNNEST(" + args[1] + ")" + result
	case operator == "IN" || strings.HasSuffix(operator, " ANY") || strings.HasSuffix(operator, " ALL"):
		return args[0] + " " + operator + " (" + strings.Trim(strings.Join(args[1:], ", "), "[]") + ")" + result
	case strings.HasPrefix(operator, "IS ") && len(args) == 1:
		return args[0] + " " + operator + result
	case len(args) == 1 && len(operator) == 1:
		return operator + args[0] + result
	case len(args) == 1:
		return operator + " " + args[0] + result
	case len(args) == 2:
		return args[0] + " " + operator + " " + strings.TrimSuffix(strings.TrimPrefix(args[1], "["), ", ...]") + result
	}
	return operator + "(" + strings.Join(args, ", ") + ")" + result
}

// form returns the parameter as it is written: [STRING] if it may be left out, name =>
// INT64 if it has a name, [STRING, ...] if it repeats.
func (a Arg) form() string {
	text := a.Type.form()
	if a.Name != "" {
		text = a.Name + " => " + text
	}
	switch {
	case a.Repeated:
		return "[" + text + ", ...]"
	case a.Optional:
		return "[" + text + "]"
	}
	return text
}

func (t Template) form() string {
	switch {
	case t.Type != nil:
		return t.Type.String()
	case t.Any != "":
		return t.Any
	case t.Arbitrary:
		return "any"
	case t.Part:
		return "part"
	case t.Interval:
		return "INTERVAL INT64 part"
	case t.Result != nil:
		var params []string
		for _, p := range t.Lambda {
			params = append(params, p.form())
		}
		text := strings.Join(params, ", ")
		if len(params) != 1 {
			text = "(" + text + ")"
		}
		return text + " -> " + t.Result.form()
	case t.Kind == types.Array && t.Elem != nil:
		return "ARRAY<" + t.Elem.form() + ">"
	case t.Kind == types.Map && t.Key != nil && t.Elem != nil:
		return "MAP<" + t.Key.form() + ", " + t.Elem.form() + ">"
	}
	return t.Kind.String()
}
