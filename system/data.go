package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// add streams a file of the image to etc/data; it is in place only when its digest was right.
func (m *materializer) add(ctx context.Context, a spec.Add) error {
	name := a.Name
	if a.IsSkill() {
		return m.addSkill(ctx, name)
	}
	r, _, err := m.image.OpenAdd(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: file %s: %w", ErrPull, name, err)
	}
	defer r.Close()
	return m.place(r, name)
}

// addSkill writes the files of a skill of the image to its folder in etc/data.
func (m *materializer) addSkill(ctx context.Context, name string) error {
	folder, files, err := m.image.OpenSkill(ctx, name, "")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPull, err)
	}
	defer folder.Close()
	for _, part := range files {
		to := path.Join(name, part.Path)
		if err := m.fs.MkdirAll(path.Join(workspace.DataDir, path.Dir(to)), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", to, err)
		}
		f, err := folder.Open(part.Path)
		if err != nil {
			return fmt.Errorf("%w: file %s: %w", ErrPull, to, err)
		}
		if err := errors.Join(m.place(f, to), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// place writes a file of etc/data, which is in place only when it was read to its end.
func (m *materializer) place(r io.Reader, name string) error {
	f, err := m.fs.TempFile(workspace.DataDir, ".new-")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	tmp := f.Name()
	if _, err = io.Copy(f, r); err != nil {
		err = fmt.Errorf("%w: file %s: %w", ErrPull, name, err)
	}
	err = errors.Join(err, f.Close())
	if c, ok := m.fs.(billy.Change); ok && err == nil {
		err = c.Chmod(tmp, 0o644)
	}
	if err == nil {
		err = m.fs.Rename(tmp, path.Join(workspace.DataDir, name))
	}
	if err != nil {
		_ = m.fs.Remove(tmp)
	}
	return err
}
