package gate_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/gate"
)

func isA(err, target error) bool { return errors.Is(err, target) }

// Invariant: only the very token opens. The worst three: none, one of another prefix, the hash of
// nothing.
func TestOnlyTheVeryTokenMatches(t *testing.T) {
	t.Parallel()
	token, err := gate.NewToken("otr_")
	if err != nil {
		t.Fatal(err)
	}
	other, err := gate.NewToken("otr_")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token, "otr_") || len(token) != 4+43 || token == other {
		t.Errorf("tokens %d and %d bytes long, equal %v", len(token), len(other), token == other)
	}
	hash := gate.TokenHash(token)
	for name, tc := range map[string]struct {
		hash  [32]byte
		token string
		want  bool
	}{
		"the token":                 {hash, token, true},
		"another":                   {hash, other, false},
		"its beginning":             {hash, token[:len(token)-1], false},
		"more than it":              {hash, token + "x", false},
		"none":                      {hash, "", false},
		"none against no hash":      {[32]byte{}, "", false},
		"one against no hash":       {[32]byte{}, token, false},
		"none against its own hash": {gate.TokenHash(""), "", false},
		"one that is far too long":  {gate.TokenHash(strings.Repeat("x", 5000)), strings.Repeat("x", 5000), false},
	} {
		if got := gate.TokenMatches(tc.hash, tc.token); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestBearerToken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values []string
		want   string
	}{
		"one":            {[]string{"Bearer abc"}, "abc"},
		"lower case":     {[]string{"bearer abc"}, "abc"},
		"two":            {[]string{"Bearer abc", "Bearer abc"}, ""},
		"none":           {nil, ""},
		"another scheme": {[]string{"Basic abc"}, ""},
		"no token":       {[]string{"Bearer "}, ""},
		"no scheme":      {[]string{"abc"}, ""},
		"too long":       {[]string{"Bearer " + strings.Repeat("x", 5000)}, ""},
	} {
		got, ok := gate.BearerToken(http.Header{"Authorization": tc.values})
		if got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

func TestWriteTokenFileIsPrivateAndReplacesALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, target := filepath.Join(dir, "token"), filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if err := gate.WriteTokenFile(path, "secret"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if text, _ := os.ReadFile(path); string(text) != "secret\n" {
		t.Errorf("wrote %q", text)
	}
	if text, _ := os.ReadFile(target); string(text) != "kept" {
		t.Errorf("the link's target became %q", text)
	}
	err = gate.WriteTokenFile(filepath.Join(dir, "missing", "token"), "secret")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("%d files are there, want 2", len(list))
	}
}
