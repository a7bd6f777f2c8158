package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileAttacks reach for files outside the agent's tree.
func fileAttacks() []attack {
	read := func(id, name, covers, target string) attack {
		return attack{id: id, name: name, covers: covers, needs: []string{target}, twin: "read", run: func(t targets) result {
			return readSecret(t[target], t["secret"])
		}}
	}
	return []attack{
		{id: "read-shadow", name: "read the host's passwords", covers: "K1", twin: "read", run: func(targets) result {
			return readSecret("/etc/shadow", ":")
		}},
		read("read-private", "read a private file of the daemon's user", "K1", "file.private"),
		read("read-public", "read a file that all users of the host may read", "K1", "file.public"),
		read("read-providers", "read providers.yaml", "K1", "file.providers"),
		read("read-database", "read the daemon's database", "K1", "file.database"),
		read("read-other-workspace", "read another agent's workspace", "K1", "file.other"),
		read("read-other-log", "read another agent's log", "K1", "file.otherlog"),
		{id: "read-seal-key", name: "read the key that secrets at rest are sealed with", covers: "K1", needs: []string{"file.seal"}, twin: "read", run: func(t targets) result {
			return readSecret(t["file.seal"], "")
		}},
		{id: "list-home", name: "list the folder of all agents", covers: "K1", needs: []string{"dir.home"}, twin: "read", run: func(t targets) result {
			names, err := os.ReadDir(t["dir.home"])
			return verdict(err, "%d names in %s", len(names), t["dir.home"])
		}},
		{id: "read-dotdot", name: "climb out with ..", covers: "P4 K1", needs: []string{"file.public"}, twin: "read", run: func(t targets) result {
			return readSecret(strings.Repeat("../", 64)+strings.TrimPrefix(t["file.public"], "/"), t["secret"])
		}},
		{id: "read-symlink", name: "read through a symlink of its own", covers: "P2 K1", needs: []string{"file.public"}, twin: "links", run: func(t targets) result {
			link := filepath.Join(t.workspace(), t.marker())
			if err := os.Symlink(t["file.public"], link); err != nil {
				return broken("%v", err)
			}
			defer os.Remove(link)
			return readSecret(link, t["secret"])
		}},
		{id: "read-proc-root", name: "read through another process's root folder", covers: "P16 K5", needs: []string{"file.public"}, twin: "proc", run: func(t targets) result {
			return viaProc(t, "root", t["file.public"])
		}},
		{id: "read-proc-cwd", name: "read through another process's working folder", covers: "P16 K5", needs: []string{"file.public"}, twin: "proc", run: func(t targets) result {
			return viaProc(t, "cwd", strings.Repeat("/..", 32)+t["file.public"])
		}},
		{id: "read-self-root", name: "read through /proc/self/root and /proc/thread-self/root", covers: "P16", needs: []string{"file.public"}, twin: "proc", run: func(t targets) result {
			first := readSecret("/proc/self/root"+t["file.public"], t["secret"])
			if first.Outcome == outcomeSucceeded {
				return first
			}
			return readSecret("/proc/thread-self/root/../.."+t["file.public"], t["secret"])
		}},
		{id: "read-foreign-fd", name: "open a file that another process has open", covers: "P16 K5", needs: []string{"pid.foreign"}, twin: "proc", run: func(t targets) result {
			if !t.isProcess("pid.foreign") {
				return denied("number %s is another process here", t["pid.foreign"])
			}
			return openDescriptors(t.pid("pid.foreign"))
		}},
		{id: "write-public", name: "write where all users of the host may write", covers: "K2", needs: []string{"dir.world"}, twin: "write", run: func(t targets) result {
			return create(t, t["dir.world"])
		}},
		{id: "write-private", name: "write a private file of the daemon's user", covers: "K2", needs: []string{"file.private"}, twin: "write", run: func(t targets) result {
			return writable(t["file.private"])
		}},
		{id: "write-other-workspace", name: "write into another agent's workspace", covers: "K2", needs: []string{"file.other"}, twin: "write", run: func(t targets) result {
			return create(t, filepath.Dir(t["file.other"]))
		}},
		{id: "link-private", name: "hard-link a private file into the workspace", covers: "P3 P19", needs: []string{"file.private"}, twin: "links", run: func(t targets) result {
			return hardLink(t, t["file.private"])
		}},
		{id: "truncate-private", name: "truncate a private file by its path", covers: "K2", needs: []string{"file.private"}, twin: "write", run: func(t targets) result {
			st, err := os.Stat(t["file.private"])
			if err != nil {
				return denied("%v", err)
			}
			return verdict(os.Truncate(t["file.private"], st.Size()), "truncated %s to the size it has", t["file.private"])
		}},
		{id: "rename-private", name: "swap a private file for one of its own", covers: "P13 K2", needs: []string{"file.private"}, twin: "links", run: func(t targets) result {
			return renameWithin(t, filepath.Dir(t["file.private"]))
		}},
		{id: "shared-memory-file", name: "read another program's file in /dev/shm", covers: "K13", needs: []string{"file.shm"}, twin: "write", run: func(t targets) result {
			return readSecret(t["file.shm"], t["secret"])
		}},
	}
}

// viaProc reads path below a magic link of each process that may be the host's.
func viaProc(t targets, link, path string) result {
	last := denied("no process to go through")
	for _, pid := range []string{"1", strconv.Itoa(os.Getppid()), t["pid.foreign"], t["pid.other"]} {
		if pid == "" {
			continue
		}
		if last = readSecret("/proc/"+pid+"/"+link+path, t["secret"]); last.Outcome == outcomeSucceeded {
			return last
		}
	}
	return last
}

func hardLink(t targets, path string) result {
	link := filepath.Join(t.workspace(), t.marker()+"-h")
	if err := os.Link(path, link); err != nil {
		return denied("%v", err)
	}
	return won("linked %s, and removed the link: %v", path, os.Remove(link))
}

// renameWithin renames a folder of its own in dir: who can do that can rename what else is in it.
func renameWithin(t targets, dir string) result {
	path := filepath.Join(dir, t.marker()+"-n")
	if err := os.Mkdir(path, 0o700); err != nil {
		return denied("%v", err)
	}
	err := os.Rename(path, path+"-2")
	if err == nil {
		path += "-2"
	}
	return verdict(errors.Join(err, os.Remove(path)), "may make, rename and remove names in %s", dir)
}

// metadataAttacks reach for what is known of files outside, which file rules may forget.
func metadataAttacks() []attack {
	on := func(id, name, twin string, f func(path string, st *unix.Stat_t) error, done string) attack {
		return attack{id: id, name: name, covers: "K1 K2", needs: []string{"file.private"}, twin: twin, run: func(t targets) result {
			var st unix.Stat_t
			if err := unix.Stat(t["file.private"], &st); err != nil {
				return denied("%v", err)
			}
			return verdict(f(t["file.private"], &st), "%s %s", done, t["file.private"])
		}}
	}
	return []attack{
		on("stat-private", "look up size and times of a private file", "read", func(string, *unix.Stat_t) error { return nil }, "told size and times of"),
		on("chmod-private", "change the mode of a private file", "write", func(path string, st *unix.Stat_t) error {
			return unix.Chmod(path, st.Mode&0o7777)
		}, "set the mode it had of"),
		on("chown-private", "change the owner of a private file", "write", func(path string, st *unix.Stat_t) error {
			return unix.Lchown(path, int(st.Uid), int(st.Gid))
		}, "set the owner it had of"),
		on("utimes-private", "change the times of a private file", "write", func(path string, st *unix.Stat_t) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, 0)
		}, "set the times it had of"),
		on("xattr-private", "set an attribute of a private file", "write", func(path string, _ *unix.Stat_t) error {
			if err := unix.Setxattr(path, "user.otters-attack", []byte("x"), 0); err != nil {
				return err
			}
			return unix.Removexattr(path, "user.otters-attack")
		}, "set and removed an attribute of"),
		{id: "chdir-home", name: "make the daemon's folder its working folder", covers: "P16", needs: []string{"dir.home"}, twin: "write", run: func(t targets) result {
			return verdict(os.Chdir(t["dir.home"]), "works in %s", t["dir.home"])
		}},
		{id: "watch-private", name: "watch what happens in a private folder (inotify)", covers: "K1", needs: []string{"file.private"}, twin: "read", run: func(t targets) result {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return denied("inotify: %v", err)
			}
			defer unix.Close(fd)
			dir := filepath.Dir(t["file.private"])
			_, err = unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
			return verdict(err, "watches %s", dir)
		}},
		{id: "watch-mount", name: "watch a whole file system (fanotify)", covers: "K12", twin: "read", run: func(t targets) result {
			fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID|unix.FAN_CLOEXEC, unix.O_RDONLY)
			if err != nil {
				return denied("fanotify: %v", err)
			}
			defer unix.Close(fd)
			return verdict(unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, "/"), "watches the file system of /")
		}},
		{id: "handle-open", name: "open a file by its handle, past every path", covers: "K12", twin: "read", run: func(t targets) result {
			h, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, t.workspace(), 0)
			if err != nil {
				return denied("name_to_handle_at: %v", err)
			}
			dir, err := unix.Open(t.workspace(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return broken("%v", err)
			}
			defer unix.Close(dir)
			fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY)
			if err == nil {
				_ = unix.Close(fd)
			}
			return verdict(err, "opened a handle on mount %d", mount)
		}},
	}
}

// stateAttacks reach for what the daemon keeps of this agent and of others.
func stateAttacks() []attack {
	below := func(id, name, covers, target, path, twin string, f func(targets, string) result) attack {
		return attack{id: id, name: name, covers: covers, needs: []string{target}, twin: twin, run: func(t targets) result {
			return f(t, filepath.Join(t[target], path))
		}}
	}
	any := func(_ targets, path string) result { return readSecret(path, "") }
	open := func(_ targets, path string) result { return writable(path) }
	return []attack{
		below("read-own-handle", "read its own handle.json", "K1", "dir.own", "handle.json", "read", any),
		below("write-own-handle", "write its own handle.json", "K2 P13", "dir.own", "handle.json", "write", open),
		below("read-other-handle", "read another agent's handle.json", "K1", "dir.other", "handle.json", "read", any),
		below("swap-own-state", "swap its state folder for a symlink", "P13 P18", "dir.own", "", "links", renameWithin),
		below("write-own-state", "write into its state folder", "P13 P14", "dir.own", "state", "write", create),
		below("control-socket", "give orders to the monitor of another agent", "K5", "dir.other", "state/control.sock", "gateway", func(_ targets, path string) result {
			return dialUnix(unix.SOCK_SEQPACKET, path, false)
		}),
		below("own-control-socket", "give orders to its own monitor", "K5", "dir.own", "state/control.sock", "gateway", func(_ targets, path string) result {
			return dialUnix(unix.SOCK_SEQPACKET, path, false)
		}),
		below("write-agent-yaml", "change its own agent.yaml", "K2", "root", "etc/agent.yaml", "write", open),
		below("write-etc", "add to its own etc", "K2", "root", "etc", "write", create),
		below("write-usr", "add a program to its own usr/bin", "K2", "root", "usr/bin", "write", create),
		below("write-runtime", "overwrite the runtime's program", "K2 P19", "root", "usr/local/bin/runtime", "write", open),
		below("swap-runtime", "swap the runtime's program", "K2 P13", "root", "usr/local/bin", "links", renameWithin),
		below("swap-root", "swap a folder of its tree that the daemon writes to", "P13 P15", "root", "", "links", renameWithin),
		below("link-runtime", "hard-link the runtime's program into the workspace", "P19", "root", "usr/local/bin/runtime", "links", func(t targets, path string) result {
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				return denied("%v", err)
			}
			return hardLink(t, real)
		}),
		below("write-store", "overwrite a program that all agents share", "P19", "file.store", "", "write", open),
		below("chmod-store", "make a program that all agents share writable", "P19", "file.store", "", "write", func(_ targets, path string) result {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				return denied("%v", err)
			}
			return verdict(unix.Chmod(path, st.Mode&0o7777), "set the mode it had of %s", path)
		}),
		below("link-store", "hard-link a program that all agents share", "P19", "file.store", "", "links", hardLink),
		below("swap-store", "swap a program that all agents share", "P19", "dir.store", "", "links", renameWithin),
		below("write-logs", "plant a link where logs are written", "P14", "dir.logs", "", "links", renameWithin),
	}
}
