// Package model names language models and says how an agent reaches one. It knows no provider and
// does no I/O.
package model

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalidRef is wrapped by every error of ParseRef.
var ErrInvalidRef = errors.New("invalid model reference")

// Ref names a model of a provider, written provider/name. The provider has no slash; the name may
// have some ("openrouter/meta/llama-3").
type Ref struct {
	Provider string
	Name     string
}

// ParseRef splits s at its first slash. Both halves must be there, and the provider must be a
// DNS-1123 label of at most 63 characters, since names of environment variables are made from it.
// Errors wrap ErrInvalidRef.
func ParseRef(s string) (Ref, error) {
	provider, name, ok := strings.Cut(s, "/")
	switch {
	case !ok || provider == "" || name == "":
		return Ref{}, fmt.Errorf("%w %q: want provider/model", ErrInvalidRef, s)
	case !validProvider(provider):
		return Ref{}, fmt.Errorf("%w %q: provider %q is not made of at most 63 of a-z, 0-9 and inner hyphens", ErrInvalidRef, s, provider)
	case len(name) > 255 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Ref{}, fmt.Errorf("%w %q: the model's name has blanks, control characters or more than 255 bytes", ErrInvalidRef, s)
	}
	return Ref{Provider: provider, Name: name}, nil
}

func validProvider(s string) bool {
	if len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !(c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z') {
			return false
		}
	}
	return true
}

// String prints provider/name, and nothing for the zero Ref.
func (r Ref) String() string {
	if r == (Ref{}) {
		return ""
	}
	return r.Provider + "/" + r.Name
}

// EnvPrefix is what the provider's environment variables start with: "OPENAI" for openai, so that
// the runtime finds OPENAI_API_KEY and OPENAI_API_BASE. Hyphens become underscores.
func (r Ref) EnvPrefix() string {
	return strings.ToUpper(strings.ReplaceAll(r.Provider, "-", "_"))
}

// Resolver tells where the model written provider/name is reached and with which key. It is asked
// before every start of an agent, so an error names what is missing and where to add it. It may be
// called from several goroutines at once.
type Resolver func(model string) (apiURL, apiKey string, err error)

// StaticResolver answers the same address and key for every model.
func StaticResolver(apiURL, apiKey string) Resolver {
	return func(string) (string, string, error) { return apiURL, apiKey, nil }
}
