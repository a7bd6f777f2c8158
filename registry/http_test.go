package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/errdef"
	orasregistry "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// remoteRepository is the oras client, which logs in by the challenge.
func (s *server) remoteRepository(name string) *remote.Repository {
	s.t.Helper()
	repo, err := remote.NewRepository(s.host + "/" + name)
	if err != nil {
		s.t.Fatal(err)
	}
	repo.PlainHTTP = true
	repo.Client = &auth.Client{
		Client:     &http.Client{Transport: s.client},
		Credential: auth.StaticCredential(s.host, auth.Credential{Username: "anyone", Password: token}),
	}
	return repo
}

func TestOrasClientPushesPullsListsAndDeletes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newServer(t)
	source := memory.New()
	big := bigBlob("a")
	desc := pushImage(t, source, []byte("small"), big, []byte{})
	if err := source.Tag(ctx, desc, "v1"); err != nil {
		t.Fatal(err)
	}
	repo := s.remoteRepository("team/app")
	if _, err := oras.Copy(ctx, source, "v1", repo, "v1", oras.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	referrer, err := oras.PackManifest(ctx, repo, oras.PackManifestVersion1_1, "application/x.note", oras.PackManifestOptions{Subject: &desc})
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Tag(ctx, referrer, "note"); err != nil {
		t.Fatal(err)
	}
	other := s.remoteRepository("team/other")
	if _, err := oras.ExtendedCopy(ctx, repo, "v1", other, "v2", oras.ExtendedCopyOptions{}); err != nil {
		t.Fatal(err)
	}
	back := memory.New()
	if _, err := oras.Copy(ctx, other, "v2", back, "v2", oras.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, back, content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, big)); !bytes.Equal(got, big) {
		t.Error("large layer changed")
	}
	tags, err := orasregistry.Tags(ctx, repo)
	if diff := cmp.Diff([]string{"note", "v1"}, tags); err != nil || diff != "" {
		t.Error(err, diff)
	}
	refs, err := orasregistry.Referrers(ctx, other, desc, "application/x.note")
	if err != nil || len(refs) != 1 || refs[0].Digest != referrer.Digest {
		t.Errorf("referrers %v %v, want %s", refs, err, referrer.Digest)
	}
	if err := repo.Delete(ctx, desc); err != nil {
		t.Fatal(err)
	}
	_, err = repo.Resolve(ctx, "v1")
	wantError(t, err, errdef.ErrNotFound)
	if _, err := other.Resolve(ctx, "v2"); err != nil {
		t.Errorf("the other repository: %v", err)
	}
	got, err := s.store.References(ctx)
	if diff := cmp.Diff([]string{"team/app:note", "team/other:v2"}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestOrasClientMountsAcrossRepositories(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newServer(t)
	desc := s.pushBlob("from", bigBlob("b"))
	to := s.remoteRepository("to")
	err := to.Mount(ctx, desc, "from", func() (io.ReadCloser, error) { return nil, errors.New("was not mounted") })
	if err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, to.Blobs(), desc); !bytes.Equal(got, bigBlob("b")) {
		t.Error("mounted blob differs")
	}
}

func TestUploadInEveryForm(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{"row": []byte("twelve bytes"), "file": bigBlob("c"), "empty": {}} {
		for _, algorithm := range []digest.Algorithm{digest.SHA256, digest.SHA512} {
			s := newServer(t)
			for form, send := range uploadForms {
				d := algorithm.FromBytes(data)
				repo := "r" + form
				a := send(s, "/v2/"+repo+"/blobs/uploads/", d, data)
				if a.status != 201 || a.header.Get("Docker-Content-Digest") != string(d) {
					t.Fatalf("%s %s %s: status %d %s", name, algorithm, form, a.status, a.body)
				}
				got := s.want(s.do("GET", a.header.Get("Location"), nil), 200, "")
				if !bytes.Equal(got.body, data) || got.header.Get("Etag") != `"`+string(d)+`"` {
					t.Errorf("%s %s %s: %d bytes came back, want %d", name, algorithm, form, len(got.body), len(data))
				}
				head := s.want(s.do("HEAD", a.header.Get("Location"), nil), 200, "")
				if head.header.Get("Content-Length") != fmt.Sprint(len(data)) {
					t.Errorf("%s %s %s: HEAD says %s bytes", name, algorithm, form, head.header.Get("Content-Length"))
				}
				s.want(s.do("GET", "/v2/"+repo+"x/blobs/"+string(d), nil), 404, "BLOB_UNKNOWN")
			}
		}
	}
}

// uploadForms are the specification's ways to push a blob.
var uploadForms = map[string]func(s *server, uploads string, d digest.Digest, data []byte) answer{
	"single": func(s *server, uploads string, d digest.Digest, data []byte) answer {
		return s.do("POST", uploads+"?digest="+string(d), data)
	},
	"postput": func(s *server, uploads string, d digest.Digest, data []byte) answer {
		at := s.start(uploads)
		return s.do("PUT", at+"?digest="+string(d), data)
	},
	"streamed": func(s *server, uploads string, d digest.Digest, data []byte) answer {
		at := s.start(uploads)
		a := s.want(s.do("PATCH", at, data, "Content-Length", "-"), 202, "")
		return s.do("PUT", a.header.Get("Location")+"?digest="+string(d), nil)
	},
	"chunked": func(s *server, uploads string, d digest.Digest, data []byte) answer {
		at := s.start(uploads)
		half := len(data) / 2
		if half > 0 {
			a := s.want(s.do("PATCH", at, data[:half], "Content-Range", fmt.Sprintf("0-%d", half-1)), 202, "")
			at = a.header.Get("Location")
			status := s.want(s.do("GET", at, nil), 204, "")
			if got, want := status.header.Get("Range"), fmt.Sprintf("0-%d", half-1); got != want {
				s.t.Errorf("range %q, want %q", got, want)
			}
			return s.do("PUT", at+"?digest="+string(d), data[half:], "Content-Range", fmt.Sprintf("%d-%d", half, len(data)-1))
		}
		return s.do("PUT", at+"?digest="+string(d), nil)
	},
}

func (s *server) start(uploads string) string {
	s.t.Helper()
	return s.want(s.do("POST", uploads, nil), 202, "").header.Get("Location")
}

func TestChunkOutOfOrderIsRefusedAndTheUploadGoesOn(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	data := []byte("0123456789")
	d := digest.FromBytes(data)
	at := s.start("/v2/r/blobs/uploads/")
	s.want(s.do("PATCH", at, data[:5], "Content-Range", "0-4"), 202, "")
	for _, method := range []string{"PATCH", "PUT"} {
		for _, r := range []string{"0-4", "6-10", "5", "x-y", "-1-3"} {
			a := s.want(s.do(method, at+"?digest="+string(d), data[5:], "Content-Range", r), 416, "BLOB_UPLOAD_INVALID")
			if a.header.Get("Range") != "0-4" {
				t.Errorf("%s: range %q, want 0-4", r, a.header.Get("Range"))
			}
		}
	}
	s.want(s.do("PATCH", at, data[5:], "Content-Range", "5-8"), 400, "SIZE_INVALID")
	s.want(s.do("PUT", at+"?digest="+string(d), data[5:], "Content-Range", "5-9"), 201, "")
	s.want(s.do("GET", at, nil), 404, "BLOB_UPLOAD_UNKNOWN")
}

func TestCancelledUploadIsGone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	at := s.start("/v2/r/blobs/uploads/")
	s.want(s.do("PATCH", at, bigBlob("d")), 202, "")
	s.want(s.do("DELETE", at, nil), 204, "")
	s.want(s.do("GET", at, nil), 404, "BLOB_UPLOAD_UNKNOWN")
	s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(bigBlob("d"))), nil), 404, "BLOB_UPLOAD_UNKNOWN")
}

func TestMountFallsBackToAnUpload(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := string(s.pushBlob("from", []byte("shared")).Digest)
	s.want(s.do("POST", "/v2/to/blobs/uploads/?from=from&mount="+d, nil), 201, "")
	s.want(s.do("GET", "/v2/to/blobs/"+d, nil), 200, "")
	// R5: only what the other repository holds can be mounted.
	for _, query := range []string{"from=nothing&mount=" + d, "mount=" + d, "from=from&mount=" + string(digest.FromString("absent"))} {
		a := s.want(s.do("POST", "/v2/third/blobs/uploads/?"+query, nil), 202, "")
		if a.header.Get("Location") == "" {
			t.Errorf("%s: no location", query)
		}
	}
	s.want(s.do("GET", "/v2/third/blobs/"+d, nil), 404, "BLOB_UNKNOWN")
	s.want(s.do("POST", "/v2/third/blobs/uploads/?from=from&mount=sha256:x", nil), 400, "DIGEST_INVALID")
}

func TestManifestsOfAnyMediaTypeKeepIt(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	config := s.pushBlob("app", []byte("{}"))
	docker := bytes.Replace(image(config, nil, nil, nil), []byte(ocispec.MediaTypeImageManifest), []byte("application/vnd.docker.distribution.manifest.v2+json"), 1)
	for mediaType, data := range map[string][]byte{
		"application/vnd.docker.distribution.manifest.v2+json": docker,
		"application/vnd.example.thing+json":                   []byte(`{"a":1}`),
		"application/vnd.example.raw":                          []byte("not json"),
		ocispec.MediaTypeImageIndex:                            index(),
	} {
		a := s.want(s.do("PUT", "/v2/app/manifests/v1", data, "Content-Type", mediaType), 201, "")
		for _, path := range []string{"/v2/app/manifests/v1", a.header.Get("Location")} {
			got := s.want(s.do("GET", path, nil), 200, "")
			if got.header.Get("Content-Type") != mediaType || !bytes.Equal(got.body, data) {
				t.Errorf("%s came back as %s", mediaType, got.header.Get("Content-Type"))
			}
			head := s.want(s.do("HEAD", path, nil), 200, "")
			if head.header.Get("Content-Type") != mediaType || head.header.Get("Content-Length") != fmt.Sprint(len(data)) {
				t.Errorf("%s: HEAD says %v", mediaType, head.header)
			}
		}
		s.want(s.do("GET", a.header.Get("Location"), nil, "If-None-Match", `"`+a.header.Get("Docker-Content-Digest")+`"`), 304, "")
	}
}

func TestPushByDigestSetsItsTagsAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	config := s.pushBlob("app", []byte("{}"))
	data := image(config, nil, nil, nil)
	d := digest.SHA512.FromBytes(data)
	a := s.want(s.do("PUT", "/v2/app/manifests/"+string(d)+"?tag=v1&tag=v2", data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
	if diff := cmp.Diff([]string{"v1", "v2"}, a.header["Oci-Tag"]); diff != "" {
		t.Error(diff)
	}
	b := s.want(s.do("HEAD", "/v2/app/manifests/v2", nil), 200, "")
	if b.header.Get("Docker-Content-Digest") != string(d) {
		t.Errorf("v2 is %s", b.header.Get("Docker-Content-Digest"))
	}
	s.want(s.do("PUT", "/v2/app/manifests/"+string(d)+"?tag=.v1", data, "Content-Type", ocispec.MediaTypeImageManifest), 400, "MANIFEST_INVALID")
}

func TestListingsArePaged(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.want(s.do("GET", "/v2/app/tags/list", nil), 404, "NAME_UNKNOWN")
	s.pushImage("app", "v0")
	desc := s.pushImage("app", "b")
	repo, _ := s.store.Repository("app")
	for _, tag := range []string{"a", "C", "d"} {
		if err := repo.Tag(context.Background(), desc, tag); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lib/x", "lib/y"} {
		s.pushBlob(name, []byte("x"))
	}
	type page struct{ Tags, Repositories []string }
	walk := func(path string) (all []string, pages int) {
		for path != "" {
			a := s.want(s.do("GET", path, nil), 200, "")
			var p page
			if err := json.Unmarshal(a.body, &p); err != nil {
				t.Fatal(err)
			}
			all, pages = append(append(all, p.Tags...), p.Repositories...), pages+1
			path, _, _ = strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
		}
		return all, pages
	}
	for path, want := range map[string]struct {
		list  []string
		pages int
	}{
		"/v2/app/tags/list":              {[]string{"a", "b", "C", "d", "v0"}, 1},
		"/v2/app/tags/list?n=2":          {[]string{"a", "b", "C", "d", "v0"}, 3},
		"/v2/app/tags/list?n=5":          {[]string{"a", "b", "C", "d", "v0"}, 1},
		"/v2/app/tags/list?n=0":          {nil, 1},
		"/v2/app/tags/list?last=c":       {[]string{"d", "v0"}, 1},
		"/v2/app/tags/list?last=b&n=1":   {[]string{"C", "d", "v0"}, 3},
		"/v2/app/tags/list?n=9999999999": {[]string{"a", "b", "C", "d", "v0"}, 1},
		"/v2/_catalog":                   {[]string{"app", "lib/x", "lib/y"}, 1},
		"/v2/_catalog?n=1":               {[]string{"app", "lib/x", "lib/y"}, 3},
		"/v2/_catalog?last=lib/x":        {[]string{"lib/y"}, 1},
	} {
		list, pages := walk(path)
		if diff := cmp.Diff(want.list, list); diff != "" || pages != want.pages {
			t.Errorf("%s: %d pages, want %d %s", path, pages, want.pages, diff)
		}
	}
	s.want(s.do("GET", "/v2/app/tags/list?n=-1", nil), 400, "UNSUPPORTED")
	s.want(s.do("GET", "/v2/app/tags/list?n=x", nil), 400, "UNSUPPORTED")
}

func TestReferrersAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	config := s.pushBlob("app", []byte("{}"))
	absent := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte("not pushed"))
	note := map[string]string{"text": strings.Repeat("x", 1<<20)}
	var want []digest.Digest
	for i, mediaType := range []string{"application/x.a", "application/x.b", "application/x.a", "application/x.a"} {
		c := config
		c.MediaType = mediaType
		note["i"] = fmt.Sprint(i)
		data := image(c, nil, &absent, note)
		a := s.want(s.do("PUT", fmt.Sprintf("/v2/app/manifests/t%d", i), data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
		if a.header.Get("OCI-Subject") != string(absent.Digest) {
			t.Errorf("OCI-Subject is %q", a.header.Get("OCI-Subject"))
		}
		if mediaType == "application/x.a" {
			want = append(want, digest.FromBytes(data))
		}
	}
	var got []digest.Digest
	pages := 0
	for path := "/v2/app/referrers/" + string(absent.Digest) + "?artifactType=application/x.a"; path != ""; pages++ {
		a := s.want(s.do("GET", path, nil), 200, "")
		if len(a.body) > 4<<20 || a.header.Get("OCI-Filters-Applied") != "artifactType" || a.header.Get("Content-Type") != ocispec.MediaTypeImageIndex {
			t.Errorf("%d bytes, header %v", len(a.body), a.header)
		}
		var idx ocispec.Index
		if err := json.Unmarshal(a.body, &idx); err != nil {
			t.Fatal(err)
		}
		for _, d := range idx.Manifests {
			got = append(got, d.Digest)
		}
		path, _, _ = strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
	}
	if diff := cmp.Diff(want, got); diff != "" || pages < 2 {
		t.Errorf("%d pages, want more than one %s", pages, diff)
	}
	a := s.want(s.do("GET", "/v2/none/referrers/"+string(config.Digest), nil), 200, "")
	if !strings.Contains(string(a.body), `"manifests":[]`) {
		t.Errorf("empty referrers: %s", a.body)
	}
	s.want(s.do("GET", "/v2/app/referrers/v1", nil), 400, "DIGEST_INVALID")
}

func TestDeletingTagsManifestsAndBlobs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	layer := bigBlob("e")
	desc := s.pushImage("app", "v1", layer)
	s.want(s.do("PUT", "/v2/app/manifests/v2", s.do("GET", "/v2/app/manifests/v1", nil).body, "Content-Type", desc.MediaType), 201, "")
	blob := "/v2/app/blobs/" + string(digest.FromBytes(layer))
	s.want(s.do("DELETE", "/v2/app/manifests/v1", nil), 202, "")
	s.want(s.do("DELETE", "/v2/app/manifests/v1", nil), 404, "MANIFEST_UNKNOWN")
	s.want(s.do("GET", "/v2/app/manifests/v2", nil), 200, "")
	s.want(s.do("DELETE", blob, nil), 405, "DENIED")
	s.want(s.do("DELETE", "/v2/app/manifests/"+string(desc.Digest), nil), 202, "")
	s.want(s.do("GET", "/v2/app/manifests/v2", nil), 404, "MANIFEST_UNKNOWN")
	s.want(s.do("DELETE", blob, nil), 202, "")
	s.want(s.do("DELETE", blob, nil), 404, "BLOB_UNKNOWN")
	s.want(s.do("GET", blob, nil), 404, "BLOB_UNKNOWN")
}

func TestEndpointsAndMethods(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.want(s.do("GET", "/v2/", nil), 200, "")
	s.want(s.do("GET", "/v2", nil), 200, "")
	s.want(s.do("HEAD", "/v2/_catalog", nil), 200, "")
	for _, path := range []string{"/", "/v1/", "/v2x", "/v2/app", "/v2/app/tags", "/v2/app/unknown/x"} {
		s.want(s.do("GET", path, nil), 404, "UNSUPPORTED")
	}
	for path, method := range map[string]string{
		"/v2/": "POST", "/v2/_catalog": "PUT", "/v2/app/manifests/v1": "PATCH", "/v2/app/blobs/uploads/": "GET", "/v2/app/tags/list": "DELETE",
	} {
		if a := s.want(s.do(method, path, nil), 405, "UNSUPPORTED"); a.header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", method, path)
		}
	}
	// A repository may be named like an endpoint.
	for _, name := range []string{"a/manifests", "blobs/uploads", "tags/list", "a/blobs/b", "v2/referrers"} {
		s.pushImage(name, "latest", []byte("layer"))
		s.want(s.do("GET", "/v2/"+name+"/manifests/latest", nil), 200, "")
		s.want(s.do("GET", "/v2/"+name+"/tags/list", nil), 200, "")
	}
}
