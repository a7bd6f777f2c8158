package registry_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/otters-sh/otters/registry"
)

// Invariant: a token that was issued allows what it was asked for, by whom may, for five minutes, at the
// handler that issued it, and nothing else. Worst inputs: a token of one repository used on another, a
// push asked for without the registry's token, a blob mounted from a repository that is not granted.

// issue asks for a token with the registry's own; scopes are given in turn.
func (s *server) issue(scopes ...string) string {
	s.t.Helper()
	r, _ := http.NewRequest("GET", "/", nil)
	r.SetBasicAuth("any", token)
	return issued(s, s.do("GET", "/v2/token?"+url.Values{"service": {"x"}, "scope": scopes}.Encode(), nil, "Authorization", r.Header.Get("Authorization")))
}

func issued(s *server, a answer) string {
	s.t.Helper()
	var body struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
		IssuedAt    string `json:"issued_at"`
	}
	if err := json.Unmarshal(s.want(a, 200, "").body, &body); err != nil || body.Token == "" || body.Token != body.AccessToken || body.ExpiresIn != 300 {
		s.t.Fatalf("%s: %v", a.body, err)
	}
	if _, err := time.Parse(time.RFC3339, body.IssuedAt); err != nil || a.header.Get("Cache-Control") != "no-store" {
		s.t.Errorf("%s %v: %v", a.body, a.header, err)
	}
	return "Bearer " + body.Token
}

func TestR14AnIssuedTokenIsForItsScope(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.pushImage("app", "v1", bigBlob("layer"))
	s.pushImage("other", "v1")
	layer := string(s.pushBlob("app", bigBlob("layer")).Digest)
	mount := "/v2/other/blobs/uploads/?from=app&mount=" + layer
	type request struct{ method, path string }
	ping, pull, push := request{"GET", "/v2/"}, request{"GET", "/v2/app/manifests/v1"}, request{"POST", "/v2/app/blobs/uploads/"}
	other, catalog, remove := request{"GET", "/v2/other/manifests/v1"}, request{"GET", "/v2/_catalog"}, request{"DELETE", "/v2/app/manifests/none"}
	for _, c := range []struct {
		scopes []string
		want   map[request]int
	}{
		{nil, map[request]int{ping: 200, pull: 401, push: 401, other: 401, catalog: 401, remove: 401}},
		{[]string{"repository:app:pull"}, map[request]int{ping: 200, pull: 200, push: 401, other: 401, catalog: 401, remove: 401}},
		{[]string{"repository:app:pull,push"}, map[request]int{pull: 200, push: 202, other: 401, catalog: 401, remove: 404}},
		{[]string{"repository:app:delete"}, map[request]int{pull: 401, push: 401, remove: 404}},
		{[]string{"repository:app:*", "registry:catalog:*"}, map[request]int{pull: 200, push: 202, other: 401, catalog: 200, remove: 404}},
		{[]string{"repository:app:pull repository:other:pull"}, map[request]int{pull: 200, other: 200, push: 401}},
		{[]string{"repository:other:push"}, map[request]int{{"POST", mount}: 202, pull: 401}},
		{[]string{"repository:other:push", "repository:app:pull"}, map[request]int{{"POST", mount}: 201, pull: 200}},
		{[]string{"repository:ap:pull", "repository:app", "repository", "x:app:pull", "repository:../app:pull", "repository:APP:pull", "repository:app:read"}, map[request]int{ping: 200, pull: 401}},
	} {
		bearer := s.issue(c.scopes...)
		for r, want := range c.want {
			a := s.do(r.method, r.path, nil, "Authorization", bearer)
			if a.status != want {
				t.Errorf("%q: %s %s: %d, want %d", c.scopes, r.method, r.path, a.status, want)
			}
			if challenge := a.header.Get("Www-Authenticate"); want == 401 && (!strings.Contains(challenge, `error="insufficient_scope"`) || !strings.Contains(challenge, "scope=")) {
				t.Errorf("%q: %s %s: challenge %q", c.scopes, r.method, r.path, challenge)
			}
		}
		// A name that can't be is told as such.
		s.want(s.do("GET", "/v2/UPPER/manifests/v1", nil, "Authorization", bearer), 400, "NAME_INVALID")
	}
	if a := s.do("PUT", "/v2/a/b/manifests/v1", nil, "Authorization", ""); !strings.Contains(a.header.Get("Www-Authenticate"), `scope="repository:a/b:pull,push"`) {
		t.Errorf("%v", a.header)
	}
}

func TestR14ATokenOfElsewhereOrEarlierIsRefused(t *testing.T) {
	t.Parallel()
	c := &clock{}
	s := serve(t, openStore(t, t.TempDir(), registry.Options{Now: c.now}), registry.HandlerOptions{})
	other := newServer(t)
	good := s.issue("repository:app:pull")
	s.want(s.do("GET", "/v2/", nil, "Authorization", good), 200, "")
	head, sum, _ := strings.Cut(good, ".")
	forged := head[:len(head)-2] + "AA." + sum
	basic, _ := http.NewRequest("GET", "/", nil)
	basic.SetBasicAuth("any", strings.TrimPrefix(good, "Bearer "))
	for _, bad := range []string{
		other.issue("repository:app:pull"), forged, head, head + ".", head + "." + sum + "A", "Bearer .", "Bearer " + strings.Repeat("x.", 40<<10),
		basic.Header.Get("Authorization"),
	} {
		a := s.do("GET", "/v2/", nil, "Authorization", bad)
		if a.status != 401 && a.status != 431 {
			t.Errorf("%.60s: %d", bad, a.status)
		}
	}
	c.forward(4 * time.Minute)
	s.want(s.do("GET", "/v2/", nil, "Authorization", good), 200, "")
	c.forward(2 * time.Minute)
	if a := s.want(s.do("GET", "/v2/", nil, "Authorization", good), 401, "UNAUTHORIZED"); !strings.Contains(a.header.Get("Www-Authenticate"), `error="invalid_token"`) {
		t.Errorf("%v", a.header)
	}
}

func TestWhoGetsAToken(t *testing.T) {
	t.Parallel()
	closed := newServer(t)
	open := serve(t, openStore(t, t.TempDir(), registry.Options{}), registry.HandlerOptions{AnonymousPull: true})
	open.pushImage("app", "v1")
	wrong, _ := http.NewRequest("GET", "/", nil)
	wrong.SetBasicAuth("any", "wrong")
	const scope = "/v2/token?scope=repository:app:pull,push,delete&scope=registry:catalog:*"
	for _, s := range []*server{closed, open} {
		s.want(s.do("GET", scope, nil, "Authorization", wrong.Header.Get("Authorization")), 401, "UNAUTHORIZED")
		s.want(s.do("GET", scope, nil, "Authorization", "Bearer "+token), 401, "UNAUTHORIZED")
		s.want(s.do("PUT", "/v2/token", nil), 405, "UNSUPPORTED")
		s.want(s.do("GET", "/v2/token?"+strings.Repeat("scope=repository:a:pull&", 101), nil, "Authorization", "Basic "+basicOf(token)), 400, "UNSUPPORTED")
	}
	if a := closed.want(closed.do("GET", scope, nil, "Authorization", ""), 401, "UNAUTHORIZED"); !strings.HasPrefix(a.header.Get("Www-Authenticate"), "Basic ") {
		t.Errorf("%v", a.header)
	}
	bearer := issued(open, open.do("GET", scope, nil, "Authorization", ""))
	open.want(open.do("GET", "/v2/app/manifests/v1", nil, "Authorization", bearer), 200, "")
	for method, path := range map[string]string{"POST": "/v2/app/blobs/uploads/", "DELETE": "/v2/app/manifests/v1", "GET": "/v2/_catalog"} {
		open.want(open.do(method, path, nil, "Authorization", bearer), 401, "UNAUTHORIZED")
	}
	form := func(values url.Values, kind string) answer {
		return closed.do("POST", "/v2/token", []byte(values.Encode()), "Authorization", "", "Content-Type", kind)
	}
	const urlencoded = "application/x-www-form-urlencoded"
	given := url.Values{"grant_type": {"password"}, "username": {"any"}, "password": {token}, "service": {"x"}, "scope": {"repository:app:push"}}
	bearer = issued(closed, form(given, urlencoded+"; charset=UTF-8"))
	closed.want(closed.do("POST", "/v2/app/blobs/uploads/", nil, "Authorization", bearer), 202, "")
	closed.want(form(given, "text/plain"), 400, "UNSUPPORTED")
	given.Set("password", "wrong")
	closed.want(form(given, urlencoded), 401, "UNAUTHORIZED")
	given.Set("grant_type", "refresh_token")
	closed.want(form(given, urlencoded), 400, "UNSUPPORTED")
	given.Set("scope", strings.Repeat("x", 64<<10))
	closed.want(form(given, urlencoded), 413, "SIZE_INVALID")
}

func basicOf(password string) string {
	r, _ := http.NewRequest("GET", "/", nil)
	r.SetBasicAuth("any", password)
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")
}

// counted counts the requests for tokens.
type counted struct {
	http.RoundTripper

	n *atomic.Int32
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/v2/token" {
		c.n.Add(1)
	}
	return c.RoundTripper.RoundTrip(r)
}

// A client that follows the standard challenge, here that of oras by both of its ways, logs in.
func TestClientsLogInByTheChallenge(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newServer(t)
	source := memory.New()
	desc := pushImage(t, source, []byte("small"), bigBlob("large"))
	if err := source.Tag(ctx, desc, "v1"); err != nil {
		t.Fatal(err)
	}
	for name, oauth2 := range map[string]bool{"get": false, "post": true} {
		c := counted{s.client, new(atomic.Int32)}
		repo := s.remoteRepository("team/" + name)
		repo.Client = &auth.Client{
			Client: &http.Client{Transport: c}, ForceAttemptOAuth2: oauth2, Cache: auth.NewCache(),
			Credential: auth.StaticCredential(s.host, auth.Credential{Username: "anyone", Password: token}),
		}
		if _, err := oras.Copy(ctx, source, "v1", repo, "v1", oras.CopyOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := oras.Copy(ctx, repo, "v1", memory.New(), "v1", oras.CopyOptions{}); err != nil {
			t.Error(err)
		}
		if err := repo.Delete(ctx, ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}); err != nil {
			t.Error(err)
		}
		if c.n.Load() == 0 {
			t.Errorf("%s: no token was asked for; the test shows nothing", name)
		}
	}
}
