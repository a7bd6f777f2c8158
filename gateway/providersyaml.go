package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/otters-sh/otters/model"
)

// parseProviders reads the text of a providers.yaml. It walks the nodes itself because the decoder's
// own messages quote values, and a value may be a key. Errors start with the line.
func parseProviders(text []byte) ([]provider, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document; keep one")
	}
	if len(doc.Content) == 0 || isNull(doc.Content[0]) {
		return nil, nil
	}
	fields, err := fieldsOf(doc.Content[0], "providers")
	if err != nil {
		return nil, err
	}
	entries := fields["providers"]
	if entries == nil || isNull(entries) {
		return nil, nil
	}
	if entries.Kind != yaml.SequenceNode {
		return nil, lineError(entries, "providers: not a list; write one entry per provider, each starting with \"- name:\"")
	}
	var list []provider
	for _, node := range entries.Content {
		entry, err := parseProvider(node)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(p provider) bool { return p.name == entry.name }) {
			return nil, lineError(node, "name %q: it is there twice; keep one entry per provider", entry.name)
		}
		list = append(list, entry)
	}
	return list, nil
}

func parseProvider(node *yaml.Node) (entry provider, err error) {
	fields, err := fieldsOf(node, "name", "api-key", "api-base", "models")
	if err != nil {
		return entry, err
	}
	if entry.name, err = textOf(fields, "name"); err != nil {
		return entry, err
	}
	switch {
	case entry.name == "":
		return entry, lineError(node, "name: missing; name the provider, such as \"openai\"")
	case entry.name == OfflineProvider:
		return entry, lineError(fields["name"], "name %q: the built-in model has it; choose another", entry.name)
	case !isProviderName(entry.name):
		return entry, lineError(fields["name"], "name %q: not made of at most 63 of a-z, 0-9 and inner hyphens; choose another", entry.name)
	}
	if entry.key, err = parseKey(fields); err != nil {
		return entry, err
	}
	if entry.base, err = parseBase(node, fields, entry); err != nil {
		return entry, err
	}
	entry.models, err = parseModels(entry.name, fields["models"])
	return entry, err
}

var envName = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)

func parseKey(fields map[string]*yaml.Node) (string, error) {
	key, err := textOf(fields, "api-key")
	switch {
	case err != nil:
		return "", err
	case strings.HasPrefix(key, "$") && !envName.MatchString(key):
		return "", lineError(fields["api-key"], "api-key: starts with $ and names no variable; write $NAME or the key itself")
	case !validKey(key):
		return "", lineError(fields["api-key"], "api-key: has blanks or characters that no header takes; write the key as the provider shows it")
	}
	return key, nil
}

func parseBase(node *yaml.Node, fields map[string]*yaml.Node, entry provider) (*url.URL, error) {
	speaks := dialectOf(entry.name)
	text, err := textOf(fields, "api-base")
	if err != nil {
		return nil, err
	}
	if text == "" && speaks == messages {
		text = anthropicBase
	}
	if text == "" {
		return nil, lineError(node, "api-base: missing; write the address, such as https://api.openai.com/v1")
	}
	at := fields["api-base"]
	base, err := url.Parse(text)
	if err != nil || base.Opaque != "" || base.Hostname() == "" {
		// The reason is left out because it quotes the text, in which somebody may have put a key.
		return nil, lineError(at, "api-base: not a URL; write the address, such as https://api.openai.com/v1")
	}
	switch {
	case base.User != nil || base.RawQuery != "" || base.ForceQuery || base.Fragment != "":
		return nil, lineError(at, "api-base: has a user, a query or a fragment; write the plain address and put the key into api-key")
	case base.Scheme != "https" && base.Scheme != "http":
		return nil, lineError(at, "api-base: scheme %q; use https, or http on this machine", base.Scheme)
	case base.Scheme == "http" && entry.key != "" && !isLoopback(base.Hostname()):
		return nil, lineError(at, "api-base: plain http would show the key to the network; use https, or leave api-key out")
	}
	if wrong := speaks.checkBase(base); wrong != "" {
		return nil, lineError(at, "%s", wrong)
	}
	if base.Path == "" {
		base.Path = "/" // what is joined to an empty one would be relative
	}
	return base, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func parseModels(name string, node *yaml.Node) ([]string, error) {
	if node == nil || isNull(node) {
		return nil, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, lineError(node, "models: not a list; write [a, b], or leave it out for every model of this provider")
	}
	var models []string
	for _, item := range node.Content {
		if item.Kind != yaml.ScalarNode || isNull(item) {
			return nil, lineError(item, "models: an entry is not text; write the model's name")
		}
		if _, err := model.ParseRef(name + "/" + item.Value); err != nil {
			return nil, lineError(item, "models: %w; write the name that the provider uses", err)
		}
		models = append(models, item.Value)
	}
	return models, nil
}

// fieldsOf gives the fields of a mapping that has no others and none twice.
func fieldsOf(node *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	if node.Kind != yaml.MappingNode {
		return nil, lineError(node, "not a mapping; write fields, of which there are %s", strings.Join(known, ", "))
	}
	fields := make(map[string]*yaml.Node, len(known))
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i]
		switch {
		case name.Kind != yaml.ScalarNode || !slices.Contains(known, name.Value):
			return nil, lineError(name, "unknown field %q; there are %s", shown(name.Value), strings.Join(known, ", "))
		case fields[name.Value] != nil:
			return nil, lineError(name, "field %q: it is there twice; keep one", name.Value)
		}
		fields[name.Value] = node.Content[i+1]
	}
	return fields, nil
}

// shown repeats a field's name only as far as a name goes: a key may stand in its place.
func shown(name string) string {
	if len(name) > 24 {
		return name[:8] + "…"
	}
	return name
}

func textOf(fields map[string]*yaml.Node, name string) (string, error) {
	node := fields[name]
	if node == nil || isNull(node) {
		return "", nil
	}
	if node.Kind != yaml.ScalarNode {
		return "", lineError(node, "%s: not text; write one value", name)
	}
	return node.Value, nil
}

func isNull(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Tag == "!!null" }

func isProviderName(name string) bool {
	ref, err := model.ParseRef(name + "/m")
	return err == nil && ref.Provider == name
}

func lineError(node *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{node.Line}, args...)...)
}

var yamlLine = regexp.MustCompile(`line \d+`)

// syntaxError keeps the line of a parser's error and drops its words, which may quote the file.
func syntaxError(err error) error {
	where := yamlLine.FindString(err.Error())
	if where == "" {
		where = "somewhere"
	}
	return fmt.Errorf("%s: not YAML; see whether blanks, quotes and colons are as they should be", where)
}
