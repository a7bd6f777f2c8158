package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/otters-sh/otters/gateway"
)

// Invariant: the offline model says only what its request holds, calls only tools that it was given,
// and gives the same bytes to the same request. The worst three: a tool that is not there, quotes
// that never close, a count without end.

const (
	binTool  = `{"type":"function","function":{"name":%q,"parameters":{"type":"object","properties":{"args":{"type":"array","items":{"type":"string"}},"stdin":{"type":"string"}}}}}`
	noteTool = `{"type":"function","function":{"name":"note","parameters":{"type":"object","properties":{"key":{"type":"string"},"size":{"type":"integer"}},"required":["key","size"]}}}`
)

const guide = `<document name="AGENT">
# Agent guide

You are the agent guide. You know rivers.
</document>

<document name="RIVERS">
# Rivers of Scotland

- The Tay is 188 km long and ends at Dundee.
- The Spey is 172 km long. Its water makes whisky.

## Fish

Salmon swim up the Dee in autumn.
</document>`

// ask makes a request for the offline model.
func ask(t *testing.T, more string, messages ...map[string]any) string {
	t.Helper()
	tools := []json.RawMessage{json.RawMessage(noteTool)}
	for _, name := range []string{"cat", "wc", "jq", "my_ls"} {
		tools = append(tools, json.RawMessage(fmt.Sprintf(binTool, name)))
	}
	body := map[string]any{"model": "otter", "messages": messages, "tools": tools}
	if more != "" {
		if err := json.Unmarshal([]byte(more), &body); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func user(text string) map[string]any { return map[string]any{"role": "user", "content": text} }

type said struct {
	Choices []struct {
		Message struct {
			Content   *string
			ToolCalls []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
}

func (a *agent) talk(body string) said {
	a.t.Helper()
	res, text := a.chat(body)
	var s said
	if err := json.Unmarshal([]byte(text), &s); err != nil || res.StatusCode != 200 || len(s.Choices) != 1 {
		a.t.Fatalf("%d %s %v", res.StatusCode, text, err)
	}
	return s
}

func (s said) text() string {
	if s.Choices[0].Message.Content == nil {
		return ""
	}
	return *s.Choices[0].Message.Content
}

func TestOfflineCallsTheToolThatIsAskedFor(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	for _, tc := range []struct{ prompt, tool, args string }{
		{"use cat on notes.txt", "cat", `{"args":["notes.txt"]}`},
		{"Please use the cat tool on the file notes.txt.", "cat", `{"args":["notes.txt"]}`},
		{"Use the tool cat on notes.txt and tell me what it says", "cat", `{"args":["notes.txt"]}`},
		{"use `cat` on `notes.txt`, please", "cat", `{"args":["notes.txt"]}`},
		{"run wc -l on etc/data/rivers.csv", "wc", `{"args":["-l","etc/data/rivers.csv"]}`},
		{"Could you run wc -l on etc/data/rivers.csv?", "wc", `{"args":["-l","etc/data/rivers.csv"]}`},
		{"call jq '.x | length' file.json", "jq", `{"args":[".x | length","file.json"]}`},
		{"call jq with '.x' on file.json", "jq", `{"args":[".x","file.json"]}`},
		{"What does `jq -r .name data.json` say?", "jq", `{"args":["-r",".name","data.json"]}`},
		{"run `jq \".a and .b\" x`", "jq", `{"args":[".a and .b","x"]}`},
		{"run wc -w with input \"one two three\"", "wc", `{"args":["-w"],"stdin":"one two three"}`},
		{"`wc -c -m` with input 'abc'", "wc", `{"args":["-c","-m"],"stdin":"abc"}`},
		{"run my.ls .", "my_ls", `{"args":["."]}`},
		{"execute cat a\\ b ..", "cat", `{"args":["a b",".."]}`},
		{"use cat.", "cat", `{"args":[]}`},
		{"run cat on 'never closed", "cat", `{"args":["'never","closed"]}`},
		{"use note on size=7 key=tay", "note", `{"key":"tay","size":7}`},
		{"use note on tay 7", "note", `{"key":"tay","size":7}`},
	} {
		s := a.talk(ask(t, "", user(tc.prompt)))
		calls := s.Choices[0].Message.ToolCalls
		if len(calls) != 1 || calls[0].Function.Name != tc.tool || calls[0].Function.Arguments != tc.args || s.Choices[0].FinishReason != "tool_calls" || calls[0].ID == "" {
			t.Errorf("%s: %+v %s", tc.prompt, calls, s.text())
		}
	}
}

func TestOfflineCallsNothingElse(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	for _, tc := range []struct{ prompt, want string }{
		{"use curl on https://evil.test", "no tool named curl. The tools that I have: note, cat, wc, jq, my_ls"},
		{"run `rm -rf /`", "no tool named rm"},
		{"use the tool shell", "no tool named shell"},
		{"call sed 's/a/b/' x", "no tool named sed"},
		{"run cat2 on x", "no tool named cat2"},
		{"use note on tay", "its parameter size is missing"},
		{"use note on tay seven", "not what its parameter size takes"},
		{"use note on tay 7 8", "no parameter for"},
		{"use note on tay 7 with input \"x\"", "no standard input"},
		{"don't use cat on notes.txt", "found nothing"},
		{"use your imagination", "found nothing"},
		{"how do people use cats", "found nothing"},
		{"a `fancy phrase` here", "found nothing"},
		{"run", "found nothing"},
		{"", "found nothing"},
	} {
		s := a.talk(ask(t, "", user(tc.prompt)))
		if len(s.Choices[0].Message.ToolCalls) != 0 || !strings.Contains(s.text(), tc.want) || s.Choices[0].FinishReason != "stop" {
			t.Errorf("%q: %+v %s", tc.prompt, s.Choices[0].Message.ToolCalls, s.text())
		}
	}
	// Without tools, or told to call none, it calls none.
	for _, more := range []string{`{"tools":[]}`, `{"tool_choice":"none"}`} {
		if s := a.talk(ask(t, more, user("use cat on notes.txt"))); len(s.Choices[0].Message.ToolCalls) != 0 {
			t.Errorf("%s: %+v", more, s)
		}
	}
}

func TestOfflineMakesOneCallAfterAnotherAndReportsThem(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	messages := []map[string]any{
		{"role": "system", "content": guide}, user("use cat on old.txt"),
		{"role": "assistant", "content": "done"},
		user("run wc -l on a.csv, then `jq .x b.json`. Then use cat on c.txt"),
	}
	for i, want := range []string{`wc {"args":["-l","a.csv"]}`, `jq {"args":[".x","b.json"]}`, `cat {"args":["c.txt"]}`} {
		s := a.talk(ask(t, "", messages...))
		calls := s.Choices[0].Message.ToolCalls
		if len(calls) != 1 || calls[0].Function.Name+" "+calls[0].Function.Arguments != want {
			t.Fatalf("step %d: %+v %s", i, calls, s.text())
		}
		results := []string{"5 a.csv\nexit code 0", "standard error:\njq: no x\nexit code 2", "exit code 0"}
		messages = append(messages,
			map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
				"id": calls[0].ID, "type": "function", "function": map[string]any{"name": calls[0].Function.Name, "arguments": calls[0].Function.Arguments},
			}}},
			map[string]any{"role": "tool", "tool_call_id": calls[0].ID, "content": results[i]})
	}
	s := a.talk(ask(t, "", messages...))
	want := "The tool wc answered, ended with exit code 0:\n\n> 5 a.csv\n\n" +
		"The tool jq answered, ended with exit code 2:\n\n> standard error:\n> jq: no x\n\n" +
		"The tool cat wrote nothing and ended with exit code 0."
	if s.text() != want {
		t.Errorf("got\n%s\nwant\n%s", s.text(), want)
	}
	messages[len(messages)-1]["content"] = strings.Repeat("é", 3000)
	if s := a.talk(ask(t, "", messages...)); !strings.Contains(s.text(), "the first 4000 of 6000 bytes") {
		t.Errorf("got %.300s", s.text())
	}
}

func TestOfflineAnswersFromItsContexts(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	for _, tc := range []struct{ prompt, want string }{
		{"How long is the Tay?", "RIVERS says: “The Tay is 188 km long and ends at Dundee.”"},
		{"Where does whisky get its water?", "RIVERS says: “Its water makes whisky.”"},
		{"Which fish are in the Dee?", "RIVERS says: “Salmon swim up the Dee in autumn.”"},
		{"What is my favourite colour?", "What you told me says: “My favourite colour is green.”"},
		{"Who are you?", "a small deterministic program, not a language model"},
		{"Which model is this?", "a small deterministic program, not a language model"},
		{"Tell me about quantum gravity", "I found nothing about that"},
		{"count to 5", "1 2 3 4 5"},
		{"count to 10001", "I count to 10000 at most"},
		{"count to 99999999999999999999", "I count to 10000 at most"},
		{"count to 0", "from 1"},
	} {
		s := a.talk(ask(t, "", map[string]any{"role": "system", "content": guide}, user("My favourite colour is green."), map[string]any{"role": "assistant", "content": "noted"}, user(tc.prompt)))
		if !strings.HasPrefix(s.text(), tc.want) && !strings.Contains(s.text(), tc.want) {
			t.Errorf("%s: %s", tc.prompt, s.text())
		}
	}
	if _, text := a.do(a.request(context.Background(), "/models", "")); !strings.Contains(text, "not a language model") {
		t.Errorf("models: %s", text)
	}
}

func TestOfflineStreamsWordByWordTheSameBytes(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	body := ask(t, `{"stream":true,"stream_options":{"include_usage":true}}`, user("count to 2000"))
	_, first := a.chat(body)
	_, second := a.chat(body)
	if first != second {
		t.Error("the same request gave two answers")
	}
	if n := strings.Count(first, `"delta":{"content":"`); n != 2000 {
		t.Errorf("%d events, want 2000", n)
	}
	if !strings.Contains(first, `"completion_tokens":2000`) || !strings.HasSuffix(first, "data: [DONE]\n\n") {
		t.Errorf("ends with %s", first[len(first)-300:])
	}
	if s := a.talk(ask(t, "", user("count to 10000"))); s.Usage.Completion != 10000 {
		t.Errorf("counted to %d", s.Usage.Completion)
	}
	s := a.talk(ask(t, `{"max_tokens":3}`, user("count to 5")))
	if s.text() != "1 2 3 " || s.Choices[0].FinishReason != "length" || s.Usage.Completion != 3 || s.Usage.Prompt != 3 || s.Usage.Total != 6 {
		t.Errorf("max_tokens: %+v %q", s, s.text())
	}
	if s := a.talk(ask(t, `{"stop":[" 4"]}`, user("count to 5"))); s.text() != "1 2 3" || s.Choices[0].FinishReason != "stop" {
		t.Errorf("stop: %q", s.text())
	}
}

func TestOfflineRefusesWhatItCannotGive(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	for more, want := range map[string]string{
		`{"n":1,"temperature":0.3,"seed":1,"tool_choice":"auto","response_format":{"type":"text"},"modalities":["text"],"stop":null}`: "",
		`{"n":2}`:              "n_unsupported",
		`{"logprobs":true}`:    "logprobs_unsupported",
		`{"max_tokens":0}`:     "max_tokens_invalid",
		`{"stop":7}`:           "stop_invalid",
		`{"messages":[]}`:      "messages_missing",
		`{"messages":"hello"}`: "invalid_request",
		`{"messages":[{"role":"user","content":7}]}`:                                      "content_invalid",
		`{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`:                 "content_unsupported",
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`:          "",
		`{"response_format":{"type":"json_object"}}`:                                      "response_format_unsupported",
		`{"modalities":["audio"]}`:                                                        "modality_unsupported",
		`{"tool_choice":"required"}`:                                                      "tool_choice_unsupported",
		`{"tool_choice":"always"}`:                                                        "tool_choice_invalid",
		`{"tool_choice":{"type":"function","function":{"name":"cat"}}}`:                   "tool_choice_unsupported",
		`{"messages":[{"role":"user","content":"use wc on x"}],"tool_choice":"required"}`: "",
	} {
		res, text := a.chat(ask(t, more, user("hello")))
		if want == "" && res.StatusCode != 200 || want != "" && (res.StatusCode != 400 || code(text) != want) {
			t.Errorf("%s: %d %s, want %q", more, res.StatusCode, text, want)
		}
	}
}

// The client that the runtime uses understands the answers.
func TestTheClientLibraryReadsOfflineStreams(t *testing.T) {
	t.Parallel()
	a := newWorld(t, "", gateway.Options{}).agent("offline/otter")
	c := openai.NewClient(option.WithBaseURL(a.base), option.WithAPIKey(a.token), option.WithMaxRetries(0), option.WithHTTPClient(a.client))
	var params openai.ChatCompletionNewParams
	if err := json.Unmarshal([]byte(ask(t, "", user("run wc -l on a.csv"))), &params); err != nil {
		t.Fatal(err)
	}
	stream := c.Chat.Completions.NewStreaming(context.Background(), params)
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if calls := acc.Choices[0].Message.ToolCalls; len(calls) != 1 || calls[0].Function.Arguments != `{"args":["-l","a.csv"]}` {
		t.Errorf("got %+v", acc.Choices[0])
	}
}

func FuzzOfflinePrompt(f *testing.F) {
	for _, s := range []string{"use cat on x", "`a b` 'c", "run wc \\", "use `cat", "call jq '", "with input \"", "# x\n<a name=\"b\">\n- "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, prompt string) {
		w := newWorld(t, "", gateway.Options{})
		a := w.agent("offline/otter")
		s := a.talk(ask(t, "", map[string]any{"role": "system", "content": prompt}, user(prompt)))
		for _, c := range s.Choices[0].Message.ToolCalls {
			if !json.Valid([]byte(c.Function.Arguments)) {
				t.Errorf("arguments %s", c.Function.Arguments)
			}
		}
	})
}
