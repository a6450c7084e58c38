package deptest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// source is the non-test code of one package.
type source struct {
	imports []string
	doc     string // file with the package comment
	docs    int    // files with one
	hasDoc  bool   // doc.go is there
}

// packages parses every package of the module. It reads the files itself
// rather than ask `go list`, so that the test cache sees when they change.
func packages(t *testing.T) map[string]*source {
	t.Helper()
	out := map[string]*source{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (name[0] == '.' || name == "testdata" || name == "vendor") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		p := out[filepath.ToSlash(rel)]
		if p == nil {
			p = &source{}
			out[filepath.ToSlash(rel)] = p
		}
		p.hasDoc = p.hasDoc || d.Name() == "doc.go"
		if f.Doc != nil {
			p.docs++
			p.doc = d.Name()
		}
		for _, i := range f.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(p.imports, s) {
				p.imports = append(p.imports, s)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 10 {
		t.Fatalf("found only %d packages", len(out))
	}
	return out
}

func TestImports(t *testing.T) {
	for pkg, src := range packages(t) {
		if _, found := row(pkg); !found {
			t.Error(Check(pkg, "", true))
			continue
		}
		for _, path := range src.imports {
			rel, ours := strings.CutPrefix(path, Module+"/")
			if msg := Check(pkg, rel, ours); msg != "" {
				t.Error(msg)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	for pkg, src := range packages(t) {
		switch {
		case src.docs == 0 || !src.hasDoc:
			t.Errorf("%s has no package comment in a doc.go: say there what it is for, in one sentence first", pkg)
		case src.docs > 1 || src.doc != "doc.go":
			t.Errorf("%s has %d package comments, one of them in %s: keep one, in doc.go", pkg, src.docs, src.doc)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		pkg, path string
		ours, ok  bool
	}{
		{"engine/fault", "engine/cell", true, false},
		{"engine/tablet", "engine/merge", true, true},
		{"engine/tablet", "gateway/backend", true, false},
		{"engine/plan", "engine/tablet", true, true},
		{"gateway", "gateway/data", true, true},
		{"gateway", "engine/tablet", true, false},
		{"gateway/data", "gateway/admin", true, false},
		{"gateway/data", "cluster/client", true, false},
		{"cluster/client", "gateway/backend", true, false},
		{"conformance/sdk", "conformance/model", true, true},
		{"conformance/sdk/external", "conformance/model", true, false},
		{"conformance/model", "cmd/trestle/internal/settings", true, false},
		{"cmd/trestle", "gateway", true, true},
		{"cmd/trestle", "cmd/trestle/internal/bench", true, true},
		{"cmd/trestle", "conformance/trestletest", true, false},
		{"engine/objectstore/s3/s3test", "conformance/target", true, false},
		{"conformance/trestletest", "engine/tempfs", true, true},
		{"nowhere", "engine/fault", true, false},
		{"engine/memtable", "github.com/cockroachdb/pebble/v2/sstable", false, false},
		{"engine/sstable", "github.com/cockroachdb/pebble/v2/sstable", false, true},
		{"engine/commitlog", "github.com/cockroachdb/pebble/v2/vfs", false, true},
		{"engine/row", "google.golang.org/protobuf/proto", false, false},
		{"gateway/wire", "google.golang.org/protobuf/proto", false, true},
		{"gateway/data", "testing", false, false},
		{"engine/loopback", "testing", false, true},
		{"engine/tempfs", "testing", false, false},
		{"engine/row", "fmt", false, true},
	} {
		if msg := Check(tc.pkg, tc.path, tc.ours); (msg == "") != tc.ok {
			t.Errorf("%s importing %s: %q", tc.pkg, tc.path, msg)
		}
	}
}
