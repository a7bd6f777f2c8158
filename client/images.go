package client

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"

	"google.golang.org/grpc"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Image returns everything about one image of the embedded registry.
func (c *Client) Image(ctx context.Context, image string) (*daemonv1.InspectImageResponse, error) {
	r, err := c.images.InspectImage(ctx, &daemonv1.InspectImageRequest{Image: image})
	return call(ctx, c, r, err)
}

// TagImage gives an image a further name.
func (c *Client) TagImage(ctx context.Context, image, name string) (*daemonv1.TagImageResponse, error) {
	r, err := c.images.TagImage(ctx, &daemonv1.TagImageRequest{Image: image, Name: name})
	return call(ctx, c, r, err)
}

// RemoveImages removes names of images, all or none, and returns them with their tags.
func (c *Client) RemoveImages(ctx context.Context, names ...string) ([]string, error) {
	r, err := c.images.RemoveImage(ctx, &daemonv1.RemoveImageRequest{Images: names})
	r, err = call(ctx, c, r, err)
	return r.GetReferences(), err
}

// PruneImages removes images without a name that no agent needs, and tells what went.
func (c *Client) PruneImages(ctx context.Context, req *daemonv1.PruneImagesRequest) (*daemonv1.PruneImagesResponse, error) {
	r, err := c.images.PruneImages(ctx, req)
	return call(ctx, c, r, err)
}

// SaveImages writes images as a tar archive of an OCI image layout. What was written may be used only
// when the error is nil. An error of w comes back as it is.
func (c *Client) SaveImages(ctx context.Context, w io.Writer, images ...string) error {
	for m, err := range receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.SaveImageResponse], error) {
		return c.images.SaveImage(ctx, &daemonv1.SaveImageRequest{Images: images})
	}) {
		if err != nil {
			return err
		}
		if _, err := w.Write(m.GetArchive()); err != nil {
			return err
		}
	}
	return nil
}

// LoadImages stores the images of an archive that SaveImages or another program wrote, not
// compressed. tags are names for an archive with one image, in place of its own. Errors about the
// archive's reading wrap ErrInput.
func (c *Client) LoadImages(ctx context.Context, archive io.Reader, tags ...string) ([]*daemonv1.LoadedImage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.images.LoadImage(ctx)
	if err != nil {
		return nil, c.fromCall(ctx, err)
	}
	first := &daemonv1.LoadImageRequest{Part: &daemonv1.LoadImageRequest_Options{Options: &daemonv1.LoadImageOptions{Tags: tags}}}
	r, err := upload(ctx, c, stream, first,
		func(p []byte) *daemonv1.LoadImageRequest {
			return &daemonv1.LoadImageRequest{Part: &daemonv1.LoadImageRequest_Archive{Archive: p}}
		},
		func(w io.Writer) error { return copyArchive(ctx, w, archive, ErrInput) })
	return r.GetImages(), err
}

// upload sends options and an archive and returns the answer.
func upload[Req, Res any](ctx context.Context, c *Client, stream grpc.ClientStreamingClient[Req, Res], first *Req, part func([]byte) *Req, write func(io.Writer) error) (*Res, error) {
	err := stream.Send(first)
	if err == nil {
		out := bufio.NewWriterSize(partWriter(func(p []byte) error { return stream.Send(part(p)) }), chunk)
		if err = write(out); err == nil {
			err = out.Flush()
		}
	}
	// io.EOF of Send says that the daemon has answered already; the answer tells why.
	if err != nil && !errors.Is(err, io.EOF) {
		if errors.Is(err, ErrInput) || errors.Is(err, ErrArchive) {
			return nil, err
		}
		return nil, c.fromCall(ctx, err)
	}
	r, err := stream.CloseAndRecv()
	return call(ctx, c, r, err)
}

// Push copies an image to another registry, under its own name where destination is empty, and yields
// how that goes on. The last message has the reference and the digest.
func (c *Client) Push(ctx context.Context, image, destination string) iter.Seq2[*daemonv1.TransferResponse, error] {
	return receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.TransferResponse], error) {
		return c.images.PushImage(ctx, &daemonv1.PushImageRequest{Image: image, Destination: destination})
	})
}

// Pull copies an image from another registry, with missingOnly where the embedded one does not have
// it, and yields as Push does.
func (c *Client) Pull(ctx context.Context, image string, missingOnly bool) iter.Seq2[*daemonv1.TransferResponse, error] {
	return receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.TransferResponse], error) {
		return c.images.PullImage(ctx, &daemonv1.PullImageRequest{Image: image, MissingOnly: missingOnly})
	})
}

// BinOptions says what BIN image to build.
type BinOptions struct {
	// Tags are the names of the image; at least one.
	Tags []string
	// Name is the tool's; Usage the text of its USAGE.md.
	Name, Description, Usage string
	Labels                   map[string]string
	// Programs are the paths of the static binaries on this machine by platform, such as
	// linux/amd64.
	Programs map[string]string
}

// BuildBin sends programs and returns when the image is tagged. Errors about the programs wrap
// ErrInput.
func (c *Client) BuildBin(ctx context.Context, opts BinOptions) (*daemonv1.BuildBinResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.images.BuildBin(ctx)
	if err != nil {
		return nil, c.fromCall(ctx, err)
	}
	first := &daemonv1.BuildBinOptions{
		Tags: opts.Tags, Name: opts.Name, Description: opts.Description, Usage: opts.Usage, Labels: opts.Labels,
		Programs: map[string]string{},
	}
	platforms := slices.Sorted(maps.Keys(opts.Programs))
	for i, p := range platforms {
		first.Programs[p] = fmt.Sprintf("%d", i)
	}
	return upload(ctx, c, stream, &daemonv1.BuildBinRequest{Part: &daemonv1.BuildBinRequest_Options{Options: first}},
		func(p []byte) *daemonv1.BuildBinRequest {
			return &daemonv1.BuildBinRequest{Part: &daemonv1.BuildBinRequest_Archive{Archive: p}}
		},
		func(w io.Writer) error {
			tw := tar.NewWriter(w)
			for i, p := range platforms {
				if err := addProgram(ctx, tw, fmt.Sprintf("%d", i), opts.Programs[p]); err != nil {
					return err
				}
			}
			return tw.Close()
		})
}

func addProgram(ctx context.Context, tw *tar.Writer, name, path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is a %s, not a file", path, kind(info.Mode()))
	}
	if err != nil {
		return fmt.Errorf("%w: %w; name a program", ErrInput, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	defer f.Close()
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	n, err := io.Copy(tw, readerWithContext{ctx, io.LimitReader(f, info.Size())})
	if err == nil && n != info.Size() {
		err = fmt.Errorf("%w: %s became shorter while it was read; try again", ErrInput, path)
	}
	return err
}
