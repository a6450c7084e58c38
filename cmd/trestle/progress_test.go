package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestProgress: one line is written over, fits its columns, makes room for what is printed,
// and is gone afterwards.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	const width = 79
	columns := width
	g := &progress{out: &out, width: func() int { return columns }, what: "export " + strings.Repeat("x", 100), begun: time.Unix(0, 0)}
	g.bytes(512, 2048)
	g.show(time.Unix(61, 0))
	first, ok := strings.CutPrefix(out.String(), "\r")
	if !ok || utf8.RuneCountInString(first) != width || !strings.HasSuffix(first, "x…, 512 B of 2.0 KiB, 1m1s") {
		t.Errorf("%q", first)
	}
	out.Reset()
	g.what = "export"
	g.bytes(1024, 0)
	g.show(time.Unix(62, 0))
	second := "export, 1.0 KiB, 1m2s"
	if want := "\r" + second + strings.Repeat(" ", width-len(second)); out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	for range 2 { // the second time there is nothing to take away
		g.aside(func() { out.WriteString("found\n") })
	}
	if want := "\r" + strings.Repeat(" ", len(second)) + "\rfound\nfound\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	// No line is longer than a terminal that gets narrower, whatever is to be told.
	for columns = width; columns > 0; columns-- {
		out.Reset()
		g.show(time.Unix(63, 0))
		if line := strings.TrimPrefix(out.String(), "\r"); utf8.RuneCountInString(line) > columns {
			t.Errorf("%q of %d columns", line, columns)
		}
	}
}

// TestPlainProgress: where a line cannot be written over, one comes now and then.
func TestPlainProgress(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // as a terminal, a device
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out bytes.Buffer
	for _, p := range []*process{{stderr: &out, environ: []string{"TERM=xterm"}}, {stderr: null, environ: []string{"TERM=dumb"}}} {
		if g, every := p.progress("export"); g.width != nil || every != tellPlainly {
			t.Errorf("%v: each %v, lines are written over: %t", p.environ, every, g.width != nil)
		}
	}
	if g, every := (&process{stderr: null, environ: []string{"TERM=xterm"}}).progress("export"); g.width == nil || every != tellEvery {
		t.Errorf("on a terminal: each %v, lines are written over: %t", every, g.width != nil)
	}
	g, _ := (&process{stderr: &out}).progress("export")
	g.show(g.begun.Add(time.Minute))
	g.bytes(1024, 2048)
	g.show(g.begun.Add(2 * time.Minute))
	g.aside(func() {})
	if want := "export, 1m0s\nexport, 1.0 KiB of 2.0 KiB, 2m0s\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestProgressInPipes: other programs get nothing of a short command, and a command its error.
func TestProgressInPipes(t *testing.T) {
	var out bytes.Buffer
	failed := errors.New("failed")
	err := (&process{stderr: &out}).telling("export", func(g *progress) error {
		g.bytes(1, 2)
		g.aside(func() { out.WriteString("found\n") })
		return failed
	})
	if !errors.Is(err, failed) || out.String() != "found\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}
