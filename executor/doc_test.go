package executor_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// go doc of the contract's packages is their reference: every exported name has a comment, methods of
// interfaces too. A field may share the one of the field right above it.
func TestEveryNameOfTheReferenceHasAComment(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "../system", "executortest", "executortest/script"} {
		fset := token.NewFileSet()
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		d, err := doc.NewFromFiles(fset, files, "reference/"+dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Doc) < 200 {
			t.Errorf("package %s says little of itself", d.Name)
		}
		told := func(what, text string) {
			if strings.TrimSpace(text) == "" {
				t.Errorf("%s.%s has no comment", d.Name, what)
			}
		}
		funcs, values := d.Funcs, append(d.Consts, d.Vars...)
		for _, typ := range d.Types {
			values = append(append(values, typ.Consts...), typ.Vars...)
			told(typ.Name, typ.Doc)
			funcs = append(append(funcs, typ.Funcs...), typ.Methods...)
			for _, s := range typ.Decl.Specs {
				members(fset, s.(*ast.TypeSpec), func(field, text string) { told(typ.Name+"."+field, text) })
			}
		}
		for _, v := range values {
			grouped(v, told)
		}
		for _, f := range funcs {
			told(f.Recv+" "+f.Name, f.Doc)
		}
	}
}

// grouped calls f for the exported names of a declaration with their comments. Those of a group may have
// the one above it.
func grouped(v *doc.Value, f func(name, text string)) {
	for _, s := range v.Decl.Specs {
		s := s.(*ast.ValueSpec)
		text := s.Doc.Text() + s.Comment.Text()
		if text == "" {
			text = v.Doc
		}
		for _, n := range s.Names {
			if n.IsExported() {
				f(n.Name, text)
			}
		}
	}
}

// members calls f for the exported members of a struct or an interface with their comments.
func members(fset *token.FileSet, s *ast.TypeSpec, f func(name, text string)) {
	var list []*ast.Field
	switch typ := s.Type.(type) {
	case *ast.StructType:
		list = typ.Fields.List
	case *ast.InterfaceType:
		list = typ.Methods.List
	}
	shared, last := "", 0
	for _, field := range list {
		text := field.Doc.Text() + field.Comment.Text()
		line := fset.Position(field.Pos()).Line
		if _, method := field.Type.(*ast.FuncType); text == "" && !method && line == last+1 {
			text = shared
		}
		for _, n := range field.Names {
			if n.IsExported() {
				f(n.Name, text)
			}
		}
		shared, last = text, fset.Position(field.End()).Line
	}
}
