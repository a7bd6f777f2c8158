package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: what a prompt asks for reaches the runtime as it is, or is refused with the reason. Worst
// inputs: attachments one byte over the bound; a schema that is none; a runtime that has none of it.

// bareRuntime serves Ready and nothing else; this program is it when it is started like a runtime.
func bareRuntime(args []string) int {
	addr := ""
	for i, arg := range args {
		if arg == "--addr" && i+1 < len(args) {
			addr = args[i+1]
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	srv := grpc.NewServer()
	agentv1.RegisterAgentRuntimeServer(srv, bare{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, srv.Stop)
	_ = srv.Serve(l)
	return 0
}

type bare struct {
	agentv1.UnimplementedAgentRuntimeServer
}

func (bare) Ready(context.Context, *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: true}, nil
}

// models is a model server that keeps what it was asked and answers one after the other.
type models struct {
	mu     sync.Mutex
	bodies []string
}

func (m *models) last() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.bodies) == 0 {
		return "nothing"
	}
	return m.bodies[len(m.bodies)-1]
}

func (m *models) serve(t *testing.T, home string, answers ...string) {
	t.Helper()
	server := modelserver.Start(func(r modelserver.Request) modelserver.Answer {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.bodies = append(m.bodies, string(r.Raw))
		return modelserver.Answer{Text: answers[min(len(m.bodies), len(answers))-1]}
	})
	t.Cleanup(server.Close)
	provider(t, home, server.URL)
}

// turn runs a turn of any request.
func (d *testDaemon) turn(req *daemonv1.PromptRequest) (text string, err error) {
	d.t.Helper()
	stream, err := d.api.Prompt(d.t.Context(), req)
	for err == nil {
		var ev *daemonv1.PromptResponse
		if ev, err = stream.Recv(); ev.GetType() == "text.delta" {
			text += ev.GetContent()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return text, err
}

func TestPromptsWithAttachmentsAndAgain(t *testing.T) {
	t.Parallel()
	var m models
	home := newHome(t)
	m.serve(t, home, "one", "two", "three")
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	file := func(name, kind, data string) *daemonv1.Attachment {
		return &daemonv1.Attachment{Name: name, MediaType: kind, Data: []byte(data)}
	}
	text, err := d.turn(&daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Text: "read it", Attachments: []*daemonv1.Attachment{file("n.txt", "text/plain", "otters swim"), file("p.png", "image/png", "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")}})
	if err != nil || text != "one" || !strings.Contains(m.last(), "otters swim") || !strings.Contains(m.last(), "image/png") {
		t.Errorf("%q, %v: the model got %s", text, err, m.last())
	}
	text, err = d.turn(&daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Regenerate: true})
	if err != nil || text != "two" || !strings.Contains(m.last(), "otters swim") {
		t.Errorf("again: %q, %v: the model got %s", text, err, m.last())
	}
	shown, err := d.show("guide", "s", 0)
	if err != nil || len(shown) != 2 || shown[1].GetActiveBranch() != 1 || !strings.Contains(shown[1].GetBranchesJson(), "one") {
		t.Errorf("%v, %v", shown, err)
	}
	// The most that fits in one message is more than what may be attached.
	big := strings.Repeat("x", maxAttachedBytes/maxAttachments)
	var most []*daemonv1.Attachment
	for i := range maxAttachments {
		most = append(most, file(fmt.Sprint(i), "text/plain", big))
	}
	if text, err := d.turn(&daemonv1.PromptRequest{Agent: "guide", Text: "all of it", Attachments: most}); err != nil || text != "three" {
		t.Errorf("as much as may be attached: %q, %v", text, err)
	}
	most[0].Data = append(most[0].Data, make([]byte, maxAttachments+1)...)
	for what, req := range map[string]*daemonv1.PromptRequest{
		"too much":          {Text: "x", Attachments: most},
		"too many":          {Text: "x", Attachments: append(most[1:16:16], most[1], most[2])},
		"no type":           {Text: "x", Attachments: []*daemonv1.Attachment{file("n", "", "x")}},
		"path":              {Text: "x", Attachments: []*daemonv1.Attachment{file("../n", "text/plain", "x")}},
		"again with text":   {Text: "x", SessionId: "s", Regenerate: true},
		"again and more":    {SessionId: "s", Regenerate: true, Attachments: most[1:2]},
		"again of nothing":  {Regenerate: true},
		"busy with a typo":  {Text: "x", Busy: "weight"},
		"nothing to answer": {},
	} {
		req.Agent = "guide"
		if _, err := d.turn(req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := d.turn(&daemonv1.PromptRequest{Agent: "guide", SessionId: "none", Regenerate: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("again of a session that is not there: %v", err)
	}
}

func TestABusySessionRefusesWhoAsksForIt(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	d := boot(t, scripted(t, newHome(t), hold))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	first, err := d.api.Prompt(t.Context(), &daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Text: "hi"})
	// Its model answers, so it has its turn.
	for ev := (*daemonv1.PromptResponse)(nil); err == nil && ev.GetType() != "text.delta"; {
		ev, err = first.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.turn(&daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Text: "hi", Busy: "refuse"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "session s: it is busy with another turn") {
		t.Errorf("refused: %v", err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := d.turn(&daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Text: "hi", Busy: "wait"})
		waited <- err
	}()
	close(hold)
	if err := <-waited; err != nil {
		t.Errorf("waited: %v", err)
	}
}

func TestAPromptForAnObject(t *testing.T) {
	t.Parallel()
	var m models
	home := newHome(t)
	m.serve(t, home, `{"river":"Severn"}`)
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	c := d.talk()
	const schema = `{"type":"object","properties":{"river":{"type":"string"}},"required":["river"],"additionalProperties":false}`
	r, err := c.PromptObject(t.Context(), &daemonv1.PromptObjectRequest{Agent: "guide", Text: "which river?", Schema: []byte(schema), Name: "answer", Description: "a river"})
	if err != nil || string(r.GetObject()) != `{"river":"Severn"}` || len(r.GetRunId()) != 36 {
		t.Errorf("%v, %v", r, err)
	}
	if got := d.sessions("guide"); got != "" {
		t.Errorf("it left\n%s", got)
	}
	for what, x := range map[string]struct {
		req  *daemonv1.PromptObjectRequest
		want codes.Code
	}{
		"no text":     {&daemonv1.PromptObjectRequest{Agent: "guide", Schema: []byte(schema)}, codes.InvalidArgument},
		"no JSON":     {&daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte("{")}, codes.InvalidArgument},
		"no schema":   {&daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte(`{"type":7}`)}, codes.InvalidArgument},
		"long schema": {&daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte(strings.Repeat(" ", maxSchema+1))}, codes.InvalidArgument},
		"long name":   {&daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte(schema), Name: strings.Repeat("x", 257)}, codes.InvalidArgument},
		"no agent":    {&daemonv1.PromptObjectRequest{Agent: "none", Text: "x", Schema: []byte(schema)}, codes.NotFound},
	} {
		if _, err := c.PromptObject(t.Context(), x.req); status.Code(err) != x.want {
			t.Errorf("%s: %v, want %s", what, err, x.want)
		}
	}
	d.halt("guide")
	if _, err := c.PromptObject(t.Context(), &daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte(schema)}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("of a stopped agent: %v", err)
	}
}

func TestARuntimeThatHasNoneOfItIsToldApart(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: exe, Sandbox: "off"})
	d.await("guide", "ready")
	c, ctx := d.talk(), t.Context()
	for what, err := range map[string]error{
		"object": second(c.PromptObject(ctx, &daemonv1.PromptObjectRequest{Agent: "guide", Text: "x", Schema: []byte("{}")})),
		"list":   second(c.ListSessions(ctx, &daemonv1.ListSessionsRequest{Agent: "guide"})),
		"show":   second(d.show("guide", "s", 0)),
		"remove": second(c.RemoveSession(ctx, &daemonv1.RemoveSessionRequest{Agent: "guide", SessionId: "s"})),
		"notes":  second(c.ListNotes(ctx, &daemonv1.ListNotesRequest{Agent: "guide"})),
		"note":   second(c.SetNote(ctx, &daemonv1.SetNoteRequest{Agent: "guide", Key: "k"})),
	} {
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "its runtime ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
