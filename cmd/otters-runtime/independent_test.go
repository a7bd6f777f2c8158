package main

// Invariant: a client that was written from the .proto alone gets from every call what the document
// says of it. Worst inputs: a call that fails; a stream; fields that the client leaves out.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/otters-sh/otters/internal/modelserver"
)

// stranger is a client made of a .proto file, without generated code.
type stranger struct {
	conn    *grpc.ClientConn
	service protoreflect.ServiceDescriptor
}

func newStranger(t *testing.T, addr string) *stranger {
	t.Helper()
	compiler := protocompile.Compiler{Resolver: &protocompile.SourceResolver{ImportPaths: []string{"../../proto"}}}
	files, err := compiler.Compile(t.Context(), "openotters/agent/v1/agent.proto")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &stranger{conn, files[0].Services().ByName("AgentRuntime")}
}

// call makes a call with a request in JSON and returns what came back: each message in JSON with the
// names of the .proto, and how it ended where that is not OK.
func (s *stranger) call(ctx context.Context, name, request string) (string, error) {
	m := s.service.Methods().ByName(protoreflect.Name(name))
	in := dynamicpb.NewMessage(m.Input())
	if err := protojson.Unmarshal([]byte(request), in); err != nil {
		return "", err
	}
	path := "/" + string(s.service.FullName()) + "/" + name
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer()}, path)
	if err == nil {
		err = stream.SendMsg(in)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	var all bytes.Buffer
	for err == nil {
		out := dynamicpb.NewMessage(m.Output())
		if err = stream.RecvMsg(out); err != nil {
			break
		}
		text, jerr := protojson.MarshalOptions{UseProtoNames: true}.Marshal(out)
		if jerr == nil {
			jerr = json.Compact(&all, text)
		}
		if jerr != nil {
			return "", jerr
		}
		if !m.IsStreamingServer() {
			break
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return status.Code(err).String() + ": " + status.Convert(err).Message(), nil
	}
	return all.String(), nil
}

func TestAClientThatKnowsOnlyTheProtoWorks(t *testing.T) {
	t.Parallel()
	model := serveModel(t, modelserver.Script(
		modelserver.Answer{Pieces: []string{"one"}},
		modelserver.Answer{Calls: []modelserver.Call{{ID: "c1", Name: "sh", Args: `{"args":["-c","echo hi"]}`}}, Reasoning: "hm"},
		modelserver.Answer{Pieces: []string{"two"}},
		modelserver.Answer{Pieces: []string{"three"}},
		modelserver.Answer{Pieces: []string{`{"n":1}`}},
		modelserver.Answer{Pieces: []string{"seen"}},
	))
	l, addr := listener(t)
	start(t, []string{"serve", "--root", tree(t)}, []string{"LISTEN_FDS=1", "TEST_API_BASE=" + model.URL}, l)
	c := newStranger(t, addr)
	called := map[string]bool{}
	for _, step := range []struct {
		method, request string
		want            []string
	}{
		{"Ready", `{}`, []string{`{"ready":true}`}},
		{"Health", `{}`, []string{`"status":"ok"`, `"agent_name":"guide"`, `"model":"test/m"`}},
		{"Chat", `{"session_id":"s","prompt":"first"}`, []string{`{"response":"one"}`}},
		{"ChatStream", `{"session_id":"s","prompt":"second"}`, []string{
			`{"type":"step.start","step":1}`, `{"type":"reasoning.delta","step":1,"content":"hm"}`,
			`{"type":"tool.call","step":1,"tool":"sh","content":"{\"args\":[\"-c\",\"echo hi\"]}","tool_id":"c1"}`,
			`{"type":"tool.result","step":1,"tool":"sh","content":"hi\nexit code 0","tool_id":"c1"`,
			`{"type":"step.finish","step":1,`, `{"type":"text.delta","step":2,"content":"two"}`, `{"type":"message.create","step":2,"content":"two"}`,
			`{"type":"turn.finish","step":2,`, `"usage":{"input_tokens":"`, `"reason":"done"}`}},
		{"ChatStream", `{"session_id":"s","regenerate":true}`, []string{`"content":"three"`, `"reason":"done"`}},
		{"ListSessions", `{}`, []string{`{"sessions":[{"id":"s","message_count":4,"last_active":"`}},
		{"ListSessionMessages", `{"session_id":"s","limit":2}`, []string{
			`{"messages":[{"role":"user","content":"second"`, `"role":"assistant","content":"[{\"kind\":\"text\",\"text\":\"three\"}]"`, `"branches_json":"[[{\"kind\":\"tool\"`, `"active_branch":1`}},
		{"PromptObject", `{"prompt":"count","schema_json":"eyJyZXF1aXJlZCI6WyJuIl19"}`, []string{`"object_json":"eyJuIjoxfQ=="`}},
		{"Chat", `{"session_id":"a","prompt":"see","attachments":[{"name":"a.txt","media_type":"text/plain","data":"aGk="}]}`, []string{`{"response":"seen"}`}},
		{"SaveNote", `{"key":"rivers","content":"Severn","max_count":5}`, []string{`"key":"rivers"`, `"content":"Severn"`}},
		{"SetNoteInContext", `{"key":"rivers","in_context":true}`, []string{`"in_context":true`}},
		{"ListNotes", `{"only_in_context":true}`, []string{`{"notes":[{"key":"rivers","preview":"Severn","in_context":true`}},
		{"GetNote", `{"key":"none"}`, []string{`NotFound: note none: there is none`}},
		{"GetNote", `{"key":"rivers"}`, []string{`"content":"Severn"`}},
		{"DeleteNote", `{"key":"rivers"}`, []string{`{"deleted":true}`}},
		{"Chat", `{}`, []string{`InvalidArgument: session_id: it is empty`}},
		{"DeleteSession", `{"session_id":"s"}`, []string{`{}`}},
		{"ListSessionMessages", `{"session_id":"s"}`, []string{`{}`}},
	} {
		called[step.method] = true
		got, err := c.call(t.Context(), step.method, step.request)
		if err != nil {
			t.Fatalf("%s: %v", step.method, err)
		}
		rest := got
		for _, want := range step.want {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s %s: %s\nhas no %s", step.method, step.request, got, want)
				break
			}
			rest = after
		}
	}
	for i := range c.service.Methods().Len() {
		if name := string(c.service.Methods().Get(i).Name()); !called[name] {
			t.Errorf("%s was not called", name)
		}
	}
}
