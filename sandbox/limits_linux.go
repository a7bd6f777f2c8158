package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
)

// groupFile names the control groups of the program of a state folder, for whoever takes it over or
// clears up after it.
const groupFile = "cgroup.json"

// plan is how the limits of a start are enforced.
type plan struct {
	// group is nil where there is none.
	group *cgroup.Group
	// rlimits are what no control group bounds.
	rlimits Limits
}

// planFor finds out what can bound a program.
func (l *Launcher) planFor(level Level, limits Limits) (plan, error) {
	var p plan
	groups := make(cgroup.Limits)
	for _, a := range []struct {
		what string
		n    int64
		to   *int64
	}{{cgroup.Memory, limits.Memory, &p.rlimits.Memory}, {cgroup.PIDs, limits.PIDs, &p.rlimits.PIDs}, {cgroup.CPU, limits.CPU, nil}} {
		if a.n == 0 {
			continue
		}
		lacks := l.groups.Lacks(a.what)
		if lacks == nil {
			groups[a.what] = a.n
			continue
		}
		if why := noRlimit(level, a.what); why != "" {
			return p, fmt.Errorf("limit of %s: %w: no control group can be had for it (%w), and %s", limitNames[a.what], ErrUnsupported, lacks, why)
		}
		*a.to = a.n
	}
	// The namespace of processes ends with the monitor at strict: there is nothing left to kill.
	var err error
	if p.group, err = l.groups.Plan(groups, level != Strict && l.groups.Lacks(cgroup.Kill) == nil); err != nil {
		return p, fmt.Errorf("limits: %w: %w", ErrUnsupported, err)
	}
	return p, nil
}

// limitNames are how a person calls what is limited.
var limitNames = map[string]string{cgroup.Memory: "memory", cgroup.PIDs: "processes", cgroup.CPU: "processors"}

// noRlimit tells why an rlimit can't bound what at level; empty where it can.
func noRlimit(level Level, what string) string {
	switch {
	case level == Off:
		return "level off enforces none otherwise"
	case what == cgroup.CPU:
		return "nothing else bounds a share of the processors"
	case what == cgroup.PIDs && level == Limited && unix.Geteuid() != 0:
		return "at level limited an rlimit would count all of this user's; use level strict, or leave it out"
	}
	return ""
}

// LimitedBy tells what would enforce limits at level, in the order of memory, CPU and PIDs: nothing
// is read back, as Process.Confinement does. The error wraps ErrUnsupported where a limit can't be had.
func (l *Launcher) LimitedBy(level Level, limits Limits) ([]Limit, error) {
	if err := limits.Check(); err != nil {
		return nil, err
	}
	p, err := l.planFor(level, limits)
	if err != nil {
		return nil, err
	}
	var all []Limit
	for _, a := range []struct {
		name, what string
		n, rlimit  int64
	}{{LimitMemory, cgroup.Memory, limits.Memory, p.rlimits.Memory}, {LimitCPU, cgroup.CPU, limits.CPU, 0}, {LimitPIDs, cgroup.PIDs, limits.PIDs, p.rlimits.PIDs}} {
		switch {
		case a.n == 0:
		case a.rlimit > 0:
			all = append(all, Limit{a.name, a.n, byRlimit})
		default:
			all = append(all, Limit{a.name, a.n, mechanism(p.group.Version(a.what))})
		}
	}
	return all, nil
}

func mechanism(version int) string { return fmt.Sprintf("cgroup v%d", version) }

// groupRecord is the content of groupFile.
type groupRecord struct {
	Version int            `json:"version"`
	Group   *cgroup.Group  `json:"group,omitempty"`
	Left    []cgroup.Group `json:"left,omitempty"`
}

const groupVersion = 1

// readGroups reads the record of a state folder; an empty one where there is none.
func readGroups(dir string) (groupRecord, error) {
	r, err := readRecord[groupRecord](dir, groupFile)
	if errors.Is(err, fs.ErrNotExist) {
		return groupRecord{}, nil
	}
	if err != nil {
		return groupRecord{}, err
	}
	if r.Version != groupVersion {
		return groupRecord{}, fmt.Errorf("%s of version %d, this program knows %d", groupFile, r.Version, groupVersion)
	}
	for _, g := range r.all() {
		if len(g.Parts) == 0 {
			return groupRecord{}, fmt.Errorf("%s: a group without parts", groupFile)
		}
		if err := g.Check(); err != nil {
			return groupRecord{}, err
		}
	}
	return r, nil
}

func (r groupRecord) all() []cgroup.Group {
	all := r.Left
	if r.Group != nil {
		all = append(all[:len(all):len(all)], *r.Group)
	}
	return all
}

// writeGroups replaces the record; an empty one is no file.
func writeGroups(dir string, r groupRecord) error {
	path := filepath.Join(dir, groupFile)
	if r.Group == nil && len(r.Left) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	r.Version = groupVersion
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A rename, for half a record would leave groups behind.
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// makeGroup makes the group of a start, after it has cleared up what is left of earlier ones. What it
// returns takes it back.
func (p plan) makeGroup(dir string) (undo func(), err error) {
	before, err := readGroups(dir)
	if err != nil {
		return nil, err
	}
	if p.group == nil && len(before.all()) == 0 {
		return func() {}, nil
	}
	now := groupRecord{Group: p.group}
	for _, g := range before.all() {
		if clear(dir, g) != nil {
			now.Left = append(now.Left, g)
		}
	}
	// The record comes first: whatever was made can then be found.
	if err := writeGroups(dir, now); err != nil {
		return nil, err
	}
	undo = func() {
		if p.group != nil {
			_ = p.group.KillAll()
		}
		_ = writeGroups(dir, before)
	}
	if p.group == nil {
		return undo, nil
	}
	if err := p.group.Make(); err != nil {
		undo()
		return nil, err
	}
	return undo, nil
}

// forgetGroup takes a group that is gone out of the record, where that is not of a later one already.
func forgetGroup(dir string, g *cgroup.Group) {
	r, err := readGroups(dir)
	if err != nil || r.Group == nil || r.Group.Parts[0].Path != g.Parts[0].Path {
		return
	}
	r.Group = nil
	_ = writeGroups(dir, r)
}

// clear removes a group, with all in it where its program's monitor is gone.
func clear(dir string, g cgroup.Group) error {
	if g.Remove() == nil {
		return nil
	}
	if _, ended, err := ReadExit(dir); err != nil || !ended {
		return errors.New("in use")
	}
	return g.KillAll()
}

// Sweep kills and removes what a program has left in its control groups, where its monitor is gone.
// It is for state folders that nothing is started in again; a start does so itself.
func Sweep(stateDir string) error {
	r, err := readGroups(stateDir)
	if err != nil {
		return fmt.Errorf("control groups of %s: %w", stateDir, err)
	}
	var left groupRecord
	for _, g := range r.all() {
		if clear(stateDir, g) != nil {
			left.Left = append(left.Left, g)
		}
	}
	if len(left.Left) == len(r.all()) {
		return nil // in use, or nothing was there
	}
	return writeGroups(stateDir, left)
}

// limitsInForce reads a running program's limits back.
func limitsInForce(g *cgroup.Group, rlimits Limits) (all []Limit, notes []string) {
	var read cgroup.Limits
	if g != nil {
		var err error
		if read, err = g.Read(); err != nil {
			notes = append(notes, "limits: they can't be read back: "+err.Error())
		}
	}
	for _, a := range []struct {
		name, what string
		rlimit     int64
	}{{LimitMemory, cgroup.Memory, rlimits.Memory}, {LimitCPU, cgroup.CPU, 0}, {LimitPIDs, cgroup.PIDs, rlimits.PIDs}} {
		switch n, grouped := read[a.what]; {
		case grouped && n >= 0:
			all = append(all, Limit{a.name, n, mechanism(g.Version(a.what))})
		case grouped:
			notes = append(notes, "limit of "+limitNames[a.what]+": it was lifted in the control group")
		case a.rlimit > 0:
			all = append(all, Limit{a.name, a.rlimit, byRlimit})
		}
	}
	if g != nil && read[cgroup.Memory] > 0 && !g.Swap() {
		notes = append(notes, "memory that is swapped out is not counted, for the kernel does not account for it")
	}
	return all, notes
}

// held tells what was asked for and is not in force; nil where all is.
func (p plan) held(facts Limits) error {
	if p.rlimits.Memory > 0 && (facts.Memory <= 0 || facts.Memory > p.rlimits.Memory) ||
		p.rlimits.PIDs > 0 && (facts.PIDs <= 0 || facts.PIDs > p.rlimits.PIDs) {
		return fmt.Errorf("limits: %w: not in force as rlimits", ErrUnsupported)
	}
	if p.group == nil {
		return nil
	}
	read, err := p.group.Read()
	if err != nil {
		return fmt.Errorf("limits: %w: %w", ErrUnsupported, err)
	}
	for _, part := range p.group.Parts {
		for what, n := range part.Limits {
			if read[what] < 0 || read[what] > n {
				return fmt.Errorf("limit of %s: %w: not in force in the control group", limitNames[what], ErrUnsupported)
			}
		}
	}
	return nil
}

// request is the checked spec with the files of the group.
func (p plan) request(spec Spec) (*request, error) {
	if p.group == nil {
		return newRequest(spec, p, nil)
	}
	// At strict the filter of system calls, which a program has from its first moment, knows no clone
	// into a group.
	files, err := p.group.Open(spec.Level != Strict)
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	defer files.Close()
	return newRequest(spec, p, files)
}

// Confinement is what is in force, limits as they are now.
func (p *Process) Confinement() Confinement {
	f := p.status.Facts
	limits, notes := limitsInForce(p.group, Limits{Memory: f.MemoryLimit, PIDs: f.PIDLimit})
	if p.unread != nil {
		notes = append(notes, "limits: they can't be read back: "+p.unread.Error())
	}
	c := inForce(p.status).WithLimits(limits)
	c.Open = append(c.Open, notes...)
	return c
}

// clearUp removes the control group of a program that has ended; the next start, or Sweep, does what
// can't be done.
func (p *Process) clearUp(lost bool) {
	if p.group == nil {
		return
	}
	remove := p.group.Remove
	if lost {
		remove = p.group.KillAll
	}
	if remove() == nil {
		forgetGroup(p.dir, p.group)
	}
}
