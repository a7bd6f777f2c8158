package daemon

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: what other runtimes than the default one say of sessions is bounded, and told no secret. Worst
// inputs: one that says what it likes, one that can be asked only while it runs, a start under an export.

// otherRuntime is a runtime that was made from the contract alone.
func otherRuntime(t *testing.T) string { return filepath.Join(built.For(t), "scripted") }

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
		// What can't be done while it runs either is not said to be.
		if transfer := what == "export" || what == "import"; strings.Contains(err.Error(), "only while it does") == transfer {
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
	d.bin(name, filepath.Join(dir, "odd"), map[string]string{"io.openotters.runtime.sessions": "offline"})
}

func TestWhatARuntimeSaysOfItsSessionsIsBoundedAndItIsToldNoSecret(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), slow)
	d.oddRuntime("odd/runtime")
	d.image("odd", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nRUNTIME odd/runtime:latest\nENV MINE=secret-value\n"})
	d.create(&daemonv1.CreateAgentRequest{Image: "odd", Name: "odd", Envs: []*daemonv1.EnvVar{{Key: "GIVEN", Value: "secret-value"}}})
	d.await("odd", "starting")
	for deadline := time.Now().Add(patience); d.get("odd").GetPid() == 0; time.Sleep(10 * time.Millisecond) {
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
	// A client whose window does not grow while it reads nothing.
	conn := testConn(t, d.socket, grpc.WithStaticStreamWindowSize(64<<10))
	stream, err := daemonv1.NewConversationServiceClient(conn).ExportSessions(ctx, &daemonv1.ExportSessionsRequest{Agent: "guide"})
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
