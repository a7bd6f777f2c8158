package system

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/workspace"
)

// view is the tree as the agent sees it at the level it has.
func (a *Agent) view() executor.WorkspaceView {
	root, isolated := "/", true
	if a.sandboxLevel() != sandbox.Strict {
		isolated = false
		if a.provider != nil {
			root = hostPath(a.home, treeDir)
		} else {
			root = a.fs.Root()
		}
	}
	return executor.WorkspaceView{
		Root: root, Isolated: isolated,
		WorkspaceDir: path.Join(root, workspace.WorkDir),
		RuntimeBin:   path.Join(root, workspace.RuntimeBin),
		BinDirs:      []string{path.Join(root, workspace.BinDir)},
	}
}

// confine fills in what the level makes of the tree for a program of it. The tree's folders and
// links are looked at through its descriptor; what a link to a program names is taken only where
// it lies in the program store.
func (a *Agent) confine(s *sandbox.Spec, rt *executor.Runtime, program string) error {
	view := a.view()
	s.Level, s.UID, s.GID = a.sandboxLevel(), a.uid, a.uid
	s.Path, s.Dir, s.Limits = path.Join(view.Root, program), view.WorkspaceDir, a.limits
	if s.Level == sandbox.Off {
		return nil
	}
	bind := func(name string, readOnly bool) {
		s.Binds = append(s.Binds, sandbox.Bind{Source: hostPath(a.fs, name), Target: "/" + name, ReadOnly: readOnly})
	}
	if s.Level == sandbox.Limited {
		// The folder itself, with the links to programs in it; what is its own is added below.
		s.Binds = append(s.Binds, sandbox.Bind{Source: a.fs.Root(), ReadOnly: true})
	} else {
		bind(workspace.EtcDir, true)
	}
	for _, name := range ownFolders() {
		if info, err := a.fs.Lstat(name); err != nil || !info.IsDir() {
			return fmt.Errorf("workspace: %s is not a folder", name)
		}
		bind(name, false)
	}
	names := []string{workspace.RuntimeBin}
	for _, b := range rt.Source.Bins {
		names = append(names, path.Join(workspace.BinDir, b.Name))
	}
	for _, name := range names {
		stored, err := a.stored(name)
		if err != nil {
			return fmt.Errorf("workspace: %s: %w", name, err)
		}
		s.Binds = append(s.Binds, sandbox.Bind{Source: stored, Target: "/" + name, ReadOnly: true})
	}
	mounts := make([]sandbox.Bind, 0, len(rt.Source.Mounts))
	for _, m := range rt.Source.Mounts {
		mounts = append(mounts, sandbox.Bind{Source: m.Host, Target: path.Clean("/" + m.Target), ReadOnly: m.ReadOnly})
	}
	// One inside another comes after it.
	sort.SliceStable(mounts, func(i, j int) bool { return mounts[i].Target < mounts[j].Target })
	s.Binds = append(s.Binds, mounts...)
	return nil
}

// expected is what a start would be confined by.
func (a *Agent) expected() sandbox.Confinement {
	c := sandbox.Describe(a.sandboxLevel(), a.uid >= 0)
	if a.limits == (sandbox.Limits{}) || !a.monitored {
		return c
	}
	// Where the limits can't be had any more the start will fail, and tells why.
	l, err := a.provider.launch()
	if err != nil {
		return c
	}
	limits, err := l.LimitedBy(c.Level, a.limits)
	if err != nil {
		return c
	}
	return c.WithLimits(limits)
}

// checkLimits refuses limits that nothing would enforce.
func (a *Agent) checkLimits() error {
	if a.limits == (sandbox.Limits{}) {
		return nil
	}
	if !a.monitored {
		return fmt.Errorf("%w: limits: %w: the agent has no monitor, which limits it", ErrConfig, sandbox.ErrUnsupported)
	}
	l, err := a.provider.launch()
	if err != nil {
		return err
	}
	if _, err := l.LimitedBy(a.sandboxLevel(), a.limits); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// ownFolders are the agent's own folders that lie in none of the others.
func ownFolders() []string {
	var top []string
	for _, dir := range workspace.WritableDirs() {
		inside := false
		for _, t := range top {
			inside = inside || strings.HasPrefix(dir, t+"/")
		}
		if !inside {
			top = append(top, dir)
		}
	}
	return top
}

// stored is where the program of a link in the tree lies.
func (a *Agent) stored(name string) (string, error) {
	target, err := a.fs.Readlink(name)
	if err != nil {
		return "", err
	}
	if target != a.programs.path(filepath.Base(target)) {
		return "", errors.New("it is not a link into the program store")
	}
	return target, nil
}

// portOf is the port of the address that a runtime binds itself.
func portOf(addr string) (int, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoAddress, err)
	}
	return tcp.Port, nil
}

// retarget brings what an earlier level has left in the tree to the present one: the paths in
// agent.yaml and the documents, and how mounts are there. It does nothing where the level is as it
// was.
func (a *Agent) retarget(rt *executor.Runtime) error {
	view := a.view()
	old := strings.TrimSuffix(rt.Config.Workspace, "/"+workspace.WorkDir)
	if rt.Config.Workspace == view.WorkspaceDir {
		return nil
	}
	c := *rt.Config
	seen := func(p string) string {
		if rest, ok := strings.CutPrefix(p, old+"/"); ok {
			return path.Join(view.Root, rest)
		}
		return p
	}
	c.Workspace, c.Runtime.Binary = view.WorkspaceDir, seen(c.Runtime.Binary)
	c.Tools = append([]workspace.Tool(nil), c.Tools...)
	for i := range c.Tools {
		c.Tools[i].Binary = seen(c.Tools[i].Binary)
	}
	c.Mounts = append([]workspace.Mount(nil), c.Mounts...)
	for i := range c.Mounts {
		c.Mounts[i].Target = seen(c.Mounts[i].Target)
	}
	m := &materializer{fs: a.fs, id: a.id, source: rt.Source, config: &c, view: view, usages: make(map[string]string)}
	m.opts.Confinement = a.confinementDoc()
	for _, b := range rt.Source.Bins {
		if _, err := a.fs.Lstat(workspace.UsageFile(b.Name)); err == nil {
			m.usages[b.Name] = ""
		}
	}
	if err := applyMounts(a.fs, a.hostFS, rt.Source.Mounts, view, a.sandboxLevel() != sandbox.Off); err != nil {
		return err
	}
	if err := m.documents(); err != nil {
		return err
	}
	text, err := c.Marshal()
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runtime = &executor.Runtime{ID: rt.ID, Source: rt.Source, Config: &c}
	if a.handle == nil {
		return nil
	}
	a.handle.AgentYAML = string(text)
	return a.handle.write(a.home, false)
}

// clearTarget takes away what another level has left where a mount goes: a link where a folder is
// mounted on, or the empty place to mount on where there will be a link.
func clearTarget(fs billy.Filesystem, target string, link bool) error {
	info, err := fs.Lstat(target)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch isLink := info.Mode()&os.ModeSymlink != 0; {
	case link && !isLink && (info.IsDir() || info.Size() == 0), !link && isLink:
		return fs.Remove(target)
	}
	return nil
}
