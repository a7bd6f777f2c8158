package agentoci

import (
	"bytes"
	"context"
	_ "crypto/sha256" // the digests that are registered
	_ "crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

// checkDescriptor bounds what a descriptor claims before anything is fetched by it.
func checkDescriptor(desc ocispec.Descriptor, most int64) error {
	if err := desc.Digest.Validate(); err != nil {
		return fmt.Errorf("digest %.100q: %w", string(desc.Digest), err)
	}
	if desc.Size < 0 {
		return fmt.Errorf("%s: negative size %d", desc.Digest, desc.Size)
	}
	if desc.Size > most {
		return fmt.Errorf("%s: %d bytes, more than %d: %w", desc.Digest, desc.Size, most, ErrLimit)
	}
	return nil
}

// fetchAll reads a blob of at most most bytes into memory, checked.
func fetchAll(ctx context.Context, store content.Fetcher, desc ocispec.Descriptor, most int64) ([]byte, error) {
	r, err := fetch(ctx, store, desc, most)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(r)
	return b.Bytes(), err
}

// fetch opens a blob of at most most bytes. Its reader ends in an error instead of io.EOF when size
// or digest are not the descriptor's, and when ctx is done.
func fetch(ctx context.Context, store content.Fetcher, desc ocispec.Descriptor, most int64) (io.ReadCloser, error) {
	if err := checkDescriptor(desc, most); err != nil {
		return nil, err
	}
	rc, err := store.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	return &verified{ctx: ctx, r: content.NewVerifyReader(rc, desc), c: rc, desc: desc}, nil
}

type verified struct {
	ctx  context.Context // bounds the reads of one open blob
	r    *content.VerifyReader
	c    io.Closer
	desc ocispec.Descriptor
	err  error
}

func (v *verified) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	if err := v.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := v.r.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		v.err = io.EOF
		if err := v.r.Verify(); err != nil {
			v.err = fmt.Errorf("%s: %w", v.desc.Digest, err)
		}
	case err != nil:
		v.err = fmt.Errorf("%s: %w", v.desc.Digest, err)
	}
	return n, v.err
}

func (v *verified) Close() error { return v.c.Close() }

// contextReader ends a long read when ctx is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// limitReader fails with ErrLimit, where io.LimitReader would end as if all were read.
type limitReader struct {
	r    io.Reader
	left int64
	most int64
}

func newLimitReader(r io.Reader, most int64) *limitReader {
	return &limitReader{r: r, left: most, most: most}
}

func (l *limitReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("more than %d bytes: %w", l.most, ErrLimit)
	}
	return n, err
}

// document is what an index and a manifest have in common; it is read first, to know which it is.
type document struct {
	MediaType string          `json:"mediaType"`
	Manifests json.RawMessage `json:"manifests"`
	Layers    json.RawMessage `json:"layers"`
}

// fetchDocument reads a manifest or index into v. One that could be taken for the other is refused.
func fetchDocument(ctx context.Context, store content.Fetcher, desc ocispec.Descriptor, v any) error {
	blob, err := fetchAll(ctx, store, desc, maxManifest)
	if err != nil {
		return err
	}
	var d document
	if err := json.Unmarshal(blob, &d); err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	if d.MediaType != "" && d.MediaType != desc.MediaType {
		return fmt.Errorf("%s: it says it is %.100q and is stored as %.100q", desc.Digest, d.MediaType, desc.MediaType)
	}
	if isIndex(desc.MediaType) && d.Layers != nil || !isIndex(desc.MediaType) && d.Manifests != nil {
		return fmt.Errorf("%s: it is stored as %.100q and has the parts of the other kind", desc.Digest, desc.MediaType)
	}
	if err := json.Unmarshal(blob, v); err != nil {
		return fmt.Errorf("%s: %w", desc.Digest, err)
	}
	return nil
}

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == "application/vnd.docker.distribution.manifest.list.v2+json"
}

func isManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == "application/vnd.docker.distribution.manifest.v2+json"
}

// isDocument tells what refers to other parts: indexes, manifests, and those of artifacts in an older form.
func isDocument(mediaType string) bool {
	return isIndex(mediaType) || isManifest(mediaType) || mediaType == "application/vnd.oci.artifact.manifest.v1+json"
}

// describe is the descriptor of a blob in memory.
func describe(mediaType string, blob []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
}

// push stores what open opens, unless it is there already.
func push(ctx context.Context, target oras.Target, desc ocispec.Descriptor, open func() (io.ReadCloser, error)) error {
	// Annotations belong to the place that refers to the blob, not to the blob.
	desc.Annotations = nil
	exists, err := target.Exists(ctx, desc)
	if err != nil {
		return fmt.Errorf("store %s: %w", desc.Digest, err)
	}
	if exists {
		return nil
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := target.Push(ctx, desc, contextReader{ctx, r}); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return fmt.Errorf("store %s: %w", desc.Digest, err)
	}
	return nil
}

func tagAll(ctx context.Context, target oras.Target, desc ocispec.Descriptor, tags []string) error {
	for _, tag := range tags {
		if err := target.Tag(ctx, desc, tag); err != nil {
			return fmt.Errorf("tag %s: %w", tag, err)
		}
	}
	return nil
}
