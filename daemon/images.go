package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

const (
	maxTags      = 100
	maxBuildArgs = 1000
	// agentArtifact and binArtifact are the artifact types of docs/image-format.md.
	agentArtifact = "application/vnd.openotters.agent.v1"
	binArtifact   = "application/vnd.openotters.bin.v1"
	binName       = "io.openotters.bin.name"
	oldBinName    = "vnd.openotters.bin.name"
)

// Build makes an image of a streamed folder. The archive goes to a folder of its own while it is
// read, which is gone when the call returns, and an image is tagged only when it is whole.
func (s *service) Build(in buildStream) error {
	ctx := in.Context()
	first, err := in.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetOptions() == nil {
		return fail(codes.InvalidArgument, "", "build: the first message carries no options")
	}
	if err != nil {
		return err
	}
	opts := first.GetOptions()
	stored, tags, err := newNames("build", opts.GetTags())
	if err != nil {
		return err
	}
	if n := len(opts.GetBuildArgs()); n > maxBuildArgs {
		return fail(codes.InvalidArgument, "", "build: %d build arguments: at most %d can be given", n, maxBuildArgs)
	}
	folder, err := agentoci.ReadArchive(ctx, archiveParts(in.Recv), agentoci.ArchiveOptions{Dir: s.sup.home.path("builds")})
	if err != nil {
		return callerError(ctx, "build", err)
	}
	defer func() {
		if err := folder.Close(); err != nil {
			s.logger.Warn("build folder not removed", "error", err)
		}
	}()
	file := opts.GetFile()
	if file == "" {
		file = "Agentfile"
	}
	source, err := readAgentfile(folder, file)
	if err != nil {
		return err
	}
	res, err := agentoci.Build(ctx, s.sup.images.store, source, agentoci.BuildOptions{
		Name: file, Args: opts.GetBuildArgs(), Folder: folder, Parent: s.sup.images.opener, Tags: stored,
	})
	if err != nil {
		return callerError(ctx, "build", err)
	}
	return in.SendAndClose(&daemonv1.BuildResponse{Digest: res.Descriptor.Digest.String(), References: tags, Warnings: res.Warnings})
}

// newNames reads the names for an image that is made, each with a tag: as the store calls them, and
// as people do.
func newNames(what string, given []string) (stored, shown []string, err error) {
	if n := len(given); n == 0 || n > maxTags {
		return nil, nil, fail(codes.InvalidArgument, "name the image with -t NAME", "%s: %d names for the image: want 1 to %d", what, n, maxTags)
	}
	for _, t := range given {
		ref, err := newName(what, t)
		if err != nil {
			return nil, nil, err
		}
		stored, shown = append(stored, storeName(ref)), append(shown, ref.String())
	}
	return stored, shown, nil
}

func newName(what, given string) (spec.Reference, error) {
	ref, err := spec.ParseReference(given)
	switch {
	case err != nil:
		return ref, &failure{code: codes.InvalidArgument, err: fmt.Errorf("%s: %w", what, err)}
	case ref.Digest != "":
		return ref, fail(codes.InvalidArgument, "", "%s: %s: a name for an image has no digest", what, given)
	}
	return ref.WithDefaultTag("latest"), nil
}

func readAgentfile(folder fs.FS, name string) ([]byte, error) {
	if clean := path.Clean(name); !fs.ValidPath(clean) || clean == "." {
		return nil, fail(codes.InvalidArgument, "", "build: %q is not a path inside the build folder", clip(name))
	}
	f, err := folder.Open(path.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(codes.InvalidArgument, "write one, or name it with -f", "build: the folder has no %s", clip(name))
	}
	if err != nil {
		return nil, &failure{code: codes.InvalidArgument, err: fmt.Errorf("build: %w", err)}
	}
	defer f.Close()
	source, err := io.ReadAll(io.LimitReader(f, spec.MaxSource+1))
	if err != nil {
		return nil, &failure{code: codes.InvalidArgument, err: fmt.Errorf("build: %s: %w", name, err)}
	}
	if len(source) > spec.MaxSource {
		return nil, fail(codes.InvalidArgument, "", "build: %s: larger than %d bytes", name, spec.MaxSource)
	}
	return source, nil
}

// archiveReader reads the archive out of the messages.
type archiveReader struct {
	next func() ([]byte, error)
	rest []byte
}

// archiveParts reads the archive that follows the options.
func archiveParts[O any, Req interface {
	GetOptions() *O
	GetArchive() []byte
}](recv func() (Req, error)) *archiveReader {
	return &archiveReader{next: func() ([]byte, error) {
		m, err := recv()
		if err == nil && m.GetOptions() != nil {
			err = errOptionsTwice
		}
		return m.GetArchive(), err
	}}
}

var errOptionsTwice = fail(codes.InvalidArgument, "", "the options come once, in the first message")

func (r *archiveReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// ListImages lists the tags of the embedded registry.
func (s *service) ListImages(ctx context.Context, _ *daemonv1.ListImagesRequest) (*daemonv1.ListImagesResponse, error) {
	images := s.sup.provider.Registry()
	refs, err := images.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	out := &daemonv1.ListImagesResponse{}
	for _, ref := range refs {
		img, err := s.image(ctx, ref)
		if errors.Is(err, executor.ErrRefNotFound) {
			continue // untagged since
		}
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		out.Images = append(out.Images, img)
	}
	return out, nil
}

// image describes what the store calls ref.
func (s *service) image(ctx context.Context, ref string) (*daemonv1.Image, error) {
	info, err := s.sup.provider.Registry().Inspect(ctx, ref)
	if err != nil {
		return nil, err
	}
	kind, err := s.sup.images.kind(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return &daemonv1.Image{
		Reference: shownName(ref), Digest: info.Digest, MediaType: info.MediaType, Kind: kind,
		Size: info.Size, CreatedAt: info.CreatedUnix, Description: info.Description,
	}, nil
}

// kind tells what an image is from its manifest, or an index by its first one.
func (r *imageRegistry) kind(ctx context.Context, ref string) (string, error) {
	desc, err := r.store.Resolve(ctx, ref)
	if err != nil {
		return "", err
	}
	for range 2 {
		b, err := content.FetchAll(ctx, r.store, desc)
		if err != nil {
			return "", err
		}
		var m struct {
			ArtifactType string            `json:"artifactType"`
			Annotations  map[string]string `json:"annotations"`
			Manifests    []json.RawMessage `json:"manifests"`
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return "", nil // not of ours
		}
		switch {
		case m.ArtifactType == agentArtifact:
			return "agent", nil
		case m.ArtifactType == binArtifact, m.Annotations[binName] != "", m.Annotations[oldBinName] != "":
			return "bin", nil
		case len(m.Manifests) == 0 || json.Unmarshal(m.Manifests[0], &desc) != nil || !strings.HasPrefix(desc.MediaType, "application/vnd.oci.image."):
			return "", nil
		}
	}
	return "", nil
}
