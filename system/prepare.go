package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/util"
	"golang.org/x/sync/errgroup"

	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// Prepare materialises the workspace: image, runtime and tools are fetched and the tree is built
// beside its place and renamed into it. It is idempotent; concurrent callers see one result, and
// later ones the same error until the agent is started again. On success the status stays as it
// is; on an error, which wraps ErrPull, ErrConfig or ErrModel where one fits, the agent is failed with the reason of
// FailureOf, but for the end of ctx, which leaves nothing behind. A removed agent is an error that wraps ErrRemoved.
func (a *Agent) Prepare(ctx context.Context) error {
	select {
	case a.prep <- struct{}{}:
		defer func() { <-a.prep }()
	case <-ctx.Done():
		return fmt.Errorf("prepare agent %s: %w", a.id, ctx.Err())
	}
	a.mu.Lock()
	done, err, removed := a.runtime != nil, a.prepErr, a.removed
	a.mu.Unlock()
	switch {
	case removed:
		return fmt.Errorf("prepare agent %s: %w", a.id, ErrRemoved)
	case done || err != nil:
		return err
	}
	if err = a.openOutlets(); err == nil {
		err = a.materialize(ctx)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("prepare agent %s: %w", a.id, err)
	if ctx.Err() == nil {
		a.mu.Lock()
		a.prepErr = err
		a.mu.Unlock()
		a.tracker.SetFailure(FailureOf(err))
	}
	return err
}

// materialize builds the tree.
func (a *Agent) materialize(ctx context.Context) (err error) {
	m, err := a.newMaterializer()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && m.fresh {
			_ = removeAll(a.home, newTree)
		}
	}()
	if err := m.resolve(ctx); err != nil {
		return err
	}
	creds, err := m.resolveModel()
	if err != nil {
		return err
	}
	if err := checkMounts(a.hostFS, m.source.Mounts, m.enforced()); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	set := &programSet{agent: a, m: m}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return set.fetch(gctx) })
	g.Go(func() error { return m.write(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := set.link(ctx); err != nil {
		return err
	}
	return a.adopt(m, creds, set.ways)
}

func (a *Agent) newMaterializer() (*materializer, error) {
	m := &materializer{fs: a.fs, id: a.id, opts: MaterializeOptions{
		Store: a.store, Ref: a.ref, Overrides: a.overrides, UsageFetcher: a.usageFetcher,
		ModelResolver: a.modelResolver, DigestResolver: a.digests, ImageRef: a.imageRef,
		LocalRuntime: a.localRuntime, Mounts: a.mounts, HostFS: a.hostFS,
		Capabilities: a.capabilities, ImageLabels: a.labels, Confinement: a.confinementDoc(),
	}}
	if a.provider == nil {
		return m, nil
	}
	a.mu.Lock()
	m.haveDirs, a.blank = a.blank, false
	a.mu.Unlock()
	if !m.haveDirs {
		// A tree that the handle does not know of was never run: its making was cut short.
		for _, left := range []string{newTree, treeDir} {
			if err := removeAll(a.home, left); err != nil {
				return nil, fmt.Errorf("workspace: %w", err)
			}
		}
	}
	fs, err := a.home.Chroot(newTree)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	m.fs, m.fresh = fs, true
	m.opts.View = a.view()
	return m, nil
}

func (a *Agent) confinementDoc() workspace.Confinement {
	c := a.Process().Confinement
	return workspace.Confinement{Level: string(c.Level), Enforced: c.Enforced, Open: c.Open, Destinations: a.allowNet}
}

// adopt puts the finished tree in its place.
func (a *Agent) adopt(m *materializer, creds credentials, w ways) error {
	if err := ownTree(m.fs, a.uid); err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	fs := m.fs
	if m.fresh {
		if err := a.home.Rename(newTree, treeDir); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
		var err error
		if fs, err = a.home.Chroot(treeDir); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	text, err := m.config.Marshal()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fs, a.creds, a.ways = fs, creds, w
	if a.handle != nil {
		a.handle.Prepared, a.handle.Inherit, a.handle.OfflineSessions = true, w.inherit, w.sessions
		a.handle.AgentYAML = string(text)
		a.handle.Source = m.source.Clone()
		a.handle.hideEnvs(a.handle.Source)
		// A run writes the handle in a moment, with what its start adds.
		if a.run == nil {
			if err := a.handle.write(a.home, false); err != nil {
				return err
			}
		}
	}
	a.runtime = m.runtime()
	return nil
}

// programSet is the runtime and the tools of one agent.
type programSet struct {
	agent *Agent
	m     *materializer
	// runtime and bins are names in the program store; empty where the agent has no store.
	runtime string
	bins    []string
	ways    ways
}

// ways are what labels of a runtime's image say of it: that it takes its listener by descriptor, and
// that it works on its sessions while it does not serve.
type ways struct{ inherit, sessions bool }

// fetch gets every program into the store, side by side.
func (s *programSet) fetch(ctx context.Context) error {
	a := s.agent
	s.bins = make([]string, len(s.m.source.Bins))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		s.runtime, s.ways, err = a.fetchRuntime(ctx, s.m.source)
		return err
	})
	for i, b := range s.m.source.Bins {
		g.Go(func() (err error) {
			if s.bins[i], err = a.fetchBin(ctx, b.Image); err != nil {
				return fmt.Errorf("%w: tool %s: %w", ErrPull, b.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// fetchRuntime gets the runtime's program and tells what its image says of it.
func (a *Agent) fetchRuntime(ctx context.Context, src *spec.Agentfile) (name string, w ways, err error) {
	if a.localRuntime != "" {
		name, err = a.store1(ctx, "", a.readLocalRuntime)
		if err != nil {
			return "", w, fmt.Errorf("runtime %s: %w", a.localRuntime, err)
		}
		return name, w, nil
	}
	image := src.Runtime
	if image == "" {
		return "", w, fmt.Errorf("%w: the image has no RUNTIME and none was given", ErrPull)
	}
	ref, err := spec.ParseReference(image)
	if err != nil {
		return "", w, fmt.Errorf("%w: runtime: %w", ErrPull, err)
	}
	if name, err = a.fetchBin(ctx, image); err != nil {
		return "", w, fmt.Errorf("%w: runtime: %w", ErrPull, err)
	}
	if a.labels == nil {
		return name, w, nil
	}
	labels, err := a.labels(ctx, ref)
	if err != nil {
		return "", w, fmt.Errorf("%w: runtime %s: %w", ErrPull, ref, err)
	}
	w = ways{inherit: labels[ListenerLabel] == "inherit", sessions: labels[SessionsLabel] == "offline"}
	return name, w, a.checkCapabilities(labels, src.Capabilities)
}

// checkCapabilities looks at the definition's; what the agent's own options bring is provided by them.
func (a *Agent) checkCapabilities(labels map[string]string, names []string) error {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return hasCapability(a.capabilities, n) })
	return CheckCapabilities(labels, names)
}

// readLocalRuntime copies the operator's own program.
func (a *Agent) readLocalRuntime(_ context.Context, w io.Writer) error {
	info, err := a.hostFS.Stat(a.localRuntime)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Mode()&0o111 == 0 && info.Mode()&os.ModePerm != 0:
		return errors.New("not executable; chmod +x makes it so")
	}
	f, err := a.hostFS.Open(a.localRuntime)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func (a *Agent) fetchBin(ctx context.Context, image string) (string, error) {
	ref, err := spec.ParseReference(image)
	if err != nil {
		return "", err
	}
	if a.puller == nil {
		return "", fmt.Errorf("%s: no puller was given", ref)
	}
	digest := ref.Digest
	if digest == "" && a.digests != nil {
		// What is recorded as provenance is what is unpacked, though the tag may move meanwhile.
		digest = a.digests(image)
		ref.Digest = digest
	}
	pull := func(ctx context.Context, w io.Writer) error { return a.puller(ctx, ref, w) }
	key := programKey(digest)
	if a.identify == nil || a.programs == nil || key == "" {
		return a.store1(ctx, key, pull)
	}
	return a.programs.alias(key, func() (string, error) {
		info, err := a.identify(ctx, ref)
		if err != nil {
			return "", err
		}
		return a.programs.install(ctx, contentKey(info), pull)
	})
}

// store1 gets one program into the store. An agent without a store pulls when it links.
func (a *Agent) store1(ctx context.Context, key string, pull func(context.Context, io.Writer) error) (string, error) {
	if a.programs == nil {
		return "", nil
	}
	return a.programs.install(ctx, key, pull)
}

// link puts the programs into the tree: symlinks to the store where a process will follow them,
// and copies where the tree is in memory or stands alone.
func (s *programSet) link(ctx context.Context) error {
	a := s.agent
	pull := func(image string) func(io.Writer) error {
		return func(w io.Writer) error {
			if a.localRuntime != "" && image == "" {
				return a.readLocalRuntime(ctx, w)
			}
			ref, err := spec.ParseReference(image)
			if err != nil {
				return err
			}
			return a.puller(ctx, ref, w)
		}
	}
	image := s.m.source.Runtime
	if a.localRuntime != "" {
		image = ""
	}
	if err := a.linkProgram(s.m.fs, workspace.RuntimeBin, s.runtime, pull(image)); err != nil {
		return fmt.Errorf("runtime: %w", err)
	}
	for i, b := range s.m.source.Bins {
		if err := a.linkProgram(s.m.fs, path.Join(workspace.BinDir, b.Name), s.bins[i], pull(b.Image)); err != nil {
			return fmt.Errorf("tool %s: %w", b.Name, err)
		}
	}
	return nil
}

func (a *Agent) linkProgram(fs billy.Filesystem, name, stored string, pull func(io.Writer) error) error {
	if a.disk && a.programs != nil {
		return replaceSymlink(fs, a.programs.path(stored), name)
	}
	f, err := fs.TempFile(path.Dir(name), ".new-")
	if err != nil {
		return err
	}
	tmp := f.Name()
	if a.programs != nil {
		err = a.programs.copyTo(stored, f)
	} else {
		err = pull(&boundedWriter{w: f, left: maxProgramSize})
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if c, ok := fs.(billy.Change); ok && err == nil {
		err = c.Chmod(tmp, 0o555)
	} else if a.disk && err == nil {
		err = os.Chmod(filepath.Join(fs.Root(), tmp), 0o555)
	}
	if err == nil {
		err = fs.Rename(tmp, name)
	}
	if err != nil {
		_ = fs.Remove(tmp)
	}
	return err
}

// ownTree gives the agent's own user what is its own, and keeps everyone else out. uid -1 leaves
// the tree to the daemon's user.
func ownTree(fs billy.Filesystem, uid int) error {
	c, ok := fs.(billy.Change)
	if uid < 0 || !ok {
		return nil
	}
	if err := readable(fs, c); err != nil {
		return err
	}
	for _, dir := range workspace.WritableDirs() {
		if err := c.Lchown(dir, uid, uid); err != nil {
			return err
		}
	}
	if err := c.Chmod("", 0o750); err != nil {
		return err
	}
	return c.Chown("", 0, uid)
}

// readable undoes what a tight umask of the daemon, or of the one that made the folders ahead, took from
// the folders and files that the agent reads.
func readable(fs billy.Filesystem, c billy.Change) error {
	for _, dir := range append(workspace.ReadOnlyDirs(), "var") {
		if err := hasMode(fs, dir, 0o755); err != nil {
			return err
		}
	}
	if info, err := fs.Stat(workspace.AgentYAML); err != nil || info.Mode().Perm() == 0o644 {
		return err
	}
	fix := func(name string, info os.FileInfo, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(workspace.WritableDirs(), name):
			return filepath.SkipDir // the agent's alone
		case info.IsDir():
			return c.Chmod(name, 0o755)
		case info.Mode().IsRegular():
			return c.Chmod(name, 0o644)
		}
		return nil
	}
	for _, dir := range []string{workspace.EtcDir, "usr", "var"} {
		if err := util.Walk(fs, dir, fix); err != nil {
			return err
		}
	}
	return nil
}

// refresh brings an existing tree up to date for another start: the model's address and key, the
// program of a local runtime, and what confines the agent now.
func (a *Agent) refresh(ctx context.Context) error {
	rt := a.Runtime()
	creds, err := resolveModel(rt.Source.Model, a.modelResolver)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.creds = creds
	a.mu.Unlock()
	if a.localRuntime != "" {
		name, _, err := a.fetchRuntime(ctx, &spec.Agentfile{})
		if err != nil {
			return err
		}
		pull := func(w io.Writer) error { return a.readLocalRuntime(ctx, w) }
		if err := a.linkProgram(a.fs, workspace.RuntimeBin, name, pull); err != nil {
			return fmt.Errorf("runtime: %w", err)
		}
	}
	if err := a.retarget(rt); err != nil {
		return fmt.Errorf("workspace: %w", err)
	}
	view := a.view()
	doc := workspace.WorkspaceDocument(view, a.confinementDoc())
	return workspace.WriteFile(a.fs, workspace.ContextFile(workspace.WorkspaceDoc), doc, 0o644, false)
}
