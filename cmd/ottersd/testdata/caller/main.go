// Command caller is a runtime for tests that does things of its own accord: it is ready at once, and
// calls its model once to be held, and then until it is answered. What came of each call goes to
// standard error. At SIGUSR1 it says something; at SIGUSR2 it ends with code 3 and two last lines.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

type runtime struct {
	agentv1.UnimplementedAgentRuntimeServer
}

func (runtime) Ready(context.Context, *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: true}, nil
}

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	// A runtime that is named by its path binds its address itself.
	i := slices.Index(os.Args, "--addr")
	if i < 0 || i+1 == len(os.Args) {
		return errors.New("no --addr")
	}
	ln, err := net.Listen("tcp", os.Args[i+1])
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 2)
	signal.Notify(asked, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for sig := range asked {
			if sig == syscall.SIGUSR1 {
				fmt.Println("while nobody looked")
				continue
			}
			fmt.Fprintln(os.Stderr, "first of the last words")
			fmt.Fprintln(os.Stderr, "last of the last words")
			os.Exit(3)
		}
	}()
	go func() {
		_, said := call("hold", func() { fmt.Fprintln(os.Stderr, "hold: answer begins") })
		fmt.Fprintln(os.Stderr, "hold:", said)
		for code := 0; code != http.StatusOK; time.Sleep(10 * time.Millisecond) {
			code, said = call("answer", func() {})
			fmt.Fprintln(os.Stderr, "answer:", said)
		}
	}()
	s := grpc.NewServer()
	agentv1.RegisterAgentRuntimeServer(s, runtime{})
	return s.Serve(ln)
}

// call asks the model and tells what came of it, with the status where there is one. begun is called when the answer
// has begun.
func call(text string, begun func()) (int, string) {
	var base, key string
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasSuffix(name, "_API_BASE"):
			base = value
		case strings.HasSuffix(name, "_API_KEY"):
			key = value
		}
	}
	body := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, text)
	req, err := http.NewRequest(http.MethodPost, base+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, "error: " + err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "error: " + err.Error()
	}
	answer := bufio.NewReader(res.Body)
	if _, err := answer.Peek(1); err == nil {
		begun()
	}
	all, err := io.ReadAll(answer)
	_ = res.Body.Close()
	if err != nil {
		return 0, fmt.Sprintf("status %d, then error: %v", res.StatusCode, err)
	}
	return res.StatusCode, fmt.Sprintf("status %d: %s", res.StatusCode, strings.Join(strings.Fields(string(all)), " "))
}
