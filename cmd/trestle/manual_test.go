package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManual holds the pages of the manual and the completion scripts against
// the commands and what their --help says.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	if out, errs, code := typed("manual", dir); code != exitOK {
		t.Fatal(out, errs)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	flags := regexp.MustCompile(`(?m)^ {2,6}(?:-., )?(--[-a-z]+)`)
	everyCommand(newRoot(&process{io.Discard, io.Discard, nil}), func(c *cobra.Command, path []string) {
		page := strings.ReplaceAll(read("trestle-"+path[0]+".1"), `\-`, "-")
		help, _, _ := typed(append(path, "--help")...)
		for _, flag := range flags.FindAllStringSubmatch(help, -1) {
			if !strings.Contains(page, "\n.B "+flag[1]) {
				t.Errorf("the page of %s does not have %s of %v", path[0], flag[1], path)
			}
		}
		switch {
		case len(path) > 1 && !c.HasSubCommands():
			if !strings.Contains(page, ".SS trestle "+strings.Join(path, " ")) {
				t.Errorf("the page of %s does not have %v", path[0], path)
			}
		case len(path) == 1:
			if !strings.Contains(page, ".SH SYNOPSIS\ntrestle "+path[0]) {
				t.Errorf("the page of %s has no synopsis:\n%s", path[0], page)
			}
			if !strings.Contains(strings.ReplaceAll(read("trestle.1"), `\-`, "-"), ".BR trestle-"+path[0]+" (1)") {
				t.Errorf("trestle(1) does not have %s", path[0])
			}
		}
	})
	if page := read("trestle-serve.1"); !strings.Contains(page, ".B \\-\\-durability sync|async\nsync: a write is on disk before it is answered") {
		t.Errorf("a flag with its values and meaning is not on the page:\n%s", page)
	}
	for shell := range shells {
		if script := read("trestle." + shell); !strings.Contains(script, "__complete") {
			t.Errorf("%s: %.200s", shell, script)
		}
	}
}

// TestCompletion completes command lines as the shells' scripts ask for it.
func TestCompletion(t *testing.T) {
	const files = ":0"
	for line, want := range map[string]string{
		"ser":                        "serve server",
		"tablet":                     "tablet tabletserver",
		"manua":                      "",
		"he":                         "healthcheck help",
		"no-":                        "",
		"help ser":                   "serve server",
		"help tablet me":             "merge",
		"cluster re":                 "recover release",
		"tablet m":                   "merge move",
		"tablet move --pi":           "--pin",
		"iam policy a":               "add-binding",
		"table create":               "create-group",
		"serve --dura":               "--durability",
		"serve --durability ":        "sync async",
		"serve --durability a":       "async",
		"serve --tls-auto --hbase-l": "--hbase-listen",
		"master --hbase-l":           "",
		"check on":                   files,
		"serve --tls-cert on":        files,
		"inspect m":                  "metadata",
		"inspect log on":             files,
		"completion z":               "zsh",
		"tabletserver --cluster-l":   "--cluster-listen",
		"serve --sessions o":         "on off",
	} {
		out, _, code := typed(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
		got := strings.Fields(out)
		if code != exitOK || len(got) == 0 {
			t.Errorf("%q: exit code %d, %q", line, code, out)
			continue
		}
		directive, word := got[len(got)-1], line[strings.LastIndex(line, " ")+1:]
		if got = got[:len(got)-1]; len(got) == 0 && want == files {
			got = []string{directive}
		}
		got = slices.DeleteFunc(got, func(s string) bool { return want != files && !strings.HasPrefix(s, word) }) // as the scripts do
		slices.Sort(got)
		expected := strings.Fields(want)
		slices.Sort(expected)
		if !slices.Equal(got, expected) {
			t.Errorf("%q is completed to %q, want %q", line, got, expected)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("NOT TESTED: %s is not installed", shell)
			continue
		}
		cmd := exec.Command(path, "-n")
		script, _, _ := typed("completion", shell)
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil || len(script) < 1000 {
			t.Errorf("%s does not understand its script: %v\n%s", shell, err, out)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"manual"}} {
		if _, errs, code := typed(args...); code != exitUsage || errs == "" {
			t.Errorf("%q: exit code %d, %q", args, code, errs)
		}
	}
}
