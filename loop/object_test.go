package loop_test

// Invariant: an object that is returned fits its schema and is what was checked; otherwise the error
// names the field; a schema is refused before a model is asked, and no schema or answer takes more
// than bounded time. Worst inputs: a schema that refers to itself for ever, or of a few lines that
// means a million checks; numbers of a million digits; an answer that never fits.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"

	"github.com/otters-sh/otters/loop"
)

// formatting is a script whose provider knows schemas.
type formatting struct{ *script }

func (formatting) TakesObjects() bool { return true }

const riverSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":1},"km":{"type":"integer","minimum":1},
	"towns":{"type":"array","items":{"$ref":"#/$defs/town"}}},"required":["name","km"],"additionalProperties":false,
	"$defs":{"town":{"type":"object","properties":{"name":{"type":"string"},"a/b":{"enum":["x","y"]}},"required":["name"]}}}`

func object(m loop.Model, schema string) (loop.Object, error) {
	return loop.New(loop.Config{Model: m, System: "be kind"}).Object(context.Background(), loop.ObjectPrompt{
		Prompt: "which river?", Metadata: map[string]string{"otters-run": "r1"},
		Format: loop.ObjectFormat{Name: "river", Description: "the longest", Schema: json.RawMessage(schema)},
	})
}

func TestAnObjectRightAtOnce(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"alone":      `{"km":354,"name":"Severn <&>"}`,
		"blanks":     "\n { \"name\": \"Severn <&>\",\n \"km\": 354.0e0 }\n",
		"code block": "```json\n{\"name\":\"Severn <&>\",\"km\":354}\n```",
		"sentences":  `Here it is: {"name":"Severn <&>","km":354} – glad to help.`,
		"twice":      `{"name":"Thames","km":354,"name":"Severn <&>"}`,
	} {
		for _, mode := range []bool{true, false} {
			s := &script{answers: []answerFunc{say(answer)}}
			var m loop.Model = s
			if mode {
				m = formatting{s}
			}
			out, err := object(m, riverSchema)
			want := `{"km":354,"name":"Severn <&>"}`
			if name == "blanks" {
				want = `{"km":354.0e0,"name":"Severn <&>"}`
			}
			if err != nil || string(out.JSON) != want || out.Tries != 1 || out.Text != answer || out.Usage.OutputTokens != 2 {
				t.Errorf("%s: %+v, error %v", name, out, err)
			}
			req := s.requests[0]
			told := strings.Contains(req.System, riverSchema) && strings.Contains(req.System, "the longest")
			if (req.Object != nil) != mode || told == mode || !strings.HasPrefix(req.System, "be kind") || req.Metadata["otters-run"] != "r1" {
				t.Errorf("%s: mode %t, request %+v", name, mode, req)
			}
		}
	}
}

func TestAWrongObjectIsCorrected(t *testing.T) {
	t.Parallel()
	s := &script{answers: []answerFunc{say(`{"km":"long"}`), say(`{"name":"Severn","km":354}`)}}
	out, err := object(s, riverSchema)
	if err != nil || out.Tries != 2 || out.Usage.InputTokens != 6 || string(out.JSON) != `{"km":354,"name":"Severn"}` {
		t.Fatalf("%+v, error %v", out, err)
	}
	second := s.requests[1].Messages
	if len(second) != 3 || second[1].Text() != `{"km":"long"}` || !strings.Contains(second[2].Text(), "- /name: it is missing\n- /km: it is a string; want an integer\n") {
		t.Errorf("the model was told %+v", second)
	}
}

func TestTheErrorNamesTheField(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, c := range []struct{ schema, answer, want string }{
		{riverSchema, `{"km":1}`, "/name: it is missing"},
		{riverSchema, `{"name":"x","km":0}`, "/km: minimum: "},
		{riverSchema, `{"name":"x","km":1.5}`, "/km: it is a number; want an integer"},
		{riverSchema, `{"name":"","km":1}`, "/name: minLength: "},
		{riverSchema, `{"name":"x","km":1,"depth":3}`, "/depth: it is not allowed"},
		{riverSchema, `{"name":"x","km":1,"towns":[{"name":"a"},{}]}`, "/towns/1/name: it is missing"},
		{riverSchema, `{"name":"x","km":1,"towns":[{"name":"a","a/b":"z"}]}`, "/towns/0/a~1b: enum: "},
		{riverSchema, `{"name":null,"km":1}`, "/name: it is null; want a string"},
		{riverSchema, `{"name":"x","km":1e999}`, "/km: the number 1e999 is too large"},
		{riverSchema, `{"name":"x","km":` + strings.Repeat("9", 400) + `}`, "/km: the number 999"},
		{riverSchema, `{"name":"x"`, "the object: the JSON ends before it is complete"},
		{riverSchema, `[1]`, "the object: it is JSON, but no object"},
		{riverSchema, ``, "the object: the answer is empty"},
		{riverSchema, `{"name":"x","km":1} {"name":"y","km":1}`, "the object: there is more than one JSON object"},
		{riverSchema, `{"name":` + deep + `}`, "the object: it nests deeper than 64 levels"},
		{riverSchema, `I cannot.`, "the object: it is no JSON object: "},
		{`{"properties":{"a":{"type":["string","null"]}}}`, `{"a":[]}`, "/a: it is an array; want a string or null"},
		{`{"properties":{"a":{"anyOf":[{"type":"string"},{"minimum":5}]}}}`, `{"a":3}`, "/a: anyOf: "},
		{`{"allOf":[{"properties":{"a":{"const":1}}}]}`, `{"a":2}`, "/a: const: "},
		{`{"properties":{"a":{"$ref":"#"}},"required":["b"]}`, `{"b":1,"a":{"b":1,"a":{}}}`, "/a/a/b: it is missing"},
		{`{"properties":{"a b%":{"$ref":"#/$defs/c%20d"}},"$defs":{"c d":{"type":"string"}}}`, `{"a b%":1}`, "/a b%: it is an integer"},
		{`{"$schema":"https://json-schema.org/draft-07/schema","definitions":{"s":{"type":"string"}},"properties":{"l":{"items":[{"$ref":"#/definitions/s"}]}}}`,
			`{"l":[1]}`, "/l/0: it is an integer; want a string"},
		{`{"$id":"https://example.com/x","properties":{"a":{"$ref":"#n"}},"$defs":{"n":{"$anchor":"n","type":"number"}}}`, `{"a":"x"}`, "/a: it is a string; want a number"},
		{`{"dependentSchemas":{"a":{"required":["b"]}}}`, `{"a":1}`, "the object: required: "},
	} {
		_, err := object(&script{answers: []answerFunc{say(c.answer)}}, c.schema)
		var failed *loop.ObjectError
		if !errors.As(err, &failed) || failed.Tries != 3 || !strings.HasPrefix(failed.Problems[0].String(), c.want) {
			t.Errorf("%s with %s: error %v, want %s", c.answer, c.schema, err, c.want)
			continue
		}
		for _, p := range failed.Problems {
			if len(p.Message) > 250 || strings.Contains(p.Message, "\n") {
				t.Errorf("message %q", p.Message)
			}
		}
		if !strings.HasPrefix(err.Error(), "no answer of 3 fits the schema; of the last one "+c.want) {
			t.Errorf("error %v", err)
		}
	}
}

func TestABadSchemaIsRefusedBeforeTheModelIsAsked(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat(`{"items":`, 70) + "{}" + strings.Repeat("}", 70)
	for name, c := range map[string]struct{ schema, want string }{
		"none":           {"", "there is none"},
		"no JSON":        {"{", "it is no JSON object"},
		"no object":      {"[]", "it is no JSON object"},
		"false":          {"false", "it is no JSON object"},
		"odd type":       {`{"type":7}`, "it cannot be read"},
		"unknown type":   {`{"properties":{"a":{"type":"strin"}}}`, `/properties/a/type is "strin"; want null, boolean`},
		"no objects":     {`{"type":"array"}`, "does not allow an object"},
		"no objects two": {`{"type":["array","null"]}`, "does not allow an object"},
		"too big":        {`{"description":"` + strings.Repeat("x", 256<<10) + `"}`, "over the limit of 262144"},
		"too deep":       {nested, "nests deeper than 64 levels"},
		"remote":         {`{"properties":{"a":{"$ref":"https://example.com/s.json"}}}`, `/properties/a/$ref is "https://example.com/s.json", and nothing is fetched`},
		"file":           {`{"$ref":"file:///etc/passwd"}`, "nothing is fetched"},
		"relative":       {`{"$id":"https://example.com/a","$ref":"b.json"}`, "nothing is fetched"},
		"nowhere":        {`{"$ref":"#/$defs/x"}`, `"#/$defs/x", and nothing is there`},
		"loop":           {`{"$ref":"#"}`, "leads back to itself"},
		"long loop":      {`{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"not":{"$ref":"#/$defs/a"}}}}`, "leads back to itself"},
		"dynamic":        {`{"$dynamicRef":"#x"}`, "dynamic reference"},
		"own id":         {`{"properties":{"a":{"$id":"x"}}}`, "/properties/a has an $id"},
		"bad pattern":    {`{"properties":{"a":{"pattern":"("}}}`, "missing closing"},
		"null":           {`{"allOf":[null]}`, "/allOf/0 is null"},
		"no draft":       {`{"$schema":"draft"}`, "is not known"},
		"other draft":    {`{"$schema":"http://json-schema.org/draft-04/schema#"}`, "is not known"},
	} {
		s := &script{answers: []answerFunc{say("{}")}}
		_, err := object(s, c.schema)
		if !errors.Is(err, loop.ErrSchema) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
		if len(s.requests) > 0 {
			t.Errorf("%s: the model was asked", name)
		}
	}
	if out, err := object(&script{answers: []answerFunc{say(`{"a":{"a":{}}}`)}}, `{"properties":{"a":{"$ref":"#"}}}`); err != nil {
		t.Errorf("a schema that refers to itself below: %+v, error %v", out, err)
	}
}

func TestACheckIsBounded(t *testing.T) {
	t.Parallel()
	var wide strings.Builder // thirty references to twice the next: a thousand million checks
	for i := range 30 {
		fmt.Fprintf(&wide, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	for name, c := range map[string]struct{ schema, answer string }{
		"wide": {`{"$ref":"#/$defs/d0","$defs":{` + wide.String() + `"d30":{}}}`, `{}`},
		"deep": {`{"anyOf":[{"properties":{"x":{"$ref":"#"}}},{"properties":{"x":{"$ref":"#"}}}]}`, strings.Repeat(`{"x":`, 60) + "{}" + strings.Repeat("}", 60)},
	} {
		_, err := object(&script{answers: []answerFunc{say(c.answer)}}, c.schema)
		if err == nil || !strings.Contains(err.Error(), "takes more than 1048576 steps") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestWhatEndsAPromptForAnObject(t *testing.T) {
	t.Parallel()
	refused := &loop.CallError{Status: http.StatusBadRequest, Code: "response_format_unsupported", Message: "no such format"}
	half := deltas(text(`{"na`))
	long := deltas(text(`{"na`), finish(loop.FinishLength))
	for name, c := range map[string]struct {
		answers []answerFunc
		asked   int
		check   func(error) bool
	}{
		"mode refused": {[]answerFunc{failing(refused), say(`{"name":"x","km":1}`)}, 2, func(err error) bool { return err == nil }},
		"all refused":  {[]answerFunc{failing(refused)}, 2, func(err error) bool { return errors.Is(err, refused) }},
		"rate limited": {[]answerFunc{failing(&loop.CallError{Status: 429, Message: "slow down"})}, 1, func(err error) bool { return err.Error() == "slow down" }},
		"cut stream":   {[]answerFunc{half}, 1, func(err error) bool { return strings.Contains(err.Error(), "ended before it was complete") }},
		"too long": {[]answerFunc{long}, 1, func(err error) bool {
			var end *loop.EndError
			return errors.As(err, &end) && end.Reason == loop.MaxTokens && strings.Contains(err.Error(), "cut at 4096 tokens")
		}},
		"refusal": {[]answerFunc{deltas(text("I will not."), finish(loop.FinishRefused))}, 1, func(err error) bool {
			return errors.Is(err, loop.ErrRefused) && strings.Contains(err.Error(), "I will not.")
		}},
		"withheld": {[]answerFunc{deltas(finish(loop.FinishFiltered))}, 1, func(err error) bool { return errors.Is(err, loop.ErrRefused) }},
	} {
		s := &script{answers: c.answers}
		_, err := object(formatting{s}, riverSchema)
		if len(s.requests) != c.asked || !c.check(err) {
			t.Errorf("%s: %d requests, error %v", name, len(s.requests), err)
		}
	}

	s := &script{answers: []answerFunc{deltas(text("{}"), loop.Delta{Kind: loop.DeltaUsage, Usage: loop.Usage{InputTokens: 60}}, finish(loop.FinishStop))}}
	out, err := loop.New(loop.Config{Model: s, MaxTurnTokens: 100, ObjectTries: 9}).Object(context.Background(), loop.ObjectPrompt{Format: loop.ObjectFormat{Schema: json.RawMessage(riverSchema)}})
	var end *loop.EndError
	if !errors.As(err, &end) || end.Reason != loop.MaxTokens || len(s.requests) != 2 || out.Usage.InputTokens != 120 || !strings.Contains(err.Error(), "/name") {
		t.Errorf("%d requests, outcome %+v, error %v", len(s.requests), out, err)
	}
	if _, err := loop.New(loop.Config{}).Object(context.Background(), loop.ObjectPrompt{}); !errors.Is(err, loop.ErrNoModel) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := loop.New(loop.Config{Model: blocking{}}).Object(ctx, loop.ObjectPrompt{Format: loop.ObjectFormat{Schema: json.RawMessage(riverSchema)}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// blocking is a model that says nothing until its context ends.
type blocking struct{}

func (blocking) Stream(ctx context.Context, _ loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		<-ctx.Done()
		yield(loop.Delta{}, ctx.Err())
	}
}

func TestARefusalInATurnIsItsAnswer(t *testing.T) {
	t.Parallel()
	var j journal
	m := &script{answers: []answerFunc{deltas(text("I will not."), finish(loop.FinishRefused))}}
	out, err := take(t, context.Background(), loop.Config{Model: m}, &j)
	if err != nil || out.Reason != loop.Done || out.Text != "I will not." || out.Messages[1].Incomplete {
		t.Errorf("outcome %+v, error %v", out, err)
	}
}

// No schema and no answer breaks the check, and what passes it is JSON.
func FuzzObject(f *testing.F) {
	f.Add(riverSchema, `{"name":"x","km":1,"towns":[{"name":"a"}]}`)
	f.Add(`{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"n":{"$ref":"#"}}}}}`, `{"n":{"n":1}}`)
	f.Add(`{"patternProperties":{"^a":{"uniqueItems":true,"contains":{"const":1}}},"propertyNames":{"maxLength":2}}`, "```{\"a\":[1,1e5]}```")
	f.Add(`{"if":{"required":["a"]},"then":{"not":{}},"else":{"oneOf":[true,false]}}`, `{"b":null}`)
	f.Fuzz(func(t *testing.T, schema, answer string) {
		out, err := object(&script{answers: []answerFunc{say(answer)}}, schema)
		if err == nil && (!json.Valid(out.JSON) || out.JSON[0] != '{') {
			t.Errorf("returned %q", out.JSON)
		}
	})
}
