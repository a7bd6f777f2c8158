package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/go-git/go-billy/v5"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// MaterializeOptions is what MaterializeContent works from. Store and Ref are required.
type MaterializeOptions struct {
	// Store holds the image, Ref names it there by tag or digest.
	Store oras.ReadOnlyTarget
	Ref   spec.Reference
	// Overrides change the definition before it is checked.
	Overrides []spec.Override
	// OCIPuller is not used for content; executors that install programs have it here.
	OCIPuller agentoci.Puller
	// UsageFetcher reads the usage text of tools whose definition has none. Nil writes none.
	UsageFetcher agentoci.UsageFetcher
	// ModelResolver is asked for the model's address and key, so that a missing one fails now.
	ModelResolver model.Resolver
	// DigestResolver gives the digests of provenance.
	DigestResolver DigestResolver
	// ImageRef is recorded as the image's reference; empty records Ref.
	ImageRef string
	// LocalRuntime tells that the runtime is this program of the host; provenance then names it
	// in place of an image.
	LocalRuntime string
	// Mounts are added to those of the overrides.
	Mounts []executor.Mount
	// HostFS is where the targets of mounts are looked for; nil does not look.
	HostFS billy.Filesystem
	// ToolBinaryPath returns where the tool's program is as the agent sees it. Nil is the view's
	// first folder for programs.
	ToolBinaryPath func(name string) string
	// SymlinkBinAt returns the target of a symlink made at opt/bins/NAME, for executors whose tools
	// are mounted elsewhere. Nil makes none.
	SymlinkBinAt func(name string) (target string, ok bool)
	// Capabilities are the tools that the runtime provides.
	Capabilities []executor.Capability
	// View is the tree as the agent sees it; the zero value is the tree at its path on the host.
	View executor.WorkspaceView
	// ViewBinDirsForTools fills View.BinDirs from the names of the tools.
	ViewBinDirsForTools func(toolNames []string) []string
	// Confinement is what WORKSPACE.md says is enforced; the zero value says nothing. Ours.
	Confinement workspace.Confinement
	// ImageLabels reads the description of tools whose definition has none. Nil reads none. Ours.
	ImageLabels agentoci.LabelReader
}

// MaterializeContent writes everything of an agent's tree but the programs into fs: it loads the
// image, applies the overrides, writes contexts and data, the generated documents and agent.yaml,
// asks the model resolver, and makes the symlinks of mounts. Executors that bring programs into the
// tree in their own way, such as by mounting images, build on it. addr is the address the runtime
// will answer on; agent.yaml never holds it.
//
// Files are written whole or not at all, but the tree as a whole is not: build it beside its place. It may
// be called again for the same tree, and then replaces what it wrote before. Two calls for one tree must not
// overlap. Errors wrap ErrPull, ErrConfig or ErrModel where one fits, which FailureOf tells; the end of ctx
// is its error. The caller keeps fs and everything in opts, and owns what is returned.
func MaterializeContent(
	ctx context.Context, fs billy.Filesystem, id uuid.UUID, addr string, opts MaterializeOptions,
) (*executor.Runtime, error) {
	fs, opened, err := bound(fs, onDisk(fs))
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	if opened != nil {
		defer opened.Close()
	}
	m := &materializer{fs: fs, id: id, opts: opts}
	if err := m.resolve(ctx); err != nil {
		return nil, err
	}
	if _, err := m.resolveModel(); err != nil {
		return nil, err
	}
	if err := m.write(ctx); err != nil {
		return nil, err
	}
	return m.runtime(), nil
}

// credentials are what a model is reached with.
type credentials struct {
	apiURL string
	apiKey string
}

// materializer builds one tree.
type materializer struct {
	fs   billy.Filesystem
	id   uuid.UUID
	opts MaterializeOptions
	// fresh tells that the tree is new and not in its place yet, so that files need no detour.
	fresh bool
	// haveDirs tells that the folders are there already.
	haveDirs bool

	image  *agentoci.Image
	source *spec.Agentfile
	config *workspace.Config
	view   executor.WorkspaceView
	usages map[string]string
}

func (m *materializer) runtime() *executor.Runtime {
	return &executor.Runtime{ID: m.id, Source: m.source, Config: m.config}
}

// resolve works out the definition and everything that must be known before a byte is written.
func (m *materializer) resolve(ctx context.Context) error {
	if m.opts.Store == nil {
		return fmt.Errorf("%w: %s: no store was given", ErrPull, m.opts.Ref)
	}
	img, err := agentoci.Load(ctx, m.opts.Store, m.opts.Ref.WithDefaultTag("latest").Identifier())
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrPull, m.opts.Ref, err)
	}
	m.image = img
	if m.source, err = img.Agentfile.Apply(m.opts.Overrides...); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	m.source.Mounts = append(m.source.Mounts, m.opts.Mounts...)
	if missing := m.source.MissingConfigs(); len(missing) > 0 {
		return fmt.Errorf("%w: CONFIG %s: the image wants a value at deploy; give one for each", ErrConfig, strings.Join(missing, ", "))
	}
	m.resolveView()
	if err := m.readTools(ctx); err != nil {
		return err
	}
	m.buildConfig()
	return nil
}

func (m *materializer) resolveView() {
	v := m.opts.View
	if v.Root == "" {
		v.Root = m.fs.Root()
	}
	if v.WorkspaceDir == "" {
		v.WorkspaceDir = path.Join(v.Root, workspace.WorkDir)
	}
	if v.RuntimeBin == "" {
		v.RuntimeBin = path.Join(v.Root, workspace.RuntimeBin)
	}
	if m.opts.ViewBinDirsForTools != nil {
		names := make([]string, len(m.source.Bins))
		for i, b := range m.source.Bins {
			names[i] = b.Name
		}
		v.BinDirs = m.opts.ViewBinDirsForTools(names)
	}
	if len(v.BinDirs) == 0 {
		v.BinDirs = []string{path.Join(v.Root, workspace.BinDir)}
	}
	m.view = v
}

// readTools reads what the definition leaves to the tools' images.
func (m *materializer) readTools(ctx context.Context) error {
	usages := make([]string, len(m.source.Bins))
	g, ctx := errgroup.WithContext(ctx)
	for i := range m.source.Bins {
		b := &m.source.Bins[i]
		usages[i] = b.Usage
		g.Go(func() error {
			ref, err := spec.ParseReference(b.Image)
			if err != nil {
				return fmt.Errorf("%w: tool %s: %w", ErrPull, b.Name, err)
			}
			if usages[i] == "" && m.opts.UsageFetcher != nil {
				if usages[i], err = m.opts.UsageFetcher(ctx, ref); err != nil {
					return fmt.Errorf("%w: usage of tool %s: %w", ErrPull, b.Name, err)
				}
			}
			if b.Description == "" && m.opts.ImageLabels != nil {
				labels, err := m.opts.ImageLabels(ctx, ref)
				if err != nil {
					return fmt.Errorf("%w: tool %s: %w", ErrPull, b.Name, err)
				}
				b.Description = firstOf(labels, "io.openotters.bin.description", "vnd.openotters.bin.description", "org.opencontainers.image.description")
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	m.usages = make(map[string]string, len(usages))
	for i, u := range usages {
		if u != "" {
			m.usages[m.source.Bins[i].Name] = u
		}
	}
	return nil
}

func firstOf(m map[string]string, keys ...string) string {
	for _, k := range keys {
		if v := m[k]; v != "" {
			return v
		}
	}
	return ""
}

// resolveModel asks for the model's address and key.
func (m *materializer) resolveModel() (credentials, error) {
	return resolveModel(m.source.Model, m.opts.ModelResolver)
}

func resolveModel(name string, resolver model.Resolver) (credentials, error) {
	if name == "" {
		return credentials{}, fmt.Errorf("%w: no model: the image has no MODEL; name one when creating the agent", ErrModel)
	}
	if _, err := model.ParseRef(name); err != nil {
		return credentials{}, fmt.Errorf("%w: %w", ErrModel, err)
	}
	if resolver == nil {
		return credentials{}, nil
	}
	apiURL, apiKey, err := resolver(name)
	if err != nil {
		return credentials{}, fmt.Errorf("%w: %w", ErrModel, err)
	}
	return credentials{apiURL: apiURL, apiKey: apiKey}, nil
}

func (m *materializer) digest(ref string) string {
	if m.opts.DigestResolver == nil || ref == "" {
		return ""
	}
	return m.opts.DigestResolver(ref)
}

func (m *materializer) buildConfig() {
	src := m.source
	imageRef := m.opts.ImageRef
	if imageRef == "" {
		imageRef = m.opts.Ref.String()
	}
	c := &workspace.Config{
		ID: m.id.String(), Name: src.Name, Model: src.Model, Workspace: m.view.WorkspaceDir,
		Image:        workspace.ImageRef{Ref: imageRef, Digest: m.image.Descriptor.Digest.String()},
		Runtime:      workspace.RuntimeRef{Ref: src.Runtime, Digest: m.digest(src.Runtime), Binary: m.view.RuntimeBin},
		Capabilities: m.opts.Capabilities, Exec: src.Exec,
	}
	if m.opts.LocalRuntime != "" {
		c.Runtime.Ref, c.Runtime.Digest = "file://"+m.opts.LocalRuntime, ""
	}
	for _, k := range src.Capabilities {
		if !hasCapability(c.Capabilities, k) {
			c.Capabilities = append(c.Capabilities, executor.Capability{Name: k})
		}
	}
	for _, kv := range src.Configs {
		if kv.Value == nil {
			continue
		}
		if c.Configs == nil {
			c.Configs = make(map[string]string)
		}
		c.Configs[kv.Key] = *kv.Value
	}
	for _, e := range src.Envs {
		c.Envs = append(c.Envs, workspace.EnvName{Key: e.Key, Description: e.Description})
	}
	for _, mt := range src.Mounts {
		c.Mounts = append(c.Mounts, workspace.Mount{Target: m.seen(mt.Target), Description: mt.Description, ReadOnly: mt.ReadOnly})
	}
	for _, ctx := range src.Contexts {
		c.Context = append(c.Context, workspace.Context{Name: ctx.Name, File: workspace.ContextFile(ctx.Name), Description: ctx.Description})
	}
	for _, b := range src.Bins {
		binary := path.Join(m.view.BinDirs[0], b.Name)
		if m.opts.ToolBinaryPath != nil {
			binary = m.opts.ToolBinaryPath(b.Name)
		}
		c.Tools = append(c.Tools, workspace.Tool{
			Name: b.Name, Description: b.Description, Binary: binary,
			Ref: b.Image, Digest: m.digest(b.Image), Usage: workspace.UsageFile(b.Name),
		})
	}
	imageDigest := m.digest(m.opts.ImageRef)
	if imageDigest == "" {
		imageDigest = m.image.Descriptor.Digest.String()
	}
	c.Provenance = workspace.Provenance{
		ImageDigest: imageDigest, RuntimeRef: c.Runtime.Ref, RuntimeDigest: c.Runtime.Digest,
	}
	m.config = c
}

func hasCapability(caps []executor.Capability, name string) bool {
	for _, c := range caps {
		if strings.ReplaceAll(c.Name, "_", "-") == strings.ReplaceAll(name, "_", "-") {
			return true
		}
	}
	return false
}

// seen is a mount's target as the agent sees it.
func (m *materializer) seen(target string) string { return path.Join(m.view.Root, target) }

// write writes the content.
func (m *materializer) write(ctx context.Context) error {
	if !m.haveDirs {
		if err := makeDirs(m.fs, ""); err != nil {
			return err
		}
	}
	for _, c := range m.source.Contexts {
		if err := m.file(workspace.ContextFile(c.Name), []byte(c.Content)); err != nil {
			return err
		}
	}
	for _, a := range m.source.Adds {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.add(ctx, a); err != nil {
			return err
		}
	}
	for name, usage := range m.usages {
		if err := m.file(workspace.UsageFile(name), []byte(usage)); err != nil {
			return err
		}
	}
	if err := m.symlinkBins(); err != nil {
		return err
	}
	if err := m.documents(); err != nil {
		return err
	}
	return applyMounts(m.fs, m.opts.HostFS, m.source.Mounts, m.view, m.enforced())
}

// enforced tells that a read-only mount can't be written.
func (m *materializer) enforced() bool {
	return m.view.Isolated || m.opts.Confinement.Level == string(sandbox.Limited)
}

// documents writes what is generated; agent.yaml comes last, so that a tree with one is whole.
func (m *materializer) documents() error {
	data := make([]workspace.DataFile, len(m.source.Adds))
	for i, a := range m.source.Adds {
		data[i] = workspace.DataFile{Name: a.Name, Description: a.Description}
	}
	// The path of a usage text is always in agent.yaml; the document names only those there are.
	shown := *m.config
	shown.Tools = append([]workspace.Tool(nil), m.config.Tools...)
	for i := range shown.Tools {
		if _, ok := m.usages[shown.Tools[i].Name]; !ok {
			shown.Tools[i].Usage = ""
		}
	}
	if err := m.file(workspace.ContextFile(workspace.AgentDoc), workspace.AgentDocument(&shown, data, m.view)); err != nil {
		return err
	}
	if err := m.file(workspace.ContextFile(workspace.WorkspaceDoc), workspace.WorkspaceDocument(m.view, m.opts.Confinement)); err != nil {
		return err
	}
	if doc := workspace.MountsDocument(m.config.Mounts); doc != nil {
		if err := m.file(workspace.ContextFile(workspace.MountsDoc), doc); err != nil {
			return err
		}
	}
	text, err := m.config.Marshal()
	if err != nil {
		return err
	}
	return m.file(workspace.AgentYAML, text)
}

// file writes a small file that everyone in the tree may read.
func (m *materializer) file(name string, data []byte) error {
	if !m.fresh {
		return workspace.WriteFile(m.fs, name, data, 0o644, false)
	}
	f, err := m.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (m *materializer) symlinkBins() error {
	if m.opts.SymlinkBinAt == nil {
		return nil
	}
	for _, b := range m.source.Bins {
		target, ok := m.opts.SymlinkBinAt(b.Name)
		if !ok {
			continue
		}
		link := path.Join("opt/bins", b.Name)
		if err := replaceSymlink(m.fs, target, link); err != nil {
			return fmt.Errorf("tool %s: %w", b.Name, err)
		}
	}
	return nil
}

// replaceSymlink makes link point at target and replaces a symlink that is there, nothing else.
func replaceSymlink(fs billy.Filesystem, target, link string) error {
	switch info, err := fs.Lstat(link); {
	case err == nil && info.Mode()&os.ModeSymlink == 0:
		return fmt.Errorf("%s is there and not a symlink", link)
	case err == nil:
		if old, err := fs.Readlink(link); err == nil && old == target {
			return nil
		}
		if err := fs.Remove(link); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return fs.Symlink(target, link)
}
