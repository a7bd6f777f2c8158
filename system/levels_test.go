package system_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// launcher tries levels; it has come to a result about each when it is returned.
func launcher(t *testing.T) *sandbox.Launcher {
	t.Helper()
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: monitor, Warm: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for end := time.Now().Add(patience); ; {
		// A trial that came to no result, for want of time for instance, tells nothing of the host.
		err := l.Lacks(sandbox.Strict)
		if err == nil || errors.Is(err, sandbox.ErrUnsupported) {
			return l
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// eachLevel runs a test at every level, and skips those that this host can't give.
func eachLevel(t *testing.T, f func(t *testing.T, level sandbox.Level)) {
	t.Helper()
	l := launcher(t)
	for _, level := range []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict} {
		lacks := l.Lacks(level)
		t.Run(string(level), func(t *testing.T) {
			if lacks != nil {
				t.Skip(lacks)
			}
			t.Parallel()
			f(t, level)
		})
	}
}

// apart are the options of a provider whose runtimes bind their addresses: on the host, where anybody may take
// one that was just let go, they have such as nobody takes. At strict all of the loopback is their own.
func apart(t *testing.T, level sandbox.Level) []system.ProviderOption {
	t.Helper()
	if level == "" {
		level = launcher(t).Strongest()
	}
	switch level {
	case sandbox.Off:
		return []system.ProviderOption{system.WithLoopbackAllocator(system.Loopback(ownPort))}
	case sandbox.Limited:
		return []system.ProviderOption{system.WithLoopbackAllocator(system.Loopback(lowPort))}
	}
	return nil
}

// rootOf is the tree as the agent sees it.
func rootOf(dir string, a *system.Agent, level sandbox.Level) string {
	if level == sandbox.Strict {
		return "/"
	}
	return filepath.Join(dir, a.UUID().String(), "root")
}

// shared is a folder of the host that every user may write.
func shared(t *testing.T) string {
	t.Helper()
	dir := host(t)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), []byte("shared"), 0o666), os.Chmod(filepath.Join(dir, "file"), 0o666), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnAgentReachesItsOwnAndNothingElse(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		dir, open, frozen := host(t), shared(t), shared(t)
		mounts := []executor.Mount{{Host: open, Target: "/workspace/open"}}
		if level != sandbox.Off {
			mounts = append(mounts, executor.Mount{Host: frozen, Target: "/mnt/frozen", ReadOnly: true})
		}
		p := provider(t, dir, plain+"CONTEXT ABOUT <<END\nknown\nEND\n", system.WithSandbox(level))
		a := created(t, p, []system.AgentOption{system.WithMounts(mounts)}, role("serve"))
		running(t, a)
		root := rootOf(dir, a, level)
		source := "shared" // of a mount; at limited it may be read, at off all may
		if level == sandbox.Strict {
			source = "denied"
		}
		for ask, want := range map[string]string{
			"write:" + root + "/workspace/new":       "done",
			"write:" + root + "/home/new":            "done",
			"write:" + root + "/tmp/new":             "done",
			"read:" + root + "/etc/context/ABOUT.md": "known\n",
			"write:" + root + "/etc/agent.yaml":      "denied",
			"write:" + root + "/usr/bin/new":         "denied",
			"read:" + root + "/workspace/open/file":  "shared",
			"write:" + root + "/workspace/open/new":  "done",
			"read:" + frozen + "/file":               source,
			"read:/etc/shadow":                       "denied",
		} {
			if level == sandbox.Off && os.Geteuid() != 0 && want == "denied" && strings.HasPrefix(ask, "write:") {
				want = "done" // all of it is the operator's own there
			}
			if got := prompt(t, a, ask); got != want {
				t.Errorf("%s: %q, want %q", ask, got, want)
			}
		}
		if level != sandbox.Off {
			for ask, want := range map[string]string{
				"read:" + root + "/mnt/frozen/file":  "shared",
				"write:" + root + "/mnt/frozen/file": "denied",
				"write:" + root + "/mnt/frozen/new":  "denied",
			} {
				if got := prompt(t, a, ask); got != want {
					t.Errorf("%s: %q, want %q", ask, got, want)
				}
			}
		}
		doc := filepath.Join(dir, a.UUID().String(), "root/etc/context/WORKSPACE.md")
		if b, err := os.ReadFile(doc); err != nil || !strings.Contains(string(b), "level is "+string(level)) || !strings.Contains(string(b), filepath.Join(root, "workspace")) {
			t.Errorf("%s %v", b, err)
		}
		if c := a.Process().Confinement; c.Level != level || len(c.Enforced) == 0 || len(c.Open) == 0 {
			t.Errorf("%+v", c)
		}
	})
}

// The gateway's listener reaches the caller before the model resolver is asked, and the agent
// reaches the listener, at every level and from the next provider on.
func TestTheGatewayIsReachedAtEveryLevel(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		dir := host(t)
		listeners := make(chan net.Listener, 2)
		accept := func(ln net.Listener) {
			listeners <- ln
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					_, _ = fmt.Fprint(c, "from the gateway")
					_ = c.Close()
				}
			}()
		}
		var resolved string
		opts := []system.AgentOption{system.WithGateway(accept), system.WithModelResolver(func(string) (string, string, error) {
			ln := <-listeners
			resolved = ln.Addr().String()
			return "http://" + resolved + "/v1", "key", nil
		})}
		other, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		go func() {
			for {
				c, err := other.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprint(c, "from elsewhere")
				_ = c.Close()
			}
		}()
		check := func(a *system.Agent) {
			t.Helper()
			if got := prompt(t, a, "get:"+resolved); got != "from the gateway" {
				t.Errorf("gateway at %s: %q", resolved, got)
			}
			want := map[bool]string{true: "from elsewhere", false: "denied"}[level == sandbox.Off]
			if got := prompt(t, a, "get:"+other.Addr().String()); got != want {
				t.Errorf("elsewhere: %q, want %q", got, want)
			}
		}
		p := provider(t, dir, plain, system.WithSandbox(level))
		a := created(t, p, opts, role("serve"))
		running(t, a)
		if level == sandbox.Strict && resolved != "127.0.0.1:5528" {
			t.Errorf("gateway at %s", resolved)
		}
		check(a)
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		running(t, a) // a second start has a gateway too
		check(a)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		q := provider(t, dir, plain, system.WithSandbox(level))
		b := loaded(t, q, opts...)
		if ok, err := b.Attach(t.Context()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := b.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
		if ln := <-listeners; ln.Addr().String() != resolved {
			t.Errorf("taken over at %s, was %s", ln.Addr(), resolved)
		}
		check(b)
		if c := b.Process().Confinement; c.Level != level {
			t.Errorf("%+v", c)
		}
	})
}

// A runtime that knows nothing of descriptors binds the address it is given, inside or out.
func TestARuntimeThatBindsItsAddressIsReached(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		p := provider(t, host(t), plain, append(apart(t, level), system.WithLabelReader(nil))...)
		a := created(t, p, []system.AgentOption{system.WithLevel(level)}, role("serve"))
		running(t, a)
		if c := a.Process().Confinement; c.Level != level {
			t.Errorf("%+v", c)
		}
		if got := prompt(t, a, "hello there"); got != "hello there" {
			t.Errorf("%q", got)
		}
		want := map[sandbox.Level]string{sandbox.Limited: "denied"}[level]
		if got := prompt(t, a, "listen"); want != "" && got != want {
			t.Errorf("another address: %q, want %q", got, want)
		}
	})
}

// A monitor that is not there, or can't be started now, is no reason to run agents at a weaker level later.
func TestAMonitorThatComesLaterConfinesAsOneThatWasThere(t *testing.T) {
	t.Parallel()
	dir := host(t)
	late := filepath.Join(dir, "monitor")
	p := provider(t, dir, plain, system.WithMonitor(late), system.WithSandbox(""))
	if got := p.Features().Level; got == string(sandbox.Off) {
		t.Errorf("without a monitor agents would run at %s", got)
	}
	if err := os.Symlink(monitor, late); err != nil {
		t.Fatal(err)
	}
	if got, want := p.Features().Level, launcher(t).Strongest(); got != string(want) {
		t.Errorf("with one at %s, not %s", got, want)
	}
}

// A trial of strict that found no room is made again: a host that lacks the level does not refuse every
// agent for good. The monitor here is none, as on such a host.
func TestALevelThatCouldNotBeTriedIsTriedAgain(t *testing.T) {
	dir := host(t)
	none := filepath.Join(dir, "monitor")
	if err := os.WriteFile(none, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := provider(t, dir, plain, system.WithMonitor(none), system.WithSandbox(""))
	room := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(room, "missing"))
	if got := p.Features().Level; got != string(sandbox.Strict) {
		t.Errorf("without room for a trial agents would run at %s", got)
	}
	t.Setenv("TMPDIR", room)
	if got := p.Features().Level; got == string(sandbox.Strict) {
		t.Errorf("with room they are to run at %s still", got)
	}
}

// An agent that was made at one level runs at another, with the paths of that one.
func TestAnAgentMovesBetweenLevels(t *testing.T) {
	t.Parallel()
	dir, source, l := host(t), shared(t), launcher(t)
	var id uuid.UUID
	mounts := []system.AgentOption{system.WithMounts([]executor.Mount{{Host: source, Target: "/workspace/deep/er"}})}
	for i, level := range []sandbox.Level{sandbox.Off, sandbox.Strict, sandbox.Limited, sandbox.Strict, sandbox.Off} {
		if l.Lacks(level) != nil {
			continue
		}
		p := provider(t, dir, plain+"BIN env otters/tools/env\n", system.WithSandbox(level))
		var a *system.Agent
		if i == 0 {
			a = created(t, p, mounts, role("serve"))
			id = a.UUID()
		} else {
			if a = loaded(t, p); a.UUID() != id {
				t.Fatalf("loaded %s, want %s", a.UUID(), id)
			}
		}
		running(t, a)
		root := rootOf(dir, a, level)
		if got := prompt(t, a, "read:"+filepath.Join(root, "workspace/deep/er/file")); got != "shared" {
			t.Errorf("%s: mount: %q", level, got)
		}
		config := prompt(t, a, "read:"+filepath.Join(root, "etc/agent.yaml"))
		for _, want := range []string{filepath.Join(root, "workspace"), filepath.Join(root, "usr/bin/env"), filepath.Join(root, "usr/local/bin/runtime"), filepath.Join(root, "workspace/deep/er")} {
			if !strings.Contains(config, ": "+want+"\n") {
				t.Errorf("%s: agent.yaml does not have %s:\n%s", level, want, config)
			}
		}
		if res := a.Exec(t.Context(), "env", nil, ""); res.Err != nil || !strings.Contains(res.Stdout, "OTTERS_AGENT_ROOT="+root+"\n") {
			t.Errorf("%s: %+v", level, res)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// P13: a link to a program that points elsewhere is not followed.
func TestALinkOutOfTheStoreIsRefused(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		if level == sandbox.Off {
			t.Skip("nothing is bound there")
		}
		dir := host(t)
		p := provider(t, dir, plain+"BIN env otters/tools/env\n", system.WithSandbox(level))
		a := created(t, p, nil, role("serve"))
		if err := a.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(dir, a.UUID().String(), "root/usr/bin/env")
		if err := errors.Join(os.Remove(link), os.Symlink("/bin/sh", link)); err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "program store") {
			t.Errorf("%v", err)
		}
	})
}
