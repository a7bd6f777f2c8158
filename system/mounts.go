package system

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/workspace"
)

// mountable are the folders of a tree that a mount's target may lie in: the agent's own, and one
// for mounts. Elsewhere a mount could pose as a tool or a context.
var mountable = []string{workspace.WorkDir, workspace.HomeDir, workspace.VarLibDir, "mnt"}

// checkMounts refuses mounts that can't be had or would not be what they say; enforced tells that
// the level keeps a read-only one from being written.
func checkMounts(host billy.Filesystem, mounts []executor.Mount, enforced bool) error {
	for _, m := range mounts {
		target := path.Clean("/" + m.Target)[1:]
		ok := false
		for _, dir := range mountable {
			ok = ok || strings.HasPrefix(target, dir+"/")
		}
		switch {
		case !path.IsAbs(m.Host):
			return fmt.Errorf("mount %s: host path %q is not absolute", m.Target, m.Host)
		case !ok:
			return fmt.Errorf("mount %s: a target lies below one of %s", m.Target, strings.Join(mountable, ", "))
		case m.ReadOnly && !enforced:
			return fmt.Errorf("mount %s: read-only can't be enforced at sandbox level off; leave :ro out or use a stronger level", m.Target)
		}
		if host == nil {
			continue
		}
		if _, err := host.Stat(m.Host); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return nil
}

// applyMounts makes a symlink for each mount; where the view is isolated the executor mounts
// instead, and a place to mount on is made.
func applyMounts(fs, host billy.Filesystem, mounts []executor.Mount, view executor.WorkspaceView, enforced bool) error {
	if err := checkMounts(host, mounts, enforced); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for _, m := range mounts {
		target := path.Clean("/" + m.Target)[1:]
		if err := clearTarget(fs, target, !view.Isolated); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		if view.Isolated {
			if err := makePlace(fs, host, m.Host, target); err != nil {
				return fmt.Errorf("mount %s: %w", m.Target, err)
			}
			continue
		}
		if err := makeOpen(fs, path.Dir(target)); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
		if err := replaceSymlink(fs, m.Host, target); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return nil
}

// makePlace makes the folder or the empty file that source is mounted on, as long as nothing is
// there. What is mounted below another mount finds its place there.
func makePlace(fs, host billy.Filesystem, source, target string) error {
	if host == nil {
		return nil
	}
	info, err := host.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return makeOpen(fs, target)
	}
	if err := makeOpen(fs, path.Dir(target)); err != nil {
		return err
	}
	f, err := fs.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// makeOpen is MkdirAll for folders that the agent's own user passes through, whatever the daemon's umask.
func makeOpen(fs billy.Filesystem, name string) error {
	if _, err := fs.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return fs.MkdirAll(name, 0o755)
	}
	if dir := path.Dir(name); dir != "." {
		if err := makeOpen(fs, dir); err != nil {
			return err
		}
	}
	return makeFolder(fs, name, 0o755)
}

// ReapplyMounts makes the symlinks of the mounts, or their places, and MOUNTS.md again in the existing tree, for an
// agent that Load restored. It is idempotent. Before the tree is there it is an error.
func (a *Agent) ReapplyMounts() error {
	a.mu.Lock()
	rt, fs := a.runtime, a.fs
	a.mu.Unlock()
	if rt == nil || fs == nil {
		return errors.New("mounts: the agent has no workspace yet")
	}
	if err := applyMounts(fs, a.hostFS, rt.Source.Mounts, a.view(), a.sandboxLevel() != sandbox.Off); err != nil {
		return err
	}
	doc := workspace.MountsDocument(rt.Config.Mounts)
	name := workspace.ContextFile(workspace.MountsDoc)
	if doc == nil {
		if err := fs.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("mounts: %w", err)
		}
		return nil
	}
	return workspace.WriteFile(fs, name, doc, 0o644, false)
}
