package agentruntime

import (
	"fmt"
	"strings"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/openai"
)

// openModel makes the client of ref, written provider/name, from the address and key that the
// environment holds for its provider. Errors wrap ErrConfig and never hold the key.
func openModel(ref string, getenv func(string) string) (loop.Model, error) {
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
	if provider == "anthropic" && !strings.HasSuffix(strings.TrimSuffix(base, "/"), "/v1") {
		return nil, fmt.Errorf("%w: model %s: this version speaks OpenAI Chat Completions only, and %s_API_BASE has the address of another format", ErrConfig, ref, prefix)
	}
	m, err := openai.New(openai.Options{
		BaseURL:             base,
		APIKey:              getenv(prefix + "_API_KEY"),
		Model:               name,
		MaxCompletionTokens: provider == "openai",
	})
	if err != nil {
		return nil, fmt.Errorf("%w: model %s: %w", ErrConfig, ref, err)
	}
	return m, nil
}
