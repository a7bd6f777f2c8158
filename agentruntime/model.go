package agentruntime

import (
	"fmt"
	"strings"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/anthropic"
	"github.com/otters-sh/otters/loop/openai"
)

// anthropicProvider is the provider that speaks Anthropic Messages; every other one speaks OpenAI Chat
// Completions.
const anthropicProvider = "anthropic"

// openModel makes the client of ref, written provider/name, from the address and key that the
// environment holds for its provider. What set holds must be in the provider's format. Errors wrap
// ErrConfig and never hold the key.
func openModel(ref string, set settings, getenv func(string) string) (loop.Model, error) {
	provider, name, ok := strings.Cut(ref, "/")
	switch {
	case ref == "":
		return nil, fmt.Errorf("%w: no model; name one with --model provider/name or as model in agent.yaml", ErrConfig)
	case !ok || provider == "" || name == "":
		return nil, fmt.Errorf("%w: model %q: want provider/name", ErrConfig, ref)
	}
	prefix := strings.ToUpper(strings.ReplaceAll(provider, "-", "_"))
	base := getenv(prefix + "_API_BASE")
	if base == "" {
		return nil, fmt.Errorf("%w: model %s: %s_API_BASE is not set, so there is no address to ask", ErrConfig, ref, prefix)
	}
	if err := set.fit(provider); err != nil {
		return nil, fmt.Errorf("%w: model %s: %w", ErrConfig, ref, err)
	}
	m, err := openClient(provider, name, base, getenv(prefix+"_API_KEY"), set)
	if err != nil {
		return nil, fmt.Errorf("%w: model %s: %w", ErrConfig, ref, err)
	}
	return m, nil
}

func openClient(provider, name, base, key string, set settings) (loop.Model, error) {
	if provider == anthropicProvider {
		return anthropic.New(anthropic.Options{BaseURL: base, APIKey: key, Model: name, Thinking: set.thinking})
	}
	return openai.New(openai.Options{BaseURL: base, APIKey: key, Model: name, MaxCompletionTokens: provider == "openai"})
}

// leastTopP is the least top-p that Messages takes beside thinking.
const leastTopP = 0.95

// fit tells which key the provider's format has no place for, or not with another one.
func (s settings) fit(provider string) error {
	p := s.params
	if provider != anthropicProvider {
		switch {
		case p.TopK != nil:
			return fmt.Errorf("config top-k: OpenAI Chat Completions has no such setting; remove the key or use top-p")
		case s.thinking != anthropic.ThinkingDefault:
			return fmt.Errorf("config thinking: OpenAI Chat Completions has no such setting; remove the key")
		}
		return nil
	}
	switch {
	case p.PresencePenalty != nil:
		return fmt.Errorf("config presence-penalty: Anthropic Messages has no such setting; remove the key")
	case p.FrequencyPenalty != nil:
		return fmt.Errorf("config frequency-penalty: Anthropic Messages has no such setting; remove the key")
	case p.Temperature != nil && *p.Temperature > 1:
		return fmt.Errorf("config temperature: %g is more than 1, the most in Anthropic Messages", *p.Temperature)
	case int(s.thinking) >= s.maxTokens:
		return fmt.Errorf("config thinking: %d tokens are not below max-tokens, which is %d", s.thinking, s.maxTokens)
	case s.thinking == anthropic.ThinkingDefault || s.thinking == anthropic.ThinkingOff:
		return nil
	case s.maxTokens <= anthropic.MinThinkingBudget:
		return fmt.Errorf("config thinking: max-tokens is %d; it must be above %d", s.maxTokens, anthropic.MinThinkingBudget)
	case p.Temperature != nil && *p.Temperature != 1:
		return fmt.Errorf("config temperature: only 1 goes with thinking; remove one of the two keys")
	case p.TopK != nil:
		return fmt.Errorf("config top-k: does not go with thinking; remove one of the two keys")
	case p.TopP != nil && *p.TopP < leastTopP:
		return fmt.Errorf("config top-p: %g is less than %g, the least that goes with thinking", *p.TopP, leastTopP)
	}
	return nil
}
