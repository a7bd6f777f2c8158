package breakout

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// asBare runs the program as a plain process of the attacker's user, with no sandbox at all: what
// succeeds there is what the host gives.
func (h *host) asBare(ctx context.Context) ([]byte, error) {
	text, err := h.targetsOf(h.attacker.UUID(), Bare)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, h.opts.Attack, "run", "--root", h.path("home", h.attacker.UUID().String(), "root"), "--targets", text)
	cmd.Env = []string{}
	if os.Geteuid() == 0 {
		uid := h.attacker.Process().UID
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	var stdout bytes.Buffer
	var stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}
