package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// tagsPerPush bounds the tags that one push by digest may set.
const tagsPerPush = 64

func (x *exchange) ping() error {
	x.reply(http.StatusOK, "application/json", []byte("{}"))
	return nil
}

// manifestReference parts the last element of the path. A tag outside the grammar names nothing.
func (x *exchange) manifestReference() (tag string, d digest.Digest, err error) {
	tag, d, err = splitTagOrDigest(x.reference)
	if errors.Is(err, errdef.ErrInvalidReference) && x.r.Method != http.MethodPut {
		err = &apiError{http.StatusNotFound, codeManifestUnknown, err.Error()}
	} else if errors.Is(err, errdef.ErrInvalidReference) {
		err = &apiError{http.StatusBadRequest, codeManifestInvalid, err.Error()}
	}
	return tag, d, err
}

func (x *exchange) getManifest() error {
	tag, d, err := x.manifestReference()
	if err != nil {
		return err
	}
	query, args := referenceQuery(x.repository, tag, d)
	f, err := x.find(query, args...)
	if err != nil {
		return unknown(fmt.Errorf("manifest %s in %s: %w", abbreviate(x.reference), x.repository, err), codeManifestUnknown)
	}
	return x.send(f, f.mediaType)
}

func (x *exchange) putManifest() error {
	tag, d, err := x.manifestReference()
	if err != nil {
		return err
	}
	tags, err := x.pushTags(tag)
	if err != nil {
		return err
	}
	data, err := x.readBounded(manifestLimit)
	if err != nil {
		return err
	}
	if d == "" {
		d = digest.FromBytes(data)
	} else if got := d.Algorithm().FromBytes(data); got != d {
		return fmt.Errorf("manifest of %d bytes has digest %s, want %s: %w", len(data), got, d, errdef.ErrInvalidDigest)
	}
	m, err := parseManifest(x.r.Header.Get("Content-Type"), d, data)
	if err != nil {
		return err
	}
	if err := x.store.commitManifest(x.r.Context(), m, x.repository, tags); err != nil {
		return err
	}
	header := x.w.Header()
	if m.subject != "" {
		header.Set("OCI-Subject", string(m.subject))
	}
	if tag == "" {
		for _, t := range tags {
			header.Add("OCI-Tag", t)
		}
	}
	x.created("manifests", d)
	return nil
}

// pushTags are the tags a push sets: the one in the path, or those asked for beside a digest.
func (x *exchange) pushTags(tag string) ([]string, error) {
	if tag != "" {
		return []string{tag}, nil
	}
	tags := x.r.URL.Query()["tag"]
	if len(tags) > tagsPerPush {
		return nil, &apiError{http.StatusBadRequest, codeManifestInvalid, fmt.Sprintf("%d tags, at most %d are allowed", len(tags), tagsPerPush)}
	}
	for _, t := range tags {
		if err := checkTag(t); err != nil {
			return nil, &apiError{http.StatusBadRequest, codeManifestInvalid, err.Error()}
		}
	}
	return tags, nil
}

// deleteManifest deletes a tag alone, or a manifest with the tags that name it.
func (x *exchange) deleteManifest() error {
	tag, d, err := x.manifestReference()
	if err != nil {
		return err
	}
	if tag != "" {
		err = x.store.untag(x.r.Context(), x.repository, tag)
	} else {
		err = x.target().remove(x.r.Context(), d, true)
	}
	if err != nil {
		return unknown(fmt.Errorf("delete %s in %s: %w", x.reference, x.repository, err), codeManifestUnknown)
	}
	x.replyEmpty(http.StatusAccepted)
	return nil
}

func (x *exchange) target() *Repository { return &Repository{store: x.store, name: x.repository} }

// created answers a push; kind is the element of the path where the content is found.
func (x *exchange) created(kind string, d digest.Digest) {
	header := x.w.Header()
	header.Set("Location", "/v2/"+x.repository+"/"+kind+"/"+string(d))
	header.Set("Docker-Content-Digest", string(d))
	x.replyEmpty(http.StatusCreated)
}

// copyFrom is the size of a file from which on it is copied to the connection, by copyAll,
// rather than handed to the kernel: the caller would be the one to wait for all of it to come from
// memory, while copying has the processors share that. A smaller file is in their caches.
const copyFrom = 4 << 20

// copied hands no file to the kernel.
type copied struct{ http.ResponseWriter }

func (c copied) ReadFrom(r io.Reader) (int64, error) { return copyAll(c.ResponseWriter, r) }

// send answers with content. Ranges, conditions and HEAD are the standard library's; files below
// copyFrom go by sendfile.
func (x *exchange) send(f *found, contentType string) error {
	var content io.ReadSeeker = sizeOnly(f.size)
	if x.r.Method == http.MethodHead {
		x.r.Header.Del("Range") // it has a meaning with GET only
	} else {
		file, err := x.store.open(x.r.Context(), f)
		if err != nil {
			return unknown(err, codeBlobUnknown)
		}
		defer file.Close()
		content = file
	}
	if strings.Contains(x.r.Header.Get("Range"), ",") {
		// Many ranges may cost more to send than the whole, which RFC 9110 allows instead.
		x.r.Header.Del("Range")
	}
	header := x.w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Docker-Content-Digest", string(f.digest))
	header.Set("Etag", `"`+string(f.digest)+`"`)
	// What was pushed must not act as a page, whatever type it was given.
	header.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	x.answerWithin(f.size)
	w := x.w
	if f.size >= copyFrom {
		w = copied{w}
	}
	http.ServeContent(w, x.r, "", noTime, content)
	return nil
}
