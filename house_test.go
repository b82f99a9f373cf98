// Package smolmcp_test holds the rules of the house, as far as a program can
// check them.
package smolmcp_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "smol-mcp"

// imports says what a package and those below it may import, beside the
// standard library. The longest name that fits a package counts.
var imports = map[string][]string{
	"store":  {"go.etcd.io/bbolt", "github.com/adrg/xdg", "github.com/google/uuid", "golang.org/x/sys"},
	"fleet":  {},
	"reaper": {"smol-mcp/store", "smol-mcp/fleet"},
	"tools":  {"smol-mcp/store", "smol-mcp/fleet", "github.com/modelcontextprotocol/go-sdk", "github.com/google/jsonschema-go"},
	"httpd":  {"github.com/modelcontextprotocol/go-sdk"},
	"cmd":    {"smol-mcp/store", "smol-mcp/fleet", "smol-mcp/reaper", "smol-mcp/tools", "smol-mcp/httpd", "github.com/modelcontextprotocol/go-sdk"},

	// The built-in engine is a program of its own, so that what it needs costs the
	// others nothing.
	"fleet/engine": {
		"github.com/google/go-containerregistry", "github.com/Microsoft/hcsshim", "github.com/hashicorp/yamux",
		"github.com/klauspost/compress", "github.com/ulikunitz/xz", "golang.org/x/sys", "golang.org/x/net", "gvisor.dev/gvisor",
	},
	"cmd/smol-engine": {"smol-mcp/fleet/engine"},
	"cmd/smol-guest":  {"smol-mcp/fleet/engine"},

	// What only tests import.
	"fleet/fleettest": {"smol-mcp/fleet"},
}

type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Doc        string
	Imports    []string
}

// packages lists the module's packages as another system sees them too: a
// file for one system may import what the others do not.
func packages(t *testing.T) []pkg {
	t.Helper()
	seen := map[string]*pkg{}
	var all []pkg
	for _, goos := range []string{"linux", "darwin", "windows"} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,Imports", "./...")
		cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p pkg
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if old := seen[p.ImportPath]; old != nil {
				old.Imports = append(old.Imports, p.Imports...)
				continue
			}
			seen[p.ImportPath] = &p
		}
	}
	for _, p := range seen {
		slices.Sort(p.Imports)
		p.Imports = slices.Compact(p.Imports)
		all = append(all, *p)
	}
	return all
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if p.Name == "smolmcp_test" || p.ImportPath == module {
			continue // this file
		}
		var rule string
		for r := range imports {
			if (name == r || strings.HasPrefix(name, r+"/")) && len(r) > len(rule) {
				rule = r
			}
		}
		if rule == "" {
			t.Errorf("package %s has no line in the table of imports, here and in docs/design.md", name)
			continue
		}
		for _, i := range p.Imports {
			if first, _, _ := strings.Cut(i, "/"); first != module && !strings.Contains(first, ".") {
				continue // standard library
			}
			allowed := append([]string{module + "/" + rule}, imports[rule]...)
			if !slices.ContainsFunc(allowed, func(a string) bool { return i == a || strings.HasPrefix(i, a+"/") }) {
				t.Errorf("%s may not import %s", name, i)
			}
		}
	}
}

// The server must not carry the built-in engine.
func TestEngineApart(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/smol-mcp").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), module+"/fleet/engine") {
		t.Error("cmd/smol-mcp imports the built-in engine")
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && p.ImportPath != module {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// source is a parsed file of the module that is no test.
type source struct {
	path string
	text []byte
	file *ast.File
	set  *token.FileSet
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{path, text, file, set})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFileLength(t *testing.T) {
	const most = 400
	for _, s := range sources(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > most {
			t.Errorf("%s has %d lines; over %d it is more than one thing", s.path, n, most)
		}
	}
}

// A function that does not fit on a screen does more than one thing.
func TestFunctionLength(t *testing.T) {
	const most = 60
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if n := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line; n > most {
					t.Errorf("%s: %s has %d lines", s.set.Position(f.Pos()), f.Name.Name, n)
				}
			}
		}
	}
}

// No work happens at start-up and no state hides in packages.
func TestNoHiddenState(t *testing.T) {
	variables := map[string]map[string]bool{} // of a directory
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		if variables[dir] == nil {
			variables[dir] = map[string]bool{}
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s: an init function", s.set.Position(d.Pos()))
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						for _, name := range v.Names {
							variables[dir][name.Name] = name.Name != "_"
						}
					}
				}
			}
		}
	}
	for _, s := range sources(t) {
		names := variables[filepath.Dir(s.path)]
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				for _, a := range assignments(f) {
					if knowsPackage(s.file, a.Name) && !declares(f, a.Name) {
						t.Errorf("%s: a variable of package %s is assigned", s.set.Position(a.Pos()), a.Name)
					}
					if names[a.Name] && !declares(f, a.Name) {
						t.Errorf("%s: the package variable %s is assigned", s.set.Position(a.Pos()), a.Name)
					}
				}
			}
		}
	}
}

// knowsPackage reports whether a file knows another package by that name.
func knowsPackage(f *ast.File, name string) bool {
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if i.Name != nil && i.Name.Name == name || i.Name == nil && path[strings.LastIndex(path, "/")+1:] == name {
			return true
		}
	}
	return false
}

// assignments returns the names that f sets, or sets a part of.
func assignments(f *ast.FuncDecl) []*ast.Ident {
	var set []*ast.Ident
	note := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.Ident:
				set = append(set, x)
				return
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			default:
				return
			}
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, l := range n.Lhs {
					note(l)
				}
			}
		case *ast.IncDecStmt:
			note(n.X)
		}
		return true
	})
	return set
}

// declares reports whether f has a parameter, result or variable of that name
// anywhere, which is close enough to tell a local from a package variable.
func declares(f *ast.FuncDecl, name string) bool {
	found := false
	fields := func(lists ...*ast.FieldList) {
		for _, l := range lists {
			if l == nil {
				continue
			}
			for _, field := range l.List {
				for _, n := range field.Names {
					found = found || n.Name == name
				}
			}
		}
	}
	fields(f.Recv)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType:
			fields(n.Params, n.Results)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, l := range n.Lhs {
					if id, ok := l.(*ast.Ident); ok {
						found = found || id.Name == name
					}
				}
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				found = found || id.Name == name
			}
		case *ast.RangeStmt:
			for _, e := range []ast.Expr{n.Key, n.Value} {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					found = found || id.Name == name
				}
			}
		}
		return true
	})
	return found
}

func TestModule(t *testing.T) {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(text) {
		t.Error("go.mod replaces a module")
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// Links between our own pages lead somewhere.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			u, err := url.Parse(string(m[1]))
			if err != nil {
				t.Errorf("%s: link %s: %v", page, m[1], err)
				continue
			}
			if u.Host != "" {
				continue
			}
			target, content := page, text
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(page), u.Path)
				if content, err = os.ReadFile(target); err != nil {
					if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
						continue
					}
					t.Errorf("%s: link %s: %v", page, m[1], err)
					continue
				}
			}
			if u.Fragment != "" && !slices.Contains(anchors(content), u.Fragment) {
				t.Errorf("%s: link %s: no such heading in %s", page, m[1], target)
			}
		}
	}
}

func anchors(page []byte) []string {
	var all []string
	for _, m := range heading.FindAllSubmatch(page, -1) {
		words := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		all = append(all, strings.ReplaceAll(words, " ", "-"))
	}
	return all
}

// README has two commands for people, and CI runs both as they stand.
func TestReadmeCommands(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	ci, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)\n```").FindAllSubmatch(readme, -1)
	if len(blocks) != 2 {
		t.Errorf("%d shell blocks in README.md, want one that builds and one that tests", len(blocks))
	}
	for _, b := range blocks {
		if !slices.Contains(strings.Split(string(ci), "\n"), string(b[1])) {
			t.Errorf(".ci/run does not run %q", b[1])
		}
	}
}
