package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// plain are the parts of the tree whose comments name roles. It says of each whether
// its functions, methods and types are called by words of the field too.
var plain = map[string]bool{"cluster": true, "compat": false, "engine/commitlog": true, "engine/objectstore": true, "gateway": false}

// instead has the words with which no function, method or type there begins, and what
// to write for them.
var instead = map[string]string{
	"adopt":     "replace or claim, with its object",
	"believe":   "checkNotRolledBack",
	"doubt":     "invalidate",
	"even":      "rebalance",
	"fruitless": "lastFailedState",
	"half":      "logGroup, of the tablets on one log",
	"heading":   "moveTargets",
	"judge":     "check, with its object",
	"judging":   "check, with its object",
	"known":     "cached, or waitApplied",
	"lasting":   "durable, or detached",
	"leave":     "drain for a server, retire for a connection, unlock for a turn",
	"losing":    "lossReport",
	"making":    "pending",
	"news":      "shouldLog, or changeSet",
	"others":    "hasPeers",
	"outlast":   "waitForDependents",
	"part":      "moveOff for tablets; tabletPart for a part",
	"parting":   "isMoving",
	"polite":    "background",
	"resting":   "retired, or quiescing",
	"settle":    "resolve or finish, with its object",
	"settled":   "the state that is waited for",
	"slim":      "tabletHint",
	"slimmed":   "tabletHint",
	"telling":   "shouldLog",
	"told":      "published, acked or logged",
	"tracker":   "progressWriter",
	"usual":     "typical",
	"vouch":     "check",
	"vouched":   "leaseCheckedWriter",
	"wanted":    "pins",
}

// firstWord returns the first word of an identifier, in lower case.
func firstWord(name string) string {
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			return strings.ToLower(name[:i])
		}
	}
	return strings.ToLower(name)
}

// nameless finds a relative clause that stands for a role: "for who holds the lock"
// instead of "for the holder of the lock".
var nameless = regexp.MustCompile(`\b([Ff]or|[Oo]f) who(ever)?\b`)

// complaints returns what is wrong with the words of a file: in its comments, and, if
// names is true, in its names.
func complaints(fset *token.FileSet, f *ast.File, names bool) (out []string) {
	say := func(at token.Pos, what string) { out = append(out, fset.Position(at).String()+": "+what) }
	name := func(id *ast.Ident) {
		if use := instead[firstWord(id.Name)]; names && use != "" {
			say(id.Pos(), id.Name+" is private vocabulary; the word is "+use)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.TypeSpec:
			name(n.Name)
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, id := range m.Names {
					name(id)
				}
			}
		}
		return true
	})
	for _, g := range f.Comments {
		text := strings.Join(strings.Fields(g.Text()), " ")
		if found := nameless.FindString(text); found != "" {
			say(g.Pos(), `"`+found+`" in a comment: name the role, such as caller, owner or server`)
		}
	}
	return out
}

func TestWords(t *testing.T) {
	for dir, names := range plain {
		files := 0
		err := filepath.WalkDir(filepath.Join(root, filepath.FromSlash(dir)), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
			if err != nil {
				return err
			}
			for _, c := range complaints(fset, f, names) {
				t.Error(c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if files == 0 {
			t.Errorf("%s has no files", dir)
		}
	}
}

// TestWordsAreFound: each of these is found, once, and nothing in those without one.
func TestWordsAreFound(t *testing.T) {
	for src, want := range map[string]string{
		"func settleAll() {}":                                      "settleAll is",
		"type T struct{}; func (T) OutlastPeers() {}":              "OutlastPeers is",
		"type half struct{}":                                       "half is",
		"type I interface{ Vouch() error }":                        "Vouch is",
		"// F is for\n// who calls.\nfunc F() {}":                  `"for who"`,
		"func F() {\n\t// the turn of whoever waits\n}":            `"of whoever"`,
		"// F returns who may call.\nfunc settler() { half := 1 }": "",
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, "f.go", "package p\n\n"+src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		got := complaints(fset, f, true)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
		if got := complaints(fset, f, false); len(got) > 0 && !strings.HasPrefix(want, "\"") {
			t.Errorf("%q, whose names are not looked at: %q", src, got)
		}
	}
}

// glossaryWords returns the words that a glossary explains, in its order.
func glossaryWords(text string) (out []string) {
	for _, m := range regexp.MustCompile(`(?m)^\| \*\*([^*]+)\*\* \|`).FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// disorder returns the first word that is not behind the one before it, "" if none is.
func disorder(words []string) string {
	for i := 1; i < len(words); i++ {
		if strings.ToLower(words[i-1]) >= strings.ToLower(words[i]) {
			return words[i]
		}
	}
	return ""
}

// TestGlossary: each word of the glossary has one meaning, and is where a reader looks
// for it.
func TestGlossary(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	words := glossaryWords(string(b))
	if len(words) < 40 {
		t.Fatalf("the glossary has %d words", len(words))
	}
	if w := disorder(words); w != "" {
		t.Errorf("docs/glossary.md: %q is there twice, or not in alphabetical order", w)
	}
	for _, w := range words {
		if use := instead[strings.ToLower(w)]; use != "" {
			t.Errorf("docs/glossary.md explains %q, for which the word is %s", w, use)
		}
	}
	for _, bad := range [][]string{{"a", "a"}, {"b", "A"}, {"a", "A"}} {
		if disorder(bad) == "" {
			t.Errorf("%q count as sorted, each once", bad)
		}
	}
	if !slices.Equal(glossaryWords("| word | meaning |\n|---|---|\n| **b** | x **c** |\n| **a b** | y |"), []string{"b", "a b"}) {
		t.Error("words of a glossary are not found")
	}
}
