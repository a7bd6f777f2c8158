package daemon

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: sessions are the same to a client whether their agent runs or not, and move whole or not at
// all; the daemon opens no database of an agent, and what reads one there gets no key and no token. Worst
// inputs: another runtime; a runtime that says what it likes; a start in the middle of an export.

func (d *testDaemon) talk() daemonv1.ConversationServiceClient {
	return daemonv1.NewConversationServiceClient(testConn(d.t, d.socket))
}

func (d *testDaemon) halt(agent string) {
	d.t.Helper()
	if _, err := d.api.StopAgent(d.t.Context(), &daemonv1.StopAgentRequest{Agent: agent}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *testDaemon) begin(agent string) {
	d.t.Helper()
	if _, err := d.api.StartAgent(d.t.Context(), &daemonv1.StartAgentRequest{Agent: agent}); err != nil {
		d.t.Fatal(err)
	}
	d.await(agent, "ready")
}

// sessions is what a client sees of an agent's sessions: all of them, and all messages of each.
func (d *testDaemon) sessions(agent string) string {
	d.t.Helper()
	c := d.talk()
	list, err := c.ListSessions(d.t.Context(), &daemonv1.ListSessionsRequest{Agent: agent})
	if err != nil {
		d.t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range list.GetSessions() {
		fmt.Fprintf(&b, "%s %d %d\n", s.GetId(), s.GetMessages(), s.GetLastActive())
		messages, err := d.show(agent, s.GetId(), 0)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, m := range messages {
			fmt.Fprintf(&b, "  %s %d %s %s %d\n", m.GetRole(), m.GetCreatedAt(), m.GetContent(), m.GetBranchesJson(), m.GetActiveBranch())
		}
	}
	return b.String()
}

func (d *testDaemon) show(agent, session string, limit int32) ([]*daemonv1.ShowSessionResponse, error) {
	d.t.Helper()
	stream, err := d.talk().ShowSession(d.t.Context(), &daemonv1.ShowSessionRequest{Agent: agent, SessionId: session, Limit: limit})
	if err != nil {
		return nil, err
	}
	var out []*daemonv1.ShowSessionResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

func (d *testDaemon) export(req *daemonv1.ExportSessionsRequest) (string, error) {
	d.t.Helper()
	stream, err := d.talk().ExportSessions(d.t.Context(), req)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
		b.Write(m.GetData())
	}
}

func (d *testDaemon) importAll(agent, text string, replace bool) (*daemonv1.ImportSessionsResponse, error) {
	d.t.Helper()
	stream, err := d.talk().ImportSessions(d.t.Context())
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&daemonv1.ImportSessionsRequest{Part: &daemonv1.ImportSessionsRequest_Options{Options: &daemonv1.ImportSessionsOptions{Agent: agent, Replace: replace}}})
	for len(text) > 0 {
		n := min(len(text), 100_000)
		if stream.Send(&daemonv1.ImportSessionsRequest{Part: &daemonv1.ImportSessionsRequest_Data{Data: []byte(text[:n])}}) != nil {
			break // the cause comes with the answer
		}
		text = text[n:]
	}
	return stream.CloseAndRecv()
}

func TestSessionsAreTheSameOfARunningAndAStoppedAgent(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"", "limited", "off"} {
		t.Run("sandbox "+level, func(t *testing.T) {
			t.Parallel()
			d := boot(t, newHome(t))
			d.image("guide", guide)
			for _, name := range []string{"one", "two"} {
				d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: name, Sandbox: level})
				d.await(name, "ready")
			}
			d.ask("one", "-first", "which river is the longest?")
			d.ask("one", "-first", "say `wc lines.txt`")
			d.ask("one", "other", "who are you <&>?")
			c := d.talk()
			if _, err := c.SetNote(t.Context(), &daemonv1.SetNoteRequest{Agent: "one", Key: "k", Content: "v"}); err != nil {
				t.Fatal(err)
			}
			online := d.sessions("one")
			if strings.Count(online, "\n") != 8 {
				t.Errorf("sessions\n%s", online)
			}
			_, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "one"})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "it runs") {
				t.Errorf("export of a running agent: %v", err)
			}
			if _, err := d.importAll("two", "", false); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("import into a running agent: %v", err)
			}
			d.halt("one")
			d.halt("two")
			if offline := d.sessions("one"); offline != online {
				t.Errorf("stopped:\n%s\nrunning:\n%s", offline, online)
			}
			if got, err := d.show("one", "-first", 3); err != nil || len(got) != 3 {
				t.Errorf("%v, %v", got, err)
			}

			text, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "one", Notes: true})
			if err != nil {
				t.Fatal(err)
			}
			counts, err := d.importAll("two", text, false)
			if err != nil || counts.GetSessions() != 2 || counts.GetTurns() != 3 || counts.GetNotes() != 1 {
				t.Errorf("%v, %v", counts, err)
			}
			if _, err := d.importAll("two", text, false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "there is one already") {
				t.Errorf("twice: %v", err)
			}
			if _, err := d.importAll("two", text, true); err != nil {
				t.Errorf("twice, replacing: %v", err)
			}
			if _, err := d.importAll("two", strings.Replace(text, "turn", "churn", 1), true); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "line 3: bad input") {
				t.Errorf("of something else: %v", err)
			}
			for what, err := range map[string]error{
				"show": second(d.show("one", "none", 0)), "export": second(d.export(&daemonv1.ExportSessionsRequest{Agent: "one", SessionIds: []string{"none"}})),
				"remove": second(c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "one", SessionId: "none"})),
			} {
				if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "session none: there is no such session") {
					t.Errorf("%s of a session that is not there: %v", what, err)
				}
			}
			if _, err := c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "one", SessionId: "-first"}); err != nil {
				t.Error(err)
			}
			d.begin("one")
			d.begin("two")
			if moved := d.sessions("two"); moved != online {
				t.Errorf("moved:\n%s\nwas:\n%s", moved, online)
			}
			if rest := d.sessions("one"); strings.Contains(rest, "-first") || !strings.HasPrefix(rest, "other 2 ") {
				t.Errorf("after one was removed\n%s", rest)
			}
			if n, err := c.GetNote(t.Context(), &daemonv1.GetNoteRequest{Agent: "two", Key: "k"}); err != nil || n.GetNote().GetContent() != "v" {
				t.Errorf("%v, %v", n, err)
			}
			for what, err := range map[string]error{
				"show":   second(d.show("one", "-first", 0)),
				"remove": second(c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "one", SessionId: "-first"})),
			} {
				if status.Code(err) != codes.NotFound {
					t.Errorf("%s of a session that is not there, while it runs: %v", what, err)
				}
			}
			if _, err := c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "one", SessionId: "other"}); err != nil || d.sessions("one") != "" {
				t.Errorf("removed while it runs: %v", err)
			}
			if got := d.ask("two", "-first", "go on"); got.reason != "done" {
				t.Errorf("%+v", got)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestBadRequestsAboutSessionsAreRefused(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide"})
	d.await("guide", "ready")
	c := d.talk()
	ctx := t.Context()
	long := strings.Repeat("x", 257)
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for range 2 { // running, then stopped
		for what, x := range map[string]struct {
			err  error
			want codes.Code
		}{
			"no agent":     {second(c.ListSessions(ctx, &daemonv1.ListSessionsRequest{Agent: "none"})), codes.NotFound},
			"empty id":     {second(d.show("guide", "", 0)), codes.InvalidArgument},
			"long id":      {second(d.show("guide", long, 0)), codes.InvalidArgument},
			"limit":        {second(d.show("guide", "s", 1001)), codes.InvalidArgument},
			"negative":     {second(d.show("guide", "s", -1)), codes.InvalidArgument},
			"remove":       {second(c.RemoveSession(ctx, &daemonv1.RemoveSessionRequest{Agent: "guide", SessionId: long})), codes.InvalidArgument},
			"agent's note": {second(c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "none", Key: "k"})), codes.NotFound},
		} {
			if status.Code(x.err) != x.want {
				t.Errorf("%s: %v, want %s", what, x.err, x.want)
			}
		}
		d.halt("guide")
	}
	if _, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "guide", SessionIds: many}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("many: %v", err)
	}
	if _, err := d.show("guide", "a b", 0); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an id with a blank: %v", err)
	}
	stream, err := c.ImportSessions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("import of nothing: %v", err)
	}
	if got, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "guide"}); err != nil || strings.Count(got, "\n") != 2 {
		t.Errorf("export of an agent that was never prompted: %q, %v", got, err)
	}
}

func TestNotesOfARunningAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Configs: map[string]string{"notes-max-bytes-per": "10", "notes-max-count": "2"}})
	d.await("guide", "ready")
	c := d.talk()
	ctx := t.Context()
	set := func(key, content string) (*daemonv1.SetNoteResponse, error) {
		return c.SetNote(ctx, &daemonv1.SetNoteRequest{Agent: "guide", Key: key, Content: content})
	}
	for _, key := range []string{"river", "b"} {
		if r, err := set(key, "Severn"); err != nil || r.GetOverwrote() || r.GetNote().GetContent() != "Severn" {
			t.Errorf("%v, %v", r, err)
		}
	}
	if r, err := set("river", "Thames"); err != nil || !r.GetOverwrote() {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "river"}); err != nil || !r.GetNote().GetPinned() {
		t.Errorf("%v, %v", r, err)
	}
	list := func(pinned bool) string {
		r, err := c.ListNotes(ctx, &daemonv1.ListNotesRequest{Agent: "guide", OnlyPinned: pinned})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, n := range r.GetNotes() {
			out = append(out, n.GetKey()+"="+n.GetPreview()+n.GetContent())
		}
		return strings.Join(out, " ")
	}
	if all, pinned := list(false), list(true); all != "b=Severn river=Thames" || pinned != "river=Thames" {
		t.Errorf("%s; pinned %s", all, pinned)
	}
	if r, err := c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "river", Unpin: true}); err != nil || r.GetNote().GetPinned() {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "river"}); err != nil || r.GetNote().GetContent() != "Thames" {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := c.RemoveNote(ctx, &daemonv1.RemoveNoteRequest{Agent: "guide", Key: "b"}); err != nil {
		t.Error(err)
	}
	for what, x := range map[string]struct {
		err  error
		want codes.Code
	}{
		"get":      {second(c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"remove":   {second(c.RemoveNote(ctx, &daemonv1.RemoveNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"pin":      {second(c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"bad key":  {second(set("B", "x")), codes.InvalidArgument},
		"over":     {second(set("river", "eleven byte")), codes.FailedPrecondition},
		"far over": {second(set("river", strings.Repeat("x", maxNoteBytes+1))), codes.InvalidArgument},
	} {
		if status.Code(x.err) != x.want {
			t.Errorf("%s: %v, want %s", what, x.err, x.want)
		}
	}
	if got := list(false); got != "river=Thames" {
		t.Errorf("left is %s", got)
	}
	d.halt("guide")
	if _, err := c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "river"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is stopped") {
		t.Errorf("of a stopped agent: %v", err)
	}
}

func TestATurnThatWasKilledIsExportedAsItWas(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	defer close(hold)
	d := boot(t, scripted(t, newHome(t), hold))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	stream, err := d.api.Prompt(t.Context(), &daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	for said := ""; said != "hello"; {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetType() == "text.delta" {
			said += ev.GetContent()
		}
	}
	if _, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	text, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "guide", SessionIds: []string{"s"}})
	if err != nil || !strings.Contains(text, `"reason":"interrupted"`) || !strings.Contains(text, `"text":"hi"`) || !strings.Contains(text, `"turns":1,"messages":1,`) {
		t.Errorf("%s, %v", text, err)
	}
}

// otherRuntime is a runtime that was made from the contract alone.
func otherRuntime(t *testing.T) string {
	t.Helper()
	path := filepath.Join(programsForTest(t), "scripted")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, "../executor/executortest/scripted")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestSessionsOfAnotherRuntimeAreReachedWhileItRuns(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: otherRuntime(t)})
	d.await("guide", "ready")
	d.ask("guide", "s", "say hello")
	if got := d.sessions("guide"); !strings.HasPrefix(got, "s ") {
		t.Errorf("while it runs:\n%s", got)
	}
	d.halt("guide")
	c := d.talk()
	for what, err := range map[string]error{
		"list":   second(c.ListSessions(t.Context(), &daemonv1.ListSessionsRequest{Agent: "guide"})),
		"show":   second(d.show("guide", "s", 0)),
		"remove": second(c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "guide", SessionId: "s"})),
		"export": second(d.export(&daemonv1.ExportSessionsRequest{Agent: "guide"})),
		"import": second(d.importAll("guide", "", false)),
	} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "does not have the label io.openotters.runtime.sessions=offline") {
			t.Errorf("%s of a stopped agent: %v", what, err)
		}
	}
}

// odd is a runtime that says of its sessions what it likes.
const odd = `package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	if len(os.Args) < 3 || os.Args[1] != "session" {
		time.Sleep(time.Hour)
	}
	switch os.Args[2] {
	case "ls":
		for {
			os.Stdout.WriteString("{\"id\":\"s\",\"messages\":1}\n")
		}
	case "show":
		for x := bytes.Repeat([]byte("x"), 1<<16); ; {
			os.Stdout.Write(x)
		}
	case "rm":
		os.Stderr.WriteString("first\notters-runtime: odd\n")
		os.Exit(4)
	case "import":
		fmt.Println("{\"sessions\":\"x\"}")
	case "export":
		fmt.Println("args", os.Args[1:])
		fmt.Println("variables", os.Environ())
		for fd := 3; fd < 100; fd++ {
			if f := os.NewFile(uintptr(fd), "x"); f != nil {
				if i, err := f.Stat(); err == nil && i.Mode()&(os.ModeSocket|os.ModeNamedPipe) != 0 {
					fmt.Println("descriptor", fd, i.Mode())
				}
			}
		}
		for _, addr := range []string{"127.0.0.1:5528", "REGISTRY"} {
			if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
				fmt.Println("connected", c.RemoteAddr())
			}
		}
	}
}
`

// oddRuntime builds an image of that runtime, which says that it works on sessions.
func (d *testDaemon) oddRuntime(name string) {
	d.t.Helper()
	dir := d.t.TempDir()
	source := strings.Replace(odd, "REGISTRY", d.Registry(), 1)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.CommandContext(d.t.Context(), "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "odd"), filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		d.t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "odd"))
	if err != nil {
		d.t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "0", Mode: 0o755, Size: int64(len(program))}); err != nil {
		d.t.Fatal(err)
	}
	if _, err := w.Write(program); err != nil {
		d.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		d.t.Fatal(err)
	}
	stream, err := daemonv1.NewImageServiceClient(testConn(d.t, d.socket)).BuildBin(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	err = stream.Send(&daemonv1.BuildBinRequest{Part: &daemonv1.BuildBinRequest_Options{Options: &daemonv1.BuildBinOptions{
		Tags: []string{name}, Name: "runtime", Usage: "none", Labels: map[string]string{"io.openotters.runtime.sessions": "offline"},
		Programs: map[string]string{hostPlatform().OS + "/" + hostPlatform().Architecture: "0"},
	}}})
	for rest := archive.Bytes(); err == nil && len(rest) > 0; {
		n := min(len(rest), 1<<20)
		err = stream.Send(&daemonv1.BuildBinRequest{Part: &daemonv1.BuildBinRequest_Archive{Archive: rest[:n]}})
		rest = rest[n:]
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		d.t.Fatal(err)
	}
}

func TestWhatARuntimeSaysOfItsSessionsIsBoundedAndItIsToldNoSecret(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), slow)
	d.oddRuntime("odd/runtime")
	d.image("odd", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nRUNTIME odd/runtime:latest\nENV MINE=secret-value\n"})
	d.create(&daemonv1.CreateAgentRequest{Image: "odd", Name: "odd", Envs: []*daemonv1.EnvVar{{Key: "GIVEN", Value: "secret-value"}}})
	d.await("odd", "starting")
	for deadline := time.Now().Add(time.Minute); d.get("odd").GetPid() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not start")
		}
	}
	d.halt("odd")
	c := d.talk()
	if _, err := c.ListSessions(t.Context(), &daemonv1.ListSessionsRequest{Agent: "odd"}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "more than was asked for") {
		t.Errorf("an endless list: %v", err)
	}
	if _, err := d.show("odd", "s", 1); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "a line of more than") {
		t.Errorf("an endless line: %v", err)
	}
	if _, err := c.RemoveSession(t.Context(), &daemonv1.RemoveSessionRequest{Agent: "odd", SessionId: "s"}); status.Code(err) != codes.FailedPrecondition || !strings.HasSuffix(err.Error(), "session rm of agent odd: odd") {
		t.Errorf("a refusal: %v", err)
	}
	if _, err := d.importAll("odd", "x", false); status.Code(err) != codes.Internal {
		t.Errorf("an answer that is none: %v", err)
	}
	text, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "odd", SessionIds: []string{"--root", "s"}})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "no whole export") {
		t.Errorf("an export that is none: %v", err)
	}
	for _, secret := range []string{"secret-value", "otr_", "_KEY", "TOKEN", "API_BASE", "LISTEN_"} {
		if strings.Contains(text, secret) {
			t.Errorf("it was told %s: %s", secret, text)
		}
	}
	if !strings.Contains(text, "OTTERS_AGENT_ROOT=") || !strings.Contains(text, "args [session export --root / -- --root s]\n") || strings.Contains(text, "descriptor ") || strings.Contains(text, "connected") {
		t.Errorf("it was told %s", text)
	}
}

func TestAStartEndsAnExport(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide"})
	d.await("guide", "ready")
	d.halt("guide")
	// More than fits into what lies between the runtime and the client.
	long := strings.Repeat("x", 4<<20)
	if _, err := d.importAll("guide", fmt.Sprintf(`{"type":"header","format":"otters.sessions","version":1}
{"type":"session","id":"s","last_active":7}
{"type":"turn","turn":1,"prompt":1,"active":true,"run":"","reason":"done","started_at":5,"finished_at":6,"input_tokens":1,"output_tokens":2}
{"type":"message","created_at":5,"body":{"role":"user","parts":[{"kind":"text","text":"%s"}]}}
{"type":"message","created_at":5,"body":{"role":"assistant","parts":[{"kind":"text","text":"%[1]s"}]}}
{"type":"end","sessions":1,"turns":1,"messages":2,"summaries":0,"notes":0}
`, long), false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := d.talk().ExportSessions(ctx, &daemonv1.ExportSessionsRequest{Agent: "guide"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	// It is on its way and nobody reads.
	d.begin("guide")
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the agent is being started") {
		t.Errorf("the export: %v", err)
	}
	d.ask("guide", "t", "who are you?")
	d.halt("guide")
	if text, err := d.export(&daemonv1.ExportSessionsRequest{Agent: "guide"}); err != nil || !strings.Contains(text, long) {
		t.Errorf("after it: %d bytes, %v", len(text), err)
	}
}
