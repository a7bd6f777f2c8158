//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// benchReady measures create to ready with a warm store, beside programs spawned by hand on an
// inherited listener until their first answer: one with gRPC alone, our runtime, and our runtime in
// namespaces of its own, as level strict has them. All take turns, so that a machine that drifts does
// so for all. The usual agent finds a monitor that was started ahead; one that follows another at once
// does not.
func benchReady(ctx context.Context, b *built, runs int) ([]row, error) {
	d, err := startDaemon(ctx, b)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if err := d.build(ctx, "bench", "FROM scratch\nMODEL offline/otter\n"); err != nil {
		return nil, err
	}
	// One agent brings the store up and leaves a tree for the runtime spawned by hand.
	agent, err := d.create(ctx, "template", "")
	if err != nil {
		return nil, err
	}
	if _, err := d.client.Stop(ctx, agent.GetSummary().GetId()); err != nil {
		return nil, err
	}
	root := agent.GetRoot()
	var bare, runtime, spaces, product, cold samples
	for i := range runs + 3 {
		quiet()
		bt, err := spawn(ctx, exec.Command(b.path("bare")))
		if err != nil {
			return nil, fmt.Errorf("bare: %w", err)
		}
		quiet()
		rt, err := spawn(ctx, handRun(b, root))
		if err != nil {
			return nil, fmt.Errorf("runtime: %w", err)
		}
		quiet()
		nt := rt
		if b.spaces {
			if nt, err = spawn(ctx, inNamespaces(handRun(b, root), int(agent.GetUid()))); err != nil {
				return nil, fmt.Errorf("runtime in namespaces: %w", err)
			}
		}
		quiet()
		pt, err := d.createToReady(ctx, fmt.Sprintf("agent-%d", i))
		if err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
		ct, err := d.createToReady(ctx, fmt.Sprintf("next-%d", i))
		if err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
		// The first ones warm the caches of the kernel.
		if i >= 3 {
			bare, runtime, spaces = append(bare, bt), append(runtime, rt), append(spaces, nt)
			product, cold = append(product, pt), append(cold, ct)
		}
	}
	floor, own := bare.row("bare gRPC program p50", .5), runtime.row("runtime by hand p50", .5)
	of := "runtime by hand in namespaces"
	if !b.spaces {
		of = "runtime by hand, for want of namespaces"
	}
	apart := spaces.row(of+" p50", .5)
	return []row{
		floor, bare.row("bare gRPC program p95", .95),
		own.over(floor, 2.5), runtime.row("runtime by hand p95", .95),
		apart, spaces.row(of+" p95", .95),
		product.row("create to ready p50", .5).over(own, 2), product.row("create to ready p95", .95),
		product.row("create to ready p50, a monitor started ahead", .5).over(apart, 1.6),
		cold.row("create to ready p50, right after another", .5).over(apart, 2),
	}, nil
}

// quiet lets what the last measurement left behind come to its end: processes that are reaped, and
// the monitor and the folders that the daemon makes ahead. All three programs begin on such a machine.
func quiet() { time.Sleep(80 * time.Millisecond) }

// handRun is our runtime on the tree of an agent, as a person would start it.
func handRun(b *built, root string) *exec.Cmd {
	cmd := exec.Command(b.path("otters-runtime"), "serve", "--root", root, "--model", "offline/otter", "--addr", "127.0.0.1:0")
	cmd.Dir = filepath.Join(root, "workspace")
	cmd.Env = []string{
		"OFFLINE_API_KEY=x", "OFFLINE_API_BASE=http://127.0.0.1:9/v1", "OTTERS_AGENT_ROOT=" + root,
		"LISTEN_FDS=1", "LISTEN_FDNAMES=runtime",
	}
	return cmd
}

// inNamespaces has cmd run in the namespaces of level strict, as its user 0, which is uid outside. The
// files, the listener and all else are as they are without.
func inNamespaces(cmd *exec.Cmd, uid int) *exec.Cmd {
	gid := uid
	if os.Geteuid() != 0 {
		gid = os.Getegid()
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	return cmd
}

// spawn starts cmd on an inherited listener and returns the time from then to its first answer.
func spawn(ctx context.Context, cmd *exec.Cmd) (time.Duration, error) {
	return spawnWith(ctx, cmd, func(string) error { return nil })
}

// spawnWith does the same, and calls then with the address before it ends the program.
func spawnWith(ctx context.Context, cmd *exec.Cmd, then func(address string) error) (time.Duration, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		return 0, err
	}
	defer f.Close()
	cmd.ExtraFiles = []*os.File{f}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	res, err := agentv1.NewAgentRuntimeClient(conn).Ready(limited, &agentv1.ReadyRequest{})
	took := time.Since(start)
	switch {
	case err != nil:
		return took, err
	case !res.Ready:
		return took, fmt.Errorf("it says that it is not ready")
	}
	return took, then(ln.Addr().String())
}

// createToReady is the time from the call until the daemon says ready. The agent is then removed.
func (d *daemon) createToReady(ctx context.Context, name string) (time.Duration, error) {
	start := time.Now()
	summary, err := d.client.Create(ctx, &daemonv1.CreateAgentRequest{Image: "bench", Name: name})
	if err != nil {
		return 0, err
	}
	if _, err := d.client.WaitReady(ctx, summary.Id); err != nil {
		return 0, err
	}
	took := time.Since(start)
	_, err = d.client.Remove(ctx, summary.Id, true)
	return took, err
}
