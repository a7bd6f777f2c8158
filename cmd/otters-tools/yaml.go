package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"

	"gopkg.in/yaml.v3"
)

// Bounds of one YAML document: a few lines of aliases stand for any number of values.
const (
	maxYAMLDepth  = 1000
	maxYAMLValues = 4 << 20
)

// yamlReader reads document after document.
func yamlReader(r io.Reader) func() (any, error) {
	dec := yaml.NewDecoder(&allowance{r: r, left: maxWritten})
	return func() (any, error) {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, errHeld) {
				return nil, err
			}
			return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		values := 0
		return fromYAML(&doc, 0, &values)
	}
}

// fromYAML makes of a node what a filter works on: maps with text keys, and numbers as they are written.
func fromYAML(n *yaml.Node, depth int, values *int) (any, error) {
	if *values++; *values > maxYAMLValues {
		return nil, fmt.Errorf("more than %d values with those of aliases", maxYAMLValues)
	}
	if depth > maxYAMLDepth {
		return nil, fmt.Errorf("line %d: nested more than %d deep", n.Line, maxYAMLDepth)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return fromYAML(n.Content[0], depth, values)
	case yaml.AliasNode:
		return fromYAML(n.Alias, depth+1, values)
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := fromYAML(item, depth+1, values)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		return mappingFromYAML(n, depth, values)
	}
	return scalarFromYAML(n)
}

func mappingFromYAML(n *yaml.Node, depth int, values *int) (any, error) {
	own := map[string]any{}
	merged := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, item := n.Content[i], n.Content[i+1]
		if k.ShortTag() == "!!merge" {
			if err := merge(merged, item, depth, values); err != nil {
				return nil, err
			}
			continue
		}
		for k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a key that is a list or a map", k.Line)
		}
		if _, twice := own[k.Value]; twice {
			return nil, fmt.Errorf("line %d: key %s stands twice", k.Line, k.Value)
		}
		v, err := fromYAML(item, depth+1, values)
		if err != nil {
			return nil, err
		}
		own[k.Value] = v
	}
	for k, v := range own {
		merged[k] = v
	}
	return merged, nil
}

// merge takes over what stands under the key <<: a map, or a list of maps of which the first wins.
func merge(into map[string]any, item *yaml.Node, depth int, values *int) error {
	v, err := fromYAML(item, depth+1, values)
	if err != nil {
		return err
	}
	list, many := v.([]any)
	if !many {
		list = []any{v}
	}
	for _, v := range list {
		m, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("line %d: << wants a map, or a list of maps", item.Line)
		}
		for k, v := range m {
			if _, taken := into[k]; !taken {
				into[k] = v
			}
		}
	}
	return nil
}

func scalarFromYAML(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return b, err
	case "!!int", "!!float":
		text := strings.TrimPrefix(n.Value, "+")
		if json.Valid([]byte(text)) {
			return json.Number(text), nil
		}
		if i, ok := new(big.Int).SetString(text, 0); ok {
			return i, nil
		}
		var f float64
		if err := n.Decode(&f); err != nil {
			return nil, fmt.Errorf("line %d: %s: not a number", n.Line, n.Value)
		}
		return f, nil
	}
	return n.Value, nil
}

// toYAML writes a value as one document.
func toYAML(v any, w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(yamlValue(v)); err != nil {
		return err
	}
	return enc.Close()
}

// yamlValue replaces numbers by what is written without quotes.
func yamlValue(v any) any {
	number := func(text string) any { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = yamlValue(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = yamlValue(item)
		}
		return out
	case json.Number:
		return number(v.String())
	case *big.Int:
		return number(v.String())
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
	}
	return v
}
