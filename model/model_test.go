package model

import (
	"errors"
	"strings"
	"testing"
)

func TestParseRefSplitsAtTheFirstSlash(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Ref{
		"openai/gpt-5":                    {"openai", "gpt-5"},
		"openrouter/meta/llama-3":         {"openrouter", "meta/llama-3"},
		"offline/otter":                   {"offline", "otter"},
		"a-1/" + strings.Repeat("m", 255): {"a-1", strings.Repeat("m", 255)},
	} {
		got, err := ParseRef(in)
		if err != nil || got != want {
			t.Errorf("ParseRef(%q) = %v, %v; want %v", in, got, err, want)
		}
		if got.String() != in {
			t.Errorf("ParseRef(%q).String() = %q", in, got)
		}
	}
}

func TestParseRefRefusesWhatCannotBecomeAVariable(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "/", "gpt-5", "openai/", "/gpt", "Open/x", "-a/x", "a-/x", "a b/x", "a/x y", "a/\n", "a=b/x", strings.Repeat("p", 64) + "/x", "a/" + strings.Repeat("m", 256)} {
		if got, err := ParseRef(in); !errors.Is(err, ErrInvalidRef) {
			t.Errorf("ParseRef(%q) = %v, %v; want ErrInvalidRef", in, got, err)
		}
	}
}

func TestEnvPrefixIsAVariableName(t *testing.T) {
	t.Parallel()
	if got := (Ref{"my-proxy", "x"}).EnvPrefix(); got != "MY_PROXY" {
		t.Errorf("EnvPrefix = %q", got)
	}
}

func TestStaticResolverAnswersTheSameForEveryModel(t *testing.T) {
	t.Parallel()
	url, key, err := StaticResolver("http://127.0.0.1:1/v1", "k")("a/b")
	if url != "http://127.0.0.1:1/v1" || key != "k" || err != nil {
		t.Errorf("got %q %q %v", url, key, err)
	}
}
