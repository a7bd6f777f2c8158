package agentruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/workspace"
)

const (
	// maxUsage is what the model gets of a tool's usage text, in bytes.
	maxUsage = 64 << 10
	// pipeDelay is how long a process is waited for that left the tool's group and still holds its pipes.
	pipeDelay = time.Second
)

// binParameters is the schema of every tool that is a program.
const binParameters = `{"type":"object","properties":{` +
	`"args":{"type":"array","items":{"type":"string"},"description":"Command line arguments, one per item. No shell reads them."},` +
	`"stdin":{"type":"string","description":"Text for standard input."}},"additionalProperties":false}`

// program is a tool that runs a program of the agent's tree.
type program struct {
	spec loop.ToolSpec
	path string
	keep *outputs
	env  []string
}

// openTools makes the tools of a definition. Every program must be there. Errors wrap ErrConfig.
func openTools(root *os.Root, cfg *workspace.Config, environ []string, maxOutput int) ([]loop.Tool, error) {
	dir := cfg.Workspace
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(root.Name(), workspace.WorkDir)
	}
	env, keep := toolEnv(environ), &outputs{dir: dir, limit: maxOutput}
	var tools []loop.Tool
	taken := make(map[string]string)
	for _, t := range cfg.Tools {
		p, err := openProgram(root, t)
		if err != nil {
			return nil, fmt.Errorf("%w: tool %s: %w", ErrConfig, t.Name, err)
		}
		if other, ok := taken[p.spec.Name]; ok {
			return nil, fmt.Errorf("%w: tool %s: the model would know it as %s, like tool %s", ErrConfig, t.Name, p.spec.Name, other)
		}
		taken[p.spec.Name] = t.Name
		p.keep, p.env = keep, env
		tools = append(tools, p)
	}
	return tools, nil
}

func openProgram(root *os.Root, t workspace.Tool) (*program, error) {
	name, err := modelName(t.Name)
	if err != nil {
		return nil, err
	}
	path := t.Binary
	if !filepath.IsAbs(path) {
		path = filepath.Join(root.Name(), workspace.BinDir, t.Name)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return nil, fmt.Errorf("%s is not executable", path)
	}
	description := t.Description
	if t.Usage != "" {
		usage, err := readDocument(root, t.Usage, maxUsage)
		// agent.yaml names the path for every tool; an image need not have a text.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("usage: %w", err)
		}
		description = strings.TrimSpace(description + "\n\n" + usage)
	}
	return &program{
		spec: loop.ToolSpec{Name: name, Description: description, Parameters: json.RawMessage(binParameters)},
		path: path,
	}, nil
}

// modelName is the name the model knows a tool by: providers take letters, digits, _ and -.
func modelName(name string) (string, error) {
	if name == "" || len(name) > 63 {
		return "", errors.New("the name is empty or longer than 63 bytes")
	}
	for _, c := range []byte(name) {
		if !(c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return "", errors.New("the name is not made of letters, digits, dot, underscore and hyphen")
		}
	}
	return strings.ReplaceAll(name, ".", "_"), nil
}

// toolEnv is the runtime's environment less every token, key and handed-over descriptor.
func toolEnv(environ []string) []string {
	env := make([]string, 0, len(environ))
	for _, kv := range environ {
		key, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasSuffix(key, "_API_KEY"), strings.HasSuffix(key, "_API_BASE"), strings.HasPrefix(key, "LISTEN_"),
			key == "OTTERS_AGENT_TOKEN", key == "OTTERSD_URL", // both or neither
			strings.HasPrefix(key, "RUNTIME_") && (strings.HasSuffix(key, "_TOKEN") || strings.HasSuffix(key, "_KEY")):
			continue
		}
		env = append(env, kv)
	}
	return env
}

func (p *program) Spec() loop.ToolSpec { return p.spec }

// Call runs the program in a process group of its own and kills what is left of the group when the
// program ends or ctx does. An exit code other than 0 is an error.
func (p *program) Call(ctx context.Context, call loop.Call) (string, error) {
	var in struct {
		Args  []string `json:"args"`
		Stdin string   `json:"stdin"`
	}
	if err := decodeArgs(call, &in); err != nil {
		return "", fmt.Errorf("%w; want {\"args\": [\"…\"], \"stdin\": \"…\"}", err)
	}
	stdout, stderr := &output{keep: p.keep}, &output{keep: p.keep}
	cmd := exec.Command(p.path, in.Args...)
	cmd.Dir, cmd.Env, cmd.Stdin = p.keep.dir, p.env, strings.NewReader(in.Stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = pipeDelay
	err := runGroup(ctx, cmd, stdout, stderr)
	if cmd.Process == nil {
		return "", fmt.Errorf("start: %w", err)
	}
	stdout.close()
	stderr.close()
	text := both(stdout, stderr)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return text, context.Cause(ctx)
	case errors.As(err, &exit):
		return text, errors.New(exitText(exit.ProcessState))
	case err != nil && !errors.Is(err, exec.ErrWaitDelay) && !errors.Is(err, syscall.EPIPE):
		return text, fmt.Errorf("wait: %w", err)
	}
	return join(text, exitText(cmd.ProcessState)), nil
}

// runGroup runs a command in a group of its own, and returns when it has ended and all that the group wrote is
// read. The command has no process where it did not start.
func runGroup(ctx context.Context, cmd *exec.Cmd, stdout, stderr io.Writer) error {
	out, err := newStream()
	if err != nil {
		return err
	}
	defer out.close()
	errs, err := newStream()
	if err != nil {
		return err
	}
	defer errs.close()
	cmd.Stdout, cmd.Stderr = out.program, errs.program
	if err := cmd.Start(); err != nil {
		return err
	}
	out.read(stdout)
	errs.read(stderr)
	awaitGroup(ctx, cmd.Process.Pid)
	err = cmd.Wait()
	late := time.AfterFunc(pipeDelay, func() {
		out.stop()
		errs.stop()
	})
	defer late.Stop()
	<-out.done
	<-errs.done
	return err
}

// awaitGroup returns once the leader has ended and the group is killed. The leader is left to be
// waited for, so that until then its number names no other group.
func awaitGroup(ctx context.Context, leader int) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		awaitExit(leader)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	_ = unix.Kill(-leader, unix.SIGKILL)
	<-ended
	_ = unix.Kill(-leader, unix.SIGKILL) // what the leader started between
}

func exitText(s *os.ProcessState) string {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return "killed by signal " + ws.Signal().String()
	}
	return fmt.Sprintf("exit code %d", s.ExitCode())
}

func both(stdout, stderr *output) string {
	text := stdout.text()
	if stderr.size > 0 {
		text = join(text, join("standard error:", stderr.text()))
	}
	return text
}

func join(a, b string) string {
	if a == "" || strings.HasSuffix(a, "\n") {
		return a + b
	}
	return a + "\n" + b
}
