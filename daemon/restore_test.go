package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: whatever an earlier daemon left half done is finished, dropped or told. Worst inputs: a
// row without a folder, a folder without a row, a removal cut short.

func TestWhatAnEarlierDaemonLeftHalfDone(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	first := boot(t, home)
	first.image("guide", guide)
	for _, name := range []string{"removing", "rowless", "unreadable", "kept"} {
		first.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: name, RuntimePath: script(t, "exit 1"), Sandbox: "off"})
		first.await(name, "failed")
	}
	folder := func(name string) string { return filepath.Dir(first.get(name).GetRoot()) }
	removing, rowless, unreadable := folder("removing"), folder("rowless"), folder("unreadable")
	rowlessID := first.get("rowless").GetSummary().GetId()
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase(t.Context(), filepath.Join(home, "otters.db"))
	if err != nil {
		t.Fatal(err)
	}
	halfMade, lost := testRecord("half-made"), testRecord("lost")
	lost.started = time.Now()
	lost.state = state{status: executor.StatusReady}
	err = errors.Join(
		db.forceState(t.Context(), uuid.MustParse(filepath.Base(removing)), state{status: executor.StatusRemoving}, time.Time{}),
		db.deleteAgent(t.Context(), uuid.MustParse(rowlessID)),
		db.insertAgent(t.Context(), halfMade), db.insertAgent(t.Context(), lost), db.close(),
		os.WriteFile(filepath.Join(unreadable, "handle.json"), []byte("{"), 0o600),
		os.WriteFile(filepath.Join(home, "builds", "left"), nil, 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}

	second := boot(t, home)
	got := map[string]string{}
	list, err := second.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.GetAgents() {
		got[a.GetName()] = a.GetStatus() + " " + a.GetReason() + ": " + a.GetMessage()
	}
	for name, want := range map[string]string{
		"unreadable": "failed init: not restored: its handle",
		"lost":       "failed init: not restored: its folder is gone",
		"kept":       "failed crashed: runtime crashed: exit code 1",
	} {
		if !strings.HasPrefix(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("also there: %v", got)
	}
	if _, err := os.Lstat(removing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the removal was not finished: %v", err)
	}
	if _, err := os.Lstat(rowless); err != nil {
		t.Errorf("a folder that the database does not know was touched: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(home, "builds")); len(left) != 0 {
		t.Errorf("builds left: %v", left)
	}
	if _, err := second.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "lost"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("start of an agent that is gone: %v", err)
	}
	for _, name := range []string{"lost", "unreadable"} {
		if _, err := second.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: name}); err != nil {
			t.Errorf("%s: removal: %v", name, err)
		}
	}
	if _, err := os.Lstat(unreadable); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unreadable agent's folder is left: %v", err)
	}
}

func TestProgramsAreStoredOnceAndAgainWhenTheyChange(t *testing.T) {
	t.Parallel()
	h, err := openHome(testHome(t))
	if err != nil {
		t.Fatal(err)
	}
	defer h.release()
	db, _ := testDatabase(t)
	images, err := openRegistry(h, 0, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer images.close(context.Background())
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	tools := fmt.Sprintf(`#!/bin/sh
echo x >> %s
echo '[{"name":"cat","description":"prints","usage":"how to"}]'
`, runs)
	write := func(name, text string, at int64) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(writeProgram(path, text), os.Chtimes(path, time.Unix(at, 0), time.Unix(at, 0))); err != nil {
			t.Fatal(err)
		}
	}
	p := &programs{dir: dir, images: images, db: db, logger: quiet()}
	digests := func() (string, string, int) {
		t.Helper()
		if err := p.install(t.Context()); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(runs)
		return images.digest("otters/runtime"), images.digest("otters/tools/cat"), bytes.Count(b, []byte("x"))
	}
	if r, c, _ := digests(); r != "" || c != "" {
		t.Errorf("without programs: %q %q", r, c)
	}
	write(runtimeProgram, "one", 1000)
	write(toolsProgram, tools, 1000)
	r1, c1, n1 := digests()
	if r1 == "" || c1 == "" || n1 != 1 {
		t.Fatalf("first: %q %q, %d runs", r1, c1, n1)
	}
	if r, c, n := digests(); r != r1 || c != c1 || n != n1 {
		t.Errorf("unchanged: %q %q, %d runs; want nothing done", r, c, n)
	}
	write(runtimeProgram, "two", 2000)
	if r, c, n := digests(); r == r1 || r == "" || c != c1 || n != n1 {
		t.Errorf("another runtime: %q %q, %d runs", r, c, n)
	}
	write(toolsProgram, "#!/bin/sh\nexit 1\n", 3000)
	if err := p.install(t.Context()); err == nil || !strings.Contains(err.Error(), toolsProgram) {
		t.Errorf("tools that fail: %v", err)
	}
}

func TestTheRegistryAnswersOnlyWithItsTokenAndItsName(t *testing.T) {
	t.Parallel()
	dir := testHome(t)
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.release()
	r, err := openRegistry(h, 0, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close(context.Background())
	path := filepath.Join(dir, "registry.token")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("token file: %v, %v", info, err)
	}
	token, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		name, token, host, origin string
		want                      int
	}{
		{"with the token", strings.TrimSpace(string(token)), "", "", http.StatusOK},
		{"without", "", "", "", http.StatusUnauthorized},
		{"with another", "otreg_" + strings.Repeat("a", 43), "", "", http.StatusUnauthorized},
		{"A1 foreign host", strings.TrimSpace(string(token)), "evil.example", "", http.StatusMisdirectedRequest},
		{"A2 foreign origin", strings.TrimSpace(string(token)), "", "http://evil.example", http.StatusForbidden},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.host != "" {
			req.Host = c.host
		}
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, resp.Status, c.want)
		}
	}
	same, err := readOrMakeToken(path, "otreg_")
	if err != nil || same != strings.TrimSpace(string(token)) {
		t.Errorf("the token did not stay: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readOrMakeToken(path, "otreg_"); err == nil {
		t.Error("a token file that others can read was taken")
	}
}

func TestAPortThatIsTakenIsRefusedWhenItWasAskedFor(t *testing.T) {
	t.Parallel()
	l, err := listenRegistry(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var port int
	if _, err := fmt.Sscanf(l.Addr().String(), "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	if again, err := listenRegistry(port); err == nil || !strings.Contains(err.Error(), "registry-port") {
		t.Errorf("a taken port: %v, %v", again, err)
	}
	other, err := listenRegistry(0)
	if err != nil {
		t.Fatalf("without a port named: %v", err)
	}
	_ = other.Close()
}

func TestAFailedOpenLeavesTheHomeFree(t *testing.T) {
	t.Parallel()
	home := emptyHome(t)
	for name, c := range map[string]struct{ file, text, want string }{
		"configuration": {"config.yaml", "nosuch: 1\n", "nosuch"},
		"providers":     {"providers.yaml", "nosuch: 1\n", "nosuch"},
	} {
		writeHome(t, home, c.file, c.text)
		_, err := Open(t.Context(), Config{Home: home, Socket: filepath.Join(home, "s"), Programs: built.For(t)})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(filepath.Join(home, c.file)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Open(t.Context(), Config{Home: home, Socket: filepath.Join(home, "s"), Programs: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), monitorProgram) {
		t.Errorf("without a monitor: %v", err)
	}
	d := boot(t, home)
	if _, err := d.api.Info(t.Context(), &daemonv1.InfoRequest{}); err != nil {
		t.Error(err)
	}
}
