package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

const (
	// maxObjectBytes bounds an object that a model gives.
	maxObjectBytes = 1 << 20
	// maxCheckWork bounds the checks of one object against one schema: a schema of a few lines can ask
	// for more of them than there is time.
	maxCheckWork = 1 << 20
	// maxProblems bounds what is said about one object, and maxProblemText each of it, in bytes.
	maxProblems    = 8
	maxProblemText = 200
	// maxSubchecks bounds the schemas that are made to find where a problem is.
	maxSubchecks = 256
)

// Problem is what is wrong with one field of an object.
type Problem struct {
	// Pointer is the field's JSON pointer; empty is the object itself.
	Pointer string
	// Message is one line.
	Message string
}

// String is the pointer and the message.
func (p Problem) String() string {
	if p.Pointer == "" {
		return "the object: " + p.Message
	}
	return p.Pointer + ": " + p.Message
}

// parse finds the object in a model's answer, checks it and writes it as it was checked: of a name
// given twice the last counts. Where there are problems there is no object.
func (s *schema) parse(text string) (json.RawMessage, []Problem) {
	raw, err := findObject(text)
	if err != nil {
		return nil, []Problem{{"", err.Error()}}
	}
	if len(raw) > maxObjectBytes {
		return nil, []Problem{{"", fmt.Sprintf("%d bytes are over the limit of %d", len(raw), maxObjectBytes)}}
	}
	var value any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return nil, []Problem{{"", "it is no JSON: " + err.Error()}}
	}
	plain, problem := floats(value, "")
	if problem != nil {
		return nil, []Problem{*problem}
	}
	if problems := s.check(plain); len(problems) > 0 {
		return nil, problems
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, []Problem{{"", err.Error()}}
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

// findObject is the JSON object of an answer that has nothing else, or puts it into a code block or
// between sentences.
func findObject(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("the answer is empty; want one JSON object")
	}
	first, err := firstObject(text)
	if err == nil {
		return first, nil
	}
	if i, j := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}'); i > 0 && j > i {
		if inner, ierr := firstObject(text[i : j+1]); ierr == nil {
			return inner, nil
		}
	}
	return nil, err
}

// firstObject is the whole of a text that is one JSON object.
func firstObject(text string) ([]byte, error) {
	if err := checkDepth([]byte(text), maxSchemaDepth); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(text))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the JSON ends before it is complete")
		}
		return nil, fmt.Errorf("it is no JSON object: %w", err)
	}
	if raw[0] != '{' {
		return nil, errors.New("it is JSON, but no object; want {…}")
	}
	if strings.TrimSpace(text[dec.InputOffset():]) != "" {
		return nil, errors.New("there is more than one JSON object")
	}
	return raw, nil
}

// floats makes numbers what the check knows. A number of a thousand digits is none of them: to compare
// it exactly can cost any amount of time.
func floats(v any, at string) (any, *Problem) {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil || math.IsInf(f, 0) {
			return nil, &Problem{at, "the number " + cut(v.String(), 40) + " is too large"}
		}
		return f, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			f, problem := floats(v[name], at+"/"+token(name))
			if problem != nil {
				return nil, problem
			}
			out[name] = f
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			f, problem := floats(v[i], at+"/"+strconv.Itoa(i))
			if problem != nil {
				return nil, problem
			}
			out[i] = f
		}
		return out, nil
	}
	return v, nil
}

// check says what is wrong with a value.
func (s *schema) check(v any) []Problem {
	if work := maxCheckWork; !s.affordable(s.root, v, &work) {
		return []Problem{{"", fmt.Sprintf("to check it against the schema takes more than %d steps; make the schema simpler", maxCheckWork)}}
	}
	err := s.resolved.Validate(v)
	if err == nil {
		return nil
	}
	x := explainer{schema: s, checks: map[*jsonschema.Schema]*jsonschema.Resolved{s.root: s.resolved}}
	x.explain(s.root, v, "")
	if len(x.problems) == 0 {
		x.say("", reason(err))
	}
	return x.problems
}

// affordable walks as a check does that tries everything, until the work is used up.
func (s *schema) affordable(sub *jsonschema.Schema, v any, work *int) bool {
	if *work -= 1 + len(sub.Enum) + len(sub.Required); *work < 0 {
		return false
	}
	if sub.Ref != "" && !s.affordable(s.target(sub.Ref), v, work) {
		return false
	}
	var fields, items []*jsonschema.Schema
	for _, p := range s.parts[sub] {
		switch p.of {
		case ofSame:
			if !s.affordable(p.schema, v, work) {
				return false
			}
		case ofFields:
			fields = append(fields, p.schema)
		case ofItems:
			items = append(items, p.schema)
		}
	}
	switch v := v.(type) {
	case string:
		*work -= len(v) / 256
	case map[string]any:
		for name, value := range v {
			if p := sub.Properties[name]; p != nil && !s.affordable(p, value, work) {
				return false
			}
			for _, p := range fields {
				if !s.affordable(p, value, work) {
					return false
				}
			}
		}
	case []any:
		for _, value := range v {
			for _, p := range items {
				if !s.affordable(p, value, work) {
					return false
				}
			}
		}
	}
	return true
}

// explainer finds which fields a check fails for, since its error names parts of the schema.
type explainer struct {
	schema   *schema
	checks   map[*jsonschema.Schema]*jsonschema.Resolved
	problems []Problem
}

func (x *explainer) say(at, message string) {
	if len(x.problems) < maxProblems {
		x.problems = append(x.problems, Problem{start(at, maxProblemText), cut(message, maxProblemText)})
	}
}

// fails tells why a value does not fit a part of the schema.
func (x *explainer) fails(sub *jsonschema.Schema, v any) error {
	check := x.checks[sub]
	if check == nil {
		if len(x.checks) >= maxSubchecks {
			return nil
		}
		// The part keeps its place, so that what it refers to stays.
		whole := *x.schema.root
		whole.ID = "otters://schema/whole"
		ref := url.URL{Scheme: "otters", Host: "schema", Path: "/whole", Fragment: x.schema.pointers[sub]}
		part := &jsonschema.Schema{Schema: whole.Schema, Defs: map[string]*jsonschema.Schema{"s": &whole}, Ref: ref.String()}
		var err error
		if check, err = part.Resolve(&jsonschema.ResolveOptions{BaseURI: "otters://schema/part"}); err != nil {
			return nil
		}
		x.checks[sub] = check
	}
	return check.Validate(v)
}

// explain says what is wrong with a value, as deep inside it as can be told.
func (x *explainer) explain(sub *jsonschema.Schema, v any, at string) {
	if len(x.problems) >= maxProblems {
		return
	}
	err := x.fails(sub, v)
	if err == nil {
		return
	}
	said := len(x.problems)
	switch {
	case refusesAll(sub):
		x.say(at, "it is not allowed")
	case !typeFits(sub, v):
		x.say(at, "it is "+typeOf(v)+"; want "+typesOf(sub))
	default:
		if sub.Ref != "" {
			x.explain(x.schema.target(sub.Ref), v, at)
		}
		for _, p := range sub.AllOf {
			x.explain(p, v, at)
		}
		x.explainInside(sub, v, at)
	}
	if len(x.problems) == said {
		x.say(at, reason(err))
	}
}

func (x *explainer) explainInside(sub *jsonschema.Schema, v any, at string) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range sub.Required {
			if _, ok := v[name]; !ok {
				x.say(at+"/"+token(name), "it is missing")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if p := sub.Properties[name]; p != nil {
				x.explain(p, v[name], at+"/"+token(name))
			} else if p := sub.AdditionalProperties; p != nil && len(sub.PatternProperties) == 0 {
				x.explain(p, v[name], at+"/"+token(name))
			}
		}
	case []any:
		for i, value := range v {
			place := at + "/" + strconv.Itoa(i)
			switch {
			case i < len(sub.PrefixItems):
				x.explain(sub.PrefixItems[i], value, place)
			case i < len(sub.ItemsArray):
				x.explain(sub.ItemsArray[i], value, place)
			case sub.Items != nil:
				x.explain(sub.Items, value, place)
			}
		}
	}
}

// refusesAll tells whether a schema is false.
func refusesAll(s *jsonschema.Schema) bool {
	if s.Not == nil {
		return false
	}
	raw, err := json.Marshal(s.Not)
	return err == nil && (string(raw) == "{}" || string(raw) == "true")
}

func typeFits(s *jsonschema.Schema, v any) bool {
	types := s.Types
	if s.Type != "" {
		types = []string{s.Type}
	}
	if types == nil {
		return true
	}
	is := typeOf(v)
	return slices.ContainsFunc(types, func(t string) bool { return article(t) == is || t == "number" && is == "an integer" })
}

func typesOf(s *jsonschema.Schema) string {
	if s.Type != "" {
		return article(s.Type)
	}
	names := make([]string, len(s.Types))
	for i, t := range s.Types {
		names[i] = article(t)
	}
	return strings.Join(names, " or ")
}

func article(name string) string {
	switch name {
	case "null":
		return name
	case "object", "array", "integer":
		return "an " + name
	}
	return "a " + name
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return article("boolean")
	case string:
		return article("string")
	case float64:
		if v == math.Trunc(v) {
			return article("integer")
		}
		return article("number")
	case []any:
		return article("array")
	}
	return article("object")
}

// reason is the innermost cause of a failed check.
func reason(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
