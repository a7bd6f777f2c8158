package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
)

// pageLimit bounds one answer to a listing; more follows by Link.
const pageLimit = 10000

// page reads the n and last of a listing. Without n, and above it, pageLimit counts.
func (x *exchange) page() (n int, last string, err error) {
	query := x.r.URL.Query()
	n, last = pageLimit, query.Get("last")
	if text := query.Get("n"); text != "" {
		asked, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return 0, "", &apiError{http.StatusBadRequest, codeUnsupported, fmt.Sprintf("n is %q, want a number from 0 on", abbreviate(text))}
		}
		n = int(min(asked, pageLimit))
	}
	if len(last) > nameLimit {
		return 0, "", &apiError{http.StatusBadRequest, codeUnsupported, fmt.Sprintf("last has %d bytes, at most %d are allowed", len(last), nameLimit)}
	}
	return n, last, nil
}

// link names the next page.
func (x *exchange) link(query url.Values) {
	next := url.URL{Path: x.r.URL.Path, RawQuery: query.Encode()}
	x.w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
}

// cut shortens a list that was read one entry longer than the page, and links what follows.
func (x *exchange) cut(list []string, n int) []string {
	if n > 0 && len(list) > n {
		list = list[:n]
		x.link(url.Values{"n": {strconv.Itoa(n)}, "last": {list[n-1]}})
	}
	return list
}

func (x *exchange) listTags() error {
	n, last, err := x.page()
	if err != nil {
		return err
	}
	tags := []string{}
	if n > 0 {
		if tags, err = x.store.tagPage(x.r.Context(), x.repository, last, n+1); err != nil {
			return err
		}
	}
	if len(tags) == 0 {
		has, err := x.store.hasRepository(x.r.Context(), x.repository)
		if err != nil {
			return err
		}
		if !has {
			return unknown(fmt.Errorf("repository %s: %w", x.repository, errdef.ErrNotFound), codeNameUnknown)
		}
	}
	return x.replyJSON("application/json", struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}{x.repository, x.cut(tags, n)})
}

func (x *exchange) listRepositories() error {
	n, last, err := x.page()
	if err != nil {
		return err
	}
	names := []string{}
	if n > 0 {
		if names, err = x.store.repositoryPage(x.r.Context(), last, n+1); err != nil {
			return err
		}
	}
	return x.replyJSON("application/json", struct {
		Repositories []string `json:"repositories"`
	}{x.cut(names, n)})
}

// listReferrers answers with an index, an empty one where nothing refers to the digest.
func (x *exchange) listReferrers() error {
	d := digest.Digest(x.reference)
	if err := checkDigest(d); err != nil {
		return err
	}
	query := x.r.URL.Query()
	artifactType := query.Get("artifactType")
	cursor := int64(0)
	if text := query.Get("after"); text != "" {
		var err error
		if cursor, err = strconv.ParseInt(text, 10, 64); err != nil || cursor < 0 {
			return &apiError{http.StatusBadRequest, codeUnsupported, fmt.Sprintf("after is %q, want what the link of the page before says", abbreviate(text))}
		}
	}
	page, next, err := x.store.referrerPage(x.r.Context(), x.repository, d, artifactType, cursor)
	if err != nil {
		return err
	}
	if artifactType != "" {
		x.w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	if next != 0 {
		follow := url.Values{"after": {strconv.FormatInt(next, 10)}}
		if artifactType != "" {
			follow.Set("artifactType", artifactType)
		}
		x.link(follow)
	}
	return x.replyJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: page,
	})
}
