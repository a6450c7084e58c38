package main

import (
	"bytes"
	"errors"
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
	g := &progress{out: &out, width: width, what: "export " + strings.Repeat("x", 100), begun: time.Unix(0, 0)}
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
}

// TestProgressInPipes: other programs do not get it, and a command gets its error.
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
