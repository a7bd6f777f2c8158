//go:build unix

package gateway_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/model"
)

// Invariant: a file that is taken is private and means what it says; an error never repeats a key.
// The worst three: a file that others can read, a key in the wrong place of broken YAML, a key that
// would travel unencrypted.

const yamlKey = "sk-inyaml-0123456789abcdef"

func TestLoadProvidersTakesGoodFilesAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	one := func(lines string) string { return "providers:\n  - name: acme\n" + lines }
	const base = "    api-base: https://acme.test/v1\n"
	for _, tc := range []struct {
		name, text string
		want       string // what the error says; empty: taken
	}{
		{"empty", "", ""},
		{"a comment alone", "# nothing yet\n", ""},
		{"no providers", "providers: []\n", ""},
		{"a whole one", one(base + "    api-key: " + yamlKey + "\n    models: [a, b/c]\n"), ""},
		{"without a key and models", one(base), ""},
		{"models left empty", one(base + "    models:\n"), ""},
		{"http on this machine with a key", one("    api-base: http://127.0.0.1:11434/v1\n    api-key: " + yamlKey + "\n"), ""},
		{"http by name on this machine", one("    api-base: http://localhost:11434/v1\n    api-key: " + yamlKey + "\n"), ""},
		{"http on the IPv6 loopback", one("    api-base: http://[::1]:1/v1\n    api-key: " + yamlKey + "\n"), ""},
		{"http elsewhere without a key", one("    api-base: http://192.0.2.1/v1\n"), ""},
		{"http elsewhere with a key", one("    api-base: http://192.0.2.1/v1\n    api-key: " + yamlKey + "\n"), "line 3: api-base: plain http"},
		{"http elsewhere with a key of the environment", one("    api-base: http://192.0.2.1/v1\n    api-key: $K\n"), "line 3: api-base: plain http"},
		{"http to a name that begins like ours", one("    api-base: http://localhost.evil.test/v1\n    api-key: " + yamlKey + "\n"), "plain http"},
		{"an unknown field", one(base + "    apikey: " + yamlKey + "\n"), `line 4: unknown field "apikey"`},
		{"an unknown field above", "provider: []\n", `line 1: unknown field "provider"`},
		{"a field twice", one(base + base), `line 4: field "api-base"`},
		{"a name twice", one(base) + "  - name: acme\n" + base, `line 4: name "acme"`},
		{"a taken name", strings.Replace(one(base), "acme", "offline", 1), `line 2: name "offline"`},
		{"a bad name", strings.Replace(one(base), "acme", "Acme_1", 1), `line 2: name "Acme_1"`},
		{"a name with a slash", strings.Replace(one(base), "acme", "a/b", 1), `line 2: name "a/b"`},
		{"no name", "providers:\n  - api-base: https://a.test\n", "line 2: name: missing"},
		{"no base", one(""), "line 2: api-base: missing"},
		{"anthropic without a base", strings.Replace(one("    api-key: "+yamlKey+"\n"), "acme", "anthropic", 1), ""},
		{"anthropic with a base", strings.Replace(one("    api-base: https://a.test/x\n"), "acme", "anthropic", 1), ""},
		{"anthropic with a base of the other format", strings.Replace(one(base), "acme", "anthropic", 1), "line 3: api-base: ends in /v1"},
		{"anthropic with such a base and a slash", strings.Replace(one("    api-base: https://a.test/v1/\n"), "acme", "anthropic", 1), "line 3: api-base: ends in /v1"},
		{"a base with a user", one("    api-base: https://u:" + yamlKey + "@a.test\n"), "line 3: api-base: has a user"},
		{"a base with a query", one("    api-base: https://a.test?key=" + yamlKey + "\n"), "line 3: api-base: has a user"},
		{"a base of another scheme", one("    api-base: ftp://a.test\n"), "line 3: api-base: scheme"},
		{"a base without a host", one("    api-base: https:///v1\n"), "line 3: api-base: not a URL"},
		{"a base that is none", one("    api-base: \"https://a b/" + yamlKey + "\"\n"), "line 3: api-base: not a URL"},
		{"a key of two lines", one(base + "    api-key: \"" + yamlKey + "\\r\\nX-Evil: 1\"\n"), "line 4: api-key: has blanks"},
		{"a key that is far too long", one(base + "    api-key: " + strings.Repeat("k", 5000) + "\n"), "line 4: api-key"},
		{"a dollar that names nothing", one(base + "    api-key: $" + yamlKey + "\n"), "line 4: api-key: starts with $"},
		{"a key that is a list", one(base + "    api-key: [" + yamlKey + "]\n"), "line 4: api-key: not text"},
		{"a key that is an alias", one(base + "    api-key: *" + yamlKey + "\n"), "not YAML"},
		{"models as text", one(base + "    models: a\n"), "line 4: models: not a list"},
		{"a model with a blank", one(base + "    models: [\"a b\"]\n"), "line 4: models"},
		{"a model that is a mapping", one(base + "    models: [{a: b}]\n"), "line 4: models"},
		{"providers as a mapping", "providers: {acme: " + yamlKey + "}\n", "line 1: providers: not a list"},
		{"text", yamlKey + "\n", "line 1: not a mapping"},
		{"broken YAML", one(base + "    api-key: \"" + yamlKey + "\n"), "not YAML"},
		{"two documents", one(base) + "---\n" + one(base), "more than one document"},
		{"an alias bomb", "a: &a [x,x]\nproviders: [*a, *a]\n", `line 1: unknown field "a"`},
		{"too large", "#" + strings.Repeat("x", 1<<20), "1048576"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "providers.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := gateway.LoadProviders(path)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			// The path has digits of its own.
			says, named := "", false
			if err != nil {
				says, named = strings.ReplaceAll(err.Error(), path, "FILE"), strings.Contains(err.Error(), path)
			}
			if !errors.Is(err, gateway.ErrProviders) || !strings.Contains(says, tc.want) || !named || !strings.Contains(says, "; ") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), yamlKey) {
				t.Errorf("the error has the key: %v", err)
			}
		})
	}
}

func TestLoadProvidersWantsAPrivateFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "providers.yaml")
	if p, err := gateway.LoadProviders(path); err != nil {
		t.Errorf("missing: %v", err)
	} else if names, err := p.Names(); err != nil || len(names) != 0 {
		t.Errorf("missing: %v, %v", names, err)
	}
	text := "providers:\n  - {name: b, api-base: 'https://b.test'}\n  - {name: a, api-base: 'https://a.test'}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, taken := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o620: false, 0o610: false, 0o644: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		p, err := gateway.LoadProviders(path)
		if taken {
			if err != nil {
				t.Errorf("%v: %v", mode, err)
			} else if names, err := p.Names(); err != nil || !slices.Equal(names, []string{"b", "a"}) {
				t.Errorf("%v: %v, %v", mode, names, err)
			}
		} else if !errors.Is(err, gateway.ErrProviders) || !strings.Contains(err.Error(), "mode 0"+strings.TrimPrefix(modeText(mode), "0")) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{pipe, dir} {
		if _, err := gateway.LoadProviders(p); !errors.Is(err, gateway.ErrProviders) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if os.Geteuid() == 0 {
		err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65533, 65533))
		if errors.Is(err, syscall.EINVAL) {
			t.Skip("this user namespace has no other user")
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gateway.LoadProviders(path); !errors.Is(err, gateway.ErrProviders) || !strings.Contains(err.Error(), "user id 65533;") {
			t.Errorf("of another user: %v", err)
		}
	}
}

func modeText(m os.FileMode) string {
	digits := "01234567"
	return string([]byte{digits[m>>6&7], digits[m>>3&7], digits[m&7]})
}

// An edit that keeps size, and time as far as the clock of the file system tells, is seen.
func TestAnEditInPlaceOfTheSameSizeIsSeen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "providers.yaml")
	write := func(name string) {
		if err := os.WriteFile(path, []byte("providers:\n  - {name: "+name+", api-base: 'https://a.test'}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("aaaa")
	p, err := gateway.LoadProviders(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bbbb", "cccc", "dddd"} {
		write(name)
		if names, err := p.Names(); err != nil || names[0] != name {
			t.Errorf("got %v, %v, want %s", names, err, name)
		}
	}
}

func TestAKeyOfTheEnvironmentIsUsed(t *testing.T) {
	t.Setenv("OTTERS_TEST_ACME_KEY", realKey)
	v := newVendor(t, say("hi"))
	text := strings.Replace(providers(v.URL), realKey, "$OTTERS_TEST_ACME_KEY", 1)
	w := newWorld(t, text, gateway.Options{IdleTimeout: time.Minute})
	a := w.agent("acme/big/one")
	if res, text := a.chat(hello); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	if got, _ := v.last(t); got.Header.Get("Authorization") != "Bearer "+realKey {
		t.Errorf("the vendor saw %v", got.Header)
	}
	t.Setenv("OTTERS_TEST_ACME_KEY", realKey+"\r\nX: 1")
	if err := w.Check(model.Ref{Provider: "acme", Name: "small"}); !errors.Is(err, gateway.ErrProviders) || strings.Contains(err.Error(), realKey) {
		t.Errorf("a key of two lines: %v", err)
	}
	t.Setenv("OTTERS_TEST_ACME_KEY", "")
	if res, text := a.chat(hello); res.StatusCode != 503 || strings.Contains(text, "OTTERS_TEST") {
		t.Errorf("without the variable: %d %s", res.StatusCode, text)
	}
}
