// Package proto_test checks the generated code against the sources and against the wire facts that
// other programs rely on.
package proto_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/descriptorpb"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// sources returns every .proto file below this folder.
func sources(t *testing.T) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".proto" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Invariant: the generated Go packages describe exactly what the .proto files say. Comments don't
// count, they are no part of the wire.
func TestGeneratedCodeIsNotStale(t *testing.T) {
	t.Parallel()
	files := sources(t)
	want := []string{agentv1.File_openotters_agent_v1_agent_proto.Path(), daemonv1.File_otters_daemon_v1_conversations_proto.Path(), daemonv1.File_otters_daemon_v1_daemon_proto.Path(), daemonv1.File_otters_daemon_v1_images_proto.Path(), daemonv1.File_otters_daemon_v1_registry_proto.Path()}
	slices.Sort(want)
	if diff := cmp.Diff(want, files); diff != "" {
		t.Fatalf("files beside those that this test links (-linked +found):\n%s", diff)
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{})}
	compiled, err := compiler.Compile(t.Context(), files...)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range compiled {
		registered, err := protoregistry.GlobalFiles.FindFileByPath(file.Path())
		if err != nil {
			t.Fatal(err)
		}
		source, generated := plain(t, protoutil.ProtoFromFileDescriptor(file)), plain(t, protodesc.ToFileDescriptorProto(registered))
		if diff := cmp.Diff(source, generated, protocmp.Transform()); diff != "" {
			t.Errorf("%s: the generated code is stale, run make generate (-source +generated):\n%s", file.Path(), diff)
		}
	}
}

// plain is the message as the wire has it, without the positions in the source.
func plain(t *testing.T, m proto.Message) *descriptorpb.FileDescriptorProto {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	out.SourceCodeInfo = nil
	return &out
}

// agentMessages are the wire facts of the runtime contract: name, number and type of every field.
// They never change; a field may be added.
var agentMessages = map[string]string{
	"ChatRequest":                 "session_id 1 string, prompt 2 string, attachments 10 repeated Attachment",
	"ChatResponse":                "response 1 string",
	"ChatStreamRequest":           "session_id 1 string, prompt 2 string, regenerate 3 bool, attachments 10 repeated Attachment",
	"ChatStreamEvent":             "type 1 string, step 2 int32, tool 3 string, content 4 string, tool_id 5 string, duration_ms 6 int64, usage 10 Usage, reason 11 string",
	"Attachment":                  "name 1 string, media_type 2 string, data 3 bytes",
	"Usage":                       "input_tokens 1 int64, output_tokens 2 int64, cached_tokens 3 int64, reasoning_tokens 4 int64",
	"PromptObjectRequest":         "prompt 1 string, schema_json 2 bytes, schema_name 3 string, schema_desc 4 string",
	"PromptObjectResponse":        "object_json 1 bytes, raw_text 2 string",
	"ListSessionsRequest":         "",
	"ListSessionsResponse":        "sessions 1 repeated Session",
	"Session":                     "id 1 string, message_count 2 int32, last_active 3 int64",
	"DeleteSessionRequest":        "session_id 1 string",
	"DeleteSessionResponse":       "",
	"ListSessionMessagesRequest":  "session_id 1 string, limit 2 int32",
	"ListSessionMessagesResponse": "messages 1 repeated SessionMessage",
	"SessionMessage":              "role 1 string, content 2 string, created_at 3 int64, branches_json 4 string, active_branch 5 int32",
	"ListNotesRequest":            "only_in_context 1 bool",
	"ListNotesResponse":           "notes 1 repeated Note",
	"Note":                        "key 1 string, content 2 string, preview 3 string, in_context 4 bool, created_at 5 int64, updated_at 6 int64",
	"GetNoteRequest":              "key 1 string",
	"GetNoteResponse":             "note 1 Note",
	"SaveNoteRequest":             "key 1 string, content 2 string, max_bytes 3 int32, max_count 4 int32",
	"SaveNoteResponse":            "note 1 Note, overwrote 2 bool",
	"DeleteNoteRequest":           "key 1 string",
	"DeleteNoteResponse":          "deleted 1 bool",
	"SetNoteInContextRequest":     "key 1 string, in_context 2 bool",
	"SetNoteInContextResponse":    "note 1 Note",
	"HealthRequest":               "",
	"HealthResponse":              "status 1 string, agent_name 2 string, model 3 string, warnings 10 repeated string",
	"ReadyRequest":                "",
	"ReadyResponse":               "ready 1 bool",
}

// agentCalls are the calls of the runtime contract; all but ChatStream are unary.
const agentCalls = "Chat ChatStream PromptObject ListSessions DeleteSession ListSessionMessages " +
	"ListNotes GetNote SaveNote DeleteNote SetNoteInContext Health Ready"

func TestTheRuntimeContractKeepsItsWireNumbers(t *testing.T) {
	t.Parallel()
	file := agentv1.File_openotters_agent_v1_agent_proto
	if file.Package() != "openotters.agent.v1" {
		t.Errorf("package %s", file.Package())
	}
	got := map[string]string{}
	for m := range all(file.Messages()) {
		var fields []string
		for f := range all(m.Fields()) {
			fields = append(fields, fieldText(f))
		}
		got[string(m.Name())] = strings.Join(fields, ", ")
	}
	if diff := cmp.Diff(agentMessages, got); diff != "" {
		t.Errorf("messages (-contract +generated):\n%s", diff)
	}
	service := file.Services().ByName("AgentRuntime")
	if service == nil || file.Services().Len() != 1 {
		t.Fatal("the contract is one service, AgentRuntime")
	}
	var calls []string
	for m := range all(service.Methods()) {
		calls = append(calls, string(m.Name()))
		if m.IsStreamingClient() || m.IsStreamingServer() != (m.Name() == "ChatStream") {
			t.Errorf("%s streams: client %v, server %v", m.Name(), m.IsStreamingClient(), m.IsStreamingServer())
		}
		if in, out := m.Input().Name(), m.Output().Name(); in != m.Name()+"Request" || out != m.Name()+"Response" && out != "ChatStreamEvent" {
			t.Errorf("%s takes %s and returns %s", m.Name(), in, out)
		}
	}
	if diff := cmp.Diff(strings.Fields(agentCalls), calls); diff != "" {
		t.Errorf("calls (-contract +generated):\n%s", diff)
	}
}

func fieldText(f protoreflect.FieldDescriptor) string {
	kind := f.Kind().String()
	if f.Message() != nil {
		kind = string(f.Message().Name())
	}
	if f.IsList() {
		kind = "repeated " + kind
	}
	return string(f.Name()) + " " + strconv.Itoa(int(f.Number())) + " " + kind
}

// all ranges over a list of descriptors.
func all[T any](list interface {
	Len() int
	Get(int) T
}) func(func(T) bool) {
	return func(yield func(T) bool) {
		for i := range list.Len() {
			if !yield(list.Get(i)) {
				return
			}
		}
	}
}
