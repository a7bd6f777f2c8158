package system_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Invariant: everything of a tree but the programs is written, as the agent sees it and not as the
// host does; nothing of it holds an address or a key. The three worst inputs: an image that is not
// there, a model that can't be resolved, a mount that is not there; each has its sentinel.

func TestMaterializeContentServesOtherExecutors(t *testing.T) {
	t.Parallel()
	store := image(t, plain+"BIN cat otters/tools/cat \"prints\"\nCONTEXT RIVERS <<EOF\nThe Severn is long.\nEOF\nCONFIG temperature=1.10\n")
	var fs billy.Filesystem = memfs.New()
	rt, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "", system.MaterializeOptions{
		Store: store, Ref: ref, ModelResolver: nil,
		View:                executor.WorkspaceView{Root: "/agent", Isolated: true},
		ViewBinDirsForTools: func(names []string) []string { return []string{"/opt/bins/" + names[0]} },
		ToolBinaryPath:      func(name string) string { return "/opt/bins/" + name },
		SymlinkBinAt:        func(name string) (string, bool) { return "/opt/bin-images/" + name, true },
		Capabilities:        []executor.Capability{{Name: "job-submit", Description: "submits jobs"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if rt.Config.Tools[0].Binary != "/opt/bins/cat" || rt.Config.Configs["temperature"] != "1.10" {
		t.Errorf("config %+v", rt.Config)
	}
	if link, err := fs.Readlink("opt/bins/cat"); err != nil || link != "/opt/bin-images/cat" {
		t.Errorf("symlink %q, %v", link, err)
	}
	for file, want := range map[string]string{
		"etc/context/RIVERS.md": "The Severn is long.", "etc/context/WORKSPACE.md": "/opt/bins/cat", "etc/context/AGENT.md": "job_submit",
		"etc/agent.yaml": "workspace: /agent/workspace",
	} {
		if got, err := util.ReadFile(fs, file); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s lacks %q: %s, %v", file, want, got, err)
		}
	}
	if _, err := fs.Stat("usr/bin/cat"); err == nil {
		t.Error("a program was installed")
	}
}

func TestMaterializeContentWithoutAViewTellsThePathsOfTheHost(t *testing.T) {
	t.Parallel()
	for name, fs := range map[string]billy.Filesystem{"on disk": osfs.New(t.TempDir()), "in memory": memfs.New()} {
		rt, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "127.0.0.1:4711", system.MaterializeOptions{
			Store: image(t, plain+"BIN cat otters/tools/cat\n"), Ref: ref, ModelResolver: model.StaticResolver("http://secret.example", "secret-key"),
		})
		if err != nil {
			t.Fatal(name, err)
		}
		root := fs.Root()
		if c := rt.Config; c.Workspace != filepath.Join(root, "workspace") || c.Runtime.Binary != filepath.Join(root, "usr/local/bin/runtime") || c.Tools[0].Binary != filepath.Join(root, "usr/bin/cat") {
			t.Errorf("%s: %+v", name, c)
		}
		for _, file := range []string{"etc/agent.yaml", "etc/context/AGENT.md", "etc/context/WORKSPACE.md"} {
			text, err := util.ReadFile(fs, file)
			// Of the port alone it may hold the digits: in a digest.
			if err != nil || strings.Contains(string(text), "secret.example") || strings.Contains(string(text), "secret-key") || strings.Contains(string(text), "127.0.0.1") {
				t.Errorf("%s: %s: %s, %v", name, file, text, err)
			}
		}
		for _, dir := range []string{"workspace", "tmp", "home/.config", "home/.cache", "home/.local/share", "var/lib", "usr/bin", "etc/data"} {
			if info, err := fs.Stat(dir); err != nil || !info.IsDir() {
				t.Errorf("%s: no folder %s: %v", name, dir, err)
			}
		}
	}
}

func TestMaterializeContentExtractsContextsAndFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rivers.json"), []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	skill := filepath.Join(dir, "tables")
	if err := errors.Join(os.MkdirAll(filepath.Join(skill, "ref"), 0o700), os.WriteFile(filepath.Join(skill, "ref/units.md"), []byte("km"), 0o600),
		os.WriteFile(filepath.Join(skill, "SKILL.md"), []byte("---\nname: tables\n---\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	store := memory.New()
	res, err := agentoci.Build(t.Context(), store, []byte(plain+"CONTEXT MANNERS \"how\" <<E\nbe kind\nE\nADD rivers.json\nADD tables/\n"), agentoci.BuildOptions{Folder: os.DirFS(dir)})
	if err == nil {
		err = store.Tag(t.Context(), res.Descriptor, "latest")
	}
	if err != nil {
		t.Fatal(err)
	}
	fs := memfs.New()
	if _, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "", system.MaterializeOptions{Store: store, Ref: ref}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"etc/context/MANNERS.md": "be kind", "etc/data/rivers.json": "[]", "etc/data/skills/tables/SKILL.md": "name: tables", "etc/data/skills/tables/ref/units.md": "km", "etc/agent.yaml": "name: MANNERS", "etc/context/AGENT.md": "rivers.json"} {
		if got, err := util.ReadFile(fs, file); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s lacks %q: %s, %v", file, want, got, err)
		}
	}
}

func TestMaterializeContentMakesOnlyTheLinksThatAreAskedFor(t *testing.T) {
	t.Parallel()
	fs := osfs.New(t.TempDir())
	_, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "", system.MaterializeOptions{
		Store: image(t, plain+"BIN cat otters/tools/cat\nBIN env otters/tools/env\n"), Ref: ref,
		SymlinkBinAt: func(name string) (string, bool) { return "/opt/bin-images/cat/cat", name == "cat" },
	})
	if err != nil {
		t.Fatal(err)
	}
	// The target is the container's, to the letter, on whatever filesystem.
	if got, err := os.Readlink(filepath.Join(fs.Root(), "opt/bins/cat")); err != nil || got != "/opt/bin-images/cat/cat" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(fs.Root(), "opt/bins/env")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a link that nobody asked for: %v", err)
	}
}

func TestMaterializeContentLinksMounts(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	for name, fs := range map[string]billy.Filesystem{"osfs": osfs.New(t.TempDir()), "bound osfs": osfs.New(t.TempDir(), osfs.WithBoundOS())} {
		rt, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "", system.MaterializeOptions{
			Store: image(t, plain), Ref: ref, HostFS: osfs.New("/"),
			Mounts:    []executor.Mount{{Host: source, Target: "/workspace/a", Description: "an option"}},
			Overrides: []spec.Override{spec.WithMounts(spec.Mount{Host: source, Target: "/workspace/b"})},
		})
		if err != nil {
			t.Fatal(name, err)
		}
		for _, at := range []string{"workspace/a", "workspace/b"} {
			if got, err := os.Readlink(filepath.Join(fs.Root(), at)); err != nil || got != source {
				t.Errorf("%s: %s is %q, %v", name, at, got, err)
			}
		}
		if len(rt.Config.Mounts) != 2 {
			t.Errorf("%s: %+v", name, rt.Config.Mounts)
		}
		if doc, err := util.ReadFile(fs, "etc/context/MOUNTS.md"); err != nil || !strings.Contains(string(doc), "an option") {
			t.Errorf("%s: %s, %v", name, doc, err)
		}
	}
	// An isolated view's executor mounts itself.
	fs := osfs.New(t.TempDir())
	if _, err := system.MaterializeContent(t.Context(), fs, uuid.New(), "", system.MaterializeOptions{
		Store: image(t, plain), Ref: ref, View: executor.WorkspaceView{Root: "/agent", Isolated: true},
		Mounts: []executor.Mount{{Host: source, Target: "/workspace/a", ReadOnly: true}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Readlink(filepath.Join(fs.Root(), "workspace/a")); err == nil {
		t.Error("a link was made for a mount of the executor's own")
	}
}

func TestMaterializeContentNamesTheCauseByItsSentinel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file string
		opts system.MaterializeOptions
		is   error
	}{
		"an image that is not there":    {plain, system.MaterializeOptions{Ref: spec.Reference{Name: "x", Tag: "none"}}, system.ErrPull},
		"no model":                      {"FROM scratch\nRUNTIME otters/runtime\n", system.MaterializeOptions{Ref: ref}, system.ErrModel},
		"a model that can't be had":     {plain, system.MaterializeOptions{Ref: ref, ModelResolver: func(string) (string, string, error) { return "", "", errors.New("no key") }}, system.ErrModel},
		"a setting that is not given":   {plain + "CONFIG region!\n", system.MaterializeOptions{Ref: ref}, system.ErrConfig},
		"an override that is wrong":     {plain, system.MaterializeOptions{Ref: ref, Overrides: []spec.Override{spec.WithModel("x")}}, system.ErrConfig},
		"a mount that is not there":     {plain, system.MaterializeOptions{Ref: ref, HostFS: memfs.New(), Mounts: []executor.Mount{{Host: "/none", Target: "/workspace/x"}}}, system.ErrConfig},
		"a usage that can't be fetched": {plain + "BIN cat otters/tools/cat\n", system.MaterializeOptions{Ref: ref, UsageFetcher: func(context.Context, spec.Reference) (string, error) { return "", errors.New("gone") }}, system.ErrPull},
	} {
		c.opts.Store = image(t, c.file)
		if _, err := system.MaterializeContent(t.Context(), memfs.New(), uuid.New(), "", c.opts); !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
	}
	if _, err := system.MaterializeContent(t.Context(), memfs.New(), uuid.New(), "", system.MaterializeOptions{Ref: ref}); !errors.Is(err, system.ErrPull) {
		t.Errorf("no store: %v", err)
	}
}

func TestALocalRuntimeIsNamedInPlaceOfAnImage(t *testing.T) {
	t.Parallel()
	rt, err := system.MaterializeContent(t.Context(), memfs.New(), uuid.New(), "", system.MaterializeOptions{
		Store: image(t, plain), Ref: ref, LocalRuntime: "/opt/mine", ImageRef: "example.org/agent:1", DigestResolver: func(string) string { return "sha256:" + zeros },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := rt.Config.Runtime; r.Ref != "file:///opt/mine" || r.Digest != "" {
		t.Errorf("%+v", r)
	}
	if rt.Config.Image.Ref != "example.org/agent:1" {
		t.Errorf("%+v", rt.Config.Image)
	}
}
