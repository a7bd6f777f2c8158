package agentruntime_test

// Invariant: what is exported of one tree and imported into another is the same to model and client,
// and an import stores all or nothing. Worst inputs: an export that was cut, edited or made up; a tree
// that a runtime serves; a session that is there already.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func (a *agent) offline() *agentruntime.Sessions {
	a.t.Helper()
	s, err := agentruntime.OpenSessions(context.Background(), a.root)
	if err != nil {
		a.t.Fatal(err)
	}
	return s
}

func (a *agent) export(opts agentruntime.ExportOptions) string {
	a.t.Helper()
	s := a.offline()
	defer s.Close()
	var out bytes.Buffer
	if err := s.Export(context.Background(), &out, opts); err != nil {
		a.t.Fatal(err)
	}
	return out.String()
}

func (a *agent) importAll(text string, opts agentruntime.ImportOptions) (agentruntime.Counts, error) {
	a.t.Helper()
	s := a.offline()
	defer s.Close()
	return s.Import(context.Background(), strings.NewReader(text), opts)
}

func (a *agent) chat(c agentv1.AgentRuntimeClient, session, prompt string) {
	a.t.Helper()
	if _, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: session, Prompt: prompt}); err != nil {
		a.t.Fatal(err)
	}
}

// lived is an agent that has stopped, with a session that was answered again, called a tool and was
// summarised, another one, and notes.
func lived(t *testing.T) *agent {
	t.Helper()
	var n atomic.Int64
	a := newAgent(t, "configs: {memory-strategy: summarize, memory-max-messages: \"2\"}\n", func(r modelserver.Request) modelserver.Answer {
		switch n := n.Add(1); {
		case r.Last().Content == "use cat" && len(r.Tools) > 0:
			return toolCall("call1", "cat", `{"args":["-"],"stdin":"<purr> & \u2028"}`)
		default:
			return modelserver.Answer{Text: fmt.Sprint("answer <", n, "> \x01 ünï")}
		}
	})
	c := a.serve()
	for _, p := range []string{"one", "use cat", "three & <four>"} {
		a.chat(c, "s/1", p)
	}
	for range 2 {
		s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s/1", Regenerate: true})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = s.Recv()
		}
		a.chat(c, "-2", "another")
	}
	if _, err := save(c, "river", "Severn", 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := save(c, "b", "\x00 <b>", 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetNoteInContext(context.Background(), &agentv1.SetNoteInContextRequest{Key: "river", InContext: true}); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnExportIsTheSameInAnotherTree(t *testing.T) {
	t.Parallel()
	a := lived(t)
	text := a.export(agentruntime.ExportOptions{Notes: true})
	for _, want := range []string{
		`{"type":"header","format":"otters.sessions","version":1}`, `{"type":"session","id":"-2",`, `"type":"summary","upto":1,`,
		`"turn":4,"prompt":3,"active":false,`, `"turn":5,"prompt":3,"active":true,`, `"type":"note","key":"river","content":"Severn","in_context":true,`,
		`{"type":"end","sessions":2,"turns":7,`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	b := newAgent(t, "configs: {memory-strategy: summarize, memory-max-messages: \"2\"}\n", say("ok"))
	// There is something already, so that turns get other numbers.
	b.chat(b.serve(), "own", "hello")
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	own := b.export(agentruntime.ExportOptions{})
	counts, err := b.importAll(text, agentruntime.ImportOptions{})
	if err != nil || counts.Sessions != 2 || counts.Turns != 7 || counts.Notes != 2 || counts.Summaries == 0 {
		t.Fatalf("%+v, %v", counts, err)
	}
	if again := b.export(agentruntime.ExportOptions{IDs: []string{"-2", "s/1"}, Notes: true}); again != text {
		t.Errorf("came out as\n%s\nwent in as\n%s", again, text)
	}
	if again := b.export(agentruntime.ExportOptions{IDs: []string{"own"}}); again != own {
		t.Errorf("the session that was there became\n%s", again)
	}

	// To a client and to the model it is the same as well.
	ca, cb := a.serve(), b.serve()
	was, is := messages(t, ca, "s/1"), messages(t, cb, "s/1")
	if fmt.Sprint(was) != fmt.Sprint(is) || len(is) != 6 || is[5].GetBranchesJson() == "" || is[5].GetActiveBranch() != 2 {
		t.Errorf("messages %v, were %v", is, was)
	}
	a.chat(ca, "s/1", "and now?")
	b.chat(cb, "s/1", "and now?")
	ra, rb := a.model.Requests(), b.model.Requests()
	// The last but one is for a new summary, of all that there was.
	for i := 1; i <= 2; i++ {
		was, is := ra[len(ra)-i].Messages, rb[len(rb)-i].Messages
		for j, m := range was {
			if i == 1 && j == 1 {
				continue // the two summaries
			}
			if j >= len(is) || m.Role != is[j].Role || m.Content != is[j].Content {
				t.Errorf("request %d, message %d: the model got %v, before %v", i, j, is, m)
			}
		}
	}
	if system := rb[len(rb)-1].Messages[0].Content; !strings.Contains(system, "Severn") {
		t.Errorf("the model got %s", system)
	}
}

func TestSessionsOfAStoppedAgentAreListedShownAndRemoved(t *testing.T) {
	t.Parallel()
	a := lived(t)
	c := a.serve()
	served := messages(t, c, "s/1")
	if _, err := agentruntime.OpenSessions(context.Background(), a.root); !errors.Is(err, agentruntime.ErrInUse) {
		t.Errorf("while it is served: %v", err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	s := a.offline()
	defer s.Close()
	ctx := context.Background()
	var list bytes.Buffer
	if err := s.List(ctx, &list); err != nil || strings.Count(list.String(), "\n") != 2 || !strings.Contains(list.String(), `{"id":"s/1","messages":6,"last_active":`) {
		t.Errorf("%s, %v", list.String(), err)
	}
	for limit, want := range map[int]int{0: 6, 1: 1, 3: 3, 5: 5, 1000: 6} {
		var out bytes.Buffer
		if err := s.Show(ctx, &out, "s/1", limit); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(got) != want {
			t.Errorf("limit %d: %d messages", limit, len(got))
			continue
		}
		for i, line := range got {
			var m agentruntime.MessageLine
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			w := served[6-want+i]
			if m.Role != w.GetRole() || m.Content != w.GetContent() || m.BranchesJSON != w.GetBranchesJson() || m.ActiveBranch != w.GetActiveBranch() || m.CreatedAt != w.GetCreatedAt() {
				t.Errorf("limit %d: message %d is %+v, the runtime said %v", limit, i, m, w)
			}
		}
	}
	for what, err := range map[string]error{
		"show":    s.Show(ctx, &list, "none", 0),
		"remove":  s.Remove(ctx, "-2", "none"),
		"export":  s.Export(ctx, &list, agentruntime.ExportOptions{IDs: []string{"none"}}),
		"show 2":  s.Show(ctx, &list, "none", 3),
		"removed": errors.Join(s.Remove(ctx, "s/1"), s.Show(ctx, &list, "s/1", 0)),
	} {
		if !errors.Is(err, agentruntime.ErrNoSession) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"limit": s.Show(ctx, &list, "-2", 1001), "negative": s.Show(ctx, &list, "-2", -1), "blank": s.Remove(ctx, "a b"),
	} {
		if !errors.Is(err, agentruntime.ErrInput) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Show(ctx, &list, "-2", 0); err != nil {
		t.Errorf("a removal of which one is not there has removed the other: %v", err)
	}
}

func TestAFolderThatIsNoTreeIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, root := range []string{"", dir, filepath.Join(dir, "none")} {
		if _, err := agentruntime.OpenSessions(context.Background(), root); !errors.Is(err, agentruntime.ErrConfig) {
			t.Errorf("%q: %v", root, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// Lines of a small export.
const (
	head = `{"type":"header","format":"otters.sessions","version":1}` + "\n"
	sess = `{"type":"session","id":"s","last_active":7}` + "\n"
	user = `{"type":"message","created_at":5,"body":{"role":"user","parts":[{"kind":"text","text":"hi"}]}}` + "\n"
	said = `{"type":"message","created_at":6,"body":{"role":"assistant","parts":[{"kind":"text","text":"ho"}]}}` + "\n"
)

func turnOf(n, prompt int, active bool) string {
	return fmt.Sprintf(`{"type":"turn","turn":%d,"prompt":%d,"active":%t,"run":"r","reason":"done","started_at":5,"finished_at":6,"input_tokens":1,"output_tokens":2}`+"\n", n, prompt, active)
}

func endOf(sessions, turns, messages, summaries, notes int) string {
	return fmt.Sprintf(`{"type":"end","sessions":%d,"turns":%d,"messages":%d,"summaries":%d,"notes":%d}`+"\n", sessions, turns, messages, summaries, notes)
}

func noteOf(key, content string) string {
	return fmt.Sprintf(`{"type":"note","key":%q,"content":%q,"in_context":false,"created_at":1,"updated_at":2}`+"\n", key, content)
}

func TestAnImportStoresAllOrNothing(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {notes-max-bytes-per: \"20\", notes-max-count: \"2\"}\n", say("ok"))
	whole := head + sess + turnOf(1, 1, true) + user + said + endOf(1, 1, 2, 0, 0)
	if _, err := a.importAll(whole, agentruntime.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	before := a.export(agentruntime.ExportOptions{Notes: true})
	if before != whole {
		t.Errorf("came out as\n%s", before)
	}
	fresh := strings.Replace(sess, `"s"`, `"t"`, 1)
	with := func(lines ...string) string { return head + fresh + strings.Join(lines, "") }
	summary := `{"type":"summary","upto":1,"created_at":5,"text":"x"}` + "\n"
	for name, c := range map[string]struct {
		text string
		kind error
		says string
	}{
		"empty":                {"", agentruntime.ErrInput, "line 1: bad input: it ends before"},
		"no header":            {fresh, agentruntime.ErrInput, "header line first"},
		"two headers":          {head + head, agentruntime.ErrInput, "line 2"},
		"newer version":        {strings.Replace(head, "1}", "2}", 1), agentruntime.ErrInput, "version 2; this runtime takes"},
		"another format":       {strings.Replace(head, "otters.s", "s", 1), agentruntime.ErrInput, `format "sessions"`},
		"not JSON":             {head + "x\n", agentruntime.ErrInput, "line 2"},
		"cut in a line":        {strings.Replace(whole, sess, fresh, 1)[:len(whole)-3], agentruntime.ErrInput, "it was cut"},
		"cut at a line":        {with(turnOf(1, 1, true), user), agentruntime.ErrInput, "it was cut"},
		"more after the end":   {with(turnOf(1, 1, true), user, endOf(1, 1, 1, 0, 0), "\n"), agentruntime.ErrInput, "follows the end"},
		"other counts":         {with(turnOf(1, 1, true), user, endOf(1, 1, 2, 0, 0)), agentruntime.ErrInput, "it should hold"},
		"unknown type":         {with(`{"type":"fish"}` + "\n"), agentruntime.ErrInput, `unknown type "fish"`},
		"unknown field":        {with(strings.Replace(turnOf(1, 1, true), `"run"`, `"ran"`, 1)), agentruntime.ErrInput, "ran"},
		"two values":           {head + strings.TrimSpace(fresh) + "{}\n", agentruntime.ErrInput, "line 2"},
		"no UTF-8":             {head + strings.Replace(fresh, "t\"", "\xff\"", 1), agentruntime.ErrInput, "UTF-8"},
		"bad session id":       {head + strings.Replace(fresh, `"t"`, `"a b"`, 1), agentruntime.ErrInput, "blanks"},
		"long session id":      {head + strings.Replace(fresh, `"t"`, `"`+strings.Repeat("x", 257)+`"`, 1), agentruntime.ErrInput, "257"},
		"negative time":        {head + strings.Replace(fresh, "7", "-7", 1), agentruntime.ErrInput, "negative"},
		"turn without session": {head + turnOf(1, 1, true), agentruntime.ErrInput, "outside of a session"},
		"turn without message": {with(turnOf(1, 1, true), endOf(1, 1, 0, 0, 0)), agentruntime.ErrInput, "has no message"},
		"empty turn before":    {with(turnOf(1, 1, true), turnOf(2, 2, true)), agentruntime.ErrInput, "turn 1 has no message"},
		"message before turn":  {with(user), agentruntime.ErrInput, "outside of a turn"},
		"answer first":         {with(turnOf(1, 1, true), said), agentruntime.ErrInput, "does not begin"},
		"turn out of order":    {with(turnOf(2, 2, true)), agentruntime.ErrInput, "turn 2 where turn 1"},
		"prompt to come":       {with(turnOf(1, 2, true)), agentruntime.ErrInput, "no prompt's first"},
		"prompt is a branch":   {with(turnOf(1, 1, true), user, turnOf(2, 1, false), user, turnOf(3, 2, false)), agentruntime.ErrInput, "no prompt's first"},
		"none active":          {with(turnOf(1, 1, false), user, endOf(1, 1, 1, 0, 0)), agentruntime.ErrInput, "0 are active"},
		"two active":           {with(turnOf(1, 1, true), user, turnOf(2, 1, true), user, endOf(1, 2, 2, 0, 0)), agentruntime.ErrInput, "2 are active"},
		"running turn":         {with(strings.Replace(turnOf(1, 1, true), "done", "", 1)), agentruntime.ErrInput, "unknown reason"},
		"odd role":             {with(turnOf(1, 1, true), strings.Replace(user, `"user"`, `"root"`, 1)), agentruntime.ErrInput, `unknown role "root"`},
		"no kind":              {with(turnOf(1, 1, true), strings.Replace(user, `"kind":"text",`, "", 1)), agentruntime.ErrInput, "without a kind"},
		"body is no object":    {with(turnOf(1, 1, true), `{"type":"message","created_at":5,"body":[]}`+"\n"), agentruntime.ErrInput, "message"},
		"body is missing":      {with(turnOf(1, 1, true), `{"type":"message","created_at":5}`+"\n"), agentruntime.ErrInput, "message"},
		"summary of nothing":   {with(summary), agentruntime.ErrInput, "covers turn 1"},
		"two summaries":        {with(turnOf(1, 1, true), user, summary, summary), agentruntime.ErrInput, "a second summary"},
		"twice a session":      {with(turnOf(1, 1, true), user, fresh), agentruntime.ErrInput, "session t is there twice"},
		"session after notes":  {head + noteOf("k", "v") + fresh, agentruntime.ErrInput, "before notes"},
		"bad key":              {head + noteOf("K", "v"), agentruntime.ErrInput, `key "K"`},
		"twice a note":         {head + noteOf("k", "v") + noteOf("k", "v"), agentruntime.ErrInput, "note k is there twice"},
		"it is there":          {with(turnOf(1, 1, true), user) + sess, agentruntime.ErrExists, "session s"},
		"long note":            {head + noteOf("k", strings.Repeat("ü", 11)) + endOf(0, 0, 0, 0, 1), agentruntime.ErrExists, "notes-max-bytes-per"},
		"too many notes":       {head + noteOf("a", "") + noteOf("b", "") + noteOf("c", "") + endOf(0, 0, 0, 0, 3), agentruntime.ErrExists, "notes-max-count"},
	} {
		_, err := a.importAll(c.text, agentruntime.ImportOptions{})
		if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.kind, c.says)
		}
		if after := a.export(agentruntime.ExportOptions{Notes: true}); after != before {
			t.Fatalf("%s: something was stored:\n%s", name, after)
		}
	}
	if _, err := a.importAll(with(turnOf(1, 1, false), user, turnOf(2, 1, true), user, said, summary)+noteOf("a", "")+noteOf("b", strings.Repeat("ü", 10))+endOf(1, 2, 3, 1, 2), agentruntime.ImportOptions{}); err != nil {
		t.Errorf("one that is right: %v", err)
	}
}

func TestAnImportReplacesWhatIsThereOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	old := head + sess + turnOf(1, 1, true) + user + said + noteOf("k", "old") + endOf(1, 1, 2, 0, 1)
	now := head + sess + turnOf(1, 1, true) + user + noteOf("k", "new") + endOf(1, 1, 1, 0, 1)
	if _, err := a.importAll(old, agentruntime.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.importAll(now, agentruntime.ImportOptions{}); !errors.Is(err, agentruntime.ErrExists) {
		t.Errorf("unasked: %v", err)
	}
	if _, err := a.importAll(head+noteOf("k", "new")+endOf(0, 0, 0, 0, 1), agentruntime.ImportOptions{}); !errors.Is(err, agentruntime.ErrExists) || !strings.Contains(err.Error(), "note k") {
		t.Errorf("unasked, a note: %v", err)
	}
	if got := a.export(agentruntime.ExportOptions{Notes: true}); got != old {
		t.Errorf("unasked it became\n%s", got)
	}
	if _, err := a.importAll(now, agentruntime.ImportOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	if got := a.export(agentruntime.ExportOptions{Notes: true}); got != now {
		t.Errorf("asked it became\n%s", got)
	}
}

func TestAskRunsOneTurnWithoutAServer(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", callThenSay("cat", `{"args":["-"],"stdin":"purr"}`))
	var seen []string
	ask := func(q agentruntime.Question) (loop.Outcome, error) {
		q.Observe = func(e loop.Event) { seen = append(seen, string(e.Type)) }
		return agentruntime.Ask(context.Background(), a.opts, q)
	}
	out, err := ask(agentruntime.Question{Session: "s", Text: "go"})
	if err != nil || out.Reason != loop.Done || out.Text != "it says purr\nexit code 0" || seen[0] != "step.start" || seen[len(seen)-1] != "turn.finish" {
		t.Fatalf("%+v, %v, events %v", out, err, seen)
	}
	if out, err := ask(agentruntime.Question{Session: "s", Regenerate: true}); err != nil || out.Reason != loop.Done {
		t.Errorf("again: %+v, %v", out, err)
	}
	for says, q := range map[string]agentruntime.Question{
		"prompt: it is empty": {Session: "s"}, "there is no prompt yet": {Session: "other", Regenerate: true}, "session_id: it is empty": {Text: "go"},
	} {
		if _, err := ask(q); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "rpc error") {
			t.Errorf("%v, want %q", err, says)
		}
	}
	c := a.serve()
	if msgs := messages(t, c, "s"); len(msgs) != 2 || msgs[1].GetActiveBranch() != 1 {
		t.Errorf("messages %v", msgs)
	}
	opts := a.opts
	opts.Listener = nil
	if _, err := agentruntime.Ask(context.Background(), opts, agentruntime.Question{Session: "s", Text: "go"}); !errors.Is(err, agentruntime.ErrInUse) {
		t.Errorf("of a tree that is served: %v", err)
	}
}
