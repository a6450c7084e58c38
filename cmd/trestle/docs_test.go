package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/trestledb/trestle/engine/logtest"
)

// A docBlock is a fenced block of shell commands in a document.
type docBlock struct {
	line   int
	script string
	notRun string // why it is not run; empty if it is
	on     bool   // its commands run on, beside what follows
	beside string // a command that is to run beside it, and what follows
	first  string // a command that is to be run before
}

// A docSection are the blocks below a heading of the second level. They are run
// in one shell, so what one exports the next has.
type docSection struct {
	name   string
	blocks []docBlock
}

var (
	docFence = regexp.MustCompile("^ *```([a-z]*)$")
	docMark  = regexp.MustCompile(`^ *<!-- (not run|runs on|beside|first)(?:: (.+))? -->$`)
)

// readDoc returns the sections of a document that have blocks of shell commands:
// fences without a language, and of "console", where commands follow "$ ". Marks
// in the lines before say what is special:
//
//	<!-- not run: WHY -->       it is not run
//	<!-- runs on -->            its commands do not end; they have begun when they print something
//	<!-- beside: COMMAND -->    so does COMMAND, which is no part of the text
//	<!-- first: COMMAND -->     nor is COMMAND, which ends before the block
func readDoc(text string) (sections []docSection, err error) {
	section := docSection{}
	end := func() {
		if len(section.blocks) > 0 {
			sections = append(sections, section)
		}
	}
	var marks [][]string
	var block *docBlock
	language := ""
	for i, line := range strings.Split(text, "\n") {
		fence := docFence.FindStringSubmatch(line)
		switch {
		case block != nil && fence != nil:
			if language == "" || language == "console" {
				section.blocks = append(section.blocks, *block)
			}
			block, marks = nil, nil
		case block != nil:
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok || language == "" {
				block.script += command + "\n"
			}
		case fence != nil:
			block, language = &docBlock{line: i + 1}, fence[1]
			for _, mark := range marks {
				switch {
				case mark[1] == "runs on":
					block.on = true
				case mark[2] == "":
					return nil, fmt.Errorf("line %d: the mark %q lacks something", i, mark[0])
				case mark[1] == "not run":
					block.notRun = mark[2]
				case mark[1] == "beside":
					block.beside = mark[2]
				case mark[1] == "first":
					block.first = mark[2]
				}
			}
		case strings.HasPrefix(line, "## "):
			end()
			section = docSection{name: strings.TrimPrefix(line, "## ")}
		default:
			mark := docMark.FindStringSubmatch(line)
			switch {
			case mark != nil:
				marks = append(marks, mark)
			case strings.Contains(line, "<!--"):
				return nil, fmt.Errorf("line %d: not a mark: %s", i+1, line)
			default:
				marks = nil
			}
		}
	}
	end()
	return sections, nil
}

func TestReadDoc(t *testing.T) {
	const fence = "```"
	got, err := readDoc(strings.ReplaceAll("#a\n'\none\n'\n## b\n<!-- not run: no -->\n'\ntwo\n'\n<!-- beside: x y -->\n<!-- first: z -->\n'console\n$ three\nanswer\n$ four\n'\n'go\nfive\n'\n<!-- runs on -->\n   '\n   six\n   '\n", "'", fence))
	want := "[{ [{2 one\n  false  }]} {b [{7 two\n no false  } {12 three\nfour\n  false x y z} {21 six\n  true  }]}]"
	if err != nil || fmt.Sprint(got) != want {
		t.Errorf("%q, %v, want %q", fmt.Sprint(got), err, want)
	}
	for _, bad := range []string{"<!-- not run -->\n'\nx\n'", "<!-- beside -->\n'\nx\n'", "<!-- never: x -->"} {
		if got, err := readDoc(strings.ReplaceAll(bad, "'", fence)); err == nil {
			t.Errorf("%q is understood: %v", bad, got)
		}
	}
}

// docWorld is what each section is run in: a network and a file system of its
// own, where db.example.com is this machine, /srv is empty, and everything that
// runs on has its own directory.
const docWorld = `set -eu
ip link set lo up
mount -t tmpfs tmpfs /srv
echo '127.0.0.1 localhost db.example.com' > "$WORLD/hosts"
mount --bind "$WORLD/hosts" /etc/hosts
mkdir "$WORLD/server" "$WORLD/client"
cd "$WORLD/client"
aside=0
run_on() {
	aside=$((aside + 1))
	(cd "$WORLD/server"; exec sh -euc "$1") > "$WORLD/$aside.out" 2> "$WORLD/$aside.err" &
	begun=0
	while ! [ -s "$WORLD/$aside.out" ]; do
		begun=$((begun + 1))
		if [ $begun = 600 ] || ! kill -0 $!; then exit 1; fi
		sleep 0.1
	done
}
trap 'code=$?; [ $code = 0 ] || tail -n 20 "$WORLD"/*.err >&2; exit $code' EXIT
`

// TestDocs runs the commands of all documents, as they are printed, but for those
// that a mark excepts. Clients run in another directory than servers, and reach
// their files by scp alone, as on another machine.
func TestDocs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a dozen processes, and gcloud")
	}
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) < 5 {
		t.Fatalf("%v, %v", docs, err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, script := range map[string]string{
		"trestle": fmt.Sprintf("exec env %s=real GORACE=atexit_sleep_ms=0 '%s' \"$@\"", actAsTrestle, exe),
		"etcd":    fmt.Sprintf("exec env %s=etcd '%s' \"$@\"", actAsTrestle, exe),
		// The other machine is this one.
		"scp": `for last; do :; done; while [ $# -gt 1 ]; do cp "${1#*:}" "$last"; shift; done`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	var lacking []string
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		lacking = append(lacking, "root, for namespaces")
	}
	for _, program := range []string{"unshare", "ip", "cbt", "gcloud", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			lacking = append(lacking, program)
		}
	}
	for _, doc := range append(docs, "../../README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		sections, err := readDoc(string(b))
		if err != nil {
			t.Errorf("%s: %v", doc, err)
		}
		for _, s := range sections {
			if !slices.ContainsFunc(s.blocks, func(b docBlock) bool { return b.notRun == "" }) {
				continue
			}
			t.Run(filepath.Base(doc)+"/"+s.name, func(t *testing.T) {
				if len(lacking) > 0 {
					t.Skipf("NOT TESTED: it takes %s", strings.Join(lacking, ", "))
				}
				runDoc(t, doc, s, bin)
			})
		}
	}
}

func runDoc(t *testing.T, doc string, s docSection, bin string) {
	world := t.TempDir()
	script := docWorld
	for i, b := range s.blocks {
		if b.notRun != "" {
			continue
		}
		path := filepath.Join(world, fmt.Sprintf("block%d.sh", i))
		if err := os.WriteFile(path, []byte(b.script), 0o600); err != nil {
			t.Fatal(err)
		}
		script += fmt.Sprintf("echo '%s:%d' >&2\n", doc, b.line)
		if b.beside != "" {
			script += fmt.Sprintf("run_on %q\n", b.beside)
		}
		if b.first != "" {
			script += b.first + "\n"
		}
		if b.on {
			script += fmt.Sprintf("run_on \"$(cat '%s')\"\n", path)
		} else {
			script += fmt.Sprintf("set -x; . '%s'; set +x\n", path)
		}
	}
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + filepath.Join(world, "client"), "WORLD=" + world, "CLOUDSDK_CONFIG=" + filepath.Join(world, "gcloud"), "CLOUDSDK_CORE_DISABLE_PROMPTS=1"}
	cmd.WaitDelay = time.Second
	var out logtest.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(10*time.Minute, func() { _ = cmd.Process.Kill() })
	defer ended.Stop()
	if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "WaitDelay") {
		t.Errorf("%v\n%s", err, &out)
	}
}

var docSpan = regexp.MustCompile("`(trestle [^`]+)`")

// TestDocsText: what the text of documents calls a command is one, with flags that it has.
func TestDocsText(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) < 5 {
		t.Fatalf("%v, %v", docs, err)
	}
	root, looked := newRoot(&process{}), 0
	for _, doc := range append(docs, "../../README.md") {
		b, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for i, line := range strings.Split(string(b), "\n") {
			if docFence.MatchString(line) {
				fenced = !fenced
			}
			for _, span := range docSpan.FindAllStringSubmatch(line, -1) {
				if fenced || strings.Contains(line, "magic "+span[0]) {
					break
				}
				looked++
				if err := commandIn(root, span[1]); err != nil {
					t.Errorf("%s:%d: `%s`: %v", doc, i+1, span[1], err)
				}
			}
		}
	}
	if looked < 100 {
		t.Errorf("only %d commands", looked)
	}
	for _, bad := range []string{"trestle cluster status | drain", "trestle top --start", "trestle keyvi", "trestle log drop"} {
		if commandIn(root, bad) == nil {
			t.Errorf("`%s` is taken for a command", bad)
		}
	}
}

// flagBelow tells whether a command, or one of a group, has a flag.
func flagBelow(c *cobra.Command, name string) bool {
	c.InitDefaultHelpFlag()
	c.InheritedFlags() // which makes them flags of c
	return c.Flags().Lookup(name) != nil || slices.ContainsFunc(c.Commands(), func(v *cobra.Command) bool { return flagBelow(v, name) })
}

// commandIn returns what is wrong with a command line in a text, where | stands between
// verbs, brackets around what can be left out, and capitals for what is to be filled in.
func commandIn(root *cobra.Command, text string) error {
	c := root
	text = strings.NewReplacer(`\|`, "|", " | ", "|", "[", "", "]", "").Replace(text)
	for i, word := range strings.Fields(text)[1:] {
		name, flag := strings.CutPrefix(word, "--")
		switch {
		case i == 0 && (strings.HasPrefix(word, "-") || word == "COMMAND"):
			return nil // Google's emulator, or any command
		case flag:
			if name, _, _ = strings.Cut(name, "="); !flagBelow(c, name) {
				return fmt.Errorf("%s has no flag --%s", c.CommandPath(), name)
			}
		case c.HasSubCommands():
			group := c
			for verb := range strings.SplitSeq(word, "|") {
				at := slices.IndexFunc(group.Commands(), func(v *cobra.Command) bool { return v.Name() == verb })
				if at < 0 {
					return fmt.Errorf("%s has no verb %s", group.CommandPath(), verb)
				}
				c = group.Commands()[at]
			}
		}
	}
	return nil
}
