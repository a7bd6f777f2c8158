package main

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountAttacks change what is seen where.
func mountAttacks() []attack {
	return []attack{
		{id: "mount-tmpfs", name: "mount a file system", covers: "K12", twin: "write", run: func(t targets) result {
			return mountOver(t, "tmpfs", "tmpfs", 0)
		}},
		{id: "mount-bind", name: "bind the host's root into the workspace", covers: "K12 P15", twin: "write", run: func(t targets) result {
			return mountOver(t, "/", "", unix.MS_BIND)
		}},
		{id: "mount-proc", name: "mount a /proc of its own", covers: "K12 K5", twin: "proc", run: func(t targets) result {
			return mountOver(t, "proc", "proc", 0)
		}},
		{id: "mount-cgroup", name: "mount the hierarchy of control groups", covers: "K12", twin: "write", run: func(t targets) result {
			return mountOver(t, "cgroup2", "cgroup2", 0)
		}},
		{id: "mount-fsopen", name: "make a file system by fsopen", covers: "K12", twin: "write", run: func(targets) result {
			fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
			if err == nil {
				_ = unix.Close(fd)
			}
			return verdict(err, "made a file system context")
		}},
		{id: "mount-open-tree", name: "take a copy of the mounts (open_tree)", covers: "K12", twin: "read", run: func(targets) result {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
			if err == nil {
				_ = unix.Close(fd)
			}
			return verdict(err, "has a copy of the tree of mounts")
		}},
		{id: "mount-move", name: "move a mount (move_mount)", covers: "K12", twin: "write", run: func(t targets) result {
			return inFolder(t, func(dir string) result {
				return permitted(unix.MoveMount(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir, 0), "move_mount")
			})
		}},
		{id: "mount-writable", name: "make its own usr writable again (mount_setattr)", covers: "K12 K2", needs: []string{"root"}, twin: "write", run: func(t targets) result {
			return permitted(unix.MountSetattr(unix.AT_FDCWD, filepath.Join(t["root"], "usr"), 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}), "mount_setattr")
		}},
		{id: "mount-umount", name: "unmount what hides the host", covers: "K12", twin: "write", run: func(t targets) result {
			return inFolder(t, func(dir string) result { return permitted(unix.Unmount(dir, unix.UMOUNT_NOFOLLOW), "umount") })
		}},
		{id: "mount-pivot-root", name: "change the root (pivot_root)", covers: "K12", twin: "write", run: func(t targets) result {
			return inFolder(t, func(dir string) result { return permitted(unix.PivotRoot(dir, dir), "pivot_root") })
		}},
		{id: "chroot-escape", name: "leave by chroot and ..", covers: "K12", twin: "write", run: func(t targets) result {
			return inFolder(t, func(dir string) result { return verdict(unix.Chroot(dir), "chroot went through") })
		}},
		{id: "mount-in-userns", name: "mount in a user namespace of its own", covers: "K12", twin: "child", run: func(targets) result {
			return verdict(inNamespaces(unix.CLONE_NEWUSER|unix.CLONE_NEWNS), "a process with a user and a mount namespace of its own ran")
		}},
	}
}

// inFolder does something with a folder of its own, where nothing is mounted.
func inFolder(t targets, do func(string) result) result {
	dir := filepath.Join(t.workspace(), t.marker()+"-m")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return broken("%v", err)
	}
	defer os.Remove(dir)
	return do(dir)
}

// mountOver mounts over a folder of its own and undoes it.
func mountOver(t targets, source, kind string, flags uintptr) result {
	return inFolder(t, func(dir string) result {
		err := unix.Mount(source, dir, kind, flags, "")
		var undo error
		if err == nil {
			undo = unix.Unmount(dir, unix.MNT_DETACH)
		}
		return verdict(err, "mounted %s; undone: %v", source, undo)
	})
}
