package agentruntime_test

// Invariant: while an answer comes, its sentences are in the database, in a number of writes that its
// length bounds; once it is whole nothing of them is left. Worst inputs: an answer of nothing but very
// short sentences, or of none; a number that looks like the end of one; a whole message that cannot be
// stored, while its sentences could.

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// database is the runtime's, behind its back.
func (a *agent) database(do func(*sql.DB) error) {
	a.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(a.root, "var/lib/sessions.db")+"?_pragma=busy_timeout(60000)")
	if err != nil {
		a.t.Fatal(err)
	}
	if err := errors.Join(do(db), db.Close()); err != nil {
		a.t.Fatal(err)
	}
}

// sql changes the database.
func (a *agent) sql(text string) {
	a.t.Helper()
	a.database(func(db *sql.DB) error {
		_, err := db.Exec(text)
		return err
	})
}

// pieces are how many there are in the database, and how many bytes they have.
func (a *agent) pieces() (count, size int) {
	a.t.Helper()
	a.database(func(db *sql.DB) error {
		return db.QueryRow("SELECT count(*), coalesce(sum(length(parts)), 0) FROM pieces").Scan(&count, &size)
	})
	return count, size
}

func TestAnAnswerIsStoredInPiecesUntilItIsWhole(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"short": strings.Repeat("x. ", 2000), "none": strings.Repeat("word ", 1200)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			a := newAgent(t, "", modelserver.Script(modelserver.Answer{Pieces: strings.SplitAfter(text, " "), Hold: release}))
			c := a.serve()
			heard := 0
			_, err := stream(context.Background(), c, "s", "go", func(e *agentv1.ChatStreamEvent) {
				if e.GetType() != "text.delta" {
					return
				}
				if heard += len(e.GetContent()); heard != len(text) {
					return
				}
				count, size := a.pieces()
				if most := 64 + len(text)/64; count < len(text)/1100 || count > most || size < len(text)-1024 {
					t.Errorf("%d pieces of %d bytes, at most %d of %d", count, size, most, len(text))
				}
				close(release)
			})
			if err != nil {
				t.Fatal(err)
			}
			msgs := messages(t, c, "s")
			if n, _ := a.pieces(); n != 0 || len(msgs) != 2 || !strings.Contains(msgs[1].GetContent(), text) {
				t.Errorf("%d pieces are left, messages %v", n, msgs)
			}
		})
	}
}

func TestSentencesStandForAMessageThatCannotBeStored(t *testing.T) {
	t.Parallel()
	called := modelserver.Answer{Text: "One. Two. Thr", Calls: []modelserver.Call{
		{ID: "1", Name: "sh", Args: `{"args":["-c","echo out"]}`}, {ID: "2", Name: "sh", Args: `{"args":["-c","echo more"]}`}}}
	for role, want := range map[string]string{
		"assistant": `[{"kind":"text","text":"One. Two.","incomplete":true,"reason":"interrupted"}]`,
		"tool":      `"result":"out\nexit code 0"`,
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "", modelserver.Script(called))
			c := a.serve()
			messages(t, c, "s") // the database is there
			// The message is longer than what was heard of it.
			a.sql("CREATE TRIGGER no_room BEFORE INSERT ON messages WHEN new.role = '" + role +
				"' AND (new.body LIKE '%call%' OR new.body LIKE '%more%') BEGIN SELECT RAISE(FAIL, 'no room'); END")
			err := chat(context.Background(), c, "s", "go")
			if status.Code(err) != codes.Internal || status.Convert(err).Message() != "sessions cannot be stored: constraint failed: no room (1811)" {
				t.Errorf("error %v", err)
			}
			msgs := messages(t, c, "s")
			if n, _ := a.pieces(); n != 0 || len(msgs) != 2 || !strings.Contains(msgs[1].GetContent(), want) {
				t.Errorf("%d pieces are left, messages %v", n, msgs)
			}
		})
	}
}

func TestTheEndOfASentence(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"It is.": true, "so. And": true, "why?": true, "“so!” he": true, "line\n": true, "終わり。次": true, "well… yes": true, "*so.*": true,
		"": false, "word ": false, "3.14 and": false, "v1.2": false, "a, b": false, "www.example": false,
	} {
		if got := agentruntime.EndsSentence(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// A turn whose end could not be stored is ended at the next start. By then its prompt may have a newer
// answer, which the session goes on with.
func TestAnEndThatCouldNotBeStoredTakesNoNewerAnswersPlace(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", modelserver.Script(modelserver.Answer{Text: "One."}, modelserver.Answer{Text: "Two."}))
	c := a.serve()
	messages(t, c, "s") // the database is there
	a.sql("CREATE TRIGGER no_room BEFORE UPDATE OF reason ON turns BEGIN SELECT RAISE(FAIL, 'no room'); END")
	if err := chat(context.Background(), c, "s", "go"); status.Code(err) != codes.Internal {
		t.Errorf("error %v", err)
	}
	if n, _ := a.pieces(); n != 1 {
		t.Errorf("%d pieces are left, want 1", n)
	}
	a.sql("DROP TRIGGER no_room")
	if _, err := again(c, "s"); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	msgs := messages(t, a.serve(), "s")
	if len(msgs) != 2 || msgs[1].GetActiveBranch() != 1 || !strings.Contains(msgs[1].GetContent(), "Two.") || !strings.Contains(msgs[1].GetBranchesJson(), "One.") {
		t.Errorf("messages %v", msgs)
	}
}

func TestADamagedPieceCostsItsAnswerAlone(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	messages(t, a.serve(), "s") // the database is there
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	const user = `{"role":"user","parts":[{"kind":"text","text":"go"}]}`
	a.sql(`
INSERT INTO sessions VALUES ('text', 5), ('tools', 5), ('whole', 5);
INSERT INTO turns (id, prompt, session, run, started_at) VALUES (1, 1, 'text', '', 5), (2, 2, 'tools', '', 5), (3, 3, 'whole', '', 5);
INSERT INTO messages VALUES (1, 1, 'user', '` + user + `', 5), (2, 1, 'user', '` + user + `', 5), (3, 1, 'user', '` + user + `', 5),
	(2, 2, 'assistant', '{"role":"assistant","parts":[{"kind":"call","id":"c1","name":"cat","args":"{}"},{"kind":"call","id":"c2","name":"sh","args":"{}"},{"kind":"call","id":"c3","name":"sh","args":"{}"}]}', 5);
INSERT INTO pieces VALUES (1, 2, 0, '[{"kind":"text","text":"One."}]', 5), (1, 2, 1, '[{"kind":"text","te', 5), (1, 2, 2, '[{"kind":"fish","text":"x"}]', 5), (1, 2, 3, '[{"kind":"text","text":"Four."}]', 5),
	(2, 3, 0, 'lost', 5), (2, 3, 1, '[{"kind":"result","id":"c2","name":"sh","text":"two"}]', 5),
	(3, 2, 0, '[{"kind":"text","text":"Whole."}]', 5)`)
	log := &journal{}
	a.opts.Log = log
	c := a.serve()
	for session, want := range map[string][]string{
		"text":  {`"One.\n[cannot be read, unexpected end of JSON input: [{\"kind\":\"text\",\"te]\n`, `fish`, `Four."`},
		"tools": {`: lost]\n","failed":true`, `"result":"two"`, `"incomplete":true`},
		"whole": {`[{"kind":"text","text":"Whole.","incomplete":true,"reason":"interrupted"}]`},
	} {
		msgs := messages(t, c, session)
		if len(msgs) != 2 {
			t.Fatalf("session %s: %v", session, msgs)
		}
		rest, ok := msgs[1].GetContent(), true
		for _, w := range want {
			if _, rest, ok = strings.Cut(rest, w); !ok {
				t.Errorf("session %s: no %s in %s", session, w, msgs[1].GetContent())
			}
		}
		a.chat(c, session, "and now?")
	}
	got := warnings(t, c)
	if len(got) != 2 || got[0] != "session text: of an interrupted answer 2 stored parts cannot be read; they are in it as they are" || !strings.HasPrefix(got[1], "session tools: of an interrupted answer 1 stored") {
		t.Errorf("warnings %q", got)
	}
	for _, w := range got {
		if !strings.Contains(log.String(), "warning: "+w+"\n") {
			t.Errorf("%q is not in the log", w)
		}
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if got := warnings(t, a.serve()); len(got) != 0 {
		t.Errorf("warnings %q once more", got)
	}
}
