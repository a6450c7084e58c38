package main

import (
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// tellEvery and tellPlainly are how often a long command says how far it is, on a terminal and
// elsewhere.
const (
	tellEvery   = time.Second
	tellPlainly = time.Minute
)

// A progress tells what a command is at, how far, and since when: on a terminal with a line
// that is written over, and gone at the end, elsewhere with a plain line each time.
type progress struct {
	out   io.Writer  // nil: nobody is told
	width func() int // how long a line may be; nil: it is not written over
	what  string
	begun time.Time

	mu struct {
		sync.Mutex
		far   func() string // nil: not known
		shown int           // columns of the line
	}
}

// telling calls do, which is what, and shows its progress meanwhile.
func (p *process) telling(what string, do func(g *progress) error) error {
	g, every := p.progress(what)
	tick, done, ended := time.NewTicker(every), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case now := <-tick.C:
				g.show(now)
			case <-done:
				return
			}
		}
	}()
	defer func() {
		tick.Stop()
		close(done)
		<-ended
		g.aside(func() {})
	}()
	return do(g)
}

// progress returns one that tells on stderr, and how often it is to be shown.
func (p *process) progress(what string) (g *progress, every time.Duration) {
	g = &progress{out: p.stderr, what: what, begun: time.Now()}
	if !isTerminal(p.stderr) || variable(p.environ, "TERM") == "dumb" {
		return g, tellPlainly
	}
	g.width = func() int { return max(1, widthOf(p.stderr)-1) }
	return g, tellEvery
}

// far says how far it is, from the next tick on.
func (g *progress) far(format string, args ...any) {
	g.set(func() string { return fmt.Sprintf(format, args...) })
}

// set is far with a text that is made when it is shown: it may be called often.
func (g *progress) set(far func() string) {
	if g.out == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.far = far
}

// bytes says how many bytes are done, of so many if that is known.
func (g *progress) bytes(done, of int64) {
	g.set(func() string {
		if of >= done {
			return byteSize(done) + " of " + byteSize(of)
		}
		return byteSize(done)
	})
}

func (g *progress) show(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := fmt.Sprintf(", %v", now.Sub(g.begun).Round(time.Second))
	if g.mu.far != nil {
		end = ", " + g.mu.far() + end
	}
	if g.width == nil {
		fmt.Fprintln(g.out, g.what+end)
		return
	}
	width := g.width() // it may have changed
	line := shorten(shorten(g.what, max(1, width-utf8.RuneCountInString(end)))+end, width)
	fmt.Fprintf(g.out, "\r%-*s", min(g.mu.shown, width), line)
	g.mu.shown = utf8.RuneCountInString(line)
}

// aside takes the line away while print prints something else.
func (g *progress) aside(print func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.shown > 0 {
		fmt.Fprintf(g.out, "\r%*s\r", min(g.mu.shown, g.width()), "")
		g.mu.shown = 0
	}
	print()
}

// shorten returns the beginning of a text that has more than most characters.
func shorten(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}
