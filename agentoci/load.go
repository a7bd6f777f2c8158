package agentoci

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
)

// Image is an agent image whose manifest and definition were read and checked. It reads from the
// store it was loaded from.
type Image struct {
	// Descriptor is what the reference resolved to.
	Descriptor ocispec.Descriptor
	Manifest   ocispec.Manifest
	// Agentfile is the whole definition, everything inherited in it.
	Agentfile *spec.Agentfile

	store  oras.ReadOnlyTarget
	source ocispec.Descriptor
	files  map[string]ocispec.Descriptor
}

// configBlob is the JSON of an agent's config.
type configBlob struct {
	Syntax string          `json:"syntax"`
	Agent  *spec.Agentfile `json:"agent"`
}

// Load reads the agent image that store calls ref. It is an error wrapping ErrNotAgent for an image
// of another kind, and an errdef.ErrNotFound where there is none. The definition passes the checks of
// spec, and every ADD has its layer.
func Load(ctx context.Context, store oras.ReadOnlyTarget, ref string) (*Image, error) {
	desc, err := store.Resolve(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", ref, err)
	}
	img := &Image{Descriptor: desc, store: store, files: map[string]ocispec.Descriptor{}}
	if err := img.load(ctx); err != nil {
		return nil, fmt.Errorf("load %s: %w", ref, err)
	}
	return img, nil
}

func (i *Image) load(ctx context.Context) error {
	switch {
	case isIndex(i.Descriptor.MediaType):
		return fmt.Errorf("%w: it is an index of images, as BIN and RUNTIME images are", ErrNotAgent)
	case !isManifest(i.Descriptor.MediaType):
		return fmt.Errorf("%w: its media type is %.100q", ErrNotAgent, i.Descriptor.MediaType)
	}
	m := &i.Manifest
	if err := fetchDocument(ctx, i.store, i.Descriptor, m); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if m.ArtifactType != "" && m.ArtifactType != ArtifactTypeAgent {
		return fmt.Errorf("%w: its artifact type is %.100q", ErrNotAgent, m.ArtifactType)
	}
	if m.Config.MediaType != MediaTypeConfig {
		return fmt.Errorf("%w: its config is of type %.100q", ErrNotAgent, m.Config.MediaType)
	}
	blob, err := fetchAll(ctx, i.store, m.Config, maxConfig)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	var c configBlob
	if err := json.Unmarshal(blob, &c); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if c.Agent == nil {
		return fmt.Errorf("config: %w: it defines no agent", ErrNotAgent)
	}
	if c.Syntax == "" {
		c.Syntax = spec.DefaultSyntax
	}
	switch {
	case c.Syntax != spec.DefaultSyntax && c.Syntax != spec.SkillSyntax:
		return fmt.Errorf("config: its syntax %.100q is not known here; %s is", c.Syntax, spec.DefaultSyntax)
	case c.Agent.HasSkills() && c.Syntax != spec.SkillSyntax:
		return fmt.Errorf("config: it has skills, which are not in its syntax %s", c.Syntax)
	}
	i.Agentfile = c.Agent
	i.Agentfile.Syntax = c.Syntax
	return i.layers(ctx)
}

func (i *Image) layers(ctx context.Context) error {
	contexts := map[string]ocispec.Descriptor{}
	for _, l := range i.Manifest.Layers {
		if err := checkDescriptor(l, maxFile); err != nil {
			return fmt.Errorf("layer %.100q: %w", title(l), err)
		}
		switch l.MediaType {
		case MediaTypeAgentfile:
			i.source = l
		case MediaTypeContext:
			contexts[title(l)] = l
		case MediaTypeFile, MediaTypeSkill:
			if _, ok := i.files[title(l)]; ok {
				return fmt.Errorf("layer %.100q: it is there twice", title(l))
			}
			i.files[title(l)] = l
		}
	}
	for n := range i.Agentfile.Contexts {
		c := &i.Agentfile.Contexts[n]
		l, ok := contexts[c.Name+".md"]
		if c.Content != "" || !ok {
			continue
		}
		// Older builds keep the text of a CONTEXT file:// in its layer alone.
		text, err := fetchAll(ctx, i.store, l, spec.MaxContent)
		if err != nil {
			return fmt.Errorf("context %s: %w", c.Name, err)
		}
		c.Content = string(text)
	}
	if err := i.Agentfile.Validate(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for _, d := range i.Agentfile.Adds {
		l, ok := i.files[d.Name]
		switch {
		case !ok:
			return fmt.Errorf("ADD %s: the image has no layer of that title", d.Name)
		case d.IsSkill() != (l.MediaType == MediaTypeSkill):
			return fmt.Errorf("ADD %s: its layer is of type %.100q", d.Name, l.MediaType)
		}
	}
	return nil
}

// OpenAdd opens the file that becomes etc/data/name, or a skill's archive, and tells its size. Reading it ends in an error
// instead of io.EOF when the content is not what the manifest says.
func (i *Image) OpenAdd(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	desc, ok := i.files[name]
	if !ok {
		return nil, 0, fmt.Errorf("ADD %s: the image has no such file", name)
	}
	r, err := fetch(ctx, i.store, desc, maxFile)
	if err != nil {
		return nil, 0, fmt.Errorf("ADD %s: %w", name, err)
	}
	return r, desc.Size, nil
}

// Source reads the Agentfile that the image was built from; it is nil for an image without one.
func (i *Image) Source(ctx context.Context) ([]byte, error) {
	if i.source.Digest == "" {
		return nil, nil
	}
	b, err := fetchAll(ctx, i.store, i.source, spec.MaxSource)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	return b, nil
}

// Chain is the image's parents, nearest first. An image that does not tell has none here.
func (i *Image) Chain() ([]Link, error) {
	return parseChain(i.Manifest.Annotations[AnnotationChain])
}
