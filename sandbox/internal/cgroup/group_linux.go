package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killFile = "cgroup.kill"
	// period is what a share of the processors is given out for, in microseconds.
	period = 100_000
	// removeTime bounds the wait for what was killed to be gone from a group.
	removeTime = 2 * time.Second
)

// Group is a group of one start of a program: a part for each hierarchy that does something for it.
type Group struct {
	Parts []part `json:"parts"`
}

// part is the group in one hierarchy.
type part struct {
	V2     bool   `json:"v2,omitempty"`
	Path   string `json:"path"`
	Limits Limits `json:"limits,omitempty"`
	// home is the group that this process is in; empty where another process made the part.
	home string
}

// Make makes the group with its limits, and nothing where it fails.
func (g *Group) Make() error {
	for i, p := range g.Parts {
		err := os.Mkdir(p.Path, 0o755)
		for _, what := range []string{Memory, PIDs, CPU} {
			if n := p.Limits[what]; n > 0 && err == nil {
				err = p.limit(what, n)
			}
		}
		if err != nil {
			for _, made := range g.Parts[:i+1] {
				_ = os.Remove(made.Path)
			}
			return fmt.Errorf("control group: %w", err)
		}
	}
	return nil
}

// limit puts a limit in force.
func (p part) limit(what string, n int64) error {
	set := func(name, text string) error { return write(filepath.Join(p.Path, name), text) }
	// optional is for what not every kernel has.
	optional := func(name, text string) error {
		if err := set(name, text); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	value := strconv.FormatInt(n, 10)
	quota := strconv.FormatInt(quota(n), 10)
	switch {
	case what == Memory && p.V2:
		return errors.Join(set("memory.max", value), optional("memory.swap.max", "0"))
	case what == Memory:
		if err := set("memory.limit_in_bytes", value); err != nil {
			return err
		}
		return optional("memory.memsw.limit_in_bytes", value)
	case what == PIDs:
		return set("pids.max", value)
	case what == CPU && p.V2:
		return set("cpu.max", quota+" "+strconv.Itoa(period))
	case what == CPU:
		return errors.Join(set("cpu.cfs_period_us", strconv.Itoa(period)), set("cpu.cfs_quota_us", quota))
	}
	return fmt.Errorf("no limit %q", what)
}

// quota is the time in a period for thousandths of a processor.
func quota(thousandths int64) int64 { return thousandths * period / 1000 }

// Read tells the limits that the kernel has in force; -1 is none. Those that the group was made for
// are asked for.
func (g *Group) Read() (Limits, error) {
	all := make(Limits)
	for _, p := range g.Parts {
		for what := range p.Limits {
			n, err := p.read(what)
			if err != nil {
				return nil, fmt.Errorf("limit of %s: %w", what, err)
			}
			all[what] = n
		}
	}
	return all, nil
}

func (p part) read(what string) (int64, error) {
	file := func(name string) (int64, error) { return number(filepath.Join(p.Path, name)) }
	switch {
	case what == Memory && p.V2:
		return file("memory.max")
	case what == Memory:
		return file("memory.limit_in_bytes")
	case what == PIDs:
		return file("pids.max")
	case p.V2:
		b, err := os.ReadFile(filepath.Join(p.Path, "cpu.max"))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(b))
		if len(f) != 2 || f[0] == "max" {
			return -1, nil
		}
		q, err := strconv.ParseInt(f[0], 10, 64)
		per, err2 := strconv.ParseInt(f[1], 10, 64)
		if err = errors.Join(err, err2); err != nil || per <= 0 {
			return 0, fmt.Errorf("cpu.max %q: %w", b, err)
		}
		return q * 1000 / per, nil
	default:
		q, err := file("cpu.cfs_quota_us")
		per, err2 := file("cpu.cfs_period_us")
		if err = errors.Join(err, err2); err != nil || q < 0 || per <= 0 {
			return -1, err
		}
		return q * 1000 / per, nil
	}
}

// Swap tells whether what is swapped out counts as memory; false where the host has swap and the
// kernel does not count it.
func (g *Group) Swap() bool {
	for _, p := range g.Parts {
		if p.Limits[Memory] == 0 {
			continue
		}
		name := "memory.memsw.limit_in_bytes"
		if p.V2 {
			name = "memory.swap.max"
		}
		_, err := os.Stat(filepath.Join(p.Path, name))
		return err == nil
	}
	return true
}

// Version is that of the hierarchy that has the limit.
func (g *Group) Version(what string) int {
	for _, p := range g.Parts {
		if p.Limits[what] == 0 {
			continue
		}
		if p.V2 {
			return 2
		}
		return 1
	}
	return 0
}

// Files are what a monitor places a program by. The caller closes them.
type Files struct {
	// Into, where not nil, is the folder of a group that a program can be cloned into.
	Into *os.File
	// Enter and Leave are pairs: what a thread writes 0 to for entering the group, and for going back
	// to the one it came from.
	Enter, Leave []*os.File
	// Kill, where not nil, kills the whole group by a 1 written to it; Events, where not nil, tells of
	// processes killed for want of memory.
	Kill, Events *os.File
}

// Open opens the files. clone tells that Into can be used.
func (g *Group) Open(clone bool) (_ *Files, err error) {
	f := &Files{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for _, p := range g.Parts {
		// In version 1 a thread can be in another group than its process, and what it forks with it.
		name := "tasks"
		if p.V2 {
			name = "cgroup.procs"
		}
		enter, err := os.OpenFile(filepath.Join(p.Path, name), os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		f.Enter = append(f.Enter, enter)
		leave, err := os.OpenFile(filepath.Join(p.home, name), os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		f.Leave = append(f.Leave, leave)
		if p.V2 {
			if f.Kill, err = os.OpenFile(filepath.Join(p.Path, killFile), os.O_WRONLY, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
		}
		if p.V2 && clone {
			if f.Into, err = os.Open(p.Path); err != nil {
				return nil, err
			}
		}
		if p.Limits[Memory] > 0 {
			name := "memory.oom_control"
			if p.V2 {
				name = "memory.events"
			}
			if f.Events, err = os.Open(filepath.Join(p.Path, name)); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// Close closes what is open.
func (f *Files) Close() {
	for _, file := range slices.Concat([]*os.File{f.Into, f.Kill, f.Events}, f.Enter, f.Leave) {
		if file != nil {
			_ = file.Close()
		}
	}
}

// Remove removes the group, which must be empty; one that is gone is no error.
func (g *Group) Remove() error {
	var errs []error
	for _, p := range g.Parts {
		if err := unix.Rmdir(p.Path); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, &os.PathError{Op: "remove control group", Path: p.Path, Err: err})
		}
	}
	return errors.Join(errs...)
}

// KillAll kills everything in the group and removes it, within two seconds.
func (g *Group) KillAll() error {
	for end := time.Now().Add(removeTime); ; time.Sleep(time.Millisecond) {
		for _, p := range g.Parts {
			p.kill()
		}
		err := g.Remove()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (p part) kill() {
	if p.V2 && write(filepath.Join(p.Path, killFile), "1") == nil {
		return
	}
	b, err := os.ReadFile(filepath.Join(p.Path, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, text := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(text)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		p.killOne(pid)
	}
}

// killOne kills a process where it is in the group, and none that has its id since.
func (p part) killOne(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || !strings.Contains(string(b), "/"+filepath.Base(p.Path)) {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// Check refuses a group that was read from a file and that was not made here.
func (g *Group) Check() error {
	for _, p := range g.Parts {
		name := filepath.Base(p.Path)
		if !filepath.IsAbs(p.Path) || filepath.Clean(p.Path) != p.Path || !strings.HasPrefix(name, Prefix) || name == leaf {
			return fmt.Errorf("control group %q: not one of ours", p.Path)
		}
		var st unix.Statfs_t
		switch err := unix.Statfs(p.Path, &st); {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return &os.PathError{Op: "statfs", Path: p.Path, Err: err}
		case int64(st.Type) != unix.CGROUP_SUPER_MAGIC && int64(st.Type) != unix.CGROUP2_SUPER_MAGIC:
			return fmt.Errorf("control group %q: not in a hierarchy", p.Path)
		}
	}
	return nil
}
