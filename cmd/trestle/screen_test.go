package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// TestScreen: a line that is wrong is red where colours show, and only there; columns
// stay aligned, and no mark is left.
func TestScreen(t *testing.T) {
	for _, colours := range []bool{true, false} {
		var out bytes.Buffer
		s := &screen{out: &out, colours: colours}
		w := tabwriter.NewWriter(s, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "SERVER\tSTATE\na\tserves%s\nlonger\tis gone%s\n", flaw(false), flaw(true))
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		want := "SERVER  STATE\na       serves\n\x1b[31mlonger  is gone\x1b[0m\n"
		if !colours {
			want = "SERVER  STATE\na       serves\nlonger  is gone\n"
		}
		if out.String() != want {
			t.Errorf("colours %v:\n%q, want\n%q", colours, out.String(), want)
		}
	}
}

func TestShowsColours(t *testing.T) {
	for env, want := range map[string]bool{"TERM=xterm": true, "TERM=dumb": false, "": false, "TERM=xterm NO_COLOR=1": false, "TERM=xterm NO_COLOR=": true} {
		if got := showsColours(strings.Fields(env)); got != want {
			t.Errorf("%q: %v, want %v", env, got, want)
		}
	}
	if isTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is taken for a terminal")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if isTerminal(w) {
		t.Error("a pipe is taken for a terminal")
	}
}

// TestServersThatAreWrong: a server that did not answer is painted.
func TestServersThatAreWrong(t *testing.T) {
	var out bytes.Buffer
	err := printServers(&screen{out: &out, colours: true}, []ops.TabletServer{{Name: "ts-1"}, {Name: "ts-2", Error: "no answer"}})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if red := strings.HasPrefix(line, "\x1b[31m"); red != strings.Contains(line, "no answer") {
			t.Errorf("%q: painted is %v", line, red)
		}
	}
}

// TestShortKey: of a long key the beginning and the end are left, since neighbours often
// begin alike.
func TestShortKey(t *testing.T) {
	for key, want := range map[string]string{"": "", "user00000001": "user00000001", "user0000000000000100": "user0…000100", "ключ-пользователя-7": "ключ-…теля-7"} {
		if got := shortKey(key, keyMost); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
	const key = "user0000000000000100"
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // as a terminal, a device
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if got := keysFor(null, false, 0)(key); got == key {
		t.Errorf("a terminal of 80 columns shows the whole key %q", got)
	}
	if got := keysFor(null, true, 0)(key); got != key {
		t.Errorf("a wide table shortens a key: %q", got)
	}
	for _, out := range []io.Writer{&bytes.Buffer{}, (&process{}).screenOn(&bytes.Buffer{})} {
		if got := keysFor(out, false, 0)(key); got != key {
			t.Errorf("a key that is no person's to read is shortened: %q", got)
		}
	}
}
