package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sort"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
)

// maxManifest bounds a manifest that is read into memory, in bytes, as the OCI distribution
// specification advises.
const maxManifest = 4 << 20

// referenceLister is a target that knows its references, each repository:tag.
type referenceLister interface {
	References(ctx context.Context) ([]string, error)
}

// registry is the façade over a target and, where that lacks a function, the registry's HTTP
// endpoint.
type registry struct {
	target    oras.Target
	addr      string
	createdAt CreatedAtFunc
}

// NewRegistry returns a Registry over target. List, Inspect and Remove use the target's own listing
// and deleting where it has them, and the HTTP endpoint at addr, a host:port, where it has not;
// with neither they answer executor.ErrNotImplemented, as everything does with a nil target.
// createdAt may be nil: CreatedUnix is then 0.
func NewRegistry(target oras.Target, addr string, createdAt CreatedAtFunc) executor.Registry {
	return &registry{target: target, addr: addr, createdAt: createdAt}
}

// fail names the call and gives a missing reference the sentinel of the contract.
func fail(call, ref string, err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		err = fmt.Errorf("%w: %w", executor.ErrRefNotFound, err)
	}
	return fmt.Errorf("%s %s: %w", call, ref, err)
}

var errNoTarget = fmt.Errorf("%w: no registry target was given", executor.ErrNotImplemented)

// List returns every repository:tag, sorted.
func (r *registry) List(ctx context.Context) ([]string, error) {
	if l, ok := r.target.(referenceLister); ok {
		refs, err := l.References(ctx)
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		return refs, nil
	}
	if r.addr == "" {
		return nil, fmt.Errorf("list images: %w: the target can't list and no address was given", executor.ErrNotImplemented)
	}
	refs, err := r.listRemote(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	return refs, nil
}

func (r *registry) listRemote(ctx context.Context) ([]string, error) {
	reg, err := remote.NewRegistry(r.addr)
	if err != nil {
		return nil, err
	}
	reg.PlainHTTP = true
	var refs []string
	err = reg.Repositories(ctx, "", func(names []string) error {
		for _, name := range names {
			repo, err := reg.Repository(ctx, name)
			if err != nil {
				return err
			}
			if err := repo.Tags(ctx, "", func(tags []string) error {
				for _, t := range tags {
					refs = append(refs, name+":"+t)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	sort.Strings(refs)
	return refs, err
}

// Resolve returns the descriptor that ref names.
func (r *registry) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	if r.target == nil {
		return ocispec.Descriptor{}, fail("resolve", ref, errNoTarget)
	}
	desc, err := r.target.Resolve(ctx, ref)
	if err != nil {
		return ocispec.Descriptor{}, fail("resolve", ref, err)
	}
	return desc, nil
}

// Inspect describes the image that ref names, by its manifest.
func (r *registry) Inspect(ctx context.Context, ref string) (executor.ImageInfo, error) {
	if _, lists := r.target.(referenceLister); r.target == nil || !lists && r.addr == "" {
		return executor.ImageInfo{}, fail("inspect", ref, executor.ErrNotImplemented)
	}
	desc, err := r.target.Resolve(ctx, ref)
	if err != nil {
		return executor.ImageInfo{}, fail("inspect", ref, err)
	}
	if desc.Size > maxManifest {
		return executor.ImageInfo{}, fail("inspect", ref, fmt.Errorf("manifest is over %d bytes", maxManifest))
	}
	data, err := content.FetchAll(ctx, r.target, desc)
	if err != nil {
		return executor.ImageInfo{}, fail("inspect", ref, err)
	}
	var m struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return executor.ImageInfo{}, fail("inspect", ref, err)
	}
	info := executor.ImageInfo{
		Ref: ref, Digest: desc.Digest.String(), MediaType: desc.MediaType,
		Annotations: m.Annotations, Labels: m.Annotations,
		Description: m.Annotations[ocispec.AnnotationDescription], Source: m.Annotations[ocispec.AnnotationSource],
	}
	if info.Size, err = r.size(ctx, desc, make(map[digest.Digest]bool)); err != nil {
		return executor.ImageInfo{}, fail("inspect", ref, err)
	}
	if name, tag, ok := cutTag(ref); ok && r.createdAt != nil {
		info.CreatedUnix = r.createdAt(name, tag)
	}
	return info, nil
}

// manifestTypes are the media types of manifests and indexes.
var manifestTypes = map[string]bool{
	ocispec.MediaTypeImageManifest: true, ocispec.MediaTypeImageIndex: true,
	"application/vnd.docker.distribution.manifest.v2+json":      true,
	"application/vnd.docker.distribution.manifest.list.v2+json": true,
}

// maxSized bounds how many descriptors an image's size is counted over.
const maxSized = 10_000

// size is that of desc and of all it names that was not seen before: for an index what its manifests
// name. What of it is not here counts as much as is said of it.
func (r *registry) size(ctx context.Context, desc ocispec.Descriptor, seen map[digest.Digest]bool) (int64, error) {
	if seen[desc.Digest] {
		return 0, nil
	}
	if len(seen) == maxSized {
		return 0, fmt.Errorf("it names more than %d parts", maxSized)
	}
	seen[desc.Digest] = true
	total := max(desc.Size, 0)
	if !manifestTypes[desc.MediaType] {
		return total, nil
	}
	if desc.Size > maxManifest {
		return 0, fmt.Errorf("manifest is over %d bytes", maxManifest)
	}
	data, err := content.FetchAll(ctx, r.target, desc)
	if errors.Is(err, errdef.ErrNotFound) {
		return total, nil
	}
	if err != nil {
		return 0, err
	}
	var m struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, err
	}
	parts := append(m.Layers, m.Manifests...)
	if m.Config != nil {
		parts = append(parts, *m.Config)
	}
	for _, part := range parts {
		n, err := r.size(ctx, part, seen)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// cutTag splits repository:tag; a port of a host is no tag.
func cutTag(ref string) (name, tag string, ok bool) {
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.ContainsAny(ref[i:], "/") || strings.Contains(ref, "@") {
		return "", "", false
	}
	return ref[:i], ref[i+1:], true
}

// Fetch returns the content of desc; the caller closes it.
func (r *registry) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if r.target == nil {
		return nil, fail("fetch", desc.Digest.String(), errNoTarget)
	}
	rc, err := r.target.Fetch(ctx, desc)
	if err != nil {
		return nil, fail("fetch", desc.Digest.String(), err)
	}
	return rc, nil
}

// Tag makes dst name what src names.
func (r *registry) Tag(ctx context.Context, src, dst string) error {
	if r.target == nil {
		return fail("tag", src, errNoTarget)
	}
	desc, err := r.target.Resolve(ctx, src)
	if err != nil {
		return fail("tag", src, err)
	}
	if err := r.target.Tag(ctx, desc, dst); err != nil {
		return fail("tag", dst, err)
	}
	return nil
}

// Remove takes the tag away.
func (r *registry) Remove(ctx context.Context, ref string) error {
	if u, ok := r.target.(content.Untagger); ok {
		if err := u.Untag(ctx, ref); err != nil {
			return fail("remove", ref, err)
		}
		return nil
	}
	name, tag, ok := cutTag(ref)
	if r.addr == "" {
		return fail("remove", ref, fmt.Errorf("%w: the target can't delete and no address was given", executor.ErrNotImplemented))
	}
	if !ok {
		return fail("remove", ref, errors.New("want repository:tag"))
	}
	repo, err := remoteRepository(r.addr + "/" + name)
	if err != nil {
		return fail("remove", ref, err)
	}
	if err := removeTag(ctx, repo, tag); err != nil {
		return fail("remove", ref, err)
	}
	return nil
}

// removeTag deletes a tag over HTTP. A registry that can't delete a tag alone is asked to delete the
// manifest, unless other tags would go with it.
func removeTag(ctx context.Context, repo *remote.Repository, tag string) error {
	desc, err := repo.Resolve(ctx, tag)
	if err != nil {
		return err
	}
	scheme := "https"
	if repo.PlainHTTP {
		scheme = "http"
	}
	url := fmt.Sprintf("%s://%s/v2/%s/manifests/%s", scheme, repo.Reference.Host(), repo.Reference.Repository, tag)
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	res, err := auth.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	switch res.StatusCode {
	case http.StatusAccepted, http.StatusOK, http.StatusNoContent:
		return nil
	case http.StatusNotFound:
		return errdef.ErrNotFound
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
	default:
		return fmt.Errorf("registry answers %s", res.Status)
	}
	err = repo.Tags(ctx, "", func(tags []string) error {
		for _, other := range tags {
			if other == tag {
				continue
			}
			if d, err := repo.Resolve(ctx, other); err != nil || d.Digest == desc.Digest {
				return errors.Join(err, fmt.Errorf("the registry deletes only whole images, and tag %s may name this one", other))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return repo.Manifests().Delete(ctx, desc)
}

// PullRemote copies remoteRef, which has a host, into the target under its whole name.
func (r *registry) PullRemote(ctx context.Context, remoteRef string) error {
	if r.target == nil {
		return fail("pull", remoteRef, errNoTarget)
	}
	repo, ref, err := openRemote(remoteRef)
	if err != nil {
		return fail("pull", remoteRef, err)
	}
	if _, err := oras.Copy(ctx, repo, ref.Identifier(), r.target, ref.String(), oras.DefaultCopyOptions); err != nil {
		return fail("pull", remoteRef, err)
	}
	return nil
}

// PushRemote copies what localRef names to remoteRef, which has a host.
func (r *registry) PushRemote(ctx context.Context, localRef, remoteRef string) error {
	if r.target == nil {
		return fail("push", localRef, errNoTarget)
	}
	repo, ref, err := openRemote(remoteRef)
	if err != nil {
		return fail("push", remoteRef, err)
	}
	if _, err := oras.Copy(ctx, r.target, localRef, repo, ref.Identifier(), oras.DefaultCopyOptions); err != nil {
		return fail("push", remoteRef, err)
	}
	return nil
}

func openRemote(s string) (*remote.Repository, spec.Reference, error) {
	ref, err := spec.ParseReference(s)
	if err != nil {
		return nil, ref, err
	}
	ref = ref.WithDefaultTag("latest")
	if ref.Host() == "" {
		return nil, ref, fmt.Errorf("no host in the reference; write host/%s", ref)
	}
	repo, err := remoteRepository(ref.Name)
	return repo, ref, err
}

// remoteRepository speaks HTTPS, but to this machine.
func remoteRepository(name string) (*remote.Repository, error) {
	repo, err := remote.NewRepository(name)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(repo.Reference.Registry)
	if err != nil {
		host = repo.Reference.Registry
	}
	ip := net.ParseIP(host)
	repo.PlainHTTP = host == "localhost" || ip != nil && ip.IsLoopback()
	return repo, nil
}

// BuildTarget is the target itself; nil where there is none.
func (r *registry) BuildTarget() oras.Target { return r.target }
