package system_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

func TestOverridesAreCheckedLikeTheFile(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p := provider(t, dir, plain)
	for says, o := range map[string]spec.Override{
		"OTTERSD_URL":     spec.WithExtraEnvs(spec.Env{Key: "OTTERSD_URL", Value: "x"}),
		"greeting":        spec.WithExtraEnvs(spec.Env{Key: "greeting", Value: "x"}),
		"MODEL":           spec.WithModel("no-slash"),
		"RUNTIME":         spec.WithRuntime("not a reference"),
		"Bad_Key":         spec.WithConfig("Bad_Key", "x"),
		"not absolute":    spec.WithMounts(spec.Mount{Host: "relative", Target: "/workspace/x"}),
		"not the agent's": spec.WithMounts(spec.Mount{Host: "/tmp", Target: "/usr/bin/cat"}),
		"NAME":            func(a *spec.Agentfile) { a.Name = "../x" },
	} {
		_, err := p.Create(t.Context(), uuid.New(), ref, o)
		if !errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one about %s", err, says)
		}
	}
	onlyShared(t, dir)
	created(t, p, nil, spec.WithExtraEnvs(spec.Env{Key: "GREETING", Value: "x"}), spec.WithModel("offline/otter"), spec.WithConfig("good-key", "x"))
}

func TestARequiredSettingThatIsNotGivenFailsBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p := provider(t, dir, plain+"CONFIG region!\nCONFIG zone!\n", system.WithPuller(func(context.Context, spec.Reference, io.Writer) error {
		t.Error("a program was pulled")
		return errors.New("pulled")
	}))
	a := created(t, p, nil, spec.WithConfig("zone", "z"))
	err := a.Run(t.Context())
	if a.Status() != executor.StatusFailed || a.FailureReason() != executor.FailureConfig || !errors.Is(err, system.ErrConfig) {
		t.Errorf("%v (%v): %v", a.Status(), a.FailureReason(), err)
	}
	if !strings.Contains(err.Error(), "CONFIG region:") {
		t.Errorf("error %q does not name exactly what is missing", err)
	}
	if _, err := os.Stat(filepath.Join(dir, a.UUID().String(), "root")); err == nil {
		t.Error("a tree was made")
	}
	// Its allowed twin.
	b := created(t, provider(t, host(t), plain+"CONFIG region!\n"), nil, role("serve"), spec.WithConfig("region", ""))
	running(t, b)
}

// records keeps what is logged.
type records struct {
	slog.Handler
	mu   sync.Mutex
	text []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Message
	rec.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, line)
	return nil
}

// of is what was logged of an agent; a provider may have words on its host too.
func (r *records) of(a *system.Agent) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.text), func(line string) bool { return !strings.Contains(line, "agent="+a.UUID().String()) })
}

func TestAnIllegalTransitionIsRefusedAndLogged(t *testing.T) {
	t.Parallel()
	log := new(records)
	a := created(t, provider(t, host(t), plain, system.WithLogger(slog.New(log))), nil)
	if a.StatusTracker().Set(executor.StatusReady) || a.Status() != executor.StatusPulling {
		t.Errorf("pulling became %v", a.Status())
	}
	if !a.StatusTracker().Set(executor.StatusStarting) {
		t.Error("a legal transition was refused")
	}
	want := "status transition refused agent=" + a.UUID().String() + " from=pulling to=ready"
	if got := log.of(a); len(got) != 1 || got[0] != want {
		t.Errorf("logged %q, want %q", got, want)
	}
}

func TestExecStreamTakesAndGivesAnyLength(t *testing.T) {
	t.Parallel()
	a := created(t, provider(t, host(t), plain+"BIN cat otters/tools/cat\n"), nil)
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	const size = 6 << 20 // more than Exec keeps
	var out strings.Builder
	res := a.ExecStream(t.Context(), "cat", nil, strings.NewReader(strings.Repeat("x", size)), &out, nil)
	if res.Err != nil || res.ExitCode != 0 || out.Len() != size {
		t.Errorf("%d bytes came back: %+v", out.Len(), res)
	}
	if res := a.Exec(t.Context(), "cat", nil, strings.Repeat("x", size)); res.Err != nil || len(res.Stdout) != 4<<20 {
		t.Errorf("Exec kept %d bytes: %v", len(res.Stdout), res.Err)
	}
}
