package wire

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Stat is the part of proc_pid_stat(5) that tells processes apart.
type Stat struct {
	PID, Parent, Group, Session int
	State                       byte
	Start                       uint64 // clock ticks since boot
}

var errStat = errors.New("malformed /proc stat")

// ReadStat reads the state of a process.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	// The name, in parentheses, is the program's to choose and may hold anything.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Stat{}, errStat
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return Stat{}, errStat
	}
	s := Stat{PID: pid, State: f[0][0]}
	for j, to := range []*int{&s.Parent, &s.Group, &s.Session} {
		if *to, err = strconv.Atoi(string(f[1+j])); err != nil {
			return Stat{}, errStat
		}
	}
	if s.Start, err = strconv.ParseUint(string(f[19]), 10, 64); err != nil {
		return Stat{}, errStat
	}
	return s, nil
}

// Processes lists what runs on the host, zombies left out.
func Processes() ([]Stat, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []Stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := ReadStat(pid); err == nil && s.State != 'Z' && s.State != 'X' {
			all = append(all, s)
		}
	}
	return all, nil
}

// Descendants picks from all what root has started, and what that has started.
func Descendants(all []Stat, root int) []Stat {
	children := make(map[int][]Stat)
	for _, s := range all {
		children[s.Parent] = append(children[s.Parent], s)
	}
	found := append([]Stat(nil), children[root]...)
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found
}

// Kill sends SIGKILL to the process that s was read from, and to none that has its id since.
func Kill(s Stat) {
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, err := ReadStat(s.PID); err != nil || now.Start != s.Start {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
