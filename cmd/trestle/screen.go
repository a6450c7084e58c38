package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// wrong ends a line that says what is wrong. A screen paints such lines, and
// takes the mark out. It stands last, where a tabwriter aligns nothing.
const wrong = "\x01"

// flaw returns wrong if bad is true.
func flaw(bad bool) string {
	if bad {
		return wrong
	}
	return ""
}

// A screen passes on lines, and those that end with wrong in red if it is a
// terminal that shows colours.
type screen struct {
	out     io.Writer
	colours bool
	line    []byte // not yet ended
}

// screen returns what a command for people writes its result to.
func (p *process) screen() *screen { return p.screenOn(p.stdout) }

// screenOn returns a screen on one of the process's outputs.
func (p *process) screenOn(w io.Writer) *screen {
	return &screen{out: w, colours: isTerminal(w) && showsColours(p.environ)}
}

// Write implements io.Writer. A line is passed on when it ends.
func (s *screen) Write(b []byte) (int, error) {
	s.line = append(s.line, b...)
	var out []byte
	for {
		line, rest, ended := bytes.Cut(s.line, []byte("\n"))
		if !ended {
			break
		}
		text, bad := bytes.CutSuffix(line, []byte(wrong))
		if bad && s.colours {
			out = append(append(append(out, "\x1b[31m"...), text...), "\x1b[0m\n"...)
		} else {
			out = append(append(out, text...), '\n')
		}
		s.line = rest
	}
	if _, err := s.out.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// several counts things, as "1 tablet" or "2 tablets".
func several(n int, thing, plural string) string {
	if n == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d %s%s", n, thing, plural)
}

// atOnce returns p with an output that is written by flush. On a terminal, lines of the log
// would come between otherwise.
func (p *process) atOnce() (_ *process, flush func()) {
	w := bufio.NewWriter(p.stdout)
	return &process{w, p.stderr, p.environ}, func() { _ = w.Flush() }
}

// isTerminal tells whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// widthOf returns how many columns there are of what a command writes to; 0 if there is
// no end to a line, as in a pipe.
func widthOf(out io.Writer) int {
	if s, ok := out.(*screen); ok {
		out = s.out
	}
	if !isTerminal(out) {
		return 0
	}
	return cmp.Or(columns(out.(*os.File)), 80)
}

// showsColours tells whether a terminal with that environment is to show colours:
// no-color.org, and terminals that cannot. Windows' own shows none unless it is
// asked to, which it is not.
func showsColours(environ []string) bool {
	term := variable(environ, "TERM")
	return variable(environ, "NO_COLOR") == "" && term != "" && term != "dumb" && runtime.GOOS != "windows"
}

// variable returns the value of a variable, "" if it is not set.
func variable(environ []string, name string) string {
	i := slices.IndexFunc(environ, func(s string) bool { return strings.HasPrefix(s, name+"=") })
	if i < 0 {
		return ""
	}
	return environ[i][len(name)+1:]
}

// printJSON writes what --json prints of a command.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
