// Package cgroup makes control groups for programs: it finds the hierarchies in which this process
// may make groups, makes one for each start of a program, and reads back, kills and removes it.
//
// Invariant: a limit is either in force, as the kernel's own files tell, or an error.
package cgroup

// What a group can do. The first three are limits.
const (
	Memory = "memory"
	PIDs   = "pids"
	CPU    = "cpu"
	Kill   = "kill"
)

// Prefix begins the name of every group that is made here.
const Prefix = "otters-"

// Limits are what a group bounds: bytes, processes and threads, and thousandths of a processor; zero
// is no bound.
type Limits map[string]int64
