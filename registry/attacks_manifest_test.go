package registry_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
)

// manifestCase is a manifest as it is sent, and the answer it must get.
type manifestCase struct {
	data        []byte
	contentType string
	status      int
	code        string
}

// manifestCases are manifests over a config and a child manifest that are in the repository.
func manifestCases(config, child ocispec.Descriptor) map[string]manifestCase {
	good := image(config, nil, nil, nil)
	edit := func(old, new string) []byte {
		out := bytes.Replace(good, []byte(old), []byte(new), 1)
		if bytes.Equal(out, good) {
			panic(fmt.Sprintf("%s is not in %s", old, good))
		}
		return out
	}
	absent := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, []byte("absent"))
	wrongSize, wrongData, rightData, negative := config, config, config, config
	wrongSize.Size = 3
	wrongData.Data = []byte("[]")
	rightData.Data = []byte("{}")
	negative.Size = -1
	many := make([]ocispec.Descriptor, 8193)
	for i := range many {
		many[i] = config
	}
	blobAsManifest := config
	blobAsManifest.MediaType = ocispec.MediaTypeImageManifest
	img, idx := ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex
	return map[string]manifestCase{
		"as it should be":        {good, img, 201, ""},
		"with parameters":        {good, img + "; charset=utf-8", 201, ""},
		"index":                  {index(child), idx, 201, ""},
		"right data field":       {image(rightData, nil, nil, nil), img, 201, ""},
		"subject missing":        {image(config, nil, &absent, nil), img, 201, ""},
		"unknown fields":         {edit(`"layers"`, `"x":{"y":[1,{"z":2}]},"layers"`), img, 201, ""},
		"layer missing":          {image(config, []ocispec.Descriptor{absent}, nil, nil), img, 404, "MANIFEST_BLOB_UNKNOWN"},
		"child missing":          {index(absent), idx, 404, "MANIFEST_BLOB_UNKNOWN"},
		"blob as child manifest": {index(blobAsManifest), idx, 404, "MANIFEST_BLOB_UNKNOWN"},
		"wrong size":             {image(wrongSize, nil, nil, nil), img, 400, "MANIFEST_INVALID"},
		"negative size":          {image(negative, nil, nil, nil), img, 400, "MANIFEST_INVALID"},
		"wrong data field":       {image(wrongData, nil, nil, nil), img, 400, "MANIFEST_INVALID"},
		"bad digest":             {edit("sha256:", "sha257:"), img, 400, "MANIFEST_INVALID"},
		"other content type":     {good, idx, 400, "MANIFEST_INVALID"},
		"no content type":        {good, "", 400, "MANIFEST_INVALID"},
		"no media type":          {good, "nonsense", 400, "MANIFEST_INVALID"},
		"image and index":        {edit(`"layers"`, `"manifests":[],"layers"`), img, 400, "MANIFEST_INVALID"},
		"index and image":        {edit(img, idx), idx, 400, "MANIFEST_INVALID"},
		"no config":              {[]byte(`{"schemaVersion":2,"layers":[]}`), img, 400, "MANIFEST_INVALID"},
		"schema version 1":       {edit(`"schemaVersion":2`, `"schemaVersion":1`), img, 400, "MANIFEST_INVALID"},
		"key twice":              {edit(`"layers":[]`, `"layers":[],"layers":[]`), img, 400, "MANIFEST_INVALID"},
		"key twice by case":      {edit(`"layers":[]`, `"layers":[],"Layers":[]`), img, 400, "MANIFEST_INVALID"},
		"key twice inside":       {edit(`"size":2`, `"size":2,"size":2`), img, 400, "MANIFEST_INVALID"},
		"too many descriptors":   {image(config, many, nil, nil), img, 400, "MANIFEST_INVALID"},
		"too deep":               {edit(`"layers"`, `"x":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`,"layers"`), img, 400, "MANIFEST_INVALID"},
		"two documents":          {append(bytes.Clone(good), good...), img, 400, "MANIFEST_INVALID"},
		"not JSON":               {[]byte("GIF89a"), img, 400, "MANIFEST_INVALID"},
		"an array":               {[]byte("[]"), img, 400, "MANIFEST_INVALID"},
		"empty":                  {[]byte{}, img, 400, "MANIFEST_INVALID"},
		"too large":              {bytes.Repeat([]byte(" "), 4<<20+1), img, 413, "SIZE_INVALID"},
	}
}

func TestR6ManifestsThatLieAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	config := s.pushBlob("app", []byte("{}"))
	config.MediaType = ocispec.MediaTypeImageConfig
	good := image(config, nil, nil, nil)
	for name, c := range manifestCases(config, s.pushManifest("app", "child", good)) {
		a := s.do("PUT", "/v2/app/manifests/"+string(digest.FromBytes(c.data)), c.data, "Content-Type", c.contentType)
		if a.status != c.status || c.code != "" && a.code() != c.code {
			t.Errorf("%s: %d %.200s, want %d %s", name, a.status, a.body, c.status, c.code)
		}
		if bytes.Equal(c.data, good) {
			continue // stored already
		}
		if got := s.do("GET", "/v2/app/manifests/"+string(digest.FromBytes(c.data)), nil); (got.status == 200) != (c.status == 201) {
			t.Errorf("%s: then GET gives %d", name, got.status)
		}
	}
	s.want(s.do("PUT", "/v2/app/manifests/t", bytes.Repeat([]byte(" "), 4<<20+1), "Content-Type", ocispec.MediaTypeImageManifest, "Content-Length", "-"), 413, "SIZE_INVALID")
}

func TestR6ForeignLayersAreNeitherFetchedNorRequired(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	asked := make(chan struct{}, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Whoever had this port before may be asked for still, but not at this path.
	path := "/" + rand.Text()
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			asked <- struct{}{}
		}
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	layer := content.NewDescriptorFromBytes("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", []byte("far away"))
	layer.URLs = []string{"http://" + l.Addr().String() + path}
	desc := s.pushManifest("app", "v1", image(s.pushBlob("app", []byte("{}")), []ocispec.Descriptor{layer}, nil, nil))
	s.want(s.do("GET", "/v2/app/manifests/"+string(desc.Digest), nil), 200, "")
	s.want(s.do("GET", "/v2/app/blobs/"+string(layer.Digest), nil), 404, "BLOB_UNKNOWN")
	_ = srv.Close()
	<-done
	if len(asked) > 0 {
		t.Error("the url of a layer was fetched")
	}
}

func TestR6DeepIndexIsNoTrouble(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	ctx := context.Background()
	store := openStore(t, t.TempDir(), registry.Options{})
	desc := pushImage(t, store, []byte("bottom"))
	for range 1000 {
		desc = push(t, store, ocispec.MediaTypeImageIndex, index(desc))
	}
	if err := store.Tag(ctx, desc, "deep:v1"); err != nil {
		t.Fatal(err)
	}
	repo, _ := store.Repository("deep")
	fetch(t, repo, content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, []byte("bottom")))
}
