package anthropic_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/anthropic"
)

// Invariant: an object is asked for in the provider's own mode, and in words where that is refused.
// Worst inputs: a model without the mode, an answer that does not fit, a refusal.
func TestAnObjectIsAskedForInTheProvidersMode(t *testing.T) {
	t.Parallel()
	ask := loop.ObjectPrompt{Prompt: "which?", Format: loop.ObjectFormat{
		Name: "river", Description: "a river", Schema: json.RawMessage(`{"type":"object","properties":{"km":{"type":"integer"}},"required":["km"],"additionalProperties":false}`),
	}}
	s := serve(t, modelserver.Script(modelserver.Answer{Text: `{"km":"far"}`}, modelserver.Answer{Text: `{"km":354}`}))
	out, err := loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base})}).Object(context.Background(), ask)
	if err != nil || string(out.JSON) != `{"km":354}` || out.Tries != 2 {
		t.Fatalf("object %+v, error %v", out, err)
	}
	for i, r := range s.Requests() {
		var schema struct {
			Title, Description   string
			Required             []string
			AdditionalProperties *bool
		}
		if err := json.Unmarshal(r.OutputConfig.Format.Schema, &schema); err != nil || r.OutputConfig.Format.Type != "json_schema" ||
			schema.Title != "river" || schema.Description != "a river" || len(schema.Required) != 1 || schema.AdditionalProperties == nil {
			t.Errorf("request %d: %s", i, r.Raw)
		}
	}

	s = serve(t, modelserver.Script(modelserver.Answer{Status: 400, Code: "invalid_request_error", Text: "output_config.format: not supported by this model"}, modelserver.Answer{Text: `{"km":354}`}))
	out, err = loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base})}).Object(context.Background(), ask)
	if all := s.Requests(); err != nil || string(out.JSON) != `{"km":354}` || len(all) != 2 || all[1].OutputConfig.Format.Schema != nil {
		t.Errorf("object %+v, error %v, %d requests", out, err, len(all))
	}

	s = serve(t, modelserver.Script(modelserver.Answer{Text: "I", Finish: "refusal"}))
	if _, err := loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base})}).Object(context.Background(), ask); !errors.Is(err, loop.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

func TestImagesAreSentAsTheyAre(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "an otter"}, modelserver.Answer{Text: "brown"}))
	l := loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base})})
	out, err := l.Run(context.Background(), loop.Turn{Prompt: "what is it?", Attachments: []loop.Part{loop.Image("a.png", "image/png", []byte("\x89PNG")), loop.TextFile("b.txt", "text/plain", "hint")}})
	if err != nil || out.Text != "an otter" {
		t.Fatalf("outcome %+v, error %v", out, err)
	}
	if _, err := l.Run(context.Background(), loop.Turn{History: out.Messages, Prompt: "which colour?"}); err != nil {
		t.Fatal(err)
	}
	for i, r := range s.Requests() {
		b := r.Messages[0].Blocks
		if types(b) != "text image text" || b[1].Source.MediaType != "image/png" || string(b[1].Source.Data) != "\x89PNG" {
			t.Errorf("request %d: %s", i, r.Raw)
		}
	}
}
