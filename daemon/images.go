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
	tags, err := buildTags(opts)
	if err != nil {
		return err
	}
	folder, err := agentoci.ReadArchive(ctx, &archiveReader{in: in}, agentoci.ArchiveOptions{Dir: s.sup.home.path("builds")})
	if err != nil {
		return buildError(ctx, err)
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
		Name: file, Args: opts.GetBuildArgs(), Folder: folder, Parent: s.sup.images.opener, Tags: tags,
	})
	if err != nil {
		return buildError(ctx, err)
	}
	return in.SendAndClose(&daemonv1.BuildResponse{Digest: res.Descriptor.Digest.String(), References: tags, Warnings: res.Warnings})
}

// buildTags reads the names for the image: in the embedded registry, each with a tag.
func buildTags(opts *daemonv1.BuildOptions) ([]string, error) {
	if n := len(opts.GetTags()); n == 0 || n > maxTags {
		return nil, fail(codes.InvalidArgument, "name the image with -t NAME", "build: %d names for the image: want 1 to %d", n, maxTags)
	}
	if n := len(opts.GetBuildArgs()); n > maxBuildArgs {
		return nil, fail(codes.InvalidArgument, "", "build: %d build arguments: at most %d can be given", n, maxBuildArgs)
	}
	var tags []string
	for _, t := range opts.GetTags() {
		ref, err := spec.ParseReference(t)
		switch {
		case err != nil:
			return nil, &failure{code: codes.InvalidArgument, err: fmt.Errorf("build: %w", err)}
		case ref.Digest != "":
			return nil, fail(codes.InvalidArgument, "", "build: %s: a name for an image has no digest", t)
		case ref.Host() != "":
			return nil, fail(codes.InvalidArgument, "name it without a host; it goes to the embedded registry", "build: %s: names another registry (%s)", t, ref.Host())
		}
		tags = append(tags, ref.WithDefaultTag("latest").String())
	}
	return tags, nil
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

// buildError is the client's fault unless the call ended or the stream broke.
func buildError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch code := codeOf(err); code {
	case codes.Internal, codes.Unknown:
		return &failure{code: codes.InvalidArgument, err: fmt.Errorf("build: %w", err)}
	default:
		return &failure{code: code, err: fmt.Errorf("build: %w", err)}
	}
}

// archiveReader reads the archive out of the messages.
type archiveReader struct {
	in   buildStream
	rest []byte
}

func (r *archiveReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.in.Recv()
		if err != nil {
			return 0, err
		}
		if m.GetOptions() != nil {
			return 0, fail(codes.InvalidArgument, "", "the options come once, in the first message")
		}
		r.rest = m.GetArchive()
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
		info, err := images.Inspect(ctx, ref)
		if errors.Is(err, executor.ErrRefNotFound) {
			continue // untagged since
		}
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		kind, err := s.sup.images.kind(ctx, ref)
		if err != nil {
			return nil, fmt.Errorf("list images: %s: %w", ref, err)
		}
		out.Images = append(out.Images, &daemonv1.Image{
			Reference: ref, Digest: info.Digest, MediaType: info.MediaType, Kind: kind,
			Size: info.Size, CreatedAt: info.CreatedUnix, Description: info.Description,
		})
	}
	return out, nil
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
