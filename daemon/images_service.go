package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/proto/otters/daemon/v1/daemonv1connect"
	"github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/spec"
)

const (
	// maxNamed is how many images one call may name.
	maxNamed = 1000
	// archiveChunk is how much of an archive one message carries, in bytes.
	archiveChunk = 64 << 10
)

// imageService implements the API's part about images.
type imageService struct {
	daemonv1.UnimplementedImageServiceServer
	*service
}

var _ daemonv1.ImageServiceServer = imageService{}

// withImages is a service that has the part about images too.
type withImages interface {
	images() daemonv1.ImageServiceServer
}

func (s *service) images() daemonv1.ImageServiceServer { return imageService{service: s} }

// find reads the name of an image that is to be there.
func (s imageService) find(ctx context.Context, what, name string) (spec.Reference, ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	ref, err := parseImage(name)
	if err != nil {
		return ref, none, &failure{code: codes.InvalidArgument, err: fmt.Errorf("%s: %w", what, err)}
	}
	desc, err := s.sup.images.store.Resolve(ctx, storeName(ref))
	if errors.Is(err, errdef.ErrNotFound) {
		return ref, none, fail(codes.NotFound, "`otters image ls` lists the images there are", "%s: image %s: not in the registry", what, ref)
	}
	if err != nil {
		return ref, none, fmt.Errorf("%s: image %s: %w", what, ref, err)
	}
	return ref, desc, nil
}

// InspectImage tells everything about one image.
func (s imageService) InspectImage(ctx context.Context, req *daemonv1.InspectImageRequest) (*daemonv1.InspectImageResponse, error) {
	ref, desc, err := s.find(ctx, "inspect", req.GetImage())
	if err != nil {
		return nil, err
	}
	out := &daemonv1.InspectImageResponse{}
	if out.Image, err = s.image(ctx, storeName(ref)); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	blob, err := content.FetchAll(ctx, s.sup.images.store, desc)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	var m struct {
		Config      *ocispec.Descriptor  `json:"config"`
		Layers      []ocispec.Descriptor `json:"layers"`
		Manifests   []ocispec.Descriptor `json:"manifests"`
		Annotations map[string]string    `json:"annotations"`
	}
	if err := json.Unmarshal(blob, &m); err != nil {
		return nil, fmt.Errorf("inspect: %s: %w", ref, err)
	}
	out.Annotations = m.Annotations
	if m.Config != nil {
		out.Parts = append(out.Parts, part(*m.Config))
	}
	for _, d := range append(m.Layers, m.Manifests...) {
		out.Parts = append(out.Parts, part(d))
		if d.Platform != nil {
			out.Platforms = append(out.Platforms, platformName(*d.Platform))
		}
	}
	switch out.Image.GetKind() {
	case "agent":
		err = s.inspectAgent(ctx, ref, out)
	case "bin":
		err = s.inspectBin(ctx, ref, m.Manifests, out)
	}
	if err != nil {
		return nil, &failure{code: codes.FailedPrecondition, err: fmt.Errorf("inspect: %w", err)}
	}
	return out, nil
}

func part(d ocispec.Descriptor) *daemonv1.ImagePart {
	p := &daemonv1.ImagePart{Digest: d.Digest.String(), MediaType: d.MediaType, Size: d.Size, Title: d.Annotations[ocispec.AnnotationTitle]}
	if p.Title == "" && d.Platform != nil {
		p.Title = platformName(*d.Platform)
	}
	return p
}

func platformName(p ocispec.Platform) string {
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}

func (s imageService) inspectAgent(ctx context.Context, ref spec.Reference, out *daemonv1.InspectImageResponse) error {
	img, err := agentoci.Load(ctx, s.sup.images.store, storeName(ref))
	if err != nil {
		return err
	}
	definition, err := json.Marshal(img.Agentfile)
	if err != nil {
		return err
	}
	source, err := img.Source(ctx)
	if err != nil {
		return err
	}
	chain, err := img.Chain()
	if err != nil {
		return err
	}
	out.Definition, out.Source = string(definition), string(source)
	for _, l := range chain {
		p := &daemonv1.ImageParent{Name: l.Name, Digest: l.Digest.String()}
		parent, err := spec.ParseReference(l.Name)
		if err != nil {
			return err
		}
		parent.Digest = l.Digest.String()
		img, err := s.image(ctx, storeName(parent))
		switch {
		case err == nil:
			p.Present, p.Size, p.CreatedAt = true, img.GetSize(), img.GetCreatedAt()
		case !errors.Is(err, executor.ErrRefNotFound):
			return err
		}
		out.Parents = append(out.Parents, p)
	}
	return nil
}

func (s imageService) inspectBin(ctx context.Context, ref spec.Reference, manifests []ocispec.Descriptor, out *daemonv1.InspectImageResponse) error {
	bin, err := agentoci.OpenBin(ctx, s.sup.images.store, storeName(ref), agentoci.BinOptions{})
	if errors.Is(err, agentoci.ErrNoPlatform) {
		for _, d := range manifests {
			if d.Platform != nil {
				bin, err = agentoci.OpenBin(ctx, s.sup.images.store, storeName(ref), agentoci.BinOptions{Platform: d.Platform})
				break
			}
		}
	}
	if err != nil {
		return err
	}
	out.BinName, out.Image.Description = bin.Name, bin.Description
	out.Usage, err = bin.Usage(ctx)
	return err
}

// TagImage gives an image a further name.
func (s imageService) TagImage(ctx context.Context, req *daemonv1.TagImageRequest) (*daemonv1.TagImageResponse, error) {
	_, desc, err := s.find(ctx, "tag", req.GetImage())
	if err != nil {
		return nil, err
	}
	name, err := newName("tag", req.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.sup.images.store.Tag(ctx, desc, storeName(name)); err != nil {
		return nil, fmt.Errorf("tag %s: %w", name, err)
	}
	return &daemonv1.TagImageResponse{Reference: name.String(), Digest: desc.Digest.String()}, nil
}

// RemoveImage removes names, all or none.
func (s imageService) RemoveImage(ctx context.Context, req *daemonv1.RemoveImageRequest) (*daemonv1.RemoveImageResponse, error) {
	if n := len(req.GetImages()); n == 0 || n > maxNamed {
		return nil, fail(codes.InvalidArgument, "", "remove: %d images are named: want 1 to %d", n, maxNamed)
	}
	var refs []spec.Reference
	for _, name := range req.GetImages() {
		ref, _, err := s.find(ctx, "remove", name)
		if err != nil {
			return nil, err
		}
		if _, err := s.sup.images.store.Resolve(ctx, keptName(ref)); ref.Digest != "" && err != nil {
			return nil, fail(codes.InvalidArgument, "name the tag", "remove: %s: it was not pulled by its digest, so that is no name that can be removed", name)
		}
		refs = append(refs, ref)
	}
	out := &daemonv1.RemoveImageResponse{}
	for _, ref := range refs {
		if err := s.sup.images.store.Untag(ctx, keptName(ref)); err != nil && !errors.Is(err, errdef.ErrNotFound) {
			return nil, fmt.Errorf("remove %s: %w", ref, err)
		}
		out.References = append(out.References, ref.String())
	}
	return out, nil
}

type (
	saveStream     = grpc.ServerStreamingServer[daemonv1.SaveImageResponse]
	loadStream     = grpc.ClientStreamingServer[daemonv1.LoadImageRequest, daemonv1.LoadImageResponse]
	transferStream = grpc.ServerStreamingServer[daemonv1.TransferResponse]
	binStream      = grpc.ClientStreamingServer[daemonv1.BuildBinRequest, daemonv1.BuildBinResponse]
)

// archiveWriter sends an archive in messages.
type archiveWriter struct{ send func([]byte) error }

func (w archiveWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), archiveChunk)
		if err := w.send(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// SaveImage writes images as an archive.
func (s imageService) SaveImage(req *daemonv1.SaveImageRequest, out saveStream) error {
	ctx := out.Context()
	if n := len(req.GetImages()); n == 0 || n > maxNamed {
		return fail(codes.InvalidArgument, "", "save: %d images are named: want 1 to %d", n, maxNamed)
	}
	var images []agentoci.LayoutImage
	for _, name := range req.GetImages() {
		ref, desc, err := s.find(ctx, "save", name)
		if err != nil {
			return err
		}
		ref.Digest = ""
		images = append(images, agentoci.LayoutImage{Name: ref.String(), Descriptor: desc})
	}
	w := bufio.NewWriterSize(archiveWriter{func(p []byte) error {
		return out.Send(&daemonv1.SaveImageResponse{Archive: append([]byte(nil), p...)})
	}}, archiveChunk)
	if err := agentoci.WriteLayout(ctx, w, s.sup.images.store, images); err != nil {
		return err
	}
	return w.Flush()
}

// LoadImage stores the images of an archive. Nothing is stored before all of it was checked.
func (s imageService) LoadImage(in loadStream) error {
	ctx := in.Context()
	first, err := in.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetOptions() == nil {
		return fail(codes.InvalidArgument, "", "load: the first message carries no options")
	}
	if err != nil {
		return err
	}
	folder, err := agentoci.ReadArchive(ctx, archiveParts(in.Recv), agentoci.ArchiveOptions{
		Name: "archive", Dir: s.sup.home.path("builds"), MaxBytes: 2 * maxRemoteBlob, MaxFile: maxRemoteBlob,
	})
	if err != nil {
		return callerError(ctx, "load", err)
	}
	defer folder.Close()
	layout, err := agentoci.OpenLayout(ctx, folder, registry.CheckManifest)
	if err != nil {
		return callerError(ctx, "load", err)
	}
	images, err := loadNames(layout.Images, first.GetOptions().GetTags())
	if err != nil {
		return err
	}
	if err := layout.CopyTo(ctx, s.sup.images.store); err != nil {
		return callerError(ctx, "load", err)
	}
	out := &daemonv1.LoadImageResponse{}
	for _, i := range images {
		if err := s.sup.images.store.Tag(ctx, i.desc, storeName(i.ref)); err != nil {
			return fmt.Errorf("load: tag %s: %w", i.ref, err)
		}
		out.Images = append(out.Images, &daemonv1.LoadedImage{Reference: i.ref.String(), Digest: i.desc.Digest.String()})
	}
	return in.SendAndClose(out)
}

type named struct {
	ref  spec.Reference
	desc ocispec.Descriptor
}

// loadNames chooses what the images of an archive are to be called.
func loadNames(images []agentoci.LayoutImage, tags []string) ([]named, error) {
	if len(images) > maxNamed || len(tags) > maxTags {
		return nil, fail(codes.InvalidArgument, "", "load: %d images and %d names, more than %d and %d", len(images), len(tags), maxNamed, maxTags)
	}
	var out []named
	if len(tags) > 0 {
		if len(images) != 1 {
			return nil, fail(codes.InvalidArgument, "load it without -t", "load: a name is given, and the archive has %d images", len(images))
		}
		for _, t := range tags {
			ref, err := newName("load", t)
			if err != nil {
				return nil, err
			}
			out = append(out, named{ref, images[0].Descriptor})
		}
		return out, nil
	}
	for _, i := range images {
		ref, err := newName("load", i.Name)
		if i.Name == "" || err != nil {
			return nil, fail(codes.InvalidArgument, "name it with -t NAME", "load: the archive calls %s %q, which is no name for an image", i.Descriptor.Digest, clip(i.Name))
		}
		out = append(out, named{ref, i.Descriptor})
	}
	return out, nil
}

// callerError is the caller's fault unless the call ended or the stream broke.
func callerError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	code := codeOf(err)
	if code == codes.Internal || code == codes.Unknown {
		code = codes.InvalidArgument
	}
	return &failure{code: code, err: fmt.Errorf("%s: %w", what, err)}
}

func transfers(out transferStream) *progress {
	return &progress{tell: func(t *daemonv1.Transfer) error { return out.Send(&daemonv1.TransferResponse{Transfer: t}) }}
}

// PushImage copies an image to another registry.
func (s imageService) PushImage(req *daemonv1.PushImageRequest, out transferStream) error {
	src, _, err := s.find(out.Context(), "push", req.GetImage())
	if err != nil {
		return err
	}
	to := src
	if d := req.GetDestination(); d != "" {
		if to, err = newName("push", d); err != nil {
			return err
		}
	}
	if to.Host() == "" {
		return fail(codes.InvalidArgument, "name it host/"+to.String(), "push %s: names no other registry", to)
	}
	desc, err := s.sup.images.push(out.Context(), src, to, transfers(out))
	if err != nil {
		return err
	}
	return out.Send(&daemonv1.TransferResponse{Reference: to.String(), Digest: desc.Digest.String()})
}

// PullImage copies an image from another registry.
func (s imageService) PullImage(req *daemonv1.PullImageRequest, out transferStream) error {
	ctx := out.Context()
	ref, err := parseImage(req.GetImage())
	if err != nil {
		return err
	}
	if ref.Host() == "" && !req.GetMissingOnly() {
		return fail(codes.InvalidArgument, "write host/"+ref.String(), "pull %s: names no other registry", ref)
	}
	p := transfers(out)
	if req.GetMissingOnly() {
		err = s.sup.images.ensure(ctx, ref, p)
	} else {
		_, err = s.sup.images.pull(ctx, ref, p)
	}
	if err != nil {
		return err
	}
	ref, desc, err := s.find(ctx, "pull", ref.String())
	if err != nil {
		return err
	}
	return out.Send(&daemonv1.TransferResponse{Reference: ref.String(), Digest: desc.Digest.String()})
}

// imagesHandler serves the same implementation as gRPC-Web and JSON.
func imagesHandler(impl daemonv1.ImageServiceServer, opts ...connect.HandlerOption) (string, http.Handler) {
	return daemonv1connect.NewImageServiceHandler(connectImages{impl}, opts...)
}

// connectImages adapts the streams.
type connectImages struct{ daemonv1.ImageServiceServer }

var _ daemonv1connect.ImageServiceHandler = connectImages{}

func (s connectImages) SaveImage(ctx context.Context, req *daemonv1.SaveImageRequest, out *connect.ServerStream[daemonv1.SaveImageResponse]) error {
	return s.ImageServiceServer.SaveImage(req, download[daemonv1.SaveImageResponse]{connectStream{ctx}, out})
}

func (s connectImages) PushImage(ctx context.Context, req *daemonv1.PushImageRequest, out *connect.ServerStream[daemonv1.TransferResponse]) error {
	return s.ImageServiceServer.PushImage(req, download[daemonv1.TransferResponse]{connectStream{ctx}, out})
}

func (s connectImages) PullImage(ctx context.Context, req *daemonv1.PullImageRequest, out *connect.ServerStream[daemonv1.TransferResponse]) error {
	return s.ImageServiceServer.PullImage(req, download[daemonv1.TransferResponse]{connectStream{ctx}, out})
}

func (s connectImages) LoadImage(ctx context.Context, in *connect.ClientStream[daemonv1.LoadImageRequest]) (*daemonv1.LoadImageResponse, error) {
	up := &received[daemonv1.LoadImageRequest, daemonv1.LoadImageResponse]{connectStream: connectStream{ctx}, in: in}
	err := s.ImageServiceServer.LoadImage(up)
	return up.answer, err
}

func (s connectImages) BuildBin(ctx context.Context, in *connect.ClientStream[daemonv1.BuildBinRequest]) (*daemonv1.BuildBinResponse, error) {
	up := &received[daemonv1.BuildBinRequest, daemonv1.BuildBinResponse]{connectStream: connectStream{ctx}, in: in}
	err := s.ImageServiceServer.BuildBin(up)
	return up.answer, err
}
