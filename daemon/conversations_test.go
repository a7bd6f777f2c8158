package daemon

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

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
