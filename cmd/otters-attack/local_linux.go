package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// dialUnix connects to a unix socket; where the secret is expected, it must be heard.
func dialUnix(kind int, path string, secret bool) result {
	const longest = 107
	name := path
	if len(path) > longest { // reachable from its folder all the same
		if err := os.Chdir(filepath.Dir(path)); err != nil {
			return denied("%v", err)
		}
		name = filepath.Base(path)
	}
	fd, err := dialAs(unix.AF_UNIX, kind, 0, &unix.SockaddrUnix{Name: name})
	if err != nil {
		return denied("%v", err)
	}
	defer unix.Close(fd)
	if !secret {
		return won("connected to %s", path)
	}
	b := make([]byte, 512)
	n, err := unix.Read(fd, b)
	return verdict(err, "heard %d bytes from %s", n, path)
}

// localAttacks reach for servers and objects of the host that are no network.
func localAttacks() []attack {
	socket := func(id, name, target string, kind int) attack {
		return attack{id: id, name: name, covers: "K1 K13", needs: []string{target}, twin: "gateway", run: func(t targets) result {
			return dialUnix(kind, t[target], false)
		}}
	}
	return []attack{
		socket("daemon-socket", "connect to the daemon's own socket", "unix.daemon", unix.SOCK_STREAM),
		socket("unix-public", "connect to a unix socket that all users may use", "unix.public", unix.SOCK_STREAM),
		socket("unix-datagram", "send to a unix datagram socket", "unix.datagram", unix.SOCK_DGRAM),
		socket("abstract-socket", "connect to an abstract unix socket", "unix.abstract", unix.SOCK_STREAM),
		{id: "unix-proc-root", name: "connect to a unix socket through another process's root", covers: "K13 P16", needs: []string{"unix.public", "pid.foreign"}, twin: "gateway", run: func(t targets) result {
			last := dialUnix(unix.SOCK_STREAM, "/proc/1/root"+t["unix.public"], false)
			if last.Outcome == outcomeSucceeded {
				return last
			}
			return dialUnix(unix.SOCK_STREAM, "/proc/"+t["pid.foreign"]+"/root"+t["unix.public"], false)
		}},
		{id: "host-services", name: "connect to a container engine, D-Bus, systemd or a display", covers: "K1 K13", twin: "gateway", run: func(targets) result {
			last := denied("none is there")
			for _, path := range []string{
				"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
				"/run/systemd/journal/stdout", "/dev/log", fmt.Sprintf("/run/user/%d/bus", os.Getuid()), fmt.Sprintf("/run/user/%d/systemd/private", os.Getuid()), "/tmp/.X11-unix/X0", "@/tmp/.X11-unix/X0", "/run/snapd.socket",
			} {
				res := dialUnix(unix.SOCK_STREAM, path, false)
				if res.Outcome == outcomeSucceeded {
					return res
				}
				if !strings.Contains(res.Evidence, unix.ENOENT.Error()) {
					last = res
				}
			}
			return last
		}},
		{id: "forge-credentials", name: "pass for root on a unix socket", covers: "A3", twin: "pipe", run: func(targets) result { return forgeCredentials() }},
		{id: "shared-memory", name: "read another program's System V shared memory", covers: "K13", needs: []string{"key.shm"}, twin: "memory", run: func(t targets) result {
			return verdict(sharedMemory(t.pid("key.shm"), t["secret"]), "read the secret from it")
		}},
		{id: "message-queue", name: "open another program's message queue", covers: "K13", needs: []string{"queue"}, twin: "memory", run: func(t targets) result {
			return verdict(queue(t["queue"]), "opened %s", t["queue"])
		}},
	}
}

// forgeCredentials sends the credentials of root over a pair of sockets.
func forgeCredentials() result {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return denied("socketpair: %v", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	forged := unix.UnixCredentials(&unix.Ucred{Pid: 1, Uid: 0, Gid: 0})
	return verdict(unix.Sendmsg(pair[0], []byte("x"), forged, nil, 0), "sent credentials of process 1 and user 0")
}
