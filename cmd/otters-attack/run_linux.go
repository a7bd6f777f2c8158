package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// roles are what this program is to itself: what it starts to be attacked from, or left behind.
var roles = map[string]func([]string) error{
	"role-attack":   playAttack,
	"role-twin":     playTwin,
	"role-nothing":  func([]string) error { return nil },
	"role-speak":    func([]string) error { _, err := os.Stdout.WriteString("words"); return err },
	"role-rights":   printRights,
	"role-wait":     waitLong,
	"role-survivor": survive,
	"role-middle":   startSurvivor,
	"role-brood":    brood,
	"role-flood":    flood,
	"role-spin":     spin,
	"role-victim":   victim,
	"role-idle":     idle,
	"role-32":       call32,
	"role-replaced": replaced,
}

// runner runs each attack in a process of its own, so that none changes what the next one finds.
type runner struct {
	targets targets
	self    string
	text    string
	twins   map[string]result
}

func newRunner(t targets) (*runner, error) {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	return &runner{targets: t, self: self, text: string(text), twins: map[string]result{}}, nil
}

func (r *runner) report(a attack) report {
	rep := report{ID: a.id, Name: a.name, Covers: a.covers, result: r.attack(a), Twin: "none"}
	if a.twin == "" {
		return rep
	}
	twin := a.twin
	switch {
	case twin == "gateway" && r.targets.gateway() == "":
		twin = "pipe" // a tool has no gateway
	case twin == "proxy" && r.targets["proxy.allowed"] == "":
		twin = "pipe" // nor a proxy
	case twin == "proc" && r.targets["level"] == "limited":
		twin = "read" // no rule can let a program see its own part of /proc alone
	}
	res, ok := r.twins[twin]
	if !ok {
		res = r.child("role-twin", twin, patience)
		r.twins[twin] = res
	}
	if rep.Twin = "ok"; res.Outcome != outcomeSucceeded {
		rep.Twin, rep.TwinEvidence = "broken", twin+": "+res.Evidence
	}
	return rep
}

func (r *runner) attack(a attack) result {
	for _, need := range a.needs {
		if r.targets[need] == "" {
			return skipped("no %s here", need)
		}
	}
	if a.inline {
		return a.run(r.targets)
	}
	timeout := a.timeout
	if timeout == 0 {
		timeout = patience
	}
	return r.child("role-attack", a.id, timeout)
}

// child runs one thing in a process of its own.
func (r *runner) child(role, id string, timeout time.Duration) result {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.self, role, id)
	cmd.Env = append(os.Environ(), targetsVariable+"="+r.text)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var res result
	if json.Unmarshal(stdout.Bytes(), &res) == nil && res.Outcome != "" {
		return res
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return broken("no answer within %s", timeout)
	case errors.As(err, &exit):
		// SIGSYS is the filter's; SIGKILL that of a limit on memory.
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && (ws.Signal() == syscall.SIGSYS || ws.Signal() == syscall.SIGKILL) {
			return denied("killed by %v", ws.Signal())
		}
	}
	first, _, _ := strings.Cut(stderr.String(), "\n")
	return broken("%v: %s", err, first)
}

func playAttack(args []string) error {
	return play(args, func(id string, t targets) (result, bool) {
		for _, a := range attacks() {
			if a.id == id {
				return a.run(t), true
			}
		}
		return result{}, false
	})
}

func playTwin(args []string) error {
	return play(args, func(id string, t targets) (result, bool) {
		twin, ok := twins[id]
		if !ok {
			return result{}, false
		}
		return verdict(twin(t), "works"), true
	})
}

func play(args []string, do func(string, targets) (result, bool)) error {
	if len(args) != 1 {
		return errors.New("want one id")
	}
	t, err := readTargets("")
	if err != nil {
		return err
	}
	res, ok := do(args[0], t)
	if !ok {
		return fmt.Errorf("no %q", args[0])
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}
