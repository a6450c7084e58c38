package sqlshell

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/compat/sqlclient"
	"github.com/trestledb/trestle/gateway/rest"
)

// A Shell runs statements and its own commands.
type Shell struct {
	Client *Client
	// Out gets results, Err prompts and errors.
	Out, Err io.Writer
	Format   string // one of Formats
	Timing   bool
	Params   Params
	// Prompt says that a person types: it is prompted, and goes on after errors.
	Prompt bool
}

const help = `A statement ends with a semicolon, and may have several lines.

\d             tables and views
\d NAME        columns of a table or view
\set NAME=TEXT, \set NAME:TYPE=TEXT
               set a parameter, which statements call @NAME; \set lists them
\unset NAME    unset a parameter
\format FORM   table, csv or json
\timing        show how long statements take, or no longer
\r             forget what was typed of a statement
\q             leave

Ctrl-C ends the statement or command that runs, and else the shell. A statement that
writes may have written some rows by then, or all.
`

// errQuit ends the shell.
var errQuit = errors.New("quit")

// Run reads statements from in until it ends. Unless a person types it ends with
// the first error.
func (s *Shell) Run(ctx context.Context, in io.Reader) error {
	r := bufio.NewReader(in)
	var pending strings.Builder
	for {
		if s.Prompt {
			prompt := "sql> "
			if pending.Len() > 0 {
				prompt = "  -> "
			}
			fmt.Fprint(s.Err, prompt)
		}
		line, err := r.ReadString('\n')
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return err
		}
		err = nil
		trimmed := strings.TrimSpace(line)
		switch {
		case s.Prompt && (trimmed == `\r` || trimmed == `\q`):
			// Also within a literal: who forgot the end of one could not leave it.
			pending.Reset()
			err = s.command(ctx, trimmed)
		case pending.Len() == 0 && strings.HasPrefix(trimmed, `\`):
			err = s.interruptible(ctx, func(ctx context.Context) error { return s.command(ctx, trimmed) })
		default:
			pending.WriteString(line)
			var statements []string
			var rest string
			statements, rest = Split(pending.String())
			pending.Reset()
			pending.WriteString(rest)
			switch {
			case blank(rest):
				pending.Reset()
			case ended:
				statements = append(statements, rest)
			}
			for _, st := range statements {
				if err = s.interruptible(ctx, func(ctx context.Context) error { return s.run(ctx, st) }); err != nil {
					break
				}
			}
		}
		switch {
		case errors.Is(err, errQuit):
			return nil
		case err != nil && !s.Prompt:
			return err
		case err != nil:
			fmt.Fprintln(s.Err, err)
		}
		if ended || ctx.Err() != nil {
			if s.Prompt {
				fmt.Fprintln(s.Err)
			}
			return nil
		}
	}
}

// errInterrupted is the error of what a person has ended.
var errInterrupted = errors.New("interrupted")

// interruptible calls do, whose context ends when a person who types sends SIGINT.
func (s *Shell) interruptible(ctx context.Context, do func(context.Context) error) error {
	if !s.Prompt {
		return do(ctx)
	}
	own, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	err := do(own)
	if err == nil || own.Err() == nil || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, errMayHaveWritten) {
		return fmt.Errorf("%w; %w", errInterrupted, errMayHaveWritten)
	}
	return errInterrupted
}

// errMayHaveWritten is of a statement that writes, and whose outcome the server did not tell.
var errMayHaveWritten = errors.New("the statement may have written all its rows, or some")

// run is Statement, with errors for people.
func (s *Shell) run(ctx context.Context, text string) error {
	err := s.Statement(ctx, text)
	untold := ctx.Err() != nil || status.Code(err) == codes.Unavailable
	if err = s.tell(err); err != nil && untold && sqlclient.Writes(text) {
		return fmt.Errorf("%w; %w", err, errMayHaveWritten)
	}
	return err
}

// tell writes what a server answered as an error for people.
func (s *Shell) tell(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	text := fmt.Sprintf("%s: %s", st.Code(), st.Message())
	for _, h := range hints {
		// A server's own proposal is closer.
		if strings.Contains(st.Message(), h.in) && !strings.Contains(st.Message(), "; Did you mean ") {
			return fmt.Errorf("%s\n%s", text, h.hint)
		}
	}
	return errors.New(text)
}

// hints say what to write in place of what people often try first. Messages of servers
// do not: they have GoogleSQL's words.
var hints = []struct{ in, hint string }{
	{"Statement not supported: ShowStatement", `Hint: \d lists tables and views.`},
	{"Statement not supported: DescribeStatement", `Hint: \d NAME lists the columns of a table or view.`},
	{"Unexpected keyword DESC [at 1:1]", `Hint: \d NAME lists the columns of a table or view.`},
	{"Table not found: INFORMATION_SCHEMA.", `Hint: \d lists tables and views.`},
	{"TableStatement [at 1:1]", "Hint: tables are made, altered and deleted through the admin API, as by cbt."},
	{"Statement not supported: TruncateStatement", "Hint: DELETE FROM … WHERE TRUE deletes all rows."},
	{"must have a WHERE clause", "Hint: WHERE TRUE means all rows."},
	{"on a value with type MAP<BYTES, ", "Hint: a column of a family is written family['column']."},
	{"Unrecognized name: ", "Hint: a column of a family is written family['column']."},
	{"Query parameter '", `Hint: --param NAME:TYPE=TEXT gives parameters, and \set NAME:TYPE=TEXT in the shell.`},
	{"STRING and BYTES are different types", "Hint: a parameter is of BYTES if it is given as NAME:BYTES=TEXT."},
}

// Split cuts text behind the semicolons that end statements, and returns what is
// left. Statements of nothing are left out.
func Split(text string) (statements []string, rest string) {
	start := 0
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ';':
			if st := text[start:i]; !blank(st) {
				statements = append(statements, strings.TrimSpace(st))
			}
			i++
			start = i
		case c == '#', strings.HasPrefix(text[i:], "--"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return statements, text[start:]
			}
			i += end
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return statements, text[start:]
			}
			i += end + 4
		case c == '"' || c == '\'' || c == '`':
			end := quotedEnd(text, i)
			if end < 0 {
				return statements, text[start:]
			}
			i = end
		default:
			i++
		}
	}
	return statements, text[start:]
}

// blank tells whether text is nothing but space and comments that end.
func blank(text string) bool {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		switch {
		case text[0] == '#', strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			_, rest, ended := strings.Cut(text[2:], "*/")
			if !ended {
				return false
			}
			text = rest
		default:
			return false
		}
	}
	return true
}

// quotedEnd returns where the literal ends that begins at i, -1 if it does not.
func quotedEnd(text string, i int) int {
	quote := text[i : i+1]
	if triple := strings.Repeat(quote, 3); quote != "`" && strings.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for j := i + len(quote); j < len(text); {
		switch {
		case text[j] == '\\':
			j += 2
		case strings.HasPrefix(text[j:], quote):
			return j + len(quote)
		default:
			j++
		}
	}
	return -1
}

// Statement runs one statement and shows its result.
func (s *Shell) Statement(ctx context.Context, text string) error {
	start := time.Now()
	text = strings.TrimSuffix(strings.TrimSpace(text), ";")
	p := newPrinter(s.Format, s.Out)
	var n int
	begin := func(c sqlclient.Columns) error {
		if s.Format == "table" && isPlan(c) {
			p = &planPrinter{out: s.Out}
		}
		return p.begin(c)
	}
	err := s.Client.Query(ctx, text, s.used(text), begin, func(vs []*bigtablepb.Value) error {
		n++
		return p.row(vs)
	})
	if err == nil {
		err = p.end()
	}
	if err == nil && s.Timing {
		fmt.Fprintf(s.Err, "%s in %v\n", rows(n), time.Since(start).Round(10*time.Microsecond))
	}
	return err
}

// used returns the parameters that text may have.
func (s *Shell) used(text string) sqlclient.Params {
	out := sqlclient.Params{}
	lower := strings.ToLower(text)
	for name, p := range s.Params {
		if strings.Contains(lower, "@"+strings.ToLower(name)) || strings.Contains(lower, "@`"+strings.ToLower(name)) {
			out[name] = p.Param
		}
	}
	return out
}

// command does what a line with a backslash says.
func (s *Shell) command(ctx context.Context, line string) error {
	name, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSuffix(strings.TrimSpace(arg), ";")
	switch name {
	case `\q`, `\quit`:
		return errQuit
	case `\r`: // nothing was typed, or it was forgotten
	case `\?`, `\h`, `\help`:
		_, err := io.WriteString(s.Out, help)
		return err
	case `\d`:
		if arg != "" {
			return s.tell(s.describe(ctx, arg))
		}
		return s.tell(s.list(ctx))
	case `\timing`:
		s.Timing = !s.Timing
		fmt.Fprintf(s.Err, "timing is %s\n", map[bool]string{true: "on", false: "off"}[s.Timing])
	case `\format`:
		if !slices.Contains(Formats, arg) {
			return fmt.Errorf("%q is no format: %s are", arg, strings.Join(Formats, ", "))
		}
		s.Format = arg
	case `\set`:
		if arg == "" {
			for _, n := range slices.Sorted(maps.Keys(s.Params)) {
				fmt.Fprintln(s.Out, s.Params[n].Text)
			}
			return nil
		}
		return s.Params.Set(arg)
	case `\unset`:
		delete(s.Params, arg)
	default:
		return fmt.Errorf(`%s is no command; \? lists them`, name)
	}
	return nil
}

func (s *Shell) list(ctx context.Context) error {
	tables, views, err := s.Client.tables(ctx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		fmt.Fprintln(s.Out, t)
	}
	for _, v := range views {
		fmt.Fprintf(s.Out, "%s (view)\n", v)
	}
	if len(tables)+len(views) == 0 {
		fmt.Fprintf(s.Err, "%s has no tables\n", s.Client.Instance)
	}
	return nil
}

func (s *Shell) describe(ctx context.Context, table string) error {
	table = strings.Trim(table, "`")
	var columns sqlclient.Columns
	err := s.Client.Query(ctx, "SELECT * FROM `"+table+"` LIMIT 0", nil, func(c sqlclient.Columns) error { columns = c; return nil },
		func([]*bigtablepb.Value) error { return nil })
	if err != nil {
		return err
	}
	width := 0
	for _, c := range columns {
		width = max(width, len(c.GetName()))
	}
	for _, c := range columns {
		fmt.Fprintf(s.Out, "%-*s  %s\n", width, c.GetName(), rest.TypeName(c.GetType()))
	}
	return nil
}
