package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Bounds on a schema. Providers take less.
const (
	maxSchemaBytes = 256 << 10
	// maxSchemaDepth bounds how deep JSON nests, of a schema and of an object.
	maxSchemaDepth = 64
)

// ErrSchema is wrapped by every error that says what is wrong with a schema.
var ErrSchema = errors.New("schema")

// schema is a JSON Schema that was checked: it refers to nothing outside of it, and its references end.
type schema struct {
	root     *jsonschema.Schema
	resolved *jsonschema.Resolved
	places   map[string]*jsonschema.Schema // by JSON pointer
	pointers map[*jsonschema.Schema]string
	anchors  map[string]*jsonschema.Schema
	parts    map[*jsonschema.Schema][]place
}

// parseSchema checks a schema whole, before a model is asked. Errors wrap ErrSchema.
func parseSchema(raw []byte) (*schema, error) {
	s := &schema{
		places: map[string]*jsonschema.Schema{}, pointers: map[*jsonschema.Schema]string{},
		anchors: map[string]*jsonschema.Schema{}, parts: map[*jsonschema.Schema][]place{},
	}
	switch {
	case len(raw) == 0:
		return nil, fmt.Errorf("%w: there is none; give a JSON Schema of an object", ErrSchema)
	case len(raw) > maxSchemaBytes:
		return nil, fmt.Errorf("%w: %d bytes are over the limit of %d", ErrSchema, len(raw), maxSchemaBytes)
	}
	// Depth comes first: what reads the rest recurses.
	if err := checkDepth(raw, maxSchemaDepth); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	s.root = new(jsonschema.Schema)
	if err := checkObject(string(raw)); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON object: %w", ErrSchema, err)
	}
	if err := json.Unmarshal(raw, s.root); err != nil {
		return nil, fmt.Errorf("%w: it cannot be read: %w", ErrSchema, err)
	}
	if t := s.root.Type; t != "" && t != "object" || s.root.Types != nil && !slices.Contains(s.root.Types, "object") {
		return nil, fmt.Errorf("%w: its type does not allow an object, which is what is asked for", ErrSchema)
	}
	_, version, _ := strings.Cut(strings.TrimSuffix(s.root.Schema, "#"), "://")
	switch {
	case s.root.Schema == "":
	case version == "json-schema.org/draft/2020-12/schema":
		s.root.Schema = "https://json-schema.org/draft/2020-12/schema"
	case version == "json-schema.org/draft-07/schema":
		s.root.Schema = "http://json-schema.org/draft-07/schema#"
	default:
		return nil, fmt.Errorf("%w: $schema %q is not known; use draft 2020-12 or draft-07", ErrSchema, cut(s.root.Schema, 100))
	}
	if err := s.index(s.root, ""); err != nil {
		return nil, err
	}
	if err := s.checkLoops(); err != nil {
		return nil, err
	}
	s.root.ID = ""
	var err error
	if s.resolved, err = s.root.Resolve(nil); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, oneLine(err.Error()))
	}
	return s, nil
}

// checkDepth refuses what nests too deep. What is no JSON passes, as far as that goes.
func checkDepth(raw []byte, limit int) error {
	depth, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return fmt.Errorf("it nests deeper than %d levels", limit)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// jsonTypes are the types that a schema may name, and none.
var jsonTypes = []string{"", "null", "boolean", "object", "array", "number", "integer", "string"}

// index notes where every part of the schema is, and refuses what refers to elsewhere.
func (s *schema) index(sub *jsonschema.Schema, at string) error {
	if sub == nil {
		return fmt.Errorf("%w: %s is null", ErrSchema, at)
	}
	s.places[at], s.pointers[sub] = sub, at
	switch {
	case sub.Ref != "" && !strings.HasPrefix(sub.Ref, "#"):
		return fmt.Errorf("%w: %s/$ref is %q, and nothing is fetched; refer to #/$defs/… of the same schema", ErrSchema, at, cut(sub.Ref, 100))
	case sub.DynamicRef != "" || sub.DynamicAnchor != "":
		return fmt.Errorf("%w: %s has a dynamic reference, which is not taken; use $ref", ErrSchema, at)
	case sub.ID != "" && at != "":
		return fmt.Errorf("%w: %s has an $id of its own, which is not taken; use $ref to #/$defs/…", ErrSchema, at)
	}
	for _, t := range append(sub.Types, sub.Type) {
		if !slices.Contains(jsonTypes, t) {
			return fmt.Errorf("%w: %s/type is %q; want %s", ErrSchema, at, cut(t, 100), strings.Join(jsonTypes[1:], ", "))
		}
	}
	if sub.Anchor != "" {
		s.anchors[sub.Anchor] = sub
	}
	s.parts[sub] = parts(sub)
	for _, c := range s.parts[sub] {
		if err := s.index(c.schema, at+c.at); err != nil {
			return err
		}
	}
	return nil
}

// place is a part of a schema: where below it, and what it holds for.
type place struct {
	schema *jsonschema.Schema
	at     string
	of     scope
}

// scope is what of a value a part of a schema holds for.
type scope int

const (
	ofNone   scope = iota // nothing by itself
	ofSame                // the value
	ofNamed               // one field, by its name
	ofFields              // the fields, or their names
	ofItems               // the items
)

// parts are the schemas within one, in an order that never changes.
func parts(s *jsonschema.Schema) []place {
	var out []place
	one := func(name string, sub *jsonschema.Schema, of scope) {
		if sub != nil {
			out = append(out, place{sub, "/" + name, of})
		}
	}
	list := func(name string, subs []*jsonschema.Schema, of scope) {
		for i, sub := range subs {
			out = append(out, place{sub, "/" + name + "/" + strconv.Itoa(i), of})
		}
	}
	named := func(name string, subs map[string]*jsonschema.Schema, of scope) {
		for _, key := range slices.Sorted(maps.Keys(subs)) {
			out = append(out, place{subs[key], "/" + name + "/" + token(key), of})
		}
	}
	list("allOf", s.AllOf, ofSame)
	list("anyOf", s.AnyOf, ofSame)
	list("oneOf", s.OneOf, ofSame)
	one("not", s.Not, ofSame)
	one("if", s.If, ofSame)
	one("then", s.Then, ofSame)
	one("else", s.Else, ofSame)
	named("dependentSchemas", s.DependentSchemas, ofSame)
	named("dependencies", s.DependencySchemas, ofSame)
	named("$defs", s.Defs, ofNone)
	named("definitions", s.Definitions, ofNone)
	named("properties", s.Properties, ofNamed)
	named("patternProperties", s.PatternProperties, ofFields)
	one("additionalProperties", s.AdditionalProperties, ofFields)
	one("unevaluatedProperties", s.UnevaluatedProperties, ofFields)
	one("propertyNames", s.PropertyNames, ofFields)
	list("prefixItems", s.PrefixItems, ofItems)
	one("items", s.Items, ofItems)
	list("items", s.ItemsArray, ofItems)
	one("additionalItems", s.AdditionalItems, ofItems)
	one("unevaluatedItems", s.UnevaluatedItems, ofItems)
	one("contains", s.Contains, ofItems)
	one("contentSchema", s.ContentSchema, ofNone)
	return out
}

// token escapes a name for a JSON pointer.
func token(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// target is what a reference names; nil where that is nothing.
func (s *schema) target(ref string) *jsonschema.Schema {
	fragment := strings.TrimPrefix(ref, "#")
	if sub := s.anchors[fragment]; sub != nil {
		return sub
	}
	if plain, err := url.PathUnescape(fragment); err == nil {
		fragment = plain
	}
	return s.places[fragment]
}

// checkLoops refuses references that come back to where they began without a step into the value:
// no check of them would end.
func (s *schema) checkLoops() error {
	const open, closed = 1, 2
	state := make(map[*jsonschema.Schema]int)
	var visit func(sub *jsonschema.Schema) error
	visit = func(sub *jsonschema.Schema) error {
		switch state[sub] {
		case open:
			return fmt.Errorf("%w: the reference at %q leads back to itself without end", ErrSchema, s.pointers[sub])
		case closed:
			return nil
		}
		state[sub] = open
		defer func() { state[sub] = closed }()
		if sub.Ref != "" {
			to := s.target(sub.Ref)
			if to == nil {
				return fmt.Errorf("%w: %s/$ref is %q, and nothing is there", ErrSchema, s.pointers[sub], cut(sub.Ref, 100))
			}
			if err := visit(to); err != nil {
				return err
			}
		}
		for _, p := range s.parts[sub] {
			if p.of == ofSame {
				if err := visit(p.schema); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, at := range slices.Sorted(maps.Keys(s.places)) {
		if err := visit(s.places[at]); err != nil {
			return err
		}
	}
	return nil
}

// cut is at most the first n bytes of s, in one line.
func cut(s string, n int) string { return oneLine(start(s, n)) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
