package daemon

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/agentoci"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	maxPrograms = 100
	maxLabels   = 1000
)

// BuildBin makes a BIN image of streamed programs. It is tagged only when it is whole.
func (s imageService) BuildBin(in binStream) error {
	ctx := in.Context()
	first, err := in.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetOptions() == nil {
		return fail(codes.InvalidArgument, "", "build bin: the first message carries no options")
	}
	if err != nil {
		return err
	}
	opts := first.GetOptions()
	stored, shown, err := newNames("build bin", opts.GetTags())
	if err != nil {
		return err
	}
	if n := len(opts.GetPrograms()); n == 0 || n > maxPrograms {
		return fail(codes.InvalidArgument, "", "build bin: programs for %d platforms: want 1 to %d", n, maxPrograms)
	}
	if n := len(opts.GetLabels()); n > maxLabels {
		return fail(codes.InvalidArgument, "", "build bin: %d labels, more than %d", n, maxLabels)
	}
	next := func() ([]byte, error) {
		m, err := in.Recv()
		if err == nil && m.GetOptions() != nil {
			err = errOptionsTwice
		}
		return m.GetArchive(), err
	}
	folder, err := agentoci.ReadArchive(ctx, &archiveReader{next: next}, agentoci.ArchiveOptions{Dir: s.sup.home.path("builds")})
	if err != nil {
		return callerError(ctx, "build bin", err)
	}
	defer folder.Close()
	image := agentoci.BinImage{
		Name: opts.GetName(), Description: opts.GetDescription(), Usage: opts.GetUsage(), Labels: opts.GetLabels(), Tags: stored,
	}
	for _, platform := range slices.Sorted(maps.Keys(opts.GetPrograms())) {
		layer, err := s.packProgram(ctx, folder, opts.GetName(), platform, opts.GetPrograms()[platform])
		if err != nil {
			return callerError(ctx, "build bin: "+clip(platform), err)
		}
		image.Layers = append(image.Layers, layer)
	}
	desc, err := agentoci.PackBin(ctx, s.sup.images.store, image)
	if err != nil {
		return callerError(ctx, "build bin", err)
	}
	return in.SendAndClose(&daemonv1.BuildBinResponse{Digest: desc.Digest.String(), References: shown})
}

func (s imageService) packProgram(ctx context.Context, folder fs.FS, name, platform, file string) (agentoci.Layer, error) {
	p, err := parsePlatform(platform)
	if err != nil {
		return agentoci.Layer{}, err
	}
	info, err := fs.Stat(folder, path.Clean(file))
	if err != nil {
		return agentoci.Layer{}, err
	}
	open := func() (io.ReadCloser, error) { return folder.Open(path.Clean(file)) }
	f, err := folder.Open(path.Clean(file))
	if err != nil {
		return agentoci.Layer{}, err
	}
	at, ok := f.(io.ReaderAt)
	if !ok || !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	} else {
		err = agentoci.CheckStatic(at, p)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return agentoci.Layer{}, err
	}
	return agentoci.PackLayer(ctx, s.sup.images.store, agentoci.Program{Platform: p, Name: name, Size: info.Size(), Open: open})
}

// parsePlatform reads os/arch[/variant].
func parsePlatform(s string) (ocispec.Platform, error) {
	parts := strings.Split(s, "/")
	bad := len(parts) < 2 || len(parts) > 3 || len(s) > 100
	for _, p := range parts {
		bad = bad || p == "" || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != ""
	}
	if bad {
		return ocispec.Platform{}, fail(codes.InvalidArgument, "write it as linux/amd64 or linux/arm/v7", "%q is no platform", clip(s))
	}
	p := ocispec.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}
