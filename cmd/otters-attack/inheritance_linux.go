package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inheritanceAttacks look at what this program was started with. They run in the process that was
// started, not in a child.
func inheritanceAttacks() []attack {
	look := func(id, name, covers, twin string, run func(targets) result) attack {
		return attack{id: id, name: name, covers: covers, twin: twin, inline: true, run: run}
	}
	status := func(field string, leaks func(string) bool) func(targets) result {
		return func(targets) result {
			b, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return denied("%v", err)
			}
			for line := range linesOf(b) {
				if k, v, _ := strings.Cut(line, ":"); k == field {
					if v = strings.TrimSpace(v); leaks(v) {
						return won("%s is %s", field, v)
					}
					return denied("%s is %s", field, v)
				}
			}
			return broken("no %s in status", field)
		}
	}
	any := func(v string) bool { return strings.Trim(v, "0") != "" }
	right := func(of func(rights) uint64, leaks func(uint64) bool) func(targets) result {
		return func(targets) result {
			r, err := ownRights()
			if err != nil {
				return broken("%v", err)
			}
			if n := of(r); leaks(n) {
				return won("%#x", n)
			}
			return denied("%#x", of(r))
		}
	}
	some := func(n uint64) bool { return n != 0 }
	return []attack{
		look("leak-descriptors", "use a descriptor that was left open", "K3", "pipe", leakedDescriptors),
		look("leak-environment", "read a variable that is not meant for it", "K4", "id", leakedVariables),
		look("leak-arguments", "read a key in its arguments", "K4", "id", func(t targets) result {
			if t["secret"] != "" && strings.Contains(strings.Join(os.Args[1:2], " "), t["secret"]) {
				return won("the secret is in its arguments")
			}
			return denied("nothing in %d arguments", len(os.Args))
		}),
		look("leak-folder", "work outside its tree", "K2", "write", func(t targets) result {
			dir, err := os.Getwd()
			if err != nil {
				return denied("%v", err)
			}
			root, err := filepath.EvalSymlinks(t["root"])
			if err != nil || root == "/" || dir == root || strings.HasPrefix(dir, root+"/") {
				return denied("works in %s", dir)
			}
			return won("works in %s", dir)
		}),
		look("leak-umask", "start with a umask that lets others write", "K15", "write", func(targets) result {
			old := unix.Umask(0o022)
			if old&0o022 != 0o022 {
				return won("umask %#o", old)
			}
			return denied("umask %#o", old)
		}),
		look("leak-signals", "start with signals ignored", "K8", "signal", status("SigIgn", any)),
		look("leak-blocked", "start with signals blocked", "K8", "signal", status("SigBlk", any)),
		look("leak-terminal", "share a terminal with its starter", "K12", "pipe", func(targets) result {
			b, err := os.ReadFile("/proc/self/stat")
			if err != nil {
				return denied("%v", err)
			}
			_, rest, _ := strings.Cut(string(b), ") ")
			fields := strings.Fields(rest)
			if len(fields) > 4 && fields[4] != "0" {
				return won("controlling terminal %s", fields[4])
			}
			return denied("no controlling terminal")
		}),
		look("leak-session", "be in its starter's session", "K10", "signal", func(targets) result {
			sid, err := unix.Getsid(0)
			if err != nil {
				return denied("%v", err)
			}
			up, err := unix.Getsid(os.Getppid())
			if err == nil && up == sid {
				return won("session %d is that of process %d", sid, os.Getppid())
			}
			return denied("a session of its own")
		}),
		look("leak-groups", "keep groups of its starter", "K1", "id", func(targets) result {
			groups, err := os.Getgroups()
			if err != nil {
				return denied("%v", err)
			}
			groups = slices.DeleteFunc(groups, func(g int) bool { return g == os.Getgid() || g == 65534 })
			if len(groups) > 0 {
				return won("groups %v", groups)
			}
			return denied("no further groups")
		}),
		look("leak-capabilities", "keep capabilities", "K11", "id", right(func(r rights) uint64 { return r.Effective }, some)),
		look("leak-permitted", "keep capabilities it may raise", "K11", "id", right(func(r rights) uint64 { return r.Permitted }, some)),
		look("leak-inheritable", "keep capabilities it may pass on", "K11", "id", right(func(r rights) uint64 { return r.Inheritable }, some)),
		look("leak-bounding", "keep capabilities that a program could gain", "K11", "id", right(func(r rights) uint64 { return r.Bounding }, some)),
		look("leak-new-privs", "be free to gain privileges", "K11", "child", right(func(r rights) uint64 { return r.NoNewPrivs }, func(n uint64) bool { return n == 0 })),
		look("leak-root", "be user 0 outside", "K1", "id", func(targets) result {
			if os.Getuid() == 0 && rootOutside() {
				return won("user 0 is 0 outside")
			}
			return denied("user %d", os.Getuid())
		}),
		look("leak-core", "have its memory dumped when it crashes", "K12", "memory", func(t targets) result {
			var lim unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &lim); err != nil {
				return broken("%v", err)
			}
			// With 0 the kernel still starts the program that a host has for cores, with 1 it does not.
			if lim.Max > 1 || lim.Cur == 0 && t["core.handler"] != "" {
				return won("core dumps of %d bytes, up to %d", lim.Cur, lim.Max)
			}
			return denied("no core dumps")
		}),
		{id: "core-handler", name: "have the host start its program for cores, by a crash", covers: "K12", needs: []string{"core.handler"}, twin: "memory", run: func(targets) result {
			var lim unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &lim); err != nil {
				return broken("%v", err)
			}
			lim.Cur = 0
			return verdict(unix.Setrlimit(unix.RLIMIT_CORE, &lim), "a crash would start it")
		}},
	}
}

// rootOutside tells whether user 0 here is 0 outside. Where nothing tells, it is.
func rootOutside() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true
	}
	for line := range linesOf(b) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err == nil && inside == 0 {
			return outside == 0
		}
	}
	return false
}

// highest is the last descriptor that is looked at.
const highest = 4096

// leakedDescriptors lists what is open beyond the standard streams and what was handed over.
func leakedDescriptors(targets) result {
	given := 0
	if n, err := strconv.Atoi(os.Getenv("LISTEN_FDS")); err == nil {
		given = n
	}
	for fd := 3 + given; fd <= highest; fd++ {
		// What Go itself opens is closed on exec, which nothing inherited is.
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		var st unix.Stat_t
		_ = unix.Fstat(fd, &st)
		return won("descriptor %d is open, of mode %#o", fd, st.Mode)
	}
	return denied("none from %d to %d", 3+given, highest)
}

// leakedVariables looks for names that no agent is to have. A tool has no key and no token either.
func leakedVariables(t targets) result {
	meant := []string{
		"PATH", "HOME", "TMPDIR", "LANG", "OTTERS_AGENT_ROOT", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
		targetsVariable,
	}
	if t.runtime() {
		meant = append(meant, "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "OTTERSD_URL", "OTTERS_AGENT_TOKEN", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID")
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		key := strings.HasSuffix(name, "_API_KEY") || strings.HasSuffix(name, "_API_BASE")
		if slices.Contains(meant, name) || strings.HasPrefix(name, "RUNTIME_") || key && t.runtime() {
			continue
		}
		return won("variable %s", name)
	}
	return denied("none of %d", len(os.Environ()))
}
