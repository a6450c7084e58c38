package main

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// tellEvery is how often a long command says how far it is.
const tellEvery = time.Second

// A progress tells on a terminal what a command is at, how far, and since when: a line
// that is written over, and gone at the end. A pipe gets nothing of it.
type progress struct {
	out   io.Writer // nil: no terminal
	width int       // of the line at most
	what  string
	begun time.Time

	mu struct {
		sync.Mutex
		far   string
		shown int // columns of the line
	}
}

// telling calls do, which is what, and shows its progress meanwhile.
func (p *process) telling(what string, do func(g *progress) error) error {
	g := &progress{what: what, begun: time.Now()}
	if isTerminal(p.stderr) {
		g.out, g.width = p.stderr, cmp.Or(widthOf(p.stderr), 80)-1
		tick, done, ended := time.NewTicker(tellEvery), make(chan struct{}), make(chan struct{})
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
	}
	return do(g)
}

// far says how far it is, from the next tick on.
func (g *progress) far(format string, args ...any) {
	if g.out == nil {
		return // it may be called often
	}
	text := ", " + fmt.Sprintf(format, args...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.far = text
}

// bytes says how many bytes are done, of so many if that is known.
func (g *progress) bytes(done, of int64) {
	if of >= done {
		g.far("%s of %s", byteSize(done), byteSize(of))
	} else {
		g.far("%s", byteSize(done))
	}
}

func (g *progress) show(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := fmt.Sprintf("%s, %v", g.mu.far, now.Sub(g.begun).Round(time.Second))
	line := shorten(g.what, max(1, g.width-utf8.RuneCountInString(end))) + end
	fmt.Fprintf(g.out, "\r%-*s", g.mu.shown, line)
	g.mu.shown = utf8.RuneCountInString(line)
}

// aside takes the line away while print prints something else.
func (g *progress) aside(print func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.shown > 0 {
		fmt.Fprintf(g.out, "\r%*s\r", g.mu.shown, "")
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
