package system_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/executor"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// spawner starts nothing: its command serves the scripted runtime from memory until it is signalled.
type spawner struct {
	// runtime is what it serves; nil is a scripted one that is ready.
	runtime agentv1.AgentRuntimeServer
	// starting, where not nil, is called as the command is started.
	starting func() error

	ln *bufconn.Listener

	mu   sync.Mutex
	name string
	args []string
	env  []string
	dir  string
	// last is the command that was made last.
	last *command
}

type command struct {
	s    *spawner
	srv  *grpc.Server
	done chan struct{}
	out  io.Writer
	err  io.Writer
	// deaf has room for one signal that is not heeded.
	deaf chan struct{}
}

func (s *spawner) Command(name string, args ...string) system.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.name, s.args = name, args
	s.ln = bufconn.Listen(1 << 16)
	s.last = &command{s: s, done: make(chan struct{}), deaf: make(chan struct{}, 1)}
	return s.last
}

// Dial connects to whatever was started last, at each attempt anew.
func (s *spawner) Dial(context.Context, string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///mem", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: time.Minute}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			s.mu.Lock()
			ln := s.ln
			s.mu.Unlock()
			if ln == nil {
				return nil, errors.New("nothing was started yet")
			}
			return ln.DialContext(ctx)
		}))
}

func (c *command) Start() error {
	if c.s.starting != nil {
		if err := c.s.starting(); err != nil {
			return err
		}
	}
	c.srv = grpc.NewServer()
	if c.s.runtime == nil {
		agentv1.RegisterAgentRuntimeServer(c.srv, &scripted{ready: true})
	} else {
		agentv1.RegisterAgentRuntimeServer(c.srv, c.s.runtime)
	}
	c.s.mu.Lock()
	ln := c.s.ln
	c.s.mu.Unlock()
	_, err := io.WriteString(c.out, "from memory\n")
	if err == nil {
		_, err = io.WriteString(c.err, "a complaint\n")
	}
	go func() {
		defer close(c.done)
		_ = c.srv.Serve(ln)
	}()
	return err
}

func (c *command) Wait() error           { <-c.done; return nil }
func (c *command) SetStdout(w io.Writer) { c.out = w }
func (c *command) SetStderr(w io.Writer) { c.err = w }
func (c *command) Signal(os.Signal) error {
	select {
	case <-c.deaf:
	default:
		c.srv.Stop()
	}
	return nil
}
func (c *command) SetDir(dir string) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.dir = dir
}
func (c *command) SetEnv(env []string) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.env = env
}

// fixed hands out an address without binding it.
type fixed struct{}

func (fixed) Reserve() (string, error) { return "127.0.0.1:9", nil }

func TestAnAgentLivesWhollyInMemory(t *testing.T) {
	t.Parallel()
	fs, logs, s := memfs.New(), memfs.New(), new(spawner)
	store := image(t, plain+"BIN cat otters/tools/cat\n")
	p := system.NewProvider(fs, func(spec.Reference) oras.ReadOnlyTarget { return store },
		system.WithLoopbackAllocator(fixed{}), system.WithHostFS(logs), system.WithLogDir("/logs"),
		system.WithPuller(func(_ context.Context, ref spec.Reference, w io.Writer) error {
			_, err := io.WriteString(w, "program of "+ref.Name)
			return err
		}),
		system.WithAgentDefaults(system.WithSpawner(s), system.WithDialer(s), system.WithStaticModelResolver("http://model", "key")))
	t.Cleanup(func() { p.Close() })
	id := uuid.New()
	a, err := p.Create(t.Context(), id, ref)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	ready(t, a.(*system.Agent), done)
	if a.Addr() != "127.0.0.1:9" {
		t.Errorf("address %s", a.Addr())
	}
	if got := prompt(t, a.(*system.Agent), "wholly in memory"); got != "wholly in memory" {
		t.Errorf("answer %q", got)
	}
	home := "/" + id.String() + "/root"
	s.mu.Lock()
	if s.name != home+"/usr/local/bin/runtime" || !strings.Contains(strings.Join(s.env, "\n"), "OTTERS_AGENT_ROOT="+home) {
		t.Errorf("spawned %s with %v", s.name, s.env)
	}
	s.mu.Unlock()
	for name, want := range map[string]string{"usr/local/bin/runtime": "program of otters/runtime", "usr/bin/cat": "program of otters/tools/cat"} {
		if got, err := util.ReadFile(fs, home+"/"+name); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || a.Status() != executor.StatusStopped {
		t.Errorf("%v, %v", a.Status(), err)
	}
	if log, err := util.ReadFile(logs, "/logs/"+id.String()+".log"); err != nil || !strings.Contains(string(log), `"line":"from memory"`) {
		t.Errorf("log %q, %v", log, err)
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if infos, _ := fs.ReadDir("/"); names(infos) != ".store seal.key" {
		t.Errorf("left behind: %s", names(infos))
	}
}

func names(infos []os.FileInfo) string {
	var all []string
	for _, i := range infos {
		all = append(all, i.Name())
	}
	return strings.Join(all, " ")
}

func TestALevelCanNotBeHadInMemory(t *testing.T) {
	t.Parallel()
	for level, ok := range map[sandbox.Level]bool{sandbox.Off: true, "": true, sandbox.Limited: false, sandbox.Strict: false} {
		p := system.NewProvider(memfs.New(), nil, system.WithSandbox(level), system.WithLoopbackAllocator(fixed{}))
		_, err := p.Create(t.Context(), uuid.New(), ref)
		if (err == nil) != ok {
			t.Errorf("level %q: %v", level, err)
		}
	}
}
