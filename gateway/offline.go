package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// The offline model is a small deterministic program, not a language model. It gives the same answer
// to the same request, needs no network and no key, and understands this much of the last message of
// the user; the first rule that fits is taken:
//
//  1. A call of a tool. VERB is use, run, call or execute, and a tool's name is one of those in the
//     request's tools:
//     VERB [the] [tool] NAME [tool] [on | with] WORDS, up to the end of the sentence: "run wc -l on
//     etc/data/rivers.csv", "use cat on notes.txt", "call jq '.x' data.json";
//     a command in backticks that begins with a tool's name, or with VERB before it:
//     "`jq -r .name data.json`".
//     WORDS are split as a shell splits them, with quotes and backslashes and without expansion.
//     One unquoted "on" is dropped; `with input "TEXT"` at the end is standard input. Several calls
//     in a prompt are made one after the other. A tool whose parameters have a list named args gets
//     the words there, and standard input as stdin; another gets NAME=VALUE words by name and the
//     others in the order of its required parameters. A tool that is asked for in a clear way (in
//     backticks after VERB, with the word "tool", with "on", a flag or a quote after it) and is not
//     among the request's tools is answered with the names of those that are.
//  2. "who are you", "what are you", "are you a …", "which model": it says what it is.
//  3. "count to N", N up to 10000: the numbers, one event each.
//  4. Anything else: up to three sentences of the contexts that share the most telling words with
//     the prompt, quoted with the name of their document, or that nothing was found. Contexts are
//     the system messages, where a Markdown heading or a tag with a name begins a document; earlier
//     messages of the user count as a document too.
//
// When the last message is a tool's result and no call is left to make, it quotes the results and
// tells the exit code if the result has one.
//
// A token is a word between blanks, for usage and for max_tokens alike; a stream has one event per
// token. Stop sequences, tool_choice and stream_options are obeyed. Temperature, top_p, penalties,
// seed and the like have nothing to act on. What it cannot give (several choices, log probabilities,
// structured or other output than text, messages with images) is refused.
const offlineSelf = "offline/otter: a small deterministic program, not a language model"

// chatRequest is the part of a Chat Completions request that the offline model reads.
type chatRequest struct {
	Messages []chatMessage `json:"messages"`
	Tools    []chatTool    `json:"tools"`
	// ToolChoice is "none", "auto", "required" or an object that names a function.
	ToolChoice     json.RawMessage `json:"tool_choice"`
	MaxTokens      *int            `json:"max_tokens"`
	MaxCompletion  *int            `json:"max_completion_tokens"`
	Stop           json.RawMessage `json:"stop"`
	N              *int            `json:"n"`
	Logprobs       bool            `json:"logprobs"`
	Modalities     []string        `json:"modalities"`
	ResponseFormat struct {
		Type string `json:"type"`
	} `json:"response_format"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type chatMessage struct {
	Role       string      `json:"role"`
	Content    chatContent `json:"content"`
	ToolCalls  []toolCall  `json:"tool_calls"`
	ToolCallID string      `json:"tool_call_id"`
}

// chatContent is text, given as a string or as parts of type text.
type chatContent string

// UnmarshalJSON takes both forms, and null for an assistant's message that is a tool call.
func (c *chatContent) UnmarshalJSON(text []byte) error {
	var s *string
	if json.Unmarshal(text, &s) == nil {
		if s != nil {
			*c = chatContent(*s)
		}
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(text, &parts); err != nil {
		return badRequest("content_invalid", "messages: content is neither text nor parts; send text")
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		if p.Type != "text" {
			return badRequest("content_unsupported", "messages: a part of type %s; the offline model reads text only", quoteShort(p.Type))
		}
		texts[i] = p.Text
	}
	*c = chatContent(strings.Join(texts, "\n"))
	return nil
}

type chatTool struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// reply is what the offline model says: text, or one call of a tool.
type reply struct {
	text   string
	call   *toolCall
	finish string
}

// answerOffline answers as a provider would. An error is one that the agent has not been told yet.
func (d *door) answerOffline(w http.ResponseWriter, r *http.Request, req request) error {
	var chat chatRequest
	if err := json.Unmarshal(req.body, &chat); err != nil {
		if f := (refusal{}); errors.As(err, &f) {
			return f
		}
		return badRequest("invalid_request", "body: not a chat completion request; see its fields and their types")
	}
	limit, err := chat.check()
	if err != nil {
		return err
	}
	said, err := chat.reply(req.body)
	if err != nil {
		return err
	}
	said.cut(chat.stops(), limit)
	out := newOfflineAnswer(&chat, said, req.body)
	if req.stream {
		out.stream(w, r, d.gateway.opts.IdleTimeout)
	} else {
		out.write(w)
	}
	return nil
}

// check refuses what cannot be given, and tells the limit of tokens, 0 for none.
func (c *chatRequest) check() (limit int, err error) {
	for _, l := range []*int{c.MaxTokens, c.MaxCompletion} {
		if l != nil && *l < 1 {
			return 0, badRequest("max_tokens_invalid", "max tokens: %d; ask for 1 or more", *l)
		}
		if l != nil && (limit == 0 || *l < limit) {
			limit = *l
		}
	}
	switch {
	case len(c.Messages) == 0:
		return 0, badRequest("messages_missing", "messages: none; send the conversation")
	case c.N != nil && *c.N != 1:
		return 0, badRequest("n_unsupported", "n: %d choices; the offline model has one answer, ask for 1", *c.N)
	case c.Logprobs:
		return 0, badRequest("logprobs_unsupported", "logprobs: the offline model has none; leave it out")
	case c.ResponseFormat.Type != "" && c.ResponseFormat.Type != "text":
		return 0, badRequest("response_format_unsupported", "response_format: %s; the offline model writes text only", quoteShort(c.ResponseFormat.Type))
	}
	for _, m := range c.Modalities {
		if m != "text" {
			return 0, badRequest("modality_unsupported", "modalities: %s; the offline model writes text only", quoteShort(m))
		}
	}
	if c.Stop != nil && c.stops() == nil && string(c.Stop) != "null" && string(c.Stop) != "[]" {
		return 0, badRequest("stop_invalid", "stop: neither text nor a list of texts; send one of them")
	}
	return limit, nil
}

func (c *chatRequest) stops() []string {
	var one string
	if json.Unmarshal(c.Stop, &one) == nil && one != "" {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(c.Stop, &many) != nil {
		return nil
	}
	return many
}

// reply finds the answer to the conversation. The body seeds the ids of calls.
func (c *chatRequest) reply(body []byte) (reply, error) {
	prompt, at := c.lastPrompt()
	choice, err := c.choice()
	if err != nil {
		return reply{}, err
	}
	done := c.callsSince(at)
	var results []string
	if choice != "none" {
		calls := findCalls(prompt, c.Tools)
		if len(done) < len(calls) {
			return c.makeCall(calls[len(done)], choice, len(done), body)
		}
	}
	if choice == "required" || strings.HasPrefix(choice, "=") {
		return reply{}, badRequest("tool_choice_unsupported", "tool_choice: the prompt asks for no tool that is left to call; ask for one as in \"run wc -l on notes.txt\"")
	}
	for _, call := range done {
		results = append(results, describeResult(call, c.Messages[at+1:]))
	}
	if len(results) > 0 {
		return reply{text: strings.Join(results, "\n\n"), finish: "stop"}, nil
	}
	return reply{text: c.talk(prompt, at), finish: "stop"}, nil
}

// lastPrompt is the user's last message and its place, -1 if there is none.
func (c *chatRequest) lastPrompt() (string, int) {
	for i := len(c.Messages) - 1; i >= 0; i-- {
		if c.Messages[i].Role == "user" {
			return string(c.Messages[i].Content), i
		}
	}
	return "", -1
}

// callsSince are the calls that were made for the prompt at place at.
func (c *chatRequest) callsSince(at int) []toolCall {
	var calls []toolCall
	for _, m := range c.Messages[at+1:] {
		calls = append(calls, m.ToolCalls...)
	}
	return calls
}

// choice is "none", "auto", "required", or "=NAME" for one function.
func (c *chatRequest) choice() (string, error) {
	if len(c.ToolChoice) == 0 || string(c.ToolChoice) == "null" {
		return "auto", nil
	}
	var word string
	if json.Unmarshal(c.ToolChoice, &word) == nil && (word == "none" || word == "auto" || word == "required") {
		return word, nil
	}
	var named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(c.ToolChoice, &named) == nil && named.Function.Name != "" {
		return "=" + named.Function.Name, nil
	}
	return "", badRequest("tool_choice_invalid", "tool_choice: neither none, auto, required nor a function; send one of them")
}

// makeCall answers with a call, or with why it cannot be made.
func (c *chatRequest) makeCall(asked askedCall, choice string, index int, body []byte) (reply, error) {
	if only, ok := strings.CutPrefix(choice, "="); ok && only != asked.name && only != strings.ReplaceAll(asked.name, ".", "_") {
		return reply{}, badRequest("tool_choice_unsupported", "tool_choice: it names %s, and the prompt asks for %s; name the same", quoteShort(only), quoteShort(asked.name))
	}
	tool, ok := findTool(c.Tools, asked.name)
	if !ok {
		return reply{text: noSuchTool(asked.name, c.Tools), finish: "stop"}, nil
	}
	args, why := tool.arguments(asked)
	if why != "" {
		return reply{text: fmt.Sprintf("I cannot call the tool %s: %s.", asked.name, why), finish: "stop"}, nil
	}
	call := &toolCall{ID: "call_" + fingerprint(body, index), Type: "function", Function: functionCall{tool.Function.Name, args}}
	return reply{call: call, finish: "tool_calls"}, nil
}

// cut obeys stop sequences and the limit of tokens.
func (r *reply) cut(stops []string, limit int) {
	for _, s := range stops {
		if i := strings.Index(r.text, s); s != "" && i >= 0 {
			r.text = r.text[:i]
		}
	}
	words := tokens(r.text)
	if limit > 0 && len(words) > limit {
		r.text, r.finish = strings.Join(words[:limit], ""), "length"
	}
}

// tokens splits text into words, each with the blanks after it; joined they are the text.
func tokens(text string) []string {
	var list []string
	start, blank := 0, true
	for i, r := range text {
		now := r == ' ' || r == '\n' || r == '\t' || r == '\r'
		if blank && !now && i > start && strings.TrimSpace(text[start:i]) != "" {
			list = append(list, text[start:i])
			start = i
		}
		blank = now
	}
	if start < len(text) {
		list = append(list, text[start:])
	}
	return list
}
