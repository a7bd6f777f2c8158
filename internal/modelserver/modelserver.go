// Package modelserver is a scripted model behind the real wire formats, for tests: OpenAI Chat
// Completions and Anthropic Messages over HTTP, streamed as server-sent events. Of requests of Chat
// Completions it checks nothing; those of Messages are held against the rules of that format.
package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"unicode/utf8"
)

// maxRequest bounds what the server reads of a request, in bytes.
const maxRequest = 64 << 20

// Request is what came in, in either format.
type Request struct {
	Path   string      `json:"-"`
	Header http.Header `json:"-"`
	Raw    []byte      `json:"-"`

	Model     string    `json:"model"`
	Messages  []Message `json:"messages"`
	Tools     []Tool    `json:"tools"`
	Stream    bool      `json:"stream"`
	MaxTokens int       `json:"max_tokens"`

	// Messages alone.
	System       []Block `json:"system"`
	OutputConfig struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	Thinking    map[string]any `json:"thinking"`
	Temperature *float64       `json:"temperature"`

	// Chat Completions alone.
	ResponseFormat struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
			Strict      bool            `json:"strict"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

// Message is a message of a request. Content is text where the request gave text, and empty where it
// gave parts; Blocks are those of Messages.
type Message struct {
	Role       string          `json:"role"`
	Content    string          `json:"-"`
	Blocks     []Block         `json:"-"`
	RawContent json.RawMessage `json:"content"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// Tool is a tool that a request offers: in Function, or for Messages beside it.
type Tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Cache       map[string]any  `json:"cache_control"`

	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// Last is the request's last message, the zero Message where there is none.
func (r Request) Last() Message {
	if len(r.Messages) == 0 {
		return Message{}
	}
	return r.Messages[len(r.Messages)-1]
}

// Call is a tool call of an answer; Args go out in pieces of a few bytes.
type Call struct{ ID, Name, Args string }

// Answer is what the server gives to one request.
type Answer struct {
	// Status other than 0 and 200 is an error, with Code and Text as its code and message. Messages
	// has Code as the error's type.
	Status int
	Code   string
	// RetryAfter is the header of that name, where not empty.
	RetryAfter string

	// Text goes out rune by rune unless Pieces are given.
	Text      string
	Pieces    []string
	Reasoning string
	Calls     []Call
	// Signature goes with Reasoning, and Redacted is reasoning that is not shown; Messages alone.
	Signature, Redacted string
	// Refusal is in place of text where the model declines; Chat Completions alone.
	Refusal string
	// Finish is the finish_reason or stop_reason; the one of a whole answer where empty.
	Finish string
	// InputTokens and OutputTokens are the usage; with neither 1 and the number of pieces. CachedTokens
	// and CacheWrites are parts of InputTokens.
	InputTokens, OutputTokens int
	CachedTokens, CacheWrites int

	// Hold keeps the stream open and silent after text and calls until it is closed or the caller
	// goes away.
	Hold <-chan struct{}
	// Cut ends the stream there, without finish and [DONE]; Abort ends the connection there.
	Cut, Abort bool
	// Raw is sent in place of everything else, as the body of a stream.
	Raw string
}

// Server is a running model server. Close it.
type Server struct {
	// URL is the API base of Chat Completions, ending in /v1, and Base that of Messages, without it.
	URL, Base string

	http   *httptest.Server
	answer func(Request) Answer

	mu       sync.Mutex
	requests []Request
	signed   map[string]string // signatures that were given out, and what they are of
	cut      int               // answers whose caller went away
	changed  chan struct{}
}

// Start serves answer on a free port of the loopback. answer is called from several goroutines.
func Start(answer func(Request) Answer) *Server {
	s := &Server{answer: answer, changed: make(chan struct{}), signed: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.completions)
	mux.HandleFunc("POST /v1/messages", s.messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", s.messages)
	s.http = httptest.NewServer(mux)
	s.Base, s.URL = s.http.URL, s.http.URL+"/v1"
	return s
}

// Script answers one after the other, and with status 500 once there are no more.
func Script(answers ...Answer) func(Request) Answer {
	var mu sync.Mutex
	return func(Request) Answer {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) == 0 {
			return Answer{Status: http.StatusInternalServerError, Text: "the script is over"}
		}
		a := answers[0]
		answers = answers[1:]
		return a
	}
}

// Close ends the server and waits for its requests.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Requests are those that came in so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Cancelled is how many callers went away before their answer was over, and a channel that is closed
// at the next change of that or of Requests.
func (s *Server) Cancelled() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut, s.changed
}

func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// read takes a request in.
func read(w http.ResponseWriter, r *http.Request) (Request, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	req := Request{Path: r.URL.Path, Header: r.Header, Raw: raw}
	if err == nil {
		err = json.Unmarshal(raw, &req)
	}
	return req, err
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	req, err := read(w, r)
	if err != nil {
		fail(w, Answer{Status: http.StatusBadRequest, Text: err.Error()})
		return
	}
	for i := range req.Messages {
		var text string
		if json.Unmarshal(req.Messages[i].RawContent, &text) == nil {
			req.Messages[i].Content = text
		}
	}
	s.change(func() { s.requests = append(s.requests, req) })
	a := s.answer(req)
	if a.Status != 0 && a.Status != http.StatusOK {
		fail(w, a)
		return
	}
	s.stream(w, r, req, a)
}

func fail(w http.ResponseWriter, a Answer) {
	errorHeader(w, a)
	body := map[string]any{"error": map[string]any{"message": a.Text, "type": "error", "param": nil, "code": a.Code}}
	_ = json.NewEncoder(w).Encode(body)
}

func errorHeader(w http.ResponseWriter, a Answer) {
	w.Header().Set("Content-Type", "application/json")
	if a.RetryAfter != "" {
		w.Header().Set("Retry-After", a.RetryAfter)
	}
	w.WriteHeader(a.Status)
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, req Request, a Answer) {
	out := &writer{w: w, flush: http.NewResponseController(w), model: req.Model}
	s.play(w, r, a, out)
}

// script writes an answer in a format.
type script interface {
	content(Answer)
	end(Answer)
}

func (s *Server) play(w http.ResponseWriter, r *http.Request, a Answer, out script) {
	w.Header().Set("Content-Type", "text/event-stream")
	if a.Raw != "" {
		_, _ = io.WriteString(w, a.Raw)
		return
	}
	out.content(a)
	if a.Hold != nil {
		select {
		case <-a.Hold:
		case <-r.Context().Done():
			s.change(func() { s.cut++ })
			return
		}
	}
	switch {
	case a.Abort:
		panic(http.ErrAbortHandler)
	case a.Cut:
		return
	}
	out.end(a)
}

// writer writes chunks, each flushed.
type writer struct {
	w      io.Writer
	flush  *http.ResponseController
	model  string
	pieces int
}

func (o *writer) chunk(choices []any, usage any) {
	data, err := json.Marshal(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": o.model,
		"choices": choices, "usage": usage,
	})
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(o.w, "data: %s\n\n", data)
	_ = o.flush.Flush()
}

func (o *writer) delta(delta map[string]any) {
	o.pieces++
	o.chunk([]any{map[string]any{"index": 0, "delta": delta, "finish_reason": nil}}, nil)
}

func (o *writer) content(a Answer) {
	o.delta(map[string]any{"role": "assistant", "content": ""})
	if a.Reasoning != "" {
		o.delta(map[string]any{"reasoning_content": a.Reasoning})
	}
	for _, p := range a.pieces() {
		o.delta(map[string]any{"content": p})
	}
	if a.Refusal != "" {
		o.delta(map[string]any{"refusal": a.Refusal})
	}
	for i, c := range a.Calls {
		o.call(i, c)
	}
}

func (o *writer) call(index int, c Call) {
	piece := func(f map[string]any) {
		f["index"] = index
		o.delta(map[string]any{"tool_calls": []any{f}})
	}
	piece(map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": ""}})
	for _, s := range c.pieces() {
		piece(map[string]any{"function": map[string]any{"arguments": s}})
	}
}

// pieces are those of the text.
func (a Answer) pieces() []string {
	pieces := a.Pieces
	if pieces == nil {
		for s := a.Text; s != ""; {
			_, n := utf8.DecodeRuneInString(s)
			pieces, s = append(pieces, s[:n]), s[n:]
		}
	}
	return pieces
}

// pieces are those of the arguments.
func (c Call) pieces() (pieces []string) {
	for s := c.Args; s != ""; {
		n := min(7, len(s))
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return pieces
}

func (o *writer) end(a Answer) {
	finish := a.Finish
	if finish == "" {
		finish = "stop"
		if len(a.Calls) > 0 {
			finish = "tool_calls"
		}
	}
	if a.InputTokens == 0 && a.OutputTokens == 0 {
		a.InputTokens, a.OutputTokens = 1, o.pieces
	}
	o.chunk([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": finish}}, nil)
	o.chunk([]any{}, map[string]any{
		"prompt_tokens": a.InputTokens, "completion_tokens": a.OutputTokens, "total_tokens": a.InputTokens + a.OutputTokens,
		"prompt_tokens_details": map[string]any{"cached_tokens": a.CachedTokens},
	})
	_, _ = io.WriteString(o.w, "data: [DONE]\n\n")
}
