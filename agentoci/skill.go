package agentoci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"gopkg.in/yaml.v3"

	"github.com/otters-sh/otters/spec"
)

// maxSkillDescription is what the default runtime lists of a skill, in bytes.
const maxSkillDescription = 1024

// maxSkillLayer is the archive of a skill within the bounds of the language, with its headers.
const maxSkillLayer = spec.MaxSkillBytes + spec.MaxSkillFiles*8<<10

// writeSkill writes a skill's folder as a tar archive: its files alone, in the order of their paths, with
// nothing of the machine, so that the same files give the same bytes everywhere.
func writeSkill(ctx context.Context, w io.Writer, folder fs.FS, dir string, files []spec.SkillPart) error {
	tw := tar.NewWriter(w)
	for _, f := range files {
		if err := writeSkillFile(ctx, tw, folder, dir, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return tw.Close()
}

func writeSkillFile(ctx context.Context, tw *tar.Writer, folder fs.FS, dir string, f spec.SkillPart) error {
	r, err := openRegular(folder, path.Join(dir, f.Path))
	if err != nil {
		return err
	}
	defer r.Close()
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o644, Size: f.Size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	n, err := io.Copy(tw, contextReader{ctx, r})
	if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n != f.Size {
		err = errors.New("it changed while it was built")
	}
	return err
}

// skill describes the archive of a skill of the build folder.
func (b *builder) skill(ctx context.Context, src string) (added, []spec.SkillPart, error) {
	files, err := spec.SkillFiles(b.opts.Folder, src)
	if err != nil {
		return added{}, nil, err
	}
	digester := digest.SHA256.Digester()
	count := &countWriter{w: digester.Hash()}
	if err := writeSkill(ctx, count, b.opts.Folder, src, files); err != nil {
		return added{}, nil, err
	}
	return added{
		desc: ocispec.Descriptor{MediaType: MediaTypeSkill, Digest: digester.Digest(), Size: count.n},
		open: func(ctx context.Context) (io.ReadCloser, error) {
			return newPipe(func(w io.Writer) error { return writeSkill(ctx, w, b.opts.Folder, src, files) }), nil
		},
	}, files, nil
}

// skillWarning tells why the default runtime would leave a skill out. It is empty where it would not.
func skillWarning(folder fs.FS, d spec.Add) string {
	text, err := fs.ReadFile(folder, path.Join(d.Src, spec.SkillFile))
	if err != nil {
		return "" // it was there a moment ago; the build tells when it is read
	}
	lines := strings.TrimPrefix(strings.ReplaceAll(string(text), "\r\n", "\n"), "\ufeff") + "\n"
	front, _, closed := strings.Cut(strings.TrimPrefix(lines, "---"), "\n---\n")
	var head struct {
		Name        string `yaml:"name"`
		Description string `yaml:"description"`
	}
	why := ""
	switch name, err := strings.TrimPrefix(d.Name, "skills/"), yaml.Unmarshal([]byte(front), &head); {
	case !closed:
		why = "its front matter has no end"
	case err != nil:
		why = strings.Join(strings.Fields(err.Error()), " ")
	case head.Name != name:
		why = fmt.Sprintf("its front matter says name %.100q; want %q", head.Name, name)
	case len(strings.Fields(head.Description)) == 0:
		why = "its front matter says no description"
	case len(strings.Join(strings.Fields(head.Description), " ")) > maxSkillDescription:
		why = fmt.Sprintf("its description has more than %d bytes", maxSkillDescription)
	default:
		return ""
	}
	return fmt.Sprintf("ADD %s: %s: %s; the runtime leaves such a skill out", d.Name, path.Join(d.Src, spec.SkillFile), why)
}

// OpenSkill reads the skill that becomes the folder etc/data/name, checked, with its files in the order of
// their paths. Close the Archive after use; its contents are kept in dir, or in the system's temporary
// folder where dir is empty. What is no plain file is refused with ErrUnsafe.
func (i *Image) OpenSkill(ctx context.Context, name, dir string) (*Archive, []spec.SkillPart, error) {
	a, files, err := i.openSkill(ctx, name, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("ADD %s: %w", name, err)
	}
	return a, files, nil
}

func (i *Image) openSkill(ctx context.Context, name, dir string) (*Archive, []spec.SkillPart, error) {
	desc, ok := i.files[name]
	if !ok || desc.MediaType != MediaTypeSkill {
		return nil, nil, errors.New("the image has no such skill")
	}
	r, err := fetch(ctx, i.store, desc, maxSkillLayer)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	a, err := ReadArchive(ctx, r, ArchiveOptions{Name: "skill", Dir: dir, MaxBytes: spec.MaxSkillBytes, MaxFile: spec.MaxSkillBytes, MaxEntries: spec.MaxSkillFiles})
	if err != nil {
		return nil, nil, err
	}
	files, err := spec.SkillFiles(a, ".")
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: %w", ErrUnsafe, err), a.Close())
	}
	return a, files, nil
}
