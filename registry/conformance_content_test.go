package registry_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// referringIndex is an index with a subject.
func referringIndex(subject *ocispec.Descriptor, artifactType string, annotations map[string]string, manifests ...ocispec.Descriptor) []byte {
	if manifests == nil {
		manifests = []ocispec.Descriptor{}
	}
	return marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: artifactType,
		Manifests: manifests, Subject: subject, Annotations: annotations,
	})
}

func (s *server) tags(path string) ([]string, answer) {
	s.t.Helper()
	a := s.want(s.do("GET", path, nil), 200, "")
	var list struct {
		Name string
		Tags []string
	}
	if err := json.Unmarshal(a.body, &list); err != nil || !strings.HasPrefix(path, "/v2/"+list.Name+"/tags/list") || list.Tags == nil {
		s.t.Fatalf("%s: %s", path, a.body)
	}
	return list.Tags, a
}

func (s *server) referrers(path string) (ocispec.Index, answer) {
	s.t.Helper()
	a := s.want(s.do("GET", path, nil), 200, "")
	var idx ocispec.Index
	if err := json.Unmarshal(a.body, &idx); err != nil || idx.Manifests == nil || idx.SchemaVersion != 2 {
		s.t.Fatalf("%s: %s", path, a.body)
	}
	return idx, a
}

// next is the path of the next page, "" on the last.
func next(a answer) string {
	link := a.header.Get("Link")
	at, ok := strings.CutSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
	if link != "" && !ok {
		return "not a link: " + link
	}
	return at
}

func discoveryClauses() []clause {
	tags, referrers := "Listing Tags", "Listing Referrers"
	tagged := func(s *server, repo string, names ...string) {
		_, data := s.sample(repo)
		s.want(s.do("DELETE", "/v2/"+repo+"/manifests/v1", nil), 202, "")
		for _, name := range names {
			s.pushManifest(repo, name, data)
		}
	}
	wantTags := func(s *server, path string, want ...string) answer {
		s.t.Helper()
		got, a := s.tags(path)
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			s.t.Errorf("%s: %s", path, diff)
		}
		return a
	}
	return []clause{
		{tags, "MUST", "The list of a repository's tags answers 200, with an empty list where it has none.", func(s *server, repo string) {
			tagged(s, repo)
			wantTags(s, "/v2/"+repo+"/tags/list")
		}},
		{tags, "MUST", "Tags are in lexical order, without regard to case.", func(s *server, repo string) {
			tagged(s, repo, "b", "A", "c", "B2", "_", "10", "9")
			wantTags(s, "/v2/"+repo+"/tags/list", "10", "9", "_", "A", "b", "B2", "c")
		}},
		{tags, "MUST", "The body is JSON with name and tags.", func(s *server, repo string) {
			tagged(s, repo, "v1")
			s.header(wantTags(s, "/v2/"+repo+"/tags/list", "v1"), "Content-Type", "application/json")
		}},
		{tags, "MUST", "With n the answer has n tags where there are as many, in order.", func(s *server, repo string) {
			tagged(s, repo, "a", "b", "c")
			wantTags(s, "/v2/"+repo+"/tags/list?n=2", "a", "b")
			s.header(wantTags(s, "/v2/"+repo+"/tags/list?n=3", "a", "b", "c"), "Link", "")
			s.header(wantTags(s, "/v2/"+repo+"/tags/list?n=4", "a", "b", "c"), "Link", "")
		}},
		{tags, "MUST", "A Link follows RFC 5988 with rel=\"next\", and leads through all tags once.", func(s *server, repo string) {
			tagged(s, repo, "a", "b", "c", "d", "e")
			var all []string
			for path := "/v2/" + repo + "/tags/list?n=2"; path != ""; {
				got, a := s.tags(path)
				all, path = append(all, got...), next(a)
			}
			if diff := cmp.Diff([]string{"a", "b", "c", "d", "e"}, all); diff != "" {
				s.t.Error(diff)
			}
		}},
		{tags, "MUST", "With n=0 the list is empty and has no Link.", func(s *server, repo string) {
			tagged(s, repo, "a", "b")
			s.header(wantTags(s, "/v2/"+repo+"/tags/list?n=0"), "Link", "")
		}},
		{tags, "MUST", "With last the list begins after that tag, which is a tag and no index, and need not exist.", func(s *server, repo string) {
			tagged(s, repo, "1", "2", "b", "d")
			wantTags(s, "/v2/"+repo+"/tags/list?n=1&last=1", "2")
			wantTags(s, "/v2/"+repo+"/tags/list?n=9&last=b", "d")
			wantTags(s, "/v2/"+repo+"/tags/list?last=c", "d")
			wantTags(s, "/v2/"+repo+"/tags/list?n=2&last=d")
		}},
		{referrers, "MUST", "The list answers 200, and never 404: an empty list where nothing refers to the digest, or nothing is there.", func(s *server, repo string) {
			desc, _ := s.sample(repo)
			for _, path := range []string{repo + "/referrers/" + string(desc.Digest), repo + "/none/referrers/" + string(desc.Digest), repo + "/referrers/" + string(digest.FromString("x"))} {
				if idx, _ := s.referrers("/v2/" + path); len(idx.Manifests) != 0 {
					s.t.Errorf("%s: %v", path, idx.Manifests)
				}
			}
		}},
		{referrers, "MUST", "A digest outside the grammar gives 400.", func(s *server, repo string) {
			for _, d := range []string{"v1", "sha256:x", "md5:" + strings.Repeat("0", 32)} {
				s.want(s.do("GET", "/v2/"+repo+"/referrers/"+d, nil), 400, "DIGEST_INVALID")
			}
		}},
		{referrers, "MUST", "The body is an image index, and Content-Type says so.", func(s *server, repo string) {
			idx, a := s.referrers("/v2/" + repo + "/referrers/" + string(digest.FromString("x")))
			s.header(a, "Content-Type", ocispec.MediaTypeImageIndex)
			if idx.MediaType != ocispec.MediaTypeImageIndex {
				s.t.Errorf("mediaType %q", idx.MediaType)
			}
		}},
		{referrers, "MUST", "Each descriptor has the artifactType of its manifest, else the media type of the config, and none for an index without; and the annotations.", referrerDescriptors},
		{referrers, "MUST", "Every manifest pushed with a subject is listed, whether the subject came before, later or never; one deleted is not.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			data := image(config, nil, nil, map[string]string{"late": repo})
			desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, data)
			early := s.pushManifest(repo, "early", image(config, nil, &desc, nil))
			s.pushManifest(repo, "v1", data)
			late := s.pushManifest(repo, "late", image(config, nil, &desc, map[string]string{"a": "b"}))
			s.want(s.do("DELETE", "/v2/"+repo+"/manifests/"+string(early.Digest), nil), 202, "")
			if idx, _ := s.referrers("/v2/" + repo + "/referrers/" + string(desc.Digest)); len(idx.Manifests) != 1 || idx.Manifests[0].Digest != late.Digest {
				s.t.Errorf("%v, want %s", idx.Manifests, late.Digest)
			}
		}},
		{referrers, "MUST", "A list too long for one answer has a Link with rel=\"next\", and the pages together have each descriptor once.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			absent := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte(repo))
			for i := range 3 {
				s.pushManifest(repo, fmt.Sprintf("t%d", i), image(config, nil, &absent, map[string]string{"text": strings.Repeat("x", 3<<19), "i": fmt.Sprint(i)}))
			}
			seen, pages := map[digest.Digest]int{}, 0
			for path := "/v2/" + repo + "/referrers/" + string(absent.Digest); path != ""; pages++ {
				idx, a := s.referrers(path)
				for _, d := range idx.Manifests {
					seen[d.Digest]++
				}
				path = next(a)
			}
			if len(seen) != 3 || pages < 2 {
				s.t.Errorf("%v in %d pages", seen, pages)
			}
		}},
		{referrers, "SHOULD", "The list is filtered by artifactType.", func(s *server, repo string) {
			path := pushTwoReferrers(s, repo)
			if idx, _ := s.referrers(path + "?artifactType=application/x.a"); len(idx.Manifests) != 1 || idx.Manifests[0].ArtifactType != "application/x.a" {
				s.t.Errorf("%v", idx.Manifests)
			}
			if idx, _ := s.referrers(path + "?artifactType=application/none"); len(idx.Manifests) != 0 {
				s.t.Errorf("%v", idx.Manifests)
			}
		}},
		{referrers, "MUST", "`OCI-Filters-Applied` names the filter where one was applied.", func(s *server, repo string) {
			path := pushTwoReferrers(s, repo)
			_, filtered := s.referrers(path + "?artifactType=application/x.a")
			s.header(filtered, "OCI-Filters-Applied", "artifactType")
			_, all := s.referrers(path)
			s.header(all, "OCI-Filters-Applied", "")
		}},
		{"Enabling the Referrers API", "MUST", "What an index under the tag of the referrers tag schema lists is among the referrers when its subject says so, and only then.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			desc, _ := s.sample(repo)
			real := s.pushManifest(repo, "real", image(config, nil, &desc, nil))
			poison := s.pushManifest(repo, "poison", image(config, nil, nil, map[string]string{"no": "subject"}))
			s.pushManifest(repo, strings.Replace(string(desc.Digest), ":", "-", 1), index(real, poison))
			if idx, _ := s.referrers("/v2/" + repo + "/referrers/" + string(desc.Digest)); len(idx.Manifests) != 1 || idx.Manifests[0].Digest != real.Digest {
				s.t.Errorf("%v, want %s", idx.Manifests, real.Digest)
			}
		}},
	}
}

// pushTwoReferrers pushes referrers of two artifact types and gives the path of their list.
func pushTwoReferrers(s *server, repo string) string {
	s.t.Helper()
	desc, _ := s.sample(repo)
	for i, artifactType := range []string{"application/x.a", "application/x.b"} {
		s.pushManifest(repo, fmt.Sprintf("r%d", i), referringIndex(&desc, artifactType, nil))
	}
	return "/v2/" + repo + "/referrers/" + string(desc.Digest)
}

func referrerDescriptors(s *server, repo string) {
	desc, _ := s.sample(repo)
	config := s.pushBlob(repo, []byte("{}"))
	config.MediaType = "application/x.config"
	note := map[string]string{"k": "v"}
	var typed map[string]any
	if err := json.Unmarshal(image(config, nil, &desc, note), &typed); err != nil {
		s.t.Fatal(err)
	}
	typed["artifactType"] = "application/x.artifact"
	want := map[digest.Digest]string{}
	for artifactType, data := range map[string][]byte{
		"application/x.artifact": marshal(typed),
		"application/x.config":   image(config, nil, &desc, note),
		"application/x.index":    referringIndex(&desc, "application/x.index", note),
		"":                       referringIndex(&desc, "", note),
	} {
		want[s.pushManifest(repo, string(digest.FromBytes(data)), data).Digest] = artifactType
	}
	idx, a := s.referrers("/v2/" + repo + "/referrers/" + string(desc.Digest))
	if len(idx.Manifests) != len(want) {
		s.t.Fatalf("%s", a.body)
	}
	for _, d := range idx.Manifests {
		if artifactType, ok := want[d.Digest]; !ok || d.ArtifactType != artifactType || cmp.Diff(note, d.Annotations) != "" || d.Size == 0 || d.MediaType == "" {
			s.t.Errorf("%+v, want type %q", d, artifactType)
		}
	}
	if bytes.Count(a.body, []byte(`"artifactType"`)) != 3 {
		s.t.Errorf("an index without artifactType has one: %s", a.body)
	}
}

func managementClauses() []clause {
	tags, manifests, blobs := "Deleting tags", "Deleting Manifests", "Deleting Blobs"
	return []clause{
		{tags, "MUST", "Deleting a tag answers 202; then it gives 404, while other tags of the manifest, and the manifest, stay.", func(s *server, repo string) {
			desc, data := s.sample(repo)
			s.pushManifest(repo, "v2", data)
			s.want(s.do("DELETE", "/v2/"+repo+"/manifests/v1", nil), 202, "")
			s.want(s.do("GET", "/v2/"+repo+"/manifests/v1", nil), 404, "MANIFEST_UNKNOWN")
			s.want(s.do("GET", "/v2/"+repo+"/manifests/v2", nil), 200, "")
			s.want(s.do("GET", "/v2/"+repo+"/manifests/"+string(desc.Digest), nil), 200, "")
		}},
		{manifests, "MUST", "Deleting a manifest answers 202; then it and every tag of it give 404.", func(s *server, repo string) {
			desc, data := s.sample(repo)
			s.pushManifest(repo, "v2", data)
			s.want(s.do("DELETE", "/v2/"+repo+"/manifests/"+string(desc.Digest), nil), 202, "")
			for _, ref := range []string{"v1", "v2", string(desc.Digest)} {
				s.want(s.do("GET", "/v2/"+repo+"/manifests/"+ref, nil), 404, "MANIFEST_UNKNOWN")
			}
			if got, _ := s.tags("/v2/" + repo + "/tags/list"); len(got) != 0 {
				s.t.Errorf("tags %v", got)
			}
		}},
		{manifests, "MUST", "In a repository that does not exist it answers 404.", func(s *server, repo string) {
			s.want(s.do("DELETE", "/v2/"+repo+"/manifests/"+string(digest.FromString("x")), nil), 404, "MANIFEST_UNKNOWN")
			s.want(s.do("DELETE", "/v2/"+repo+"/manifests/v1", nil), 404, "MANIFEST_UNKNOWN")
		}},
		{blobs, "MUST", "Deleting a blob answers 202; then it gives 404.", func(s *server, repo string) {
			for _, data := range [][]byte{[]byte("gone " + repo), bigBlob(repo)} {
				path := "/v2/" + repo + "/blobs/" + string(s.pushBlob(repo, data).Digest)
				s.want(s.do("DELETE", path, nil), 202, "")
				s.want(s.do("GET", path, nil), 404, "BLOB_UNKNOWN")
			}
		}},
		{blobs, "MUST", "A blob that is not found gives 404.", func(s *server, repo string) {
			s.want(s.do("DELETE", "/v2/"+repo+"/blobs/"+string(digest.FromString("absent")), nil), 404, "BLOB_UNKNOWN")
		}},
		{blobs, "MUST", "A deletion that is not allowed gives 405: of a blob that a manifest refers to.", func(s *server, repo string) {
			s.sample(repo)
			s.want(s.do("DELETE", "/v2/"+repo+"/blobs/"+string(digest.FromString("{}")), nil), 405, "DENIED")
		}},
	}
}

func formClauses() []clause {
	forms := "Forms of content"
	roundTrip := func(s *server, repo string, data []byte) ocispec.Descriptor {
		s.t.Helper()
		desc := s.pushManifest(repo, string(digest.FromBytes(data)), data)
		if got := s.want(s.do("GET", "/v2/"+repo+"/manifests/"+string(desc.Digest), nil), 200, ""); !bytes.Equal(got.body, data) {
			s.t.Error("other bytes")
		}
		return desc
	}
	return []clause{
		{forms, "form", "An index in an index, and an index without entries.", func(s *server, repo string) {
			desc, _ := s.sample(repo)
			inner := roundTrip(s, repo, index(desc))
			roundTrip(s, repo, index(inner, desc))
			roundTrip(s, repo, referringIndex(nil, "", nil))
		}},
		{forms, "form", "Artifacts: a manifest with artifactType and the empty config, and an index with artifactType.", func(s *server, repo string) {
			empty := ocispec.DescriptorEmptyJSON
			s.pushBlob(repo, empty.Data)
			roundTrip(s, repo, marshal(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
				ArtifactType: "application/x.a", Config: empty, Layers: []ocispec.Descriptor{empty}}))
			roundTrip(s, repo, referringIndex(nil, "application/x.a", nil))
		}},
		{forms, "form", "A data field that is the content is kept; one that is other content is refused.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			config.Data = []byte("{}")
			roundTrip(s, repo, image(config, nil, nil, nil))
			config.Data = []byte("[]")
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", image(config, nil, nil, nil), "Content-Type", ocispec.MediaTypeImageManifest), 400, "")
		}},
		{forms, "form", "Non-distributable layers need not be there.", func(s *server, repo string) {
			layer := content.NewDescriptorFromBytes("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", []byte("elsewhere"))
			layer.URLs = []string{"http://192.0.2.1/layer"}
			roundTrip(s, repo, image(s.pushBlob(repo, []byte("{}")), []ocispec.Descriptor{layer}, nil, nil))
		}},
		{forms, "form", "Fields the specification does not know are kept.", func(s *server, repo string) {
			s.pushBlob(repo, []byte("{}"))
			data := bytes.Replace(image(content.NewDescriptorFromBytes("application/x.c", []byte("{}")), nil, nil, nil), []byte("{"), []byte(`{"org.example.own":{"a":[null,true]},`), 1)
			roundTrip(s, repo, data)
		}},
		{forms, "form", "The blob of no bytes, by every way of pushing.", func(s *server, repo string) {
			d := string(digest.FromString(""))
			s.want(s.do("POST", "/v2/"+repo+"/a/blobs/uploads/?digest="+d, []byte{}), 201, "")
			s.want(s.do("PUT", s.start("/v2/"+repo+"/b/blobs/uploads/")+"?digest="+d, []byte{}), 201, "")
			at := s.start("/v2/" + repo + "/c/blobs/uploads/")
			s.want(s.do("PATCH", at, []byte{}), 202, "")
			s.want(s.do("PUT", at+"?digest="+d, nil), 201, "")
			for _, sub := range []string{"a", "b", "c"} {
				if a := s.want(s.do("GET", "/v2/"+repo+"/"+sub+"/blobs/"+d, nil), 200, ""); len(a.body) != 0 {
					s.t.Error("it has bytes")
				}
			}
		}},
		{forms, "form", "sha512: blobs by every way of pushing, and manifests that name them, with tags.", func(s *server, repo string) {
			for i, data := range [][]byte{[]byte("512 " + repo), bigBlob(repo)} {
				d := string(digest.SHA512.FromBytes(data))
				s.pullable(s.want(s.do("POST", fmt.Sprintf("/v2/%s/a%d/blobs/uploads/?digest=%s", repo, i, d), data), 201, ""), data)
				s.pullable(s.want(s.do("PUT", s.start(fmt.Sprintf("/v2/%s/b%d/blobs/uploads/", repo, i))+"?digest="+d, data), 201, ""), data)
				at := s.start("/v2/" + repo + "/blobs/uploads/")
				s.want(s.do("PATCH", at, data[:3], "Content-Range", "0-2"), 202, "")
				s.want(s.do("PATCH", at, data[3:]), 202, "")
				s.pullable(s.want(s.do("PUT", at+"?digest="+d, nil), 201, ""), data)
			}
			layer := ocispec.Descriptor{MediaType: "application/x.l", Digest: digest.SHA512.FromString("512 " + repo), Size: int64(len("512 " + repo))}
			data := image(s.pushBlob(repo, []byte("{}")), []ocispec.Descriptor{layer}, nil, nil)
			d := string(digest.SHA512.FromBytes(data))
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/"+d+"?tag=v1", data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
			s.header(s.want(s.do("GET", "/v2/"+repo+"/manifests/v1", nil), 200, ""), "Docker-Content-Digest", d)
		}},
		{forms, "form", "Docker manifests and lists of schema 2.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			manifest := bytes.Replace(image(config, nil, nil, nil), []byte(ocispec.MediaTypeImageManifest), []byte("application/vnd.docker.distribution.manifest.v2+json"), 1)
			desc := roundTrip(s, repo, manifest)
			roundTrip(s, repo, bytes.Replace(index(desc), []byte(ocispec.MediaTypeImageIndex), []byte("application/vnd.docker.distribution.manifest.list.v2+json"), 1))
		}},
	}
}
