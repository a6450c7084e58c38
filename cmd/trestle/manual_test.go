package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestManual holds the pages of the manual and the completion scripts against
// the commands and what their --help says.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	if err := writeManual(dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range commands() {
		if c.help == "" {
			continue
		}
		page := strings.ReplaceAll(read("trestle-"+c.name+".1"), `\-`, "-")
		var help strings.Builder
		if code := c.run(&process{&help, &help, nil}, []string{"--help"}); code != exitOK || !strings.HasPrefix(help.String(), "Usage: trestle "+c.name) {
			t.Errorf("%s --help: exit code %d, %q", c.name, code, help.String())
		}
		for _, flag := range regexp.MustCompile(`(?m)^ {2,6}(?:-., )?(--[-a-z]+)`).FindAllStringSubmatch(help.String(), -1) {
			if !strings.Contains(page, "\n.B "+flag[1]) {
				t.Errorf("the page of %s does not have %s", c.name, flag[1])
			}
		}
		if !strings.Contains(page, ".SH SYNOPSIS\ntrestle "+c.name) {
			t.Errorf("the page of %s has no synopsis:\n%s", c.name, page)
		}
		if !strings.Contains(strings.ReplaceAll(read("trestle.1"), `\-`, "-"), ".BR trestle-"+c.name+" (1)") {
			t.Errorf("trestle(1) does not have %s", c.name)
		}
	}
	if page := read("trestle-serve.1"); !strings.Contains(page, ".B \\-\\-durability sync|async\nsync: a write is on disk before it is answered") {
		t.Errorf("a flag with its values and meaning is not on the page:\n%s", page)
	}
}

// TestCompletion lets bash complete command lines.
func TestCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	var script strings.Builder
	if code := run(&process{&script, os.Stderr, nil}, []string{"trestle", "completion", "bash"}); code != exitOK {
		t.Fatal(code)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "only"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"ser":                             "serve",
		"tablet":                          "tabletserver tablets",
		"manua":                           "",
		"cluster dr":                      "drop-damaged-log drain",
		"iam pol":                         "policy",
		"table create":                    "create-group",
		"serve --dura":                    "--durability",
		"serve --durability ":             "sync async",
		"serve --durability a":            "async",
		"serve --tls-auto --hbase-l":      "--hbase-listen",
		"master --hbase-l":                "",
		"check " + dir + "/on":            dir + "/only",
		"serve --tls-cert " + dir + "/on": dir + "/only",
		"completion z":                    "zsh",
		"tabletserver --cluster-l":        "--cluster-listen",
		"serve --sessions o":              "on off",
		"serve --no-such-flag --log-form": "--log-format",
	} {
		words := strings.Split("trestle "+line, " ")
		cmd := exec.Command(bash, append([]string{"-c", `eval "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _trestle; echo "${COMPREPLY[*]}"`, script.String()}, words...)...)
		out, err := cmd.CombinedOutput()
		got := strings.Fields(string(out))
		slices.Sort(got)
		expected := strings.Fields(want)
		slices.Sort(expected)
		if err != nil || !slices.Equal(got, expected) {
			t.Errorf("%q is completed to %q (%v), want %q", line, got, err, want)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"manual"}, {"manual", "--help"}} {
		var errs strings.Builder
		if code := run(&process{&errs, &errs, nil}, append([]string{"trestle"}, args...)); code != exitUsage || errs.Len() == 0 {
			t.Errorf("%q: exit code %d, %q", args, code, errs.String())
		}
	}
}
