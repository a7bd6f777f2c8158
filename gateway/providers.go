package gateway

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/otters-sh/otters/model"
)

// maxProvidersFile bounds providers.yaml, in bytes; a thousand providers fit.
const maxProvidersFile = 1 << 20

// settleTime is the age below which a file is read again although it looks the same: a clock that
// ticks slower than an editor writes could hide the second of two edits.
const settleTime = 100 * time.Millisecond

// Providers are the model providers of a providers.yaml. The file is looked at before every use and
// read again when it has changed; one that has become unusable refuses every use until it is
// mended. The zero value has none. Its methods may be called at the same time.
type Providers struct {
	path   string
	getenv func(string) string

	mu sync.Mutex
	// seen is the file as it was when list or err was made of it; nil if it was missing.
	seen   fs.FileInfo
	readAt time.Time
	list   []provider
	err    error
}

// provider is one entry of the file, checked.
type provider struct {
	name   string
	key    string // literal, "$NAME" or empty
	base   *url.URL
	models []string // empty: any
}

// LoadProviders reads the providers.yaml at path:
//
//	providers:
//	  - name: openai                          # a DNS-1123 label; "offline" is taken
//	    api-base: https://api.openai.com/v1   # what /chat/completions is appended to
//	    api-key: $OPENAI_API_KEY              # or the key itself; left out for a server without one
//	    models: [gpt-5, gpt-5-mini]           # left out or empty: every model of this provider
//
// The provider named anthropic speaks Anthropic Messages: /v1/messages is appended to its api-base,
// which is https://api.anthropic.com where left out. All others speak OpenAI Chat Completions.
//
// A missing file means no providers. The file must be a regular one of at most 1 MiB, belong to this
// user or root, and have no permission bits for group and others. A field that is not known, given
// twice or of the wrong type is refused with its line. An api-base is an http or https URL without
// user, query and fragment; plain http is taken for a loopback host, and for others only without an
// api-key, since it would show the key to the network. "$NAME" is looked up in the environment of
// this process at each use. Errors wrap ErrProviders and never contain a key.
func LoadProviders(path string) (*Providers, error) {
	p := &Providers{path: path, getenv: os.Getenv}
	if _, err := p.current(); err != nil {
		return nil, err
	}
	return p, nil
}

// Names are the providers in the order of the file, offline not among them. Errors wrap
// ErrProviders.
func (p *Providers) Names() ([]string, error) {
	list, err := p.current()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list))
	for i, entry := range list {
		names[i] = entry.name
	}
	return names, nil
}

// route is where and with which key a model is called.
type route struct {
	base *url.URL
	key  string
}

// route finds the provider of ref and checks that it may be called.
func (p *Providers) route(ref model.Ref) (route, error) {
	list, err := p.current()
	if err != nil {
		return route{}, err
	}
	i := slices.IndexFunc(list, func(entry provider) bool { return entry.name == ref.Provider })
	if i < 0 {
		return route{}, fmt.Errorf("%w %q: it is not in %s; add it there or use the model %s/%s", ErrUnknownProvider, ref.Provider, p.place(), OfflineProvider, OfflineModel)
	}
	entry := list[i]
	if len(entry.models) > 0 && !slices.Contains(entry.models, ref.Name) {
		return route{}, fmt.Errorf("%w: provider %s has no %q in the models list of %s; add it there or use one of %s",
			ErrModelNotAllowed, entry.name, ref.Name, p.place(), strings.Join(entry.models, ", "))
	}
	key, err := p.resolveKey(entry)
	return route{entry.base, key}, err
}

func (p *Providers) resolveKey(entry provider) (string, error) {
	name, isEnv := strings.CutPrefix(entry.key, "$")
	if !isEnv {
		return entry.key, nil
	}
	key := p.getenv(name)
	if key == "" {
		return "", fmt.Errorf("%w: the key of %s is $%s, which the daemon's environment does not have; set it and restart the daemon, or write the key into %s", ErrProviders, entry.name, name, p.place())
	}
	if !validKey(key) {
		return "", fmt.Errorf("%w: the key of %s in $%s has blanks or characters that no header takes; set it anew", ErrProviders, entry.name, name)
	}
	return key, nil
}

func (p *Providers) place() string {
	if p.path == "" {
		return "providers.yaml"
	}
	return p.path
}

// current is the list as the file has it now.
func (p *Providers) current() ([]provider, error) {
	if p.path == "" {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := os.Stat(p.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrProviders, err)
	}
	if err != nil {
		p.seen, p.list, p.err = nil, nil, nil
		return nil, nil
	}
	if p.seen != nil && sameState(p.seen, now) && p.readAt.Sub(now.ModTime()) > settleTime {
		return p.list, p.err
	}
	p.readAt = time.Now()
	p.seen, p.list, p.err = p.read()
	return p.list, p.err
}

func sameState(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size() && a.Mode() == b.Mode()
}

func (p *Providers) read() (fs.FileInfo, []provider, error) {
	f, err := openRegular(p.path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrProviders, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrProviders, err)
	}
	if err := checkPrivate(info); err != nil {
		return info, nil, fmt.Errorf("%w: %s: %w", ErrProviders, p.path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxProvidersFile+1))
	if err == nil && len(text) > maxProvidersFile {
		err = fmt.Errorf("more than %d bytes; shorten it", maxProvidersFile)
	}
	var list []provider
	if err == nil {
		list, err = parseProviders(text)
	}
	if err != nil {
		return info, nil, fmt.Errorf("%w: %s: %w", ErrProviders, p.path, err)
	}
	return info, list, nil
}

// checkPrivate refuses a file of keys that others may read or have written.
func checkPrivate(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file; put the providers into one")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("mode %04o lets other users at the keys; chmod 0600 it", mode)
	}
	if uid, ok := ownerOf(info); ok && uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("it belongs to user id %d; make it your own", uid)
	}
	return nil
}

// validKey tells whether key can stand in a header: visible ASCII of at most maxKey bytes.
func validKey(key string) bool {
	return len(key) <= maxKey && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' })
}
