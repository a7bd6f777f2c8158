package agentruntime_test

// Invariant: what PromptObject returns fits the schema, else its status says what to do and names the
// field; it leaves nothing in any session. Worst inputs: a server that knows no schemas; a model that
// never gives what is asked for; a stop in the middle.

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

const countSchema = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`

func TestPromptObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []modelserver.Answer
		code    codes.Code
		want    string // of the object or of the error
	}{
		"right at once": {[]modelserver.Answer{{Text: "{ \"n\": 1 }"}}, codes.OK, `{"n":1}`},
		"wrong then ok": {[]modelserver.Answer{{Text: `{"n":"one"}`}, {Text: `{"n":1}`}}, codes.OK, `{"n":1}`},
		"never right":   {[]modelserver.Answer{{Text: `{"m":1}`}, {Text: `no`}, {Text: `{"n":[]}`}, {Text: `{"n":null}`}}, codes.Aborted, "no answer of 4 fits the schema; of the last one /n: it is null; want an integer"},
		"mode refused":  {[]modelserver.Answer{{Status: 400, Code: "response_format_unsupported", Text: "text only"}, {Text: `{"n":1}`}}, codes.OK, `{"n":1}`},
		"both refused":  {[]modelserver.Answer{{Status: 422, Text: "no"}, {Status: 422, Text: "never"}}, codes.FailedPrecondition, "422 never"},
		"stream cut":    {[]modelserver.Answer{{Text: `{"n":1}`, Cut: true}}, codes.Unavailable, "ended before it was complete"},
		"server broken": {[]modelserver.Answer{{Status: 503, Text: "down"}}, codes.Unavailable, "503 down"},
		"rate limited":  {[]modelserver.Answer{{Status: 429, Text: "slow"}}, codes.ResourceExhausted, "429 slow"},
		"model refuses": {[]modelserver.Answer{{Refusal: "I will not."}}, codes.FailedPrecondition, "the model refuses: I will not."},
		"answer is cut": {[]modelserver.Answer{{Text: `{"n":`, Finish: "length"}}, codes.ResourceExhausted, "max_tokens: the answer was cut at 77 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "configs: {object-tries: \"4\", max-tokens: \"77\"}\n", modelserver.Script(c.answers...))
			client := a.serve()
			res, err := client.PromptObject(runContext(), &agentv1.PromptObjectRequest{
				Prompt: "how many?", SchemaJson: []byte(countSchema), SchemaName: "count", SchemaDesc: "a number",
			})
			got := string(res.GetObjectJson())
			if err != nil {
				got = err.Error()
			}
			if status.Code(err) != c.code || !strings.Contains(got, c.want) {
				t.Errorf("%s, error %v", got, err)
			}
			if last := c.answers[len(c.answers)-1]; err == nil && res.GetRawText() != last.Text {
				t.Errorf("raw text %q", res.GetRawText())
			}
			reqs := a.model.Requests()
			if len(reqs) != len(c.answers) {
				t.Errorf("the model was asked %d times", len(reqs))
			}
			for _, r := range reqs {
				if r.Header.Get("Otters-Run") != "run-7" || len(r.Tools) != 0 || !strings.Contains(r.Messages[0].Content, "You are guide.") {
					t.Errorf("request %s", r.Raw)
				}
			}
			list, err := client.ListSessions(context.Background(), &agentv1.ListSessionsRequest{})
			if err != nil || len(list.GetSessions()) != 0 {
				t.Errorf("sessions %v, error %v", list, err)
			}
		})
	}
}

func TestPromptObjectTakesNoBadSchema(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say(`{"n":1}`))
	c := a.serve()
	for schema, want := range map[string]string{
		`{`:                                "schema_json: it is no JSON object: ",
		`{"$ref":"https://example.com/x"}`: "nothing is fetched",
		strings.Repeat(`{"not":`, 99) + "{}" + strings.Repeat("}", 99): "schema_json: it nests deeper than 64 levels",
		`{"title":"` + strings.Repeat("x", 300<<10) + `"}`:             "over the limit of 262144",
		`{"type":"array","items":{"type":"integer"}}`:                  "does not allow an object",
	} {
		_, err := c.PromptObject(context.Background(), &agentv1.PromptObjectRequest{Prompt: "x", SchemaJson: []byte(schema)})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if n := len(a.model.Requests()); n != 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestAStopEndsAPromptForAnObject(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	a := newAgent(t, "", func(modelserver.Request) modelserver.Answer {
		close(asked)
		return modelserver.Answer{Text: "{", Hold: make(chan struct{})}
	})
	c := a.serve()
	done := make(chan error, 1)
	go func() {
		_, err := c.PromptObject(context.Background(), &agentv1.PromptObjectRequest{Prompt: "x", SchemaJson: []byte(countSchema)})
		done <- err
	}()
	<-asked
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "interrupted: the runtime is stopping") {
		t.Errorf("error %v", err)
	}
}
