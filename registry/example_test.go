package registry_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/otters-sh/otters/registry"
)

// embedded is the server that docs/registry.md shows.
func embedded(store *registry.Store, token []byte) *http.Server {
	api := store.Handler(registry.HandlerOptions{TokenHash: sha256.Sum256(token)})
	server := &http.Server{
		Addr: "127.0.0.1:5000",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A web page may give this address a name of its own.
			if r.Host != "127.0.0.1:5000" || r.Header.Get("Origin") != "" {
				http.Error(w, "unknown host or origin", http.StatusForbidden)
				return
			}
			api.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	return server
}

// What the page shows is what is tested here, and it refuses whom it should.
func TestTheExampleOfTheDocuments(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/registry.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "[]byte) *http.Server {\n")
	code, _, _ = strings.Cut(code, "\treturn server\n")
	if want := strings.ReplaceAll(strings.TrimPrefix(code, "\t"), "\n\t", "\n"); !strings.Contains(string(page), want) {
		t.Errorf("docs/registry.md does not show this:\n%s", want)
	}
	h := embedded(openStore(t, t.TempDir(), registry.Options{}), []byte(token)).Handler
	for _, c := range []struct {
		host, origin, token string
		want                int
	}{{"127.0.0.1:5000", "", token, 200}, {"evil.example", "", token, 403}, {"127.0.0.1:5000", "http://evil.example", token, 403}, {"127.0.0.1:5000", "", "wrong", 401}} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://"+c.host+"/v2/", nil)
		r.SetBasicAuth("any", c.token)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", fmt.Sprint(c), w.Code, c.want)
		}
	}
}
