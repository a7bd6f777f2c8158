// Package otters_test checks the repository as a whole: what may import what, and what may be in it.
package otters_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/otters-sh/otters/spec"
)

const module = "github.com/otters-sh/otters"

// goPackage is what go list tells of a package.
type goPackage struct {
	ImportPath, Dir, Name, Doc         string
	Standard                           bool
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
}

// folder is the package's path in the repository.
func (p goPackage) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// goList runs go list with the build tags of a release.
func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-tags", "grpcnotrace", "-json=ImportPath,Dir,Name,Doc,Standard,GoFiles,Imports,TestImports,XTestImports"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// ours is every package of the module, the one below testdata too.
func ours(t *testing.T) []goPackage {
	t.Helper()
	return goList(t, "./...", "./testdata/agents")
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// within tells whether a folder is row or below it.
func within(folder, row string) bool {
	return folder == row || strings.HasPrefix(folder, row+"/")
}

// imports says which packages of ours a folder may import, test files aside. A folder without a row
// of its own takes the nearest one above it, and what is in one row may import each other. A name in
// a row covers what is below that folder too. CONTRIBUTING.md tells each row's one job.
var imports = map[string]string{
	"spec":            "",
	"model":           "",
	"loop":            "",
	"loop/openai":     "loop",
	"loop/anthropic":  "loop",
	"registry":        "",
	"sandbox":         "",
	"proto":           "",
	"workspace":       "spec",
	"agentoci":        "spec",
	"executor":        "spec workspace",
	"agentruntime":    "loop workspace proto",
	"system":          "executor workspace sandbox agentoci model spec proto",
	"gateway":         "model executor",
	"egress":          "",
	"daemon":          "agentoci agentruntime egress executor gateway loop model proto registry sandbox spec system workspace",
	"client":          "proto internal/home",
	"testdata/agents": "",

	"executor/executortest": "executor spec workspace agentoci proto",

	"internal/gate":         "",
	"internal/rootfs":       "",
	"internal/flow":         "",
	"internal/home":         "",
	"internal/leak":         "",
	"internal/modelserver":  "",
	"internal/testprograms": "",
	"internal/breakout":     "agentoci egress executor sandbox spec system",
	"internal/bench":        "agentoci client daemon executor gateway internal/home internal/modelserver loop model proto registry sandbox spec system workspace",

	"cmd/otters":         "client proto spec internal/home testdata/agents",
	"cmd/ottersd":        "daemon internal/home internal/breakout gateway system registry sandbox",
	"cmd/otters-runtime": "agentruntime proto loop",
	"cmd/otters-sandbox": "sandbox",
	"cmd/otters-tools":   "",
	"cmd/otters-attack":  "",
}

// free may be imported by every package that no other rule keeps from it: they import none of ours.
var free = []string{"internal/flow", "internal/gate", "internal/rootfs"}

func rowOf(folder string) (string, bool) {
	for row := folder; row != "."; row = filepath.Dir(row) {
		if _, ok := imports[row]; ok {
			return row, true
		}
	}
	return "", false
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range ours(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		row, ok := rowOf(p.folder())
		if !ok {
			t.Errorf("%s: no row in the table", p.folder())
			continue
		}
		seen[row] = true
		for _, path := range p.Imports {
			if !isOurs(path) {
				continue
			}
			target := goPackage{ImportPath: path}.folder()
			targetRow, _ := rowOf(target)
			if targetRow != row && !slices.Contains(free, target) && !allows(imports[row], target) {
				t.Errorf("%s imports %s, which row %q does not allow", p.folder(), target, row)
			}
		}
	}
	for row := range imports {
		if !seen[row] {
			t.Errorf("row %s of the table has no package", row)
		}
	}
}

// allows tells whether one of the folders or import paths named covers another.
func allows(rows, folder string) bool {
	return slices.ContainsFunc(strings.Fields(rows), func(row string) bool { return within(folder, row) })
}

// outside is what the leaf packages, and those of ours that they import, may import from other
// modules, by module or package path. Whoever imports one of them gets no more than this.
var outside = map[string]string{
	"spec":           "",
	"model":          "",
	"loop":           "github.com/google/jsonschema-go/jsonschema",
	"loop/openai":    "github.com/google/jsonschema-go/jsonschema github.com/openai/openai-go/v3",
	"loop/anthropic": "github.com/google/jsonschema-go/jsonschema github.com/anthropics/anthropic-sdk-go",
	"workspace":      "github.com/go-git/go-billy/v5 gopkg.in/yaml.v3",
	"executor": "github.com/go-git/go-billy/v5 github.com/google/uuid github.com/opencontainers/go-digest " +
		"github.com/opencontainers/image-spec/specs-go/v1 gopkg.in/yaml.v3 oras.land/oras-go/v2",
	"registry": "github.com/google/uuid github.com/opencontainers/go-digest github.com/opencontainers/image-spec " +
		"golang.org/x/sync golang.org/x/sys/unix modernc.org/sqlite oras.land/oras-go/v2",
	"sandbox":         "golang.org/x/sys/unix",
	"sandbox/monitor": "golang.org/x/sys/unix",
	"testdata/agents": "",
}

func TestLeafPackagesImportLittle(t *testing.T) {
	t.Parallel()
	all := map[string]goPackage{}
	for _, p := range ours(t) {
		all[p.folder()] = p
	}
	standard := map[string]bool{}
	for _, p := range goList(t, "std") {
		standard[p.ImportPath] = true
	}
	for leaf, allowed := range outside {
		if _, ok := all[leaf]; !ok {
			t.Errorf("row %s of the table has no package", leaf)
		}
		reached := []string{leaf}
		for i := 0; i < len(reached); i++ {
			for _, path := range all[reached[i]].Imports {
				switch target := (goPackage{ImportPath: path}).folder(); {
				case isOurs(path) && !slices.Contains(reached, target):
					reached = append(reached, target)
				case !isOurs(path) && !standard[path] && path != "C" && !allows(allowed, path):
					t.Errorf("%s imports %s by way of %s", leaf, path, reached[i])
				}
			}
		}
	}
}

// Invariant: each program links only what it needs; start-up time and memory are features. A program
// that must link something is named beside it, so that the check is seen to find what is there.
func TestProgramsLinkOnlyWhatTheyNeed(t *testing.T) {
	t.Parallel()
	trace := "golang.org/x/net/trace"
	tests := []struct{ program, links, not string }{
		{"otters", module + "/client google.golang.org/grpc",
			ourPaths("daemon gateway registry system agentoci executor workspace sandbox agentruntime loop") +
				" modernc.org/sqlite oras.land/oras-go/v2 github.com/openai/openai-go/v3 " + trace},
		{"otters-sandbox", module + "/sandbox/monitor",
			ourPaths("client daemon gateway registry system agentoci executor workspace agentruntime loop proto spec") +
				" google.golang.org/grpc google.golang.org/protobuf modernc.org/sqlite net encoding/json"},
		{"otters-tools", "github.com/itchyny/gojq mvdan.cc/sh/v3/interp net/http",
			module + " google.golang.org/grpc modernc.org/sqlite github.com/mikefarah/yq"},
		{"otters-attack", "golang.org/x/sys/unix",
			module + " google.golang.org/grpc modernc.org/sqlite net net/http"},
		{"otters-runtime", module + "/agentruntime google.golang.org/grpc",
			ourPaths("client daemon gateway registry system agentoci executor sandbox") + " oras.land/oras-go/v2 " + trace},
		{"ottersd", module + "/daemon modernc.org/sqlite",
			ourPaths("client testdata/agents") + " github.com/openai/openai-go/v3 " + trace},
	}
	for _, tt := range tests {
		t.Run(tt.program, func(t *testing.T) {
			t.Parallel()
			var linked []string
			for _, p := range goList(t, "-deps", "./cmd/"+tt.program) {
				if p.folder() != "cmd/"+tt.program {
					linked = append(linked, p.ImportPath)
				}
			}
			for _, want := range strings.Fields(tt.links) {
				if !slices.Contains(linked, want) {
					t.Errorf("%s does not link %s", tt.program, want)
				}
			}
			for _, path := range linked {
				for _, not := range strings.Fields(tt.not) {
					// A package of the standard library is meant alone: net is not net/netip.
					if path == not || strings.ContainsAny(not, ".") && within(path, not) {
						t.Errorf("%s links %s", tt.program, path)
					}
				}
			}
		})
	}
}

func ourPaths(folders string) string {
	return module + "/" + strings.Join(strings.Fields(folders), " "+module+"/")
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	for _, p := range ours(t) {
		if len(p.GoFiles) == 0 || strings.HasPrefix(p.folder(), "proto/") {
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.Dir) + " "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: its doc comment starts %q, want %q", p.folder(), p.Doc, want+"…")
		}
	}
}

// tracked returns every file of the repository that git has or would take.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skip("not in a git repository:", err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	files = slices.DeleteFunc(files, func(path string) bool {
		info, err := os.Lstat(path)
		return err != nil || !info.Mode().IsRegular()
	})
	if len(files) == 0 {
		t.Fatal("git names no files")
	}
	return files
}

// maxTracked is the largest file that belongs here, in bytes; generated code is the largest there is.
const maxTracked = 1 << 20

func TestFilesAreTextAndStandAlone(t *testing.T) {
	t.Parallel()
	bad := foreignWords(t)
	for _, path := range tracked(t) {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // of another package's test, which is over
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if len(text) > maxTracked {
			t.Errorf("%s: %d bytes, at most %d", path, len(text), maxTracked)
		}
		if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
			t.Errorf("%s: not text", path)
		}
		for _, word := range bad {
			if i := bytes.Index(text, []byte(word)); i >= 0 {
				t.Errorf("%s:%d: contains %q", path, 1+bytes.Count(text[:i], []byte{'\n'}), word)
			}
		}
	}
}

// foreignWords are the paths and hosts of the machine that a file was written on, which mean nothing
// elsewhere: those that are known, written so that this file has none of them, and those of the
// machine that runs the test.
func foreignWords(t *testing.T) []string {
	t.Helper()
	slash := string(filepath.Separator)
	words := []string{
		slash + "work" + slash, slash + "farm" + slash, "." + "library", ".." + slash + "shared",
		slash + "root" + slash + "go" + slash, "file:" + slash + slash + slash + "home",
	}
	out, err := exec.Command("go", "env", "GOPROXY", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, proxy := range strings.FieldsFunc(lines[0], func(r rune) bool { return r == ',' || r == '|' }) {
		_, host, ok := strings.Cut(proxy, "://")
		host, _, _ = strings.Cut(host, "/")
		// A loopback address or a bare name may well stand in a file for another reason.
		if ok && host != "proxy.golang.org" && strings.Contains(host, ".") && !strings.HasPrefix(host, "127.") {
			words = append(words, host)
		}
	}
	// An unset cache is an empty line or "off". A short path, such as that of a container's, may well stand in
	// a file for another reason too.
	for _, dir := range lines[1:] {
		if filepath.IsAbs(dir) && strings.Count(dir, slash) > 2 {
			words = append(words, dir)
		}
	}
	return words
}

func TestTheGuideNamesEveryFolderOfTheTable(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for row := range imports {
		if !bytes.Contains(guide, []byte("| `"+row+"` |")) {
			t.Errorf("CONTRIBUTING.md has no row for %s", row)
		}
	}
}

func TestLicence(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, []byte("MIT License\n")) || !bytes.Contains(text, []byte("The Otters authors")) {
		t.Errorf("LICENSE starts %q", text[:min(80, len(text))])
	}
}

// Invariant: go.mod names as direct what our packages import, and nothing else.
func TestDirectDependenciesAreThoseInUse(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	var direct []string
	for _, r := range file.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	for _, p := range ours(t) {
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			first, _, _ := strings.Cut(path, "/")
			if isOurs(path) || !strings.Contains(first, ".") {
				continue
			}
			i := slices.IndexFunc(direct, func(m string) bool { return within(path, m) })
			if i < 0 {
				t.Errorf("%s imports %s, which no direct dependency provides", p.folder(), path)
				continue
			}
			used[direct[i]] = true
		}
	}
	for _, m := range direct {
		if !used[m] {
			t.Errorf("%s: a direct dependency that nothing imports", m)
		}
	}
}

// Every Agentfile in the reference is one.
func TestAgentfileExamplesParse(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/agentfile.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```agentfile\n")
	if len(blocks) < 2 {
		t.Fatal("no examples")
	}
	for _, block := range blocks[1:] {
		source, _, _ := strings.Cut(block, "```")
		if _, err := spec.Parse("docs/agentfile.md", []byte(source), spec.ParseOptions{}); err != nil {
			t.Error(err)
		}
	}
}
