package registry_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/registry"
)

const (
	crashWorkers = 4
	crashTags    = 3
)

// crashImage is image n of a worker: a config, a small and a large layer. Neighbours share blobs.
func crashImage(worker, n int) (manifest []byte, blobs [][]byte) {
	blobs = [][]byte{
		[]byte(fmt.Sprintf(`{"worker":%d,"n":%d}`, worker, n)),
		[]byte(fmt.Sprintf("small %d", n/3)),
		bytes.Repeat([]byte(fmt.Sprintf("large %d %d\n", worker, n/2)), 12000),
	}
	var descs []ocispec.Descriptor
	for _, b := range blobs {
		descs = append(descs, content.NewDescriptorFromBytes("application/octet-stream", b))
	}
	return image(descs[0], descs[1:], nil, map[string]string{"n": fmt.Sprint(worker, "-", n)}), blobs
}

// victim changes a store until it is killed, in process and over HTTP. Before and after each change it says so:
// "begin" or "done", the tag, and the image it is to name, or -1 for none; or the repository, and the image
// whose manifest is deleted; "fail" where it could not.
func victim(dir string) error {
	ctx := context.Background()
	s, err := registry.Open(dir, registry.Options{})
	if err != nil {
		return err
	}
	api, err := serveCrash(s)
	if err != nil {
		return err
	}
	var grace atomic.Int64 // in seconds
	grace.Store(1)
	failed := make(chan error, crashWorkers+2)
	for i := range crashWorkers {
		w := &crashWorker{number: i, name: fmt.Sprintf("crash/w%d", i), api: api, grace: &grace}
		if w.repo, err = s.Repository(w.name); err != nil {
			return err
		}
		go func() { failed <- w.run(ctx) }()
	}
	go func() {
		for {
			// What earlier lives left is old enough to go, what this one pushes is not.
			if _, err := s.Collect(ctx, registry.CollectOptions{Grace: time.Duration(grace.Load()) * time.Second}); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

// serveCrash serves the API until the process is killed.
func serveCrash(s *registry.Store) (base string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		_ = http.Serve(l, s.Handler(registry.HandlerOptions{TokenHash: sha256.Sum256([]byte(token)), BodyIdle: time.Hour}))
	}()
	return "http://" + l.Addr().String(), nil
}

// crashWorker changes one repository.
type crashWorker struct {
	number int
	name   string
	repo   *registry.Repository
	api    string
	grace  *atomic.Int64
	pushed []int // images that may be tagged
}

func (w *crashWorker) run(ctx context.Context) error {
	for {
		tag, n := rand.IntN(crashTags), rand.IntN(1000)
		what, do := fmt.Sprintf("%s:t%d", w.name, tag), w.push
		switch rand.IntN(6) {
		case 0, 1:
			n, do = -1, w.untag
		case 2:
			if len(w.pushed) == 0 {
				continue
			}
			what, n, do = w.name, w.pushed[rand.IntN(len(w.pushed))], w.drop
		}
		fmt.Printf("begin %s %d;\n", what, n)
		err := do(ctx, fmt.Sprintf("t%d", tag), n)
		switch {
		case err == nil:
			fmt.Printf("done %s %d;\n", what, n)
		case errors.Is(err, errdef.ErrNotFound):
			// There was no tag or manifest, or the machine was so slow that a blob outlived its grace: were
			// that always so, nothing would ever be changed.
			if n >= 0 && what != w.name {
				w.grace.Add(1)
			}
			fmt.Printf("fail %s %d;\n", what, n)
		default:
			return err
		}
	}
}

func (w *crashWorker) untag(ctx context.Context, tag string, _ int) error {
	if rand.IntN(2) == 0 {
		return w.repo.Untag(ctx, tag)
	}
	_, err := w.do(ctx, "DELETE", "/v2/"+w.name+"/manifests/"+tag, nil)
	return err
}

// drop deletes a manifest, and so its tags.
func (w *crashWorker) drop(ctx context.Context, _ string, n int) error {
	manifest, _ := crashImage(w.number, n)
	desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, manifest)
	if rand.IntN(2) == 0 {
		return w.repo.Delete(ctx, desc)
	}
	_, err := w.do(ctx, "DELETE", "/v2/"+w.name+"/manifests/"+string(desc.Digest), nil)
	return err
}

func (w *crashWorker) push(ctx context.Context, tag string, n int) error {
	manifest, blobs := crashImage(w.number, n)
	for _, b := range blobs {
		desc := content.NewDescriptorFromBytes("application/octet-stream", b)
		var err error
		if rand.IntN(2) == 0 {
			err = w.repo.Push(ctx, desc, bytes.NewReader(b))
		} else {
			err = w.chunks(ctx, desc, b)
		}
		if err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
			return err
		}
	}
	desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, manifest)
	if err := w.repo.Push(ctx, desc, bytes.NewReader(manifest)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		return err
	}
	if err := w.repo.Tag(ctx, desc, tag); err != nil {
		return err
	}
	w.pushed = append(w.pushed, n)
	return nil
}

// chunks uploads a blob in two pieces; now and then it goes away after the first.
func (w *crashWorker) chunks(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	at, err := w.do(ctx, "POST", "/v2/"+w.name+"/blobs/uploads/", nil)
	if err != nil {
		return err
	}
	half := len(data) / 2
	if at, err = w.do(ctx, "PATCH", at, data[:half]); err != nil {
		return err
	}
	if rand.IntN(8) == 0 {
		if _, err = w.do(ctx, "DELETE", at, nil); err != nil {
			return err
		}
		return w.repo.Push(ctx, desc, bytes.NewReader(data))
	}
	if at, err = w.do(ctx, "PATCH", at, data[half:]); err != nil {
		return err
	}
	_, err = w.do(ctx, "PUT", at+"?digest="+string(desc.Digest), nil)
	return err
}

// do makes a request and gives the place that the answer names. What is not found wraps
// errdef.ErrNotFound.
func (w *crashWorker) do(ctx context.Context, method, path string, body []byte) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.api+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return "", err
	case resp.StatusCode == http.StatusNotFound:
		return "", fmt.Errorf("%s %s: %s: %w", method, path, text, errdef.ErrNotFound)
	case resp.StatusCode/100 != 2:
		return "", fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp.Header.Get("Location"), nil
}
