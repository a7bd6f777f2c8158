// Package script is a runtime and a set of tools for agents under test, made from the runtime
// contract (docs/runtime.md) and its proto alone. It serves every call of the contract and does what
// the agent's variable SCRIPT and the prompts say; nothing in it is random or calls a model.
//
// Command scripted is this package as a program. A test program may be one as well, by calling Main
// when it is started under another name, and an executor in memory may register a Runtime itself.
package script

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Var is the variable of the agent that says what its runtime does:
//
//	(unset)   answers until SIGTERM or SIGINT, and then exits with 0
//	exit N    writes "the script says exit N" to standard error and exits with N
//	deaf      serves, and answers Ready with false
//	stubborn  ignores SIGTERM and SIGINT
const Var = "SCRIPT"

// Main is the program: the tool that it is called by the name of, and otherwise the runtime. It
// returns the exit code.
func Main() int {
	if tool, ok := tools[filepath.Base(os.Args[0])]; ok {
		return tool(os.Args[1:])
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		var code exitCode
		if errors.As(err, &code) {
			return int(code)
		}
		return 1
	}
	return 0
}

type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("the script says exit %d", int(e)) }

func serve() error {
	verb, arg, _ := strings.Cut(os.Getenv(Var), " ")
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	switch verb {
	case "":
	case "exit":
		code, err := strconv.Atoi(arg)
		if err != nil {
			return fmt.Errorf("%s: %w", Var, err)
		}
		return exitCode(code)
	case "deaf":
	case "stubborn":
		signal.Ignore(signals...)
		signals = []os.Signal{syscall.SIGUSR1}
	default:
		return fmt.Errorf("%s: unknown word %q", Var, verb)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	ln, token, err := listener(os.Args[1:])
	if err != nil {
		return err
	}
	rt := &Runtime{Root: flagValue(os.Args[1:], "--root"), Model: flagValue(os.Args[1:], "--model"), Token: token, Deaf: verb == "deaf", Args: os.Args[1:], Env: os.Environ()}
	return rt.Serve(ctx, ln)
}

// listener is the one handed down by the socket-activation protocol, with the serve token, and
// otherwise one bound to --addr, without a token.
func listener(args []string) (net.Listener, string, error) {
	pid := os.Getenv("LISTEN_PID")
	if n, err := strconv.Atoi(os.Getenv("LISTEN_FDS")); err == nil && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		files := map[string]*os.File{}
		for i, name := range strings.Split(os.Getenv("LISTEN_FDNAMES"), ":") {
			if i < n {
				files[name] = os.NewFile(uintptr(3+i), name)
			}
		}
		if files["runtime"] == nil {
			return nil, "", errors.New("no descriptor is named runtime")
		}
		ln, err := net.FileListener(files["runtime"])
		if err != nil || files["serve-token"] == nil {
			return ln, "", err
		}
		token := make([]byte, 4096)
		k, err := files["serve-token"].Read(token)
		if err != nil {
			return nil, "", fmt.Errorf("serve token: %w", err)
		}
		return ln, string(token[:k]), nil
	}
	addr := flagValue(args, "--addr")
	if addr == "" {
		return nil, "", errors.New("no listener was handed down and there is no --addr")
	}
	ln, err := net.Listen("tcp", addr)
	return ln, "", err
}

// flagValue is the argument after name.
func flagValue(args []string, name string) string {
	for i, a := range args[:max(0, len(args)-1)] {
		if a == name {
			return args[i+1]
		}
	}
	return ""
}

// Serve answers on ln until ctx ends; calls in progress are then cut off. It owns ln.
func (r *Runtime) Serve(ctx context.Context, ln net.Listener) error {
	srv := grpc.NewServer(grpc.UnaryInterceptor(r.unary), grpc.StreamInterceptor(r.stream))
	agentv1.RegisterAgentRuntimeServer(srv, r)
	done := make(chan struct{})
	defer func() { <-done }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		<-ctx.Done()
		srv.Stop()
	}()
	return srv.Serve(ln)
}
