package agentoci

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/otters-sh/otters/spec"
)

// Bounds of what Programs remembers of layers.
const (
	maxKnownLayers  = 64
	maxKnownEntries = 20_000
)

// Programs reads the programs of the images that an opener finds. It remembers what is in the layers
// that it has read, so that images that share a layer cost one reading of it.
type Programs struct {
	open  Opener
	opts  BinOptions
	known *listings
}

// NewPrograms opens images with open.
func NewPrograms(open Opener, opts BinOptions) *Programs {
	return &Programs{open: open, opts: opts, known: &listings{busy: map[digest.Digest]chan struct{}{}}}
}

// Pull is a Puller.
func (p *Programs) Pull(ctx context.Context, ref spec.Reference, w io.Writer) error {
	b, err := p.bin(ctx, ref)
	if err == nil {
		err = b.WriteBinary(ctx, w)
	}
	return pulling(ref, err)
}

// Identify is an Identifier.
func (p *Programs) Identify(ctx context.Context, ref spec.Reference) (BinaryInfo, error) {
	b, err := p.bin(ctx, ref)
	if err != nil {
		return BinaryInfo{}, pulling(ref, err)
	}
	info, err := b.Binary(ctx)
	return info, pulling(ref, err)
}

// Usage is a UsageFetcher.
func (p *Programs) Usage(ctx context.Context, ref spec.Reference) (string, error) {
	b, err := p.bin(ctx, ref)
	if err != nil {
		return "", pulling(ref, err)
	}
	text, err := b.Usage(ctx)
	return text, pulling(ref, err)
}

// Labels is a LabelReader.
func (p *Programs) Labels(ctx context.Context, ref spec.Reference) (map[string]string, error) {
	b, err := p.bin(ctx, ref)
	if err != nil {
		return nil, pulling(ref, err)
	}
	return b.Labels, nil
}

func pulling(ref spec.Reference, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("pull %s: %w", ref, err)
}

func (p *Programs) bin(ctx context.Context, ref spec.Reference) (*Bin, error) {
	store, name, err := p.open(ctx, ref)
	if err != nil {
		return nil, err
	}
	b, err := openBin(ctx, store, name, p.opts)
	if err == nil {
		err = pinned(ref, b.Digest)
	}
	if err != nil {
		return nil, err
	}
	b.tree.known = p.known
	return b, nil
}

// listings are what layers that were read to their end, and so checked, have in them. Nothing that
// is in it is ever changed.
type listings struct {
	mu   sync.Mutex
	list []listing // those used last at the end
	busy map[digest.Digest]chan struct{}
}

type listing struct {
	layer ocispec.Descriptor
	scan  scan
}

// get returns the listing of a layer, from read where it is not known. Of several callers that ask for
// one layer, one reads it, and when that fails the next.
func (l *listings) get(ctx context.Context, layer ocispec.Descriptor, read func() (scan, error)) (scan, error) {
	for {
		l.mu.Lock()
		if s, ok := l.find(layer); ok {
			l.mu.Unlock()
			return s, nil
		}
		other, busy := l.busy[layer.Digest]
		if !busy {
			l.busy[layer.Digest] = make(chan struct{})
			l.mu.Unlock()
			break
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return scan{}, ctx.Err()
		}
	}
	s, err := read()
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.busy[layer.Digest])
	delete(l.busy, layer.Digest)
	if err == nil && len(s.entries) <= maxKnownEntries {
		l.keep(listing{layer, s})
	}
	return s, err
}

func (l *listings) find(layer ocispec.Descriptor) (scan, bool) {
	i := slices.IndexFunc(l.list, func(k listing) bool {
		return k.layer.Digest == layer.Digest && k.layer.MediaType == layer.MediaType && k.layer.Size == layer.Size
	})
	if i < 0 {
		return scan{}, false
	}
	k := l.list[i]
	l.list = append(slices.Delete(l.list, i, i+1), k)
	return k.scan, true
}

// keep remembers a listing and forgets those that were not used for longest.
func (l *listings) keep(k listing) {
	l.list = append(l.list, k)
	entries := 0
	for _, k := range l.list {
		entries += len(k.scan.entries)
	}
	for len(l.list) > maxKnownLayers || entries > maxKnownEntries {
		entries -= len(l.list[0].scan.entries)
		l.list = slices.Delete(l.list, 0, 1)
	}
}

// charge takes what a layer unpacks to from what an image may.
func (b *budget) charge(cost budget) error {
	b.bytes, b.entries, b.names = b.bytes-cost.bytes, b.entries-cost.entries, b.names-cost.names
	if b.bytes < 0 || b.entries < 0 || b.names < 0 {
		return fmt.Errorf("the layers have more than %d bytes, %d entries or %d bytes of names: %w", int64(maxUnpacked), maxEntries, maxNames, ErrLimit)
	}
	return nil
}
