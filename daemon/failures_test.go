package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: whatever can't be had is told in one line with its reason, and leaves an agent that is
// failed for that reason, or none; never a half. Worst inputs: a runtime that never answers, one
// that dies, a model that nobody has.

// scripted gives home a provider whose model answers "hello" and then holds the line until hold is
// closed.
func scripted(t *testing.T, home string, hold chan struct{}) string {
	t.Helper()
	server := modelserver.Start(func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(r.Last().Content, "at once") {
			return modelserver.Answer{Text: "hello"}
		}
		return modelserver.Answer{Text: "hello", Hold: hold}
	})
	t.Cleanup(server.Close)
	provider(t, home, server.URL)
	return home
}

// provider gives home a provider with model scripted/m at base.
func provider(t *testing.T, home, base string) {
	t.Helper()
	writeHome(t, home, "providers.yaml", "providers:\n  - name: scripted\n    api-key: secret-key\n    api-base: "+base+"\n    models: [m]\n")
}

func writeHome(t *testing.T, home, name, text string) {
	t.Helper()
	if err := os.MkdirAll(home, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func with(line string) map[string]string {
	out := map[string]string{}
	for k, v := range guide {
		out[k] = v
	}
	out["Agentfile"] = strings.ReplaceAll(out["Agentfile"], "MODEL offline/otter\n", line+"\n")
	return out
}

func TestAnAgentThatCanNotRunFailsWithTheRightReason(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.image("nomodel", with(""))
	d.image("noruntime", with("MODEL offline/otter\nRUNTIME otters/nosuch"))
	d.image("notool", with("MODEL offline/otter\nBIN nosuch otters/tools/nosuch"))
	d.image("required", with("MODEL offline/otter\nCONFIG temperature!"))
	for _, c := range []struct {
		name, reason, message string
		req                   *daemonv1.CreateAgentRequest
	}{
		{"dies", "crashed", "exit code 7: boom", &daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: script(t, "echo boom >&2; exit 7"), Sandbox: "off"}},
		{"ends-well", "crashed", "exit code 0", &daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: script(t, "exit 0"), Sandbox: "off"}},
		{"bad-config", "config", "bad key", &daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: script(t, "echo bad key >&2; exit 78"), Sandbox: "off"}},
		{"not-a-program", "init", "", &daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: garbage(t)}},
		{"unknown-setting", "config", "nosuch", &daemonv1.CreateAgentRequest{Image: "guide", Configs: map[string]string{"nosuch": "1"}}},
		{"no-model", "model", "no MODEL", &daemonv1.CreateAgentRequest{Image: "nomodel"}},
		{"unknown-provider", "model", "nosuch", &daemonv1.CreateAgentRequest{Image: "guide", Model: "nosuch/model"}},
		{"unknown-model", "model", "offline", &daemonv1.CreateAgentRequest{Image: "guide", Model: "offline/nosuch"}},
		{"no-runtime", "pull", "otters/nosuch", &daemonv1.CreateAgentRequest{Image: "noruntime"}},
		{"no-tool", "pull", "otters/tools/nosuch", &daemonv1.CreateAgentRequest{Image: "notool"}},
		{"required", "config", "temperature", &daemonv1.CreateAgentRequest{Image: "required"}},
	} {
		c.req.Name = c.name
		d.create(c.req)
		got := d.await(c.name, "failed")
		if got.GetReason() != c.reason || got.GetMessage() == "" || strings.ContainsAny(got.GetMessage(), "\r\n") || !strings.Contains(got.GetMessage(), c.message) {
			t.Errorf("%s: reason %q, message %q; want %q and %q", c.name, got.GetReason(), got.GetMessage(), c.reason, c.message)
		}
		if a := d.get(c.name); a.GetPid() != 0 || a.GetMonitorPid() != 0 {
			t.Errorf("%s: pid %d, monitor %d run on", c.name, a.GetPid(), a.GetMonitorPid())
		}
		if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: c.name}); err != nil {
			t.Errorf("%s: removal: %v", c.name, err)
		}
	}
	// The allowed twin: the same daemon, the same image.
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "fine"})
	d.await("fine", "ready")
}

func TestARuntimeThatNeverGetsReadyIsGivenUpAndStopped(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	writeHome(t, home, "config.yaml", "ready-timeout: 300ms\n")
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: script(t, "exec /bin/sleep 3600"), Sandbox: "off"})
	d.await("guide", "starting", "failed")
	running := d.running("guide")
	got := d.await("guide", "failed")
	running.gone(t)
	if got.GetReason() != "readiness_timeout" || !strings.Contains(got.GetMessage(), "within 300ms (ready-timeout)") {
		t.Errorf("got %v", got)
	}
	if a := d.get("guide"); a.GetPid() != 0 || a.GetMonitorPid() != 0 {
		t.Errorf("pid %d, monitor %d run on", a.GetPid(), a.GetMonitorPid())
	}
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "guide"}); err != nil {
		t.Errorf("removal: %v", err)
	}
}

func garbage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(path, []byte("\x7fELF this is none"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// hasID finds an id that was made up for an agent.
var hasID = regexp.MustCompile(`agent [0-9a-f]{8}-[0-9a-f]{4}-`)

func TestARequestThatIsWrongLeavesNoAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "taken"})
	for _, c := range []struct {
		name string
		req  *daemonv1.CreateAgentRequest
		code codes.Code
		want string
	}{
		{"no image", &daemonv1.CreateAgentRequest{}, codes.InvalidArgument, "no image"},
		{"bad reference", &daemonv1.CreateAgentRequest{Image: "Guide:"}, codes.InvalidArgument, "invalid reference"},
		{"missing image", &daemonv1.CreateAgentRequest{Image: "nosuch"}, codes.NotFound, "nosuch:latest: not in the registry"},
		{"not an agent", &daemonv1.CreateAgentRequest{Image: "otters/tools/cat"}, codes.InvalidArgument, "otters/tools/cat"},
		{"remote image", &daemonv1.CreateAgentRequest{Image: "127.0.0.1:1/a/b:1"}, codes.Unavailable, "127.0.0.1:1"},
		{"A7 bad name", &daemonv1.CreateAgentRequest{Image: "guide", Name: "../x"}, codes.InvalidArgument, "want 1 to 63"},
		{"name like an id", &daemonv1.CreateAgentRequest{Image: "guide", Name: "8d998761-883a-4317-a207-c6f74846c4d4"}, codes.InvalidArgument, "is an id"},
		{"name in use", &daemonv1.CreateAgentRequest{Image: "guide", Name: "taken"}, codes.AlreadyExists, "taken"},
		{"bad model", &daemonv1.CreateAgentRequest{Image: "guide", Model: "otter"}, codes.InvalidArgument, "provider/model"},
		{"relative runtime", &daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: "bin/x"}, codes.InvalidArgument, "absolute"},
		{"missing runtime", &daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: "/nosuch/x"}, codes.InvalidArgument, "no such file"},
		{"folder as runtime", &daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: t.TempDir()}, codes.InvalidArgument, "regular"},
		{"runtime not executable", &daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: plain}, codes.InvalidArgument, "not executable"},
		{"reserved variable", &daemonv1.CreateAgentRequest{Image: "guide", Envs: []*daemonv1.EnvVar{{Key: "PATH", Value: "/"}}}, codes.InvalidArgument, "PATH"},
		{"bad setting", &daemonv1.CreateAgentRequest{Image: "guide", Configs: map[string]string{"Not A Key": "1"}}, codes.InvalidArgument, "Not A Key"},
	} {
		_, err := d.api.CreateAgent(t.Context(), c.req)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %v with %q", c.name, err, c.code, c.want)
		}
		if hasID.MatchString(err.Error()) {
			t.Errorf("%s: names an id that was never told: %v", c.name, err)
		}
	}
	list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{})
	if err != nil || len(list.GetAgents()) != 1 {
		t.Errorf("agents %v, %v; want the one", list, err)
	}
	if rows, err := d.db.agents(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("rows %v, %v; want the one", rows, err)
	}
	folders, err := filepath.Glob(filepath.Join(d.home, "agents", "*-*-*"))
	if err != nil || len(folders) != 1 {
		t.Errorf("folders %v, %v; want the one", folders, err)
	}
	d.await("taken", "ready")
}

func TestABuildThatIsWrongTagsNothing(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	before := d.tags(t)
	for _, c := range []struct {
		name, tag, want string
		files           map[string]string
	}{
		{"no Agentfile", "x", "no Agentfile", map[string]string{"other": ""}},
		{"all errors at once", "x", "Agentfile:2:", map[string]string{"Agentfile": "FROM scratch\nNOSUCH a\nMODEL none\n"}},
		{"and the second", "x", "Agentfile:3:", map[string]string{"Agentfile": "FROM scratch\nNOSUCH a\nMODEL none\n"}},
		{"missing parent", "x", "nosuch", map[string]string{"Agentfile": "FROM nosuch\n"}},
		{"missing source", "x", "none.md", map[string]string{"Agentfile": "FROM scratch\nCONTEXT A file://none.md\n"}},
		{"P10 source outside", "x", "..", map[string]string{"Agentfile": "FROM scratch\nADD ../../etc/passwd\n"}},
		{"P1 entry outside", "x", "..", map[string]string{"Agentfile": "FROM scratch\n", "../x": "a"}},
		{"bad tag", "X:", "invalid reference", map[string]string{"Agentfile": "FROM scratch\n"}},
		{"digest as tag", "x@sha256:" + strings.Repeat("0", 64), "digest", map[string]string{"Agentfile": "FROM scratch\n"}},
	} {
		if _, err := d.build(c.tag, c.files); status.Code(err) != codes.InvalidArgument && !(c.name == "missing parent" && status.Code(err) == codes.NotFound) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	for name, opts := range map[string]*daemonv1.BuildOptions{
		"no tag":       {},
		"file outside": {Tags: []string{"x"}, File: "../Agentfile"},
	} {
		if _, err := d.send(nil, opts); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := d.tags(t); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("tags %v, before %v", after, before)
	}
	if left, err := os.ReadDir(filepath.Join(d.home, "builds")); err != nil || len(left) != 0 {
		t.Errorf("build folders left: %v, %v", left, err)
	}
	first, err := d.build("x", guide)
	second, err2 := d.build("y:1", guide)
	if err := errors.Join(err, err2); err != nil || first.GetDigest() != second.GetDigest() {
		t.Errorf("S4 same input, digests %v and %v, %v", first, second, err)
	}
}

func (d *testDaemon) tags(t *testing.T) []string {
	t.Helper()
	r, err := d.api.ListImages(t.Context(), &daemonv1.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range r.GetImages() {
		if i.GetKind() == "" || i.GetDigest() == "" || i.GetSize() == 0 || i.GetCreatedAt() == 0 {
			t.Errorf("image %v", i)
		}
		out = append(out, i.GetReference())
	}
	return out
}
