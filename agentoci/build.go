package agentoci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	digest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
)

// BuildOptions are what Build is given beside the Agentfile. The zero value builds a file that names
// no other and is FROM scratch.
type BuildOptions struct {
	// Name is what problems call the Agentfile; default is "Agentfile".
	Name string
	// Args are build arguments.
	Args map[string]string
	// Folder is the build folder: an *Archive, or os.Root.FS, both of which symlinks can't leave.
	Folder fs.FS
	// Parent finds the image of FROM.
	Parent Opener
	// Created becomes an annotation unless it is zero; give it SOURCE_DATE_EPOCH, not the time.
	Created time.Time
	// Tags are given to the image when it is stored whole.
	Tags []string
}

// BuildResult is a built image.
type BuildResult struct {
	// Descriptor is the manifest's.
	Descriptor ocispec.Descriptor
	// Agentfile is the definition with everything inherited.
	Agentfile *spec.Agentfile
	// Warnings are for the person who builds, each one line.
	Warnings []string
}

// Build turns the Agentfile source into an image in target. The same source, files, parent and
// options give the same digest on every machine. Everything is read and checked before the first
// blob is stored, and tags are moved last: a build of bad input leaves target as it was. Only one that
// target fails, or whose folder changes while it is built, leaves blobs, which nothing refers to.
// Problems of the file are a *spec.SyntaxError.
func Build(ctx context.Context, target oras.Target, source []byte, opts BuildOptions) (*BuildResult, error) {
	if opts.Name == "" {
		opts.Name = "Agentfile"
	}
	if opts.Folder == nil {
		opts.Folder = noFolder{}
	}
	own, err := spec.Parse(opts.Name, source, spec.ParseOptions{Args: opts.Args, Folder: opts.Folder})
	if err := errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	b := &builder{opts: opts, target: target, source: source, def: own, files: map[string]added{}}
	if err := b.inherit(ctx, own); err != nil {
		return nil, fmt.Errorf("%s: FROM %s: %w", opts.Name, own.From, err)
	}
	if err := b.read(ctx, own); err != nil {
		return nil, fmt.Errorf("%s: %w", opts.Name, err)
	}
	if err := b.def.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", opts.Name, err)
	}
	desc, err := b.store(ctx)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", opts.Name, err)
	}
	return &BuildResult{Descriptor: desc, Agentfile: b.def, Warnings: fewWarnings(append(b.warnings, warnings(own, b.inSkills)...))}, nil
}

type builder struct {
	opts   BuildOptions
	target oras.Target
	source []byte
	def    *spec.Agentfile
	chain  []Link
	// files are the ADD files and skills by name, and inSkills the skills' files, each with the skill's name.
	files    map[string]added
	inSkills []spec.Add
	warnings []string
}

// added is content that is read twice: for its digest, and to be stored.
type added struct {
	desc ocispec.Descriptor
	open func(context.Context) (io.ReadCloser, error)
}

// inherit reads the parent, and only the direct one: its definition holds what it inherited.
func (b *builder) inherit(ctx context.Context, own *spec.Agentfile) error {
	if own.From == "scratch" {
		return nil
	}
	ref, err := spec.ParseReference(own.From)
	if err != nil {
		return err
	}
	if b.opts.Parent == nil {
		return errors.New("this build knows no registry; only FROM scratch can be built")
	}
	store, name, err := b.opts.Parent(ctx, ref)
	if err != nil {
		return err
	}
	parent, err := Load(ctx, store, name)
	if err != nil {
		return err
	}
	if err := pinned(ref, parent.Descriptor.Digest); err != nil {
		return err
	}
	older, err := parent.Chain()
	if err != nil {
		return err
	}
	ref = ref.WithDefaultTag("latest")
	ref.Digest = ""
	b.chain = append([]Link{{Name: ref.String(), Digest: parent.Descriptor.Digest}}, older...)
	if err := checkChain(b.chain); err != nil {
		return err
	}
	for _, d := range parent.Agentfile.Adds {
		b.files[d.Name] = added{desc: parent.files[d.Name], open: func(ctx context.Context) (io.ReadCloser, error) {
			r, _, err := parent.OpenAdd(ctx, d.Name)
			return r, err
		}}
	}
	b.def = spec.Merge(parent.Agentfile, own)
	return nil
}

// pinned refuses a store's answer that is not the digest that was asked for.
func pinned(ref spec.Reference, got digest.Digest) error {
	if ref.Digest != "" && ref.Digest != got.String() {
		return fmt.Errorf("the store answered %s for %s", got, ref)
	}
	return nil
}

// read takes the digests of the files that the file itself names; those of the parent are in its image.
func (b *builder) read(ctx context.Context, own *spec.Agentfile) error {
	var errs []error
	for _, d := range own.Adds {
		if d.IsSkill() {
			skill, files, err := b.skill(ctx, d.Src)
			if err != nil {
				errs = append(errs, fmt.Errorf("ADD %s: %s: %w", d.Name, d.Src, err))
			}
			b.files[d.Name] = skill
			if w := skillWarning(b.opts.Folder, d); w != "" {
				b.warnings = append(b.warnings, w)
			}
			for _, f := range files {
				b.inSkills = append(b.inSkills, spec.Add{Name: d.Name, Src: path.Join(d.Src, f.Path)})
			}
			continue
		}
		desc, err := b.digest(ctx, d.Src)
		if err != nil {
			errs = append(errs, fmt.Errorf("ADD %s: %s: %w", d.Name, d.Src, err))
			continue
		}
		b.files[d.Name] = added{desc: desc, open: func(context.Context) (io.ReadCloser, error) {
			return openRegular(b.opts.Folder, d.Src)
		}}
	}
	return errors.Join(errs...)
}

// openRegular opens a file that Parse found to be regular, unless it is none any more: opening a named pipe
// waits for its other end.
func openRegular(folder fs.FS, name string) (fs.File, error) {
	info, err := fs.Stat(folder, name)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it changed while it was built")
	}
	if err != nil {
		return nil, err
	}
	return folder.Open(name)
}

// noFolder is the build folder of a build without one.
type noFolder struct{}

func (noFolder) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("there is no build folder")}
}

func (b *builder) digest(ctx context.Context, name string) (ocispec.Descriptor, error) {
	f, err := openRegular(b.opts.Folder, name)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer f.Close()
	digester := digest.SHA256.Digester()
	n, err := io.Copy(digester.Hash(), newLimitReader(contextReader{ctx, f}, maxFile))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: MediaTypeFile, Digest: digester.Digest(), Size: n}, nil
}

// store writes blobs, manifest and tags, in this order.
func (b *builder) store(ctx context.Context) (ocispec.Descriptor, error) {
	config, err := json.Marshal(configBlob{Syntax: b.def.Syntax, Agent: b.def})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if len(config) > maxConfig {
		return ocispec.Descriptor{}, fmt.Errorf("the definition has %d bytes, more than %d: %w", len(config), maxConfig, ErrLimit)
	}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactTypeAgent,
		Annotations:  b.annotations(),
	}
	var parts stage
	m.Config = parts.bytes("", MediaTypeConfig, config)
	layer := func(desc ocispec.Descriptor, title string) {
		desc.Annotations = map[string]string{ocispec.AnnotationTitle: title}
		m.Layers = append(m.Layers, desc)
	}
	layer(parts.bytes("", MediaTypeAgentfile, b.source), "Agentfile")
	for _, c := range b.def.Contexts {
		layer(parts.bytes("CONTEXT "+c.Name, MediaTypeContext, []byte(c.Content)), c.Name+".md")
	}
	for _, d := range b.def.Adds {
		f := b.files[d.Name]
		parts.add("ADD "+d.Name, f.desc, func() (io.ReadCloser, error) { return f.open(ctx) })
		layer(f.desc, d.Name)
	}
	desc, err := parts.document(ocispec.MediaTypeImageManifest, m, len(m.Layers)+1)
	if err != nil {
		return desc, err
	}
	if err := parts.store(ctx, b.target); err != nil {
		return desc, err
	}
	desc.ArtifactType = ArtifactTypeAgent
	return desc, tagAll(ctx, b.target, desc, b.opts.Tags)
}

func (b *builder) annotations() map[string]string {
	out := map[string]string{}
	if !b.opts.Created.IsZero() {
		out[ocispec.AnnotationCreated] = b.opts.Created.UTC().Format(time.RFC3339)
	}
	for _, l := range b.def.Labels {
		out[l.Key] = l.Value
	}
	if b.def.Name != "" {
		out[ocispec.AnnotationTitle] = b.def.Name
	}
	if len(b.chain) > 0 {
		out[ocispec.AnnotationBaseImageName] = b.chain[0].Name
		out[ocispec.AnnotationBaseImageDigest] = b.chain[0].Digest.String()
		out[AnnotationChain] = formatChain(b.chain)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
