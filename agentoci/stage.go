package agentoci

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
)

// maxReferences is what the embedded registry takes as the parts of one manifest.
const maxReferences = 8192

// stage is the parts of an image before the first of them is stored, so that nothing is when one can't
// be made.
type stage struct {
	parts []part
}

type part struct {
	// what names the part in an error; it may be empty.
	what string
	desc ocispec.Descriptor
	open func() (io.ReadCloser, error)
}

func (s *stage) add(what string, desc ocispec.Descriptor, open func() (io.ReadCloser, error)) {
	s.parts = append(s.parts, part{what, desc, open})
}

func (s *stage) bytes(what, mediaType string, blob []byte) ocispec.Descriptor {
	desc := describe(mediaType, blob)
	s.add(what, desc, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob)), nil })
	return desc
}

// document adds a manifest or index that refers to so many parts.
func (s *stage) document(mediaType string, v any, references int) (ocispec.Descriptor, error) {
	blob, err := json.Marshal(v)
	switch {
	case err != nil:
		return ocispec.Descriptor{}, err
	case len(blob) > maxManifest:
		return ocispec.Descriptor{}, fmt.Errorf("manifest of %d bytes, more than %d: %w", len(blob), maxManifest, ErrLimit)
	case references > maxReferences:
		return ocispec.Descriptor{}, fmt.Errorf("manifest of %d parts, more than %d: %w", references, maxReferences, ErrLimit)
	}
	return s.bytes("", mediaType, blob), nil
}

// store stores the parts in the order in which they were added. A store checks each digest: what
// changed since it was described is not stored.
func (s *stage) store(ctx context.Context, target oras.Target) error {
	for _, p := range s.parts {
		if err := push(ctx, target, p.desc, p.open); err != nil {
			if p.what != "" {
				err = fmt.Errorf("%s: %w", p.what, err)
			}
			return err
		}
	}
	return nil
}
