package gateway

import (
	"strings"
	"testing"
)

func TestAnthropicIsReachedWhereItIsUnlessTheFileSaysOtherwise(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"providers: [{name: anthropic}]":                               "https://api.anthropic.com/v1/messages",
		"providers: [{name: anthropic, api-base: https://a.test/x}]":   "https://a.test/x/v1/messages",
		"providers: [{name: other, api-base: https://b.test}]":         "https://b.test/chat/completions",
		"providers: [{name: other, api-base: https://b.test/openai/}]": "https://b.test/openai/chat/completions",
	} {
		list, err := parseProviders([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		path := BasePath + "/chat/completions"
		if dialectOf(list[0].name) == messages {
			path = BasePath + "/messages"
		}
		got := list[0].base.JoinPath(callPaths[path].target...)
		if got.String() != want || !strings.HasPrefix(got.RequestURI(), "/") {
			t.Errorf("%s: %s, asked for as %s, want %s", text, got, got.RequestURI(), want)
		}
	}
}
