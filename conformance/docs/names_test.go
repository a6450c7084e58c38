package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// names are the declarations of the tree outside of tests: "pkg.Name" and
// "pkg.Type.Member", members being methods, fields, and methods of interfaces.
type names map[string]bool

func declared(t *testing.T) names {
	t.Helper()
	all := names{}
	for _, file := range tree(t) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all.add(path.Base(path.Dir(file)), f)
	}
	return all
}

func (all names) add(pkg string, f *ast.File) {
	all[pkg] = true
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				all[pkg+"."+d.Name.Name] = true
				continue
			}
			to := d.Recv.List[0].Type
			if star, ok := to.(*ast.StarExpr); ok {
				to = star.X
			}
			if index, ok := to.(*ast.IndexExpr); ok {
				to = index.X
			}
			if id, ok := to.(*ast.Ident); ok {
				all[pkg+"."+id.Name+"."+d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, id := range s.Names {
						all[pkg+"."+id.Name] = true
					}
				case *ast.TypeSpec:
					all[pkg+"."+s.Name.Name] = true
					all.members(pkg+"."+s.Name.Name, s.Type)
				}
			}
		}
	}
}

func (all names) members(of string, e ast.Expr) {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, id := range f.Names {
			all[of+"."+id.Name] = true
			all.members(of+"."+id.Name, f.Type)
		}
	}
}

var (
	codeName = regexp.MustCompile(`^([a-z]+/)*[a-z]+(\.\(?\*?[A-Za-z]+\)?){1,3}$`)
	codePath = regexp.MustCompile(`^(cluster|cmd|compat|conformance|engine|gateway|packaging)/[A-Za-z0-9_./-]+$`)
)

// TestNames looks for what ARCHITECTURE.md names in the code: packages, files,
// functions, methods, fields.
func TestNames(t *testing.T) {
	all := declared(t)
	looked := 0
	prose(read(t, "ARCHITECTURE.md"), func(n int, line string) {
		for _, span := range codeSpan.FindAllString(line, -1) {
			span = strings.Trim(span, "`")
			if _, err := os.Stat(filepath.Join(root, span)); codePath.MatchString(span) && err == nil || strings.HasPrefix(span, "trestle") {
				continue
			}
			switch {
			case codeName.MatchString(span) && path.Ext(span) != ".go" && path.Ext(span) != ".md":
				looked++
				if !all[strings.NewReplacer("(", "", ")", "", "*", "").Replace(path.Base(span))] {
					t.Errorf("ARCHITECTURE.md:%d: %s is not in the code", n, span)
				}
			case codePath.MatchString(span):
				t.Errorf("ARCHITECTURE.md:%d: %s is not there", n, span)
			}
		}
	})
	if looked < 80 {
		t.Errorf("only %d names were found", looked)
	}
}
