package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// tree makes an agent's tree with the tool sh.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"etc/context", "workspace", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	yaml := "id: x\nname: guide\nmodel: test/m\ntools: [{name: sh, binary: /bin/sh}]\n"
	if err := os.WriteFile(filepath.Join(root, "etc/agent.yaml"), []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func serveModel(t *testing.T, answer func(modelserver.Request) modelserver.Answer) *modelserver.Server {
	t.Helper()
	s := modelserver.Start(answer)
	t.Cleanup(s.Close)
	return s
}

// process is a runtime process; stderr may be read once it has ended.
type process struct {
	*exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
}

// start runs the program with an environment of env alone; files become descriptors from 3 on.
func start(t *testing.T, args, env []string, files ...*os.File) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe, args...), ended: make(chan struct{})}
	p.Env = append([]string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}, env...)
	p.ExtraFiles, p.Stderr = files, &p.stderr
	p.run(t)
	return p
}

// run starts the process, and kills it when the test ends.
func (p *process) run(t *testing.T) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
}

// exit waits for the process to end.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("the process does not end")
	}
	return p.ProcessState.ExitCode()
}

// toolPID is the id of a tool that writes it to the fifo, once it runs.
func toolPID(t *testing.T, fifo string) int {
	t.Helper()
	data, err := os.ReadFile(fifo)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(data), &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

// killBeside kills the process, and then a tool of it, which is the monitor's duty when there is one.
func (p *process) killBeside(t *testing.T, tool int) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.exit(t)
	if err := syscall.Kill(tool, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// listener is a socket to hand over and its address.
func listener(t *testing.T) (*os.File, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, l.Addr().String()
}

// tokenFile is a readable descriptor that holds text.
func tokenFile(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() { // a pipe may be smaller than the text
		defer close(written)
		_, _ = w.WriteString(text)
		w.Close()
	}()
	t.Cleanup(func() {
		r.Close()
		<-written
	})
	return r
}

// patient has a client wait for a runtime that is slow to start: connections are taken before it runs.
var patient = grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Minute})

func dial(t *testing.T, addr string) agentv1.AgentRuntimeClient {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return agentv1.NewAgentRuntimeClient(cc)
}

func withToken() context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "otters-serve-token", token)
}

// handedOver starts a runtime on an inherited listener with a serve token.
func handedOver(t *testing.T, root string, model *modelserver.Server) (*process, agentv1.AgentRuntimeClient) {
	t.Helper()
	l, addr := listener(t)
	env := []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=runtime:serve-token", "TEST_API_BASE=" + model.URL, "TEST_API_KEY=otr_secret"}
	p := start(t, []string{"serve", "--root", root, "--model", "test/m", "--addr", "127.0.0.1:1"}, env, l, tokenFile(t, token+"\n"))
	return p, dial(t, addr)
}
