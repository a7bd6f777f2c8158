package daemon

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func TestTagAndRemove(t *testing.T) {
	t.Parallel()
	d := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) })
	d.image("a", map[string]string{"Agentfile": "FROM scratch\nNAME a\n"})
	api := d.images()
	r, err := api.TagImage(t.Context(), &daemonv1.TagImageRequest{Image: "a", Name: "localhost:5000/b"})
	if err != nil || r.GetReference() != "localhost:5000/b:latest" || d.digest("localhost:5000/b") != d.digest("a") {
		t.Fatal(r, err)
	}
	for _, c := range []struct {
		name string
		want codes.Code
	}{{"none", codes.NotFound}, {"A", codes.InvalidArgument}, {"a@" + d.digest("a"), codes.InvalidArgument}} {
		if _, err := api.RemoveImage(t.Context(), &daemonv1.RemoveImageRequest{Images: []string{"a", c.name}}); status.Code(err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		if d.digest("a") == "" {
			t.Fatalf("%s: a call that failed removed a name", c.name)
		}
	}
	if _, err := api.RemoveImage(t.Context(), &daemonv1.RemoveImageRequest{Images: []string{"a"}}); err != nil || d.digest("a") != "" || d.digest("localhost:5000/b") == "" {
		t.Errorf("%v", err)
	}
	if _, err := api.TagImage(t.Context(), &daemonv1.TagImageRequest{Image: "a", Name: "c"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestStoredNames(t *testing.T) {
	t.Parallel()
	for shown, stored := range map[string]string{
		"a:1": "a:1", "a/b:1": "a/b:1", "ghcr.io/a/b:1": "ghcr.io/a/b:1",
		"localhost:5000/a:1": "localhost__5000/a:1", "a-b.c:1/d/e:1": "a-b.c__1/d/e:1",
	} {
		ref, err := parseImage(shown)
		if err != nil || storeName(ref) != stored || shownName(stored) != shown {
			t.Errorf("%s: %s %s %v", shown, storeName(ref), shownName(stored), err)
		}
	}
	var f flights
	leave, err := f.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.enter(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	leave()
	if leave, err = f.enter(t.Context(), "a"); err != nil {
		t.Error(err)
	} else {
		leave()
	}
}
