// Package modelserver is a scripted model behind the real wire format, for tests: OpenAI Chat
// Completions over HTTP, streamed as server-sent events. It checks nothing but what a test asks of it.
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

// Request is what came in.
type Request struct {
	Header http.Header `json:"-"`
	Raw    []byte      `json:"-"`

	Model     string    `json:"model"`
	Messages  []Message `json:"messages"`
	Tools     []Tool    `json:"tools"`
	Stream    bool      `json:"stream"`
	MaxTokens int       `json:"max_tokens"`
}

// Message is a message of a request. Content is text where the request gave text, and empty where it
// gave parts.
type Message struct {
	Role       string          `json:"role"`
	Content    string          `json:"-"`
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

// Tool is a tool that a request offers.
type Tool struct {
	Type     string `json:"type"`
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
	// Status other than 0 and 200 is an error, with Code and Text as its code and message.
	Status int
	Code   string

	// Text goes out rune by rune unless Pieces are given.
	Text      string
	Pieces    []string
	Reasoning string
	Calls     []Call
	// Finish is the finish_reason; stop or tool_calls where empty.
	Finish string
	// InputTokens and OutputTokens are the usage; with neither 1 and the number of pieces.
	InputTokens, OutputTokens int

	// Hold keeps the stream open and silent after text and calls until it is closed or the caller
	// goes away.
	Hold <-chan struct{}
	// Cut ends the stream there, without finish and [DONE].
	Cut bool
	// Raw is sent in place of everything else, as the body of a stream.
	Raw string
}

// Server is a running model server. Close it.
type Server struct {
	// URL is the API base, ending in /v1.
	URL string

	http   *httptest.Server
	answer func(Request) Answer

	mu       sync.Mutex
	requests []Request
	cut      int // answers whose caller went away
	changed  chan struct{}
}

// Start serves answer on a free port of the loopback. answer is called from several goroutines.
func Start(answer func(Request) Answer) *Server {
	s := &Server{answer: answer, changed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.completions)
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL + "/v1"
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

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	req := Request{Header: r.Header, Raw: raw}
	if err == nil {
		err = json.Unmarshal(raw, &req)
	}
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
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.Status)
	body := map[string]any{"error": map[string]any{"message": a.Text, "type": "error", "param": nil, "code": a.Code}}
	_ = json.NewEncoder(w).Encode(body)
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, req Request, a Answer) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := &writer{w: w, flush: http.NewResponseController(w), model: req.Model}
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
	if a.Cut {
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
	pieces := a.Pieces
	if pieces == nil {
		for s := a.Text; s != ""; {
			_, n := utf8.DecodeRuneInString(s)
			pieces, s = append(pieces, s[:n]), s[n:]
		}
	}
	for _, p := range pieces {
		o.delta(map[string]any{"content": p})
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
	for s := c.Args; s != ""; {
		n := min(7, len(s))
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		piece(map[string]any{"function": map[string]any{"arguments": s[:n]}})
		s = s[n:]
	}
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
	})
	_, _ = io.WriteString(o.w, "data: [DONE]\n\n")
}
