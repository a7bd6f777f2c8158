package main

// Invariant: a runtime that is killed loses the sentence at hand and no more, and its sessions go on.
// Worst inputs: a kill in the middle of an answer that has no sentences, of one beside an older one, of
// reasoning, of one call beside another that is done, and before anything was said.

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// claude starts the runtime of a tree with a model that holds requests against the rules of Messages.
func claude(t *testing.T, root string, model *modelserver.Server) (*process, agentv1.AgentRuntimeClient) {
	t.Helper()
	l, addr := listener(t)
	p := start(t, []string{"serve", "--root", root, "--model", "anthropic/m"},
		[]string{"LISTEN_FDS=1", "ANTHROPIC_API_BASE=" + model.Base, "ANTHROPIC_API_KEY=otr_secret"}, l)
	return p, dial(t, addr)
}

// until reads a turn's events up to one that is of that type, after text was said.
func until(t *testing.T, c agentv1.AgentRuntimeClient, req *agentv1.ChatStreamRequest, kind, text string) {
	s, err := c.ChatStream(context.Background(), req)
	said := ""
	for err == nil {
		var e *agentv1.ChatStreamEvent
		if e, err = s.Recv(); err == nil {
			if e.GetType() == "text.delta" {
				said += e.GetContent()
			}
			if e.GetType() == kind && said == text {
				return
			}
		}
	}
	t.Errorf("session %s: after %q: %v", req.GetSessionId(), said, err)
}

func shown(t *testing.T, c agentv1.AgentRuntimeClient, session string) []*agentv1.SessionMessage {
	t.Helper()
	list, err := c.ListSessionMessages(context.Background(), &agentv1.ListSessionMessagesRequest{SessionId: session})
	if err != nil {
		t.Fatal(err)
	}
	return list.GetMessages()
}

// words is an answer without sentences.
var words = strings.Repeat("0123456789", 500)

// brokenOff answers the first prompt of each name with an answer that does not end, and all others.
func brokenOff() func(modelserver.Request) modelserver.Answer {
	hold := make(chan struct{})
	var mu sync.Mutex
	asked := make(map[string]int)
	return func(r modelserver.Request) modelserver.Answer {
		last := r.Last().Blocks
		prompt := last[len(last)-1].Text
		mu.Lock()
		defer mu.Unlock()
		asked[prompt]++
		switch {
		case prompt == "again" && asked[prompt] == 1:
			return modelserver.Answer{Text: "one"}
		case prompt == "again":
			return modelserver.Answer{Text: "Two. Thr", Hold: hold}
		case asked[prompt] > 1:
		case prompt == "text":
			return modelserver.Answer{Pieces: []string{"A holt is", " dry. ", "The river", " rises", "!\n", "It is co"}, Hold: hold}
		case prompt == "long":
			return modelserver.Answer{Text: words, Hold: hold}
		case prompt == "thinks":
			return modelserver.Answer{Reasoning: "Let me see. ", Hold: hold}
		case prompt == "silent":
			return modelserver.Answer{Hold: hold}
		case prompt == "tools":
			return modelserver.Answer{Text: "wait", Calls: []modelserver.Call{
				{ID: "1", Name: "sh", Args: `{"args":["-c","echo out"]}`},
				{ID: "2", Name: "sh", Args: `{"args":["-c","echo $$ > fifo; exec sleep 1000"]}`}}}
		}
		return modelserver.Answer{Text: "fine"}
	}
}

// killInAnswers prompts a session for each of the answers, and kills the runtime once all have come so far.
func killInAnswers(t *testing.T, root string, model *modelserver.Server) {
	t.Helper()
	fifo := filepath.Join(root, "workspace/fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	p, c := claude(t, root, model)
	until(t, c, &agentv1.ChatStreamRequest{SessionId: "again", Prompt: "again"}, "turn.finish", "one")
	prompt := func(session string) *agentv1.ChatStreamRequest {
		return &agentv1.ChatStreamRequest{SessionId: session, Prompt: session}
	}
	var wg sync.WaitGroup
	wg.Go(func() { until(t, c, prompt("text"), "text.delta", "A holt is dry. The river rises!\nIt is co") })
	wg.Go(func() { until(t, c, prompt("long"), "text.delta", words) })
	wg.Go(func() { until(t, c, prompt("thinks"), "reasoning.delta", "") })
	wg.Go(func() { until(t, c, prompt("silent"), "step.start", "") })
	wg.Go(func() { until(t, c, prompt("tools"), "tool.result", "wait") })
	wg.Go(func() {
		until(t, c, &agentv1.ChatStreamRequest{SessionId: "again", Regenerate: true}, "text.delta", "Two. Thr")
	})
	tool := toolPID(t, fifo)
	wg.Wait()
	p.killBeside(t, tool)
}

func TestAKilledRuntimeLosesTheSentenceAtHand(t *testing.T) {
	t.Parallel()
	root, model := tree(t), serveModel(t, brokenOff())
	killInAnswers(t, root, model)
	_, c := claude(t, root, model)
	for session, want := range map[string]string{
		"text":   `[{"kind":"text","text":"A holt is dry. The river rises!\n","incomplete":true,"reason":"interrupted"}]`,
		"thinks": `[{"kind":"text","reason":"interrupted"}]`,
		"silent": `[{"kind":"text","reason":"interrupted"}]`,
		"again":  `[{"kind":"text","text":"Two.","incomplete":true,"reason":"interrupted"}]`,
		"long":   `[{"kind":"text","text":"` + words[:4096] + `","incomplete":true,"reason":"interrupted"}]`,
		"tools":  `[{"kind":"text","text":"wait"},{"kind":"tool","id":"1","tool":"sh","args":"{\"args\":[\"-c\",\"echo out\"]}","result":"out\nexit code 0"`,
	} {
		msgs := shown(t, c, session)
		if len(msgs) != 2 || !strings.HasPrefix(msgs[1].GetContent(), want) {
			t.Errorf("session %s: %v", session, msgs)
		}
		if session == "tools" && !strings.HasSuffix(msgs[1].GetContent(), `exec sleep 1000\"]}","incomplete":true,"reason":"interrupted"}]`) {
			t.Errorf("the call that was cut: %v", msgs)
		}
		if session == "again" && (msgs[1].GetActiveBranch() != 1 || !strings.HasPrefix(msgs[1].GetBranchesJson(), `[[{"kind":"text","text":"one"}],`)) {
			t.Errorf("branches: %v", msgs)
		}
		r, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: session, Prompt: "go on"})
		if err != nil || r.GetResponse() != "fine" || len(shown(t, c, session)) != 4 {
			t.Errorf("session %s: %v, error %v", session, r, err)
		}
	}
	for _, r := range model.Requests() {
		if raw := string(r.Raw); strings.Contains(raw, "go on") && strings.Contains(raw, "fifo") &&
			(!strings.Contains(raw, `out\nexit code 0`) || strings.Count(raw, "interrupted: it is not known") != 1) {
			t.Errorf("the model was told %s", raw)
		}
	}
}

// The same at instants that nobody chose, OTTERS_CRASH_ROUNDS times; part of make crash.
func TestAKilledRuntimeKeepsWhatWasHeard(t *testing.T) {
	rounds, _ := strconv.Atoi(os.Getenv("OTTERS_CRASH_ROUNDS"))
	if rounds == 0 {
		t.Skip("part of make crash")
	}
	var whole strings.Builder
	var pieces []string
	for i := range 20000 {
		word := fmt.Sprintf("word %d", i)
		if i%7 == 0 {
			word += "."
		}
		pieces = append(pieces, word+" ")
		whole.WriteString(word + " ")
	}
	root := tree(t)
	model := serveModel(t, func(r modelserver.Request) modelserver.Answer { return modelserver.Answer{Pieces: pieces} })
	all := 0
	for round := range rounds {
		p, c := claude(t, root, model)
		session := strconv.Itoa(round)
		heard := ""
		s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: session, Prompt: "go"})
		kill := func() { _ = p.Process.Kill() }
		after := time.Duration(round*97%400) * time.Millisecond
		end := time.AfterFunc(time.Hour, kill)
		if round%2 == 0 { // else counted from the first word, which may come late
			end.Reset(after)
		}
		for err == nil {
			var e *agentv1.ChatStreamEvent
			if e, err = s.Recv(); e.GetType() == "text.delta" {
				if heard == "" && round%2 == 1 {
					end.Reset(after)
				}
				heard += e.GetContent()
			}
		}
		end.Stop()
		_ = p.Process.Kill()
		p.exit(t)
		all += len(heard)

		p, c = claude(t, root, model)
		var parts []struct{ Text string }
		if msgs := shown(t, c, session); len(msgs) > 1 {
			if err := json.Unmarshal([]byte(msgs[1].GetContent()), &parts); err != nil {
				t.Fatal(err)
			}
		}
		kept := ""
		for _, part := range parts {
			kept += part.Text
		}
		// Of very short sentences the newest may wait for more.
		if sure := heard[:max(0, strings.LastIndex(heard, ".")-64)]; !strings.HasPrefix(whole.String(), kept) || !strings.HasPrefix(kept, sure) {
			t.Fatalf("round %d: heard %d bytes, kept %d: %q", round, len(heard), len(kept), kept[max(0, len(kept)-200):])
		}
		_ = p.Process.Kill()
		p.exit(t)
	}
	t.Logf("%d bytes were heard in %d rounds", all, rounds)
	if all == 0 && rounds > 1 {
		t.Error("no answer was cut")
	}
}
