package registry_test

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

func pushClauses() []clause {
	push, two, one, mount := "Push", "POST then PUT", "Single POST", "Mounting a blob from another repository"
	return []clause{
		{push, "MUST", "A manifest whose subject does not exist is taken, so that either may come first.", func(s *server, repo string) {
			absent := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte("absent "+repo))
			s.pushManifest(repo, "v1", image(s.pushBlob(repo, []byte("{}")), nil, &absent, nil))
		}},
		{push, "MUST", "A manifest rejected for content that is not there gives `MANIFEST_BLOB_UNKNOWN`: config, layer and entry of an index.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			absent := content.NewDescriptorFromBytes("application/octet-stream", []byte("absent "+repo))
			entry := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte("absent "+repo))
			for _, data := range [][]byte{image(absent, nil, nil, nil), image(config, []ocispec.Descriptor{config, absent}, nil, nil), index(entry)} {
				s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", data, "Content-Type", mediaTypeOf(data)), 404, "MANIFEST_BLOB_UNKNOWN")
			}
			s.want(s.do("GET", "/v2/"+repo+"/manifests/v1", nil), 404, "MANIFEST_UNKNOWN")
		}},
		{two, "MUST", "POST answers 202 with a Location.", func(s *server, repo string) {
			s.path(s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/", nil), 202, "").header.Get("Location"))
		}},
		{two, "MUST", "The Location holds a UUID that names this session alone.", func(s *server, repo string) {
			first, second := s.start("/v2/"+repo+"/blobs/uploads/"), s.start("/v2/"+repo+"/blobs/uploads/")
			if !uuidPattern.MatchString(first) || uuidPattern.FindString(first) == uuidPattern.FindString(second) {
				s.t.Errorf("%s and %s", first, second)
			}
		}},
		{two, "MUST", "The closing PUT answers 201 with a Location from which the blob can be pulled.", func(s *server, repo string) {
			for _, data := range [][]byte{[]byte("put " + repo), bigBlob(repo)} {
				a := s.want(s.do("PUT", s.start("/v2/"+repo+"/blobs/uploads/")+"?digest="+string(digest.FromBytes(data)), data, "Content-Type", "application/octet-stream"), 201, "")
				s.pullable(a, data)
			}
		}},
		{one, "MUST", "Success is 201 with a Location from which the blob can be pulled.", func(s *server, repo string) {
			data := bigBlob(repo)
			s.pullable(s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/?digest="+string(digest.FromBytes(data)), data), 201, ""), data)
		}},
		{one, "MUST", "The digest has to be the body's: another stores nothing.", func(s *server, repo string) {
			d := string(digest.FromString("other " + repo))
			s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/?digest="+d, []byte("x")), 400, "DIGEST_INVALID")
			s.want(s.do("GET", "/v2/"+repo+"/blobs/"+d, nil), 404, "BLOB_UNKNOWN")
		}},
		{mount, "MUST", "A mount answers 201 with a Location from which the blob can be pulled.", func(s *server, repo string) {
			data := []byte("mounted " + repo)
			d := string(s.pushBlob(repo, data).Digest)
			s.pullable(s.want(s.do("POST", "/v2/"+repo+"/to/blobs/uploads/?mount="+d+"&from="+repo, nil), 201, ""), data)
		}},
		{mount, "SHOULD", "Where a blob cannot be mounted, an upload begins with 202.", func(s *server, repo string) {
			data := []byte("not mounted " + repo)
			d := string(digest.FromBytes(data))
			for _, query := range []string{"mount=" + d + "&from=" + repo + "/none", "mount=" + d} {
				at := s.path(s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/?"+query, nil), 202, "").header.Get("Location"))
				s.want(s.do("PUT", at+"?digest="+d, data), 201, "")
			}
		}},
	}
}

func chunkClauses() []clause {
	chunks := "Pushing a blob in chunks"
	begin := func(s *server, repo string) string {
		a := s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/", nil, "Content-Length", "0"), 202, "")
		return s.path(a.header.Get("Location"))
	}
	return []clause{
		{chunks, "MUST", "Each chunk is answered by 202 with a Location and the Range so far.", func(s *server, repo string) {
			data := bigBlob(repo)
			at, third := begin(s, repo), len(data)/3
			for from := 0; from < len(data); from += third {
				to := min(from+third, len(data))
				a := s.want(s.do("PATCH", at, data[from:to], "Content-Range", fmt.Sprintf("%d-%d", from, to-1)), 202, "")
				s.header(a, "Range", fmt.Sprintf("0-%d", to-1))
				at = s.path(a.header.Get("Location"))
			}
			s.pullable(s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(data)), nil), 201, ""), data)
		}},
		{chunks, "MUST", "A chunk out of order gets 416: one that does not begin at 0, one that repeats, overlaps or leaves a gap, by PATCH or PUT.", func(s *server, repo string) {
			data := []byte("0123456789")
			d := string(digest.FromBytes(data))
			at := begin(s, repo)
			s.want(s.do("PATCH", at, data[1:3], "Content-Range", "1-2"), 416, "")
			s.want(s.do("PATCH", at, data[:4], "Content-Range", "0-3"), 202, "")
			for _, r := range [][2]int{{0, 3}, {3, 6}, {5, 9}} {
				chunk, text := data[r[0]:r[1]+1], fmt.Sprintf("%d-%d", r[0], r[1])
				s.header(s.want(s.do("PATCH", at, chunk, "Content-Range", text), 416, ""), "Range", "0-3")
				s.want(s.do("PUT", at+"?digest="+d, chunk, "Content-Range", text), 416, "")
			}
			s.pullable(s.want(s.do("PUT", at+"?digest="+d, data[4:], "Content-Range", "4-9"), 201, ""), data)
		}},
		{chunks, "MUST", "A Content-Range has the form first-last with both included.", func(s *server, repo string) {
			at := begin(s, repo)
			for _, text := range []string{"bytes 0-1/2", "0-", "-1", "0-1/2", "a-b", "0 - 1"} {
				s.want(s.do("PATCH", at, []byte("ab"), "Content-Range", text), 416, "")
			}
			s.want(s.do("PATCH", at, []byte("ab"), "Content-Range", "0-2"), 400, "SIZE_INVALID")
			s.want(s.do("PATCH", at, []byte("ab"), "Content-Range", "0-1"), 202, "")
		}},
		{chunks, "MUST", "The last chunk may come with the closing PUT, which takes the digest of the whole blob and no other.", func(s *server, repo string) {
			data := []byte("first and last " + repo)
			at := begin(s, repo)
			s.want(s.do("PATCH", at, data[:5], "Content-Range", "0-4"), 202, "")
			s.pullable(s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(data)), data[5:], "Content-Range", fmt.Sprintf("5-%d", len(data)-1)), 201, ""), data)
			at = begin(s, repo)
			s.want(s.do("PATCH", at, data[:5]), 202, "")
			s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(data[5:])), data[5:]), 400, "DIGEST_INVALID")
			s.want(s.do("PUT", begin(s, repo), data), 400, "DIGEST_INVALID")
		}},
		{chunks, "MUST", "A session is closed by PUT with 201 and a Location from which the blob can be pulled.", func(s *server, repo string) {
			data := []byte("closed " + repo)
			at := begin(s, repo)
			s.want(s.do("PATCH", at, data), 202, "")
			s.pullable(s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(data)), nil), 201, ""), data)
			s.want(s.do("GET", at, nil), 404, "BLOB_UPLOAD_UNKNOWN")
		}},
		{chunks, "MUST", "GET of a session answers 204 with its Location and Range, after a 416 as well.", func(s *server, repo string) {
			at := begin(s, repo)
			s.want(s.do("PATCH", at, []byte("abc"), "Content-Range", "0-2"), 202, "")
			s.want(s.do("PATCH", at, []byte("x"), "Content-Range", "9-9"), 416, "")
			a := s.want(s.do("GET", at, nil), 204, "")
			s.header(a, "Range", "0-2")
			s.path(a.header.Get("Location"))
		}},
		{chunks, "form", "A stream of unknown length without Content-Range is one chunk.", func(s *server, repo string) {
			data := bigBlob(repo)
			at := begin(s, repo)
			s.want(s.do("PATCH", at, data, "Content-Length", "-"), 202, "")
			s.pullable(s.want(s.do("PUT", at+"?digest="+string(digest.FromBytes(data)), nil), 201, ""), data)
		}},
		{chunks, "form", "A session that was cancelled by DELETE is gone.", func(s *server, repo string) {
			at := begin(s, repo)
			s.want(s.do("PATCH", at, bigBlob(repo)), 202, "")
			s.want(s.do("DELETE", at, nil), 204, "")
			s.want(s.do("PATCH", at, []byte("x")), 404, "BLOB_UPLOAD_UNKNOWN")
		}},
	}
}

func manifestClauses() []clause {
	manifests, subject := "Pushing Manifests", "Pushing Manifests with Subject"
	return []clause{
		{manifests, "SHOULD", "Parameters of Content-Type are ignored.", func(s *server, repo string) {
			data := image(s.pushBlob(repo, []byte("{}")), nil, nil, nil)
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", data, "Content-Type", ocispec.MediaTypeImageManifest+"; a=b"), 201, "")
		}},
		{manifests, "MUST", "A manifest is pushed by tag or by digest; the list of its blobs may be empty.", func(s *server, repo string) {
			data := image(s.pushBlob(repo, []byte("{}")), nil, nil, nil)
			s.pushManifest(repo, "v1", data)
			s.pushManifest(repo, string(digest.FromBytes(data)), data)
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/"+string(digest.FromString("other")), data, "Content-Type", mediaTypeOf(data)), 400, "DIGEST_INVALID")
		}},
		{manifests, "MUST", "A manifest is kept byte by byte.", func(s *server, repo string) {
			data := bytes.Replace(image(s.pushBlob(repo, []byte("{}")), nil, nil, nil), []byte(`{"schemaVersion"`), []byte("\n{ \t\"own\":[1, 2.50],\"schemaVersion\""), 1)
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
			if got := s.do("GET", "/v2/"+repo+"/manifests/v1", nil).body; !bytes.Equal(got, data) {
				s.t.Errorf("%q became %q", data, got)
			}
		}},
		{manifests, "MUST", "Success is 201 with a Location from which the manifest can be pulled.", func(s *server, repo string) {
			data := image(s.pushBlob(repo, []byte("{}")), nil, nil, nil)
			s.pullable(s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", data, "Content-Type", mediaTypeOf(data)), 201, ""), data)
		}},
		{manifests, "MUST", "`Docker-Content-Digest` is the digest the client gave.", func(s *server, repo string) {
			data := image(s.pushBlob(repo, []byte("{}")), nil, nil, nil)
			for _, d := range []digest.Digest{digest.FromBytes(data), digest.SHA512.FromBytes(data)} {
				s.header(s.want(s.do("PUT", "/v2/"+repo+"/manifests/"+string(d), data, "Content-Type", mediaTypeOf(data)), 201, ""), "Docker-Content-Digest", string(d))
			}
		}},
		{manifests, "MUST", "Pulling from a repository that does not exist gives 404.", func(s *server, repo string) {
			d := string(digest.FromString("x"))
			for _, path := range []string{"/manifests/v1", "/manifests/" + d, "/blobs/" + d, "/tags/list"} {
				s.want(s.do("GET", "/v2/"+repo+path, nil), 404, "")
			}
		}},
		{manifests, "SHOULD", "The size of manifests is limited, and one over the limit gets 413.", func(s *server, repo string) {
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", make([]byte, 4<<20+1), "Content-Type", ocispec.MediaTypeImageManifest), 413, "SIZE_INVALID")
			s.want(s.do("PUT", "/v2/"+repo+"/manifests/v1", make([]byte, 4<<20+1), "Content-Type", ocispec.MediaTypeImageManifest, "Content-Length", "-"), 413, "SIZE_INVALID")
		}},
		{manifests, "SHOULD", "Manifests of 4 MB are taken.", func(s *server, repo string) {
			data := image(s.pushBlob(repo, []byte("{}")), nil, nil, map[string]string{"pad": strings.Repeat("x", 4<<20-1000)})
			s.pushManifest(repo, "v1", data)
			if got := s.do("GET", "/v2/"+repo+"/manifests/v1", nil).body; !bytes.Equal(got, data) {
				s.t.Error("other bytes")
			}
		}},
		{subject, "MUST", "A push with a subject is answered with `OCI-Subject`, one without is not: manifests and indexes.", func(s *server, repo string) {
			config := s.pushBlob(repo, []byte("{}"))
			desc, data := s.sample(repo)
			s.header(s.do("PUT", "/v2/"+repo+"/manifests/v1", data, "Content-Type", desc.MediaType), "OCI-Subject", "")
			for _, data := range [][]byte{image(config, nil, &desc, nil), referringIndex(&desc, "", nil)} {
				s.header(s.want(s.do("PUT", "/v2/"+repo+"/manifests/v2", data, "Content-Type", mediaTypeOf(data)), 201, ""), "OCI-Subject", string(desc.Digest))
			}
		}},
	}
}
