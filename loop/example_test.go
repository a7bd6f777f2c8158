package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/otters-sh/otters/loop"
)

// counting asks for the tool once and then tells what it said. A real model is loop/openai's.
type counting struct{}

func (counting) Stream(_ context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		answer := loop.Delta{Kind: loop.DeltaCall, ID: "1", Name: "count", Text: `{"text":"sea otters hold hands"}`}
		if last := req.Messages[len(req.Messages)-1]; last.Role == loop.RoleTool {
			answer = loop.Delta{Kind: loop.DeltaText, Text: "It has " + last.Parts[0].Text + " words."}
		}
		_ = yield(answer, nil) && yield(loop.Delta{Kind: loop.DeltaFinish}, nil)
	}
}

// words is a tool that counts words.
type words struct{}

func (words) Spec() loop.ToolSpec {
	return loop.ToolSpec{
		Name:        "count",
		Description: "counts the words of a text",
		Parameters:  json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`),
	}
}

func (words) Call(_ context.Context, call loop.Call) (string, error) {
	var in struct{ Text string }
	if err := json.Unmarshal(call.Args, &in); err != nil {
		return "", err
	}
	return fmt.Sprint(len(strings.Fields(in.Text))), nil
}

func Example() {
	out, err := loop.New(loop.Config{Model: counting{}, Tools: []loop.Tool{words{}}}).Run(context.Background(), loop.Turn{
		Prompt: "How many words has “sea otters hold hands”?",
		Observe: func(e loop.Event) {
			if e.Type == loop.ToolCall {
				fmt.Println("calls", e.Tool, e.Content)
			}
		},
	})
	fmt.Println(out.Text, out.Reason, err)
	// Output:
	// calls count {"text":"sea otters hold hands"}
	// It has 4 words. done <nil>
}

// mistaken gives an object without a field at first, and corrects itself.
type mistaken struct{}

func (mistaken) Stream(_ context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		answer := `{"name":"Severn"}`
		if len(req.Messages) > 1 {
			answer = `{"name":"Severn","km":354}`
		}
		_ = yield(loop.Delta{Kind: loop.DeltaText, Text: answer}, nil) && yield(loop.Delta{Kind: loop.DeltaFinish}, nil)
	}
}

func ExampleLoop_Object() {
	out, err := loop.New(loop.Config{Model: mistaken{}}).Object(context.Background(), loop.ObjectPrompt{
		Prompt: "Which river is the longest?",
		Format: loop.ObjectFormat{Name: "river", Schema: json.RawMessage(`{
			"type": "object",
			"properties": {"name": {"type": "string"}, "km": {"type": "integer", "minimum": 1}},
			"required": ["name", "km"],
			"additionalProperties": false
		}`)},
	})
	fmt.Println(string(out.JSON), out.Tries, err)
	// Output: {"km":354,"name":"Severn"} 2 <nil>
}

func ExampleLoop_Object_error() {
	_, err := loop.New(loop.Config{Model: mistaken{}, ObjectTries: 1}).Object(context.Background(), loop.ObjectPrompt{
		Prompt: "Which river is the longest?",
		Format: loop.ObjectFormat{Schema: json.RawMessage(`{"required": ["km"]}`)},
	})
	var failed *loop.ObjectError
	if errors.As(err, &failed) {
		fmt.Println(failed.Problems[0].Pointer, failed.Problems[0].Message)
	}
	// Output: /km it is missing
}

// asking approves of nothing.
type asking struct{}

func (asking) Approve(_ context.Context, call loop.Call) error {
	return fmt.Errorf("nobody allowed %s", call.Name)
}

func ExampleApprover() {
	_, err := loop.New(loop.Config{Model: counting{}, Tools: []loop.Tool{words{}}, Approver: asking{}}).Run(context.Background(), loop.Turn{
		Prompt: "How many words has “sea otters hold hands”?",
		Observe: func(e loop.Event) {
			if e.Type == loop.ApprovalResult || e.Type == loop.ToolResult {
				fmt.Println(e.Type, e.Content)
			}
		},
	})
	fmt.Println(err)
	// Output:
	// approval.result nobody allowed count
	// tool.result not run: nobody allowed count
	// <nil>
}
