package system_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Invariant: a handle is the one before a write or the one after it, whole, whenever the process
// that writes it dies; what was acknowledged is there. The three worst inputs: a death between the
// bytes and the rename, one right after the acknowledgement, a hundred deaths whose left-overs pile up.

// crashRounds is how often the writer is killed.
func crashRounds(t *testing.T) int {
	text := os.Getenv("OTTERS_CRASH_ROUNDS")
	if text == "" {
		return 12
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keeper is a provider over dir that starts nothing.
func keeper(dir string, s *spawner) (*system.Provider, billy.Filesystem, error) {
	fs, err := rootfs.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	return system.NewProvider(fs, func(spec.Reference) oras.ReadOnlyTarget { return nil },
		system.WithHostFS(memfs.New()), system.WithLoopbackAllocator(fixed{}),
		system.WithAgentDefaults(system.WithSpawner(s), system.WithDialer(s))), fs, nil
}

// writeHandles is the process that is killed: it gives the agent of the folder dir one token after the
// other, counting from where it was, and says each number when its handle was written.
func writeHandles(dir string) error {
	p, _, err := keeper(dir, new(spawner))
	if err != nil {
		return err
	}
	agents, err := p.Load(context.Background())
	if err != nil || len(agents) != 1 {
		return fmt.Errorf("%d agents, %w", len(agents), err)
	}
	a := agents[0].(*system.Agent)
	n, err := number(a)
	for ; err == nil; n++ {
		a.SetAgentToken(token(n + 1))
		_, err = fmt.Println(n + 1)
	}
	return err
}

// token is longer than what is written at once.
func token(n int) string { return strings.Repeat("x", 64<<10) + strconv.Itoa(n) }

func number(a *system.Agent) (int, error) { return strconv.Atoi(strings.TrimLeft(a.Token(), "x")) }

func TestAKilledWriterLeavesAWholeHandle(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p, fs, err := keeper(dir, new(spawner))
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.New()
	if _, err := p.CreateWithOptions(t.Context(), id, ref, []system.AgentOption{system.WithAgentToken(token(0)), system.WithDaemonURL("unix:///x")}, everyKind("/src")...); err != nil {
		t.Fatal(err)
	}
	closeKeeper(t, p, fs)
	before, inFlight := 0, 0
	for round := range crashRounds(t) {
		said := killedWriter(t, dir)
		p, fs, err := keeper(dir, new(spawner))
		if err != nil {
			t.Fatal(err)
		}
		agents, err := p.Load(t.Context())
		if err != nil || len(agents) != 1 {
			t.Fatalf("round %d: %d agents, %v", round, len(agents), err)
		}
		n, err := number(agents[0].(*system.Agent))
		if said < before {
			said = before // It was killed ahead of its first word.
		}
		if err != nil || n != said && n != said+1 {
			t.Fatalf("round %d: the handle is the %dth, %v; the last one acknowledged is the %dth", round, n, err, said)
		}
		if n > said {
			inFlight++
		}
		before = n
		entries, err := fs.ReadDir(id.String())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if name := e.Name(); strings.HasPrefix(name, ".") {
				t.Errorf("round %d: left behind: %s", round, name)
			} else if name == "handle.json" && e.Mode().Perm() != 0o600 {
				t.Errorf("round %d: the handle has mode %v", round, e.Mode())
			}
		}
		closeKeeper(t, p, fs)
	}
	if before == 0 {
		t.Error("nothing was ever written")
	}
	t.Logf("%d handles, %d deaths between the write and the word of it", before, inFlight)
}

func closeKeeper(t *testing.T, p *system.Provider, fs billy.Filesystem) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := fs.(*rootfs.FS).Close(); err != nil {
		t.Error(err)
	}
}

// killedWriter runs writeHandles, kills it at some instant, and returns the last number that it said.
func killedWriter(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = []string{roleVar + "=handles " + dir}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	words := bufio.NewScanner(out)
	said := 0
	for range 1 + rand.IntN(8) {
		if !words.Scan() {
			break
		}
		said, _ = strconv.Atoi(words.Text())
	}
	// Somewhere in a write, which takes about that long.
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	for words.Scan() {
		said, _ = strconv.Atoi(words.Text())
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the writer ended by itself: %v", err)
	}
	return said
}
