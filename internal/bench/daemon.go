//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing/fstest"
	"time"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// daemon is a daemon of the bench's own, in a temporary home.
type daemon struct {
	cmd    *exec.Cmd
	exited chan error // of cmd
	home   string
	client *client.Client
}

// startDaemon starts ottersd and waits until it answers. providers, where not empty, is the text of
// providers.yaml.
func startDaemon(ctx context.Context, b *built, providers ...string) (*daemon, error) {
	d := &daemon{home: b.path("home")}
	if err := os.Mkdir(d.home, 0o711); err != nil {
		return nil, err
	}
	for _, text := range providers {
		if err := os.WriteFile(filepath.Join(d.home, "providers.yaml"), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := d.start(ctx, b); err != nil {
		return nil, err
	}
	return d, nil
}

// start starts ottersd on the home that there is, and waits until it answers.
func (d *daemon) start(ctx context.Context, b *built) error {
	socket := filepath.Join(d.home, "ottersd.sock")
	d.exited = make(chan error, 1)
	d.cmd = exec.Command(b.path("ottersd"), "--home", d.home, "--socket", socket, "--log-level", "error")
	d.cmd.Stderr = os.Stderr
	if err := d.cmd.Start(); err != nil {
		return err
	}
	go func(cmd *exec.Cmd, exited chan<- error) { exited <- cmd.Wait() }(d.cmd, d.exited)
	deadline, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		c, err := client.Dial(deadline, client.Options{Socket: socket})
		if err == nil {
			d.client = c
			return nil
		}
		select {
		case exit := <-d.exited:
			return fmt.Errorf("ottersd ended: %w", errors.Join(exit, err))
		case <-deadline.Done():
			d.stop()
			return fmt.Errorf("ottersd does not answer: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// stop ends the daemon with its agents and removes its home.
func (d *daemon) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if d.client != nil {
		if _, err := d.client.Shutdown(ctx, true); err != nil {
			fmt.Fprintln(os.Stderr, "bench: shutdown:", err)
			_ = d.cmd.Process.Kill()
		}
		_ = d.client.Close()
	} else {
		_ = d.cmd.Process.Kill()
	}
	select {
	case <-d.exited:
	case <-ctx.Done():
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
	_ = os.RemoveAll(d.home)
}

// build makes an image of an Agentfile.
func (d *daemon) build(ctx context.Context, tag, agentfile string) error {
	_, err := d.client.Build(ctx, client.BuildOptions{
		Tags: []string{tag}, Source: fstest.MapFS{"Agentfile": {Data: []byte(agentfile), Mode: 0o644}},
	})
	return err
}

// create makes an agent of the image bench and waits until it is ready.
func (d *daemon) create(ctx context.Context, name, runtimePath string) (*daemonv1.Agent, error) {
	req := &daemonv1.CreateAgentRequest{Image: "bench", Name: name, RuntimePath: runtimePath}
	if runtimePath != "" {
		// At strict the monitor passes on what reaches a runtime that binds its own address; one that
		// inherits its listener, as those of images do, has nothing between.
		req.Sandbox = "off"
	}
	summary, err := d.client.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	if _, err := d.client.WaitReady(ctx, summary.Id); err != nil {
		return nil, err
	}
	return d.client.Agent(ctx, summary.Id)
}
