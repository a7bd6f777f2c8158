//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// densityRest is how long the daemon is left alone before something is read.
	densityRest = time.Second
	// densityIdle is how long the processors' time of idle agents is counted; of few agents the lesser
	// time, a quarter of a second for each.
	densityIdle = 20 * time.Second
	// densityEnds is how many agents at each end are held against each other.
	densityEnds = 10
	// densityBurst is how many are started at once.
	densityBurst = 50
	mebibytes    = 1 << 20

	// What only root can read where a monitor keeps its memory to itself.
	memoryPerAgent  = "memory per agent (PSS)"
	memoryOfMonitor = "of which its monitor"
	memoryOfDaemon  = "memory of the daemon and what it starts ahead (PSS)"
)

// benchDensity runs many idle agents at the default level, and measures what each takes and whether
// the last starts as the first. Memory is read of every process; where only root may, its rows are left out.
func benchDensity(ctx context.Context, b *built, agents int) ([]row, error) {
	d, err := startDaemon(ctx, b)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if err := d.build(ctx, "bench", "FROM scratch\nMODEL offline/otter\n"); err != nil {
		return nil, err
	}
	// Ones that bring the store and the caches of the kernel up, and stay.
	for i := range 3 {
		if _, err := d.create(ctx, fmt.Sprintf("warm-%d", i), ""); err != nil {
			return nil, err
		}
	}
	before, err := d.weigh(ctx)
	if err != nil {
		return nil, err
	}
	took := make(samples, agents)
	for i := range took {
		quiet()
		start := time.Now()
		if _, err := d.client.Create(ctx, &daemonv1.CreateAgentRequest{Image: "bench", Name: agentName(i)}); err != nil {
			return nil, err
		}
		if _, err := d.client.WaitReady(ctx, agentName(i)); err != nil {
			return nil, err
		}
		took[i] = time.Since(start)
	}
	after, err := d.weigh(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := d.memory(ctx, agents)
	hidden := errors.Is(err, fs.ErrPermission)
	if err != nil && !hidden {
		return nil, err
	}
	idle, err := d.idle(ctx, min(densityIdle, time.Duration(agents)*densityIdle/80))
	if err != nil {
		return nil, err
	}
	burst := min(agents, densityBurst)
	hand, started, created, err := d.bursts(ctx, b, burst)
	if err != nil {
		return nil, err
	}
	ends := min(densityEnds, agents)
	first := took[:ends].row(fmt.Sprintf("create to ready p50 of the first %d", ends), .5)
	byHand := row{Name: fmt.Sprintf("%d runtimes by hand in namespaces at once, all ready", burst), Value: ms(hand), Unit: "ms"}
	rows := []row{
		{Name: "agents", Value: float64(agents)},
		row{Name: "disk per further agent", Value: float64(after.disk-before.disk) / float64(agents) / 1024, Unit: "KiB"}.under(256),
		row{Name: memoryPerAgent, Value: memory.agent, Unit: "MiB"}.under(8),
		row{Name: memoryOfMonitor, Value: memory.monitor, Unit: "MiB"}.under(2),
		{Name: "kernel memory per agent (host's slab, stacks, page tables)", Value: float64(after.kernel-before.kernel) / float64(agents) / mebibytes, Unit: "MiB"},
		{Name: memoryOfDaemon, Value: memory.daemon, Unit: "MiB"},
		row{Name: "idle processor time, agents and daemon", Value: idle, Unit: "% of a core"}.under(1),
		first,
		took[agents-ends:].row(fmt.Sprintf("create to ready p50 of the last %d", ends), .5).over(first, 1.5),
		byHand,
		row{Name: fmt.Sprintf("%d stopped agents started at once, all ready", burst), Value: ms(started), Unit: "ms"}.under(600).beside(byHand),
		row{Name: fmt.Sprintf("%d new agents created at once, all ready", burst), Value: ms(created), Unit: "ms"}.beside(byHand),
	}
	if hidden {
		rows = slices.DeleteFunc(rows, func(r row) bool {
			return slices.Contains([]string{memoryPerAgent, memoryOfMonitor, memoryOfDaemon}, r.Name)
		})
	}
	return rows, nil
}

func agentName(i int) string { return fmt.Sprintf("agent-%d", i) }

// weight is what grows with the number of agents, in bytes.
type weight struct{ disk, kernel int64 }

func (d *daemon) weigh(ctx context.Context) (weight, error) {
	if err := pause(ctx, densityRest); err != nil {
		return weight{}, err
	}
	disk, err := blocks(d.home)
	if err != nil {
		return weight{}, err
	}
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return weight{}, err
	}
	var kernel float64
	for _, name := range []string{"Slab:", "KernelStack:", "PageTables:"} {
		kernel += kilobytes(string(info), "\n"+name)
	}
	return weight{disk, int64(kernel) * 1024}, nil
}

func pause(ctx context.Context, t time.Duration) error {
	select {
	case <-time.After(t):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// blocks is the disk that a folder takes, what has several names once.
func blocks(dir string) (int64, error) {
	var sum int64
	seen := make(map[uint64]bool)
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return gone(err)
		}
		info, err := e.Info()
		if err != nil {
			return gone(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}

// gone forgives what went away between two looks.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// pss is the memory of processes in MiB, what is shared divided among those who share it.
type pss struct{ agent, monitor, daemon float64 }

func (d *daemon) memory(ctx context.Context, agents int) (pss, error) {
	var m pss
	owned := make(map[int]bool)
	for i := range agents {
		a, err := d.client.Agent(ctx, agentName(i))
		if err != nil {
			return m, err
		}
		monitor, err := proportional(int(a.GetMonitorPid()))
		if err != nil {
			return m, err
		}
		runtime, err := proportional(int(a.GetPid()))
		if err != nil {
			return m, err
		}
		owned[int(a.GetMonitorPid())], owned[int(a.GetPid())] = true, true
		m.monitor += monitor / float64(agents)
		m.agent += (monitor + runtime) / float64(agents)
	}
	for _, p := range append(descendants(d.cmd.Process.Pid), d.cmd.Process.Pid) {
		if owned[p] {
			continue
		}
		size, err := proportional(p)
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return m, err
		}
		m.daemon += size
	}
	return m, nil
}

func proportional(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return kilobytes(string(text), "\nPss:") / 1024, nil
}

// descendants are the processes below one.
func descendants(root int) []int {
	parents := make(map[int][]int)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			parents[parent] = append(parents[parent], pid)
		}
	}
	all := append([]int(nil), parents[root]...)
	for i := 0; i < len(all); i++ {
		all = append(all, parents[all[i]]...)
	}
	return all
}

// parentOf reads who started a process from proc_pid_stat(5).
func parentOf(pid int) (int, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(f[1])
	return parent, err == nil
}

// ran is how long the threads of a process have had a processor.
func ran(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		ns, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

// idle is how much of a processor the daemon and everything below it use while nobody asks for
// anything, in percent.
func (d *daemon) idle(ctx context.Context, long time.Duration) (float64, error) {
	if err := pause(ctx, densityRest); err != nil {
		return 0, err
	}
	all := append(descendants(d.cmd.Process.Pid), d.cmd.Process.Pid)
	var used time.Duration
	for round := range 2 {
		for _, p := range all {
			t, err := ran(p)
			if err != nil {
				return 0, err
			}
			if round == 0 {
				t = -t
			}
			used += t
		}
		if round == 0 {
			if used == 0 {
				return 0, errors.New("the kernel does not tell how long a process ran (/proc/PID/task/ID/schedstat)")
			}
			if err := pause(ctx, long); err != nil {
				return 0, err
			}
		}
	}
	return used.Seconds() / long.Seconds() * 100, nil
}

// bursts stop n agents, and start the runtimes on their trees by hand, then the agents, and then
// create n new ones, beside all others, and tell how long it takes each time until the last is ready.
func (d *daemon) bursts(ctx context.Context, b *built, n int) (hand, started, created time.Duration, err error) {
	stopped := make([]*daemonv1.Agent, n)
	for i := range stopped {
		if stopped[i], err = d.client.Agent(ctx, agentName(i)); err != nil {
			return 0, 0, 0, err
		}
		if _, err := d.client.Stop(ctx, agentName(i)); err != nil {
			return 0, 0, 0, err
		}
	}
	once := func(begin func(ctx context.Context, i int) error) (time.Duration, error) {
		if err := pause(ctx, densityRest); err != nil {
			return 0, err
		}
		var gate sync.WaitGroup
		gate.Add(1)
		g, ctx := errgroup.WithContext(ctx)
		for i := range n {
			g.Go(func() error {
				gate.Wait()
				return begin(ctx, i)
			})
		}
		start := time.Now()
		gate.Done()
		err := g.Wait()
		return time.Since(start), err
	}
	ready := func(ctx context.Context, name string, begun error) error {
		if begun != nil {
			return begun
		}
		s, err := d.client.WaitReady(ctx, name)
		if err == nil && s.GetStatus() != "ready" {
			err = fmt.Errorf("%s is %s: %s", name, s.GetStatus(), s.GetMessage())
		}
		return err
	}
	if hand, err = handBurst(ctx, b, stopped); err != nil {
		return 0, 0, 0, err
	}
	if started, err = once(func(ctx context.Context, i int) error {
		_, err := d.client.Start(ctx, agentName(i))
		return ready(ctx, agentName(i), err)
	}); err != nil {
		return 0, 0, 0, err
	}
	created, err = once(func(ctx context.Context, i int) error {
		name := fmt.Sprintf("burst-%d", i)
		_, err := d.client.Create(ctx, &daemonv1.CreateAgentRequest{Image: "bench", Name: name})
		return ready(ctx, name, err)
	})
	return hand, started, created, err
}

// handBurst is the time from starting runtimes on the trees of agents, at once, until the last has
// answered. They end when all have.
func handBurst(ctx context.Context, b *built, agents []*daemonv1.Agent) (time.Duration, error) {
	if err := pause(ctx, densityRest); err != nil {
		return 0, err
	}
	var mu sync.Mutex
	var last time.Time
	var all sync.WaitGroup
	all.Add(len(agents))
	var g errgroup.Group
	start := time.Now()
	for _, a := range agents {
		g.Go(func() error {
			answered := false
			cmd := handRun(b, a.GetRoot())
			if b.spaces {
				cmd = inNamespaces(cmd, int(a.GetUid()))
			}
			_, err := spawnWith(ctx, cmd, func(string) error {
				mu.Lock()
				last, answered = time.Now(), true
				mu.Unlock()
				all.Done()
				all.Wait()
				return nil
			})
			if !answered {
				all.Done()
			}
			return err
		})
	}
	err := g.Wait()
	return last.Sub(start), err
}
