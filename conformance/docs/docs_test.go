package docs

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// tree returns the paths of all files below root, with slashes and relative to it.
// It leaves out what Git does not keep and the inputs of tests.
func tree(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name := d.Name(); {
		case d.IsDir() && (name == ".git" || name == "testdata" || name == "bin" || name == "dist"):
			return filepath.SkipDir
		case d.Type().IsRegular():
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	fence    = regexp.MustCompile("^ *```")
	codeSpan = regexp.MustCompile("`[^`]*`")
	heading  = regexp.MustCompile(`^#{1,6} +(.+?) *#*$`)
	mdLink   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^()\s]+\)`)
	docPath  = regexp.MustCompile(`\bdocs/[A-Za-z0-9_./-]*\.md(#[A-Za-z0-9_-]+)?`)
)

// prose calls line with each line of a Markdown text outside of fenced blocks,
// and its number.
func prose(text string, line func(n int, s string)) {
	in := false
	for i, s := range strings.Split(text, "\n") {
		if fence.MatchString(s) {
			in = !in
		} else if !in {
			line(i+1, s)
		}
	}
}

// anchors returns the anchors that GitHub gives to the headings of a text.
func anchors(text string) (all []string) {
	seen := map[string]int{}
	prose(text, func(_ int, s string) {
		m := heading.FindStringSubmatch(s)
		if m == nil {
			return
		}
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(m[1], "$1"))
		if n := seen[slug]; n > 0 {
			all = append(all, fmt.Sprintf("%s-%d", slug, n))
		} else {
			all = append(all, slug)
		}
		seen[slug]++
	})
	return all
}

// dead returns the links of the Markdown file at file, whose text is given, that
// lead nowhere. exists tells of a path relative to root, headings gives the anchors
// of a Markdown file.
func dead(file, text string, exists func(string) bool, headings func(string) []string) (all []string) {
	prose(text, func(n int, s string) {
		for _, m := range mdLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(s, ""), -1) {
			u, err := url.Parse(m[1])
			if err == nil && (u.Scheme != "" || u.Host != "") {
				continue
			}
			to := file
			if err == nil && u.Path != "" {
				to = path.Join(path.Dir(file), u.Path)
			}
			switch {
			case err != nil || !exists(to):
				all = append(all, fmt.Sprintf("%s:%d: %s is not there", file, n, m[1]))
			case u.Fragment != "" && !slices.Contains(headings(to), u.Fragment):
				all = append(all, fmt.Sprintf("%s:%d: %s: no heading has this anchor", file, n, m[1]))
			}
		}
	})
	return all
}

func TestDead(t *testing.T) {
	const text = "# A `b` c, [d](x)\n## E\n## E\n[1](#a-b-c-d) [2](#e-1) [3](#e-2) [4](f.md) [5](f.md#g) [6](f.md#h) [7](i.md) [8](https://example.com/j.md#k)\n`[9](l)`\n```\n[10](m)\n```\n[11](../n)\n"
	exists := func(p string) bool { return p == "d/x" || p == "d/f.md" || p == "d/a.md" || p == "n" }
	got := dead("d/a.md", text, exists, func(p string) []string {
		if p == "d/a.md" {
			return anchors(text)
		}
		return []string{"g"}
	})
	want := []string{
		"d/a.md:4: #e-2: no heading has this anchor",
		"d/a.md:4: f.md#h: no heading has this anchor",
		"d/a.md:4: i.md is not there",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLinks follows the relative links of all documents, and the paths of documents
// that other files name: code, packages, charts.
func TestLinks(t *testing.T) {
	exists := func(p string) bool {
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(p)))
		return err == nil
	}
	all := map[string][]string{}
	headings := func(p string) []string {
		if all[p] == nil && strings.HasSuffix(p, ".md") {
			all[p] = anchors(read(t, p))
		}
		return all[p]
	}
	documents, named := 0, 0
	for _, file := range tree(t) {
		switch path.Ext(file) {
		case ".md":
			documents++
			for _, bad := range dead(file, read(t, file), exists, headings) {
				t.Error(bad)
			}
		case ".go", ".yaml", ".yml", ".sh", ".txt", ".service", ".tpl", "":
		default:
			continue
		}
		if strings.HasPrefix(file, "conformance/docs/") {
			continue
		}
		for i, line := range strings.Split(read(t, file), "\n") {
			for _, m := range docPath.FindAllStringSubmatchIndex(line, -1) {
				if m[0] > 0 && strings.ContainsRune("/.", rune(line[m[0]-1])) {
					continue // of an address, or a relative link
				}
				named++
				name, anchor, _ := strings.Cut(line[m[0]:m[1]], "#")
				if !exists(name) || anchor != "" && !slices.Contains(headings(name), anchor) {
					t.Errorf("%s:%d: %s is not there", file, i+1, line[m[0]:m[1]])
				}
			}
		}
	}
	if documents < 40 || named < 20 {
		t.Errorf("only %d documents and %d mentions were found", documents, named)
	}
}

var metricName = regexp.MustCompile(`"(bigtable_[a-z_]*[a-z])"`)

// TestMetrics looks for the name of every metric in the operator's reference.
func TestMetrics(t *testing.T) {
	const reference = "docs/operator-reference.md"
	text := read(t, reference)
	names := map[string]bool{}
	for _, file := range tree(t) {
		if !strings.HasPrefix(file, "cmd/") && !strings.HasPrefix(file, "cluster/") || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range metricName.FindAllStringSubmatch(read(t, file), -1) {
			names[m[1]] = true
		}
	}
	if len(names) < 80 {
		t.Errorf("only %d metrics were found", len(names))
	}
	for name := range names {
		if !regexp.MustCompile("`" + name + "[`{]").MatchString(text) {
			t.Errorf("%s says nothing of %s", reference, name)
		}
	}
}
