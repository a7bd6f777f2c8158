package daemon

import (
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
	folder, err := agentoci.ReadArchive(ctx, archiveParts(in.Recv), agentoci.ArchiveOptions{Dir: s.sup.home.path("builds")})
	if err != nil {
		return callerError(ctx, "build bin", err)
	}
	defer folder.Close()
	image := agentoci.BinImage{
		Name: opts.GetName(), Description: opts.GetDescription(), Usage: opts.GetUsage(), Labels: opts.GetLabels(), Tags: stored,
	}
	var list []agentoci.Program
	for _, platform := range slices.Sorted(maps.Keys(opts.GetPrograms())) {
		p, err := program(folder, platform, opts.GetPrograms()[platform])
		if err != nil {
			return callerError(ctx, "build bin: "+clip(platform), err)
		}
		p.Name = opts.GetName()
		list = append(list, p)
	}
	desc, err := agentoci.BuildBin(ctx, s.sup.images.store, image, list)
	if err != nil {
		return callerError(ctx, "build bin", err)
	}
	return in.SendAndClose(&daemonv1.BuildBinResponse{Digest: desc.Digest.String(), References: shown})
}

// program is a static binary of the folder.
func program(folder fs.FS, platform, file string) (agentoci.Program, error) {
	none := agentoci.Program{}
	p, err := parsePlatform(platform)
	if err != nil {
		return none, err
	}
	info, err := fs.Stat(folder, path.Clean(file))
	if err != nil {
		return none, err
	}
	f, err := folder.Open(path.Clean(file))
	if err != nil {
		return none, err
	}
	at, ok := f.(io.ReaderAt)
	if !ok || !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	} else {
		err = agentoci.CheckStatic(at, p)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return none, err
	}
	open := func() (io.ReadCloser, error) { return folder.Open(path.Clean(file)) }
	return agentoci.Program{Platform: p, Size: info.Size(), Open: open}, nil
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
