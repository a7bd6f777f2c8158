package cgroup

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leaf is where this process moves in a group that was delegated to it: the kernel lets a group of
// version 2 that has processes of its own limit none below it.
const leaf = Prefix + "daemon"

// Host is what this process may do with control groups. The zero value can do nothing.
type Host struct {
	parents []parent
	lacks   map[string]error
	// moved tells that this process was moved to a group below its own.
	moved bool
}

// parent is a group below which groups are made.
type parent struct {
	v2 bool
	// dir is its folder, home the one of the group that this process is in.
	dir, home string
	// can is what a group below it can do.
	can []string
}

// Find looks at the hierarchies that are mounted, and tries them. A process alone in a group of
// version 2 that was delegated to it is moved to a group below that one.
func Find() *Host {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return lacking(err)
	}
	for {
		before, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			return lacking(err)
		}
		h := find("", string(mounts), string(before), os.Geteuid())
		// Another Find in this process may have moved it meanwhile, which happens once.
		if after, err := os.ReadFile("/proc/self/cgroup"); err != nil || h.moved || bytes.Equal(before, after) {
			return h
		}
	}
}

func lacking(err error) *Host {
	return &Host{lacks: map[string]error{Memory: err, PIDs: err, CPU: err, Kill: err}}
}

// hierarchy is one that is mounted.
type hierarchy struct {
	v2 bool
	// mount is where, home this process's own group in it.
	mount, home string
	controllers []string
}

// find does the work of Find for files below at.
func find(at, mounts, own string, uid int) *Host {
	h := lacking(errors.New("no hierarchy of control groups has it"))
	for _, m := range hierarchies(at, mounts, own) {
		if !m.v2 {
			h.try(m.controllers, parent{dir: m.home, home: m.home})
			continue
		}
		h.tryUnified(m, uid)
	}
	return h
}

// hierarchies reads mountinfo and cgroup of proc(5).
func hierarchies(at, mounts, own string) []hierarchy {
	groups := make(map[string]string) // by controller, "" for version 2
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			groups[c] = f[2]
		}
	}
	var all []hierarchy
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(kind) < 3 || kind[0] != "cgroup" && kind[0] != "cgroup2" {
			continue
		}
		m := hierarchy{v2: kind[0] == "cgroup2", mount: at + unescape(f[4])}
		group, ok := groups[""]
		if !m.v2 {
			ok = false
			for o := range strings.SplitSeq(kind[2], ",") {
				if g, in := groups[o]; in && o != "" && slices.Contains([]string{Memory, PIDs, CPU}, o) {
					m.controllers, group, ok = append(m.controllers, o), g, true
				}
			}
		}
		// What is mounted may be a part of the hierarchy, and this process in none of it.
		rel, below := strings.CutPrefix(group, strings.TrimSuffix(unescape(f[3]), "/"))
		if !ok || !below || rel != "" && rel[0] != '/' || slices.Contains(strings.Split(rel, "/"), "..") {
			continue
		}
		m.home = filepath.Join(m.mount, rel)
		all = append(all, m)
	}
	// Version 1 first: a controller that it has is in no other.
	slices.SortStableFunc(all, func(a, b hierarchy) int {
		if a.v2 == b.v2 {
			return 0
		}
		if a.v2 {
			return 1
		}
		return -1
	})
	return all
}

// unescape reads the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// tryUnified looks for a group of version 2 that this process may divide: one that was delegated to
// it, or under root one of its own at the top. Where there is none, a group can be killed as a whole
// and no more.
func (h *Host) tryUnified(m hierarchy, uid int) {
	var want []string
	for _, c := range []string{Memory, PIDs, CPU} {
		if h.lacks[c] != nil {
			want = append(want, c)
		}
	}
	if dir, err := h.divided(&m, want, uid); err == nil {
		h.try(append(want, Kill), parent{v2: true, dir: dir, home: m.home})
	} else {
		for _, c := range want {
			h.lack(c, err)
		}
	}
	if h.lacks[Kill] != nil {
		h.try([]string{Kill}, parent{v2: true, dir: m.home, home: m.home})
	}
}

// divided is the group below which groups can be limited; it may move this process.
func (h *Host) divided(m *hierarchy, want []string, uid int) (string, error) {
	home, up := m.home, filepath.Dir(m.home)
	if home != m.mount && up != m.mount && delegated(up, uid) && enable(up, want) == nil {
		return up, nil
	}
	err := errors.New("it is not delegated to this user")
	if delegated(home, uid) || home == m.mount {
		if err = divide(m, want); err == nil {
			h.moved = true
			return home, nil
		}
	}
	if uid == 0 {
		if err = enable(m.mount, want); err == nil {
			err = ownTop(m.mount, want)
		}
		home = m.mount
	}
	if err != nil {
		return "", fmt.Errorf("control group %s: %w", home, err)
	}
	return filepath.Join(m.mount, "otters"), nil
}

// delegated tells whether the service manager has left a group to its processes
// (https://systemd.io/CGROUP_DELEGATION), or it was given to this user, who owns none above it. What a
// user owns below such a group may be the business of a manager of that user's.
func delegated(dir string, uid int) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		var b [8]byte
		if n, err := unix.Getxattr(dir, name, b[:]); err == nil && n == 1 && b[0] == '1' {
			return true
		}
	}
	return uid != 0 && owner(dir) == uid && owner(filepath.Dir(dir)) != uid
}

// owner is the user id of a folder, -1 where it can't be told.
func owner(dir string) int {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return -1
	}
	return int(st.Uid)
}

// enable lets the groups below dir have those of the controllers that dir has.
func enable(dir string, want []string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(b))
	var add []string
	for _, c := range want {
		if slices.Contains(have, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return errors.New("it has no controller")
	}
	return write(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(add, " "))
}

// ownTop makes the group in which root's programs have theirs.
func ownTop(mount string, want []string) error {
	dir := filepath.Join(mount, "otters")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return enable(dir, want)
}

// divide moves this process, which must be alone in its group, to a leaf below it, where groups
// beside the leaf could not be limited otherwise.
func divide(m *hierarchy, want []string) error {
	procs := filepath.Join(m.home, "cgroup.procs")
	b, err := os.ReadFile(procs)
	if err != nil {
		return err
	}
	self := strconv.Itoa(os.Getpid())
	if strings.TrimSpace(string(b)) != self {
		return errors.New("other processes are in the group")
	}
	if b, err := os.ReadFile(filepath.Join(m.home, "cgroup.controllers")); err != nil || len(strings.Fields(string(b))) == 0 {
		return errors.New("it has no controller")
	}
	dir := filepath.Join(m.home, leaf)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := write(filepath.Join(dir, "cgroup.procs"), self); err != nil {
		return err
	}
	if err := enable(m.home, want); err != nil {
		return errors.Join(err, write(procs, self))
	}
	m.home = dir
	return nil
}

// try makes a group below p, with limits, to find out which of what is wanted it can do.
func (h *Host) try(want []string, p parent) {
	g := part{V2: p.v2, Path: filepath.Join(p.dir, Prefix+"try-"+rand.Text())}
	if err := os.Mkdir(g.Path, 0o755); err != nil {
		for _, what := range want {
			h.lack(what, err)
		}
		return
	}
	defer func() { _ = os.Remove(g.Path) }()
	for _, what := range want {
		var err error
		if what == Kill {
			_, err = os.Stat(filepath.Join(g.Path, killFile))
		} else {
			err = g.limit(what, samples[what])
		}
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("control group %s: it has no %s", p.dir, cmp.Or(files[what], what))
		}
		if err != nil {
			h.lack(what, err)
			continue
		}
		p.can = append(p.can, what)
		h.lacks[what] = nil
	}
	if len(p.can) > 0 {
		h.parents = append(h.parents, p)
	}
}

// samples are limits that the kernel takes whatever the groups above have.
var samples = Limits{Memory: 1 << 30, PIDs: 1024, CPU: 10}

// files are what the kernel calls what is no controller.
var files = map[string]string{Kill: killFile + ", which Linux 5.14 has"}

func (h *Host) lack(what string, err error) {
	if h.lacks[what] != nil {
		h.lacks[what] = err
	}
}

// Lacks tells why a group can't do what, nil where it can.
func (h *Host) Lacks(what string) error {
	if h.lacks == nil {
		return errors.New("control groups were not looked for")
	}
	return h.lacks[what]
}

// Plan names the group that Make is to make for limits, and for killing it as a whole where that is
// asked for and can be had; nil where there is nothing to make.
func (h *Host) Plan(limits Limits, kill bool) (*Group, error) {
	g := &Group{}
	name := Prefix + rand.Text()
	left := make(Limits)
	for what, n := range limits {
		if n == 0 {
			continue
		}
		if err := h.Lacks(what); err != nil {
			return nil, fmt.Errorf("limit of %s: %w", what, err)
		}
		left[what] = n
	}
	for _, p := range h.parents {
		part := part{V2: p.v2, Path: filepath.Join(p.dir, name), home: p.home, Limits: make(Limits)}
		for _, what := range p.can {
			if n, ok := left[what]; ok {
				part.Limits[what] = n
				delete(left, what)
			}
		}
		if len(part.Limits) > 0 || kill && slices.Contains(p.can, Kill) {
			g.Parts = append(g.Parts, part)
		}
	}
	if len(g.Parts) == 0 {
		return nil, nil
	}
	return g, nil
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// number reads the file of a limit; what is unlimited is -1.
func number(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var text string
	if s := bufio.NewScanner(f); s.Scan() {
		text = s.Text()
	}
	if text == "max" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", path, text)
	}
	return n, nil
}
