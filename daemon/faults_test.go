package daemon

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// fault does one thing to the daemon's world, and undoes it where it does not pass by itself.
type fault struct {
	name   string
	weight int
	do     func(context.Context, *rand.Rand) error
}

// diskSize is the size of a disk of the test's own.
const diskSize = "size=256m"

// ownDisk mounts a small file system, where the test may; it tells why it may not.
func ownDisk(t *testing.T, dir string) error {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, diskSize+",mode=0711"); err != nil {
		return err
	}
	t.Cleanup(func() {
		// Detached: a provider's agents keep descriptors until nobody knows of them any more.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return nil
}

// faults are all that the soak does to its daemon.
func (s *soak) faults() []fault {
	all := []fault{
		{"runtime killed", 8, s.signals(unix.SIGKILL, false)},
		{"monitor killed", 4, s.signals(unix.SIGKILL, true)},
		// Whoever asks a stopped one, such as a probe, waits for its answer.
		{"runtime slow", 4, s.signals(unix.SIGSTOP, false)},
		{"monitor slow", 2, s.signals(unix.SIGSTOP, true)},
		{"image away", 4, s.imageAway},
		{"blob gone", 2, s.brokenBlob(hide, show)},
		{"blob changed", 2, s.brokenBlob(flip, flip)},
	}
	if s.disk != nil {
		s.t.Logf("without full disks: no file system of the test's own: %v", s.disk)
		return all
	}
	return append(all, fault{"disk full", 2, s.fullDisk})
}

// inject does faults at random until ctx ends.
func (s *soak) inject(ctx context.Context, rnd *rand.Rand) {
	all := s.faults()
	sum := 0
	for _, f := range all {
		sum += f.weight
	}
	for ctx.Err() == nil {
		pause(ctx, rnd, 100*time.Millisecond)
		n := rnd.IntN(sum)
		for _, f := range all {
			if n -= f.weight; n >= 0 {
				continue
			}
			if err := f.do(ctx, rnd); err != nil && ctx.Err() == nil {
				s.t.Errorf("fault: %s: %v", f.name, err)
			}
			s.note("fault: " + f.name)
			break
		}
	}
}

// pause waits for at most a while, and not longer than ctx.
func pause(ctx context.Context, rnd *rand.Rand, most time.Duration) {
	select {
	case <-time.After(time.Duration(rnd.Int64N(int64(most)))):
	case <-ctx.Done():
	}
}

// signals sends a signal to the runtime or the monitor of an agent, and lets a stopped one go on.
func (s *soak) signals(sig unix.Signal, monitor bool) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, rnd *rand.Rand) error {
		all := s.sup.list()
		if len(all) == 0 {
			return nil
		}
		a := all[rnd.IntN(len(all))]
		pid := func() int {
			p := a.process()
			if monitor {
				return p.MonitorPID
			}
			return p.PID
		}
		id := pid()
		fd, err := unix.PidfdOpen(max(id, 1), 0)
		if err != nil || id <= 1 || pid() != id { // held, it is the agent's still
			if err == nil {
				_ = unix.Close(fd)
			}
			return nil
		}
		defer unix.Close(fd)
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		if sig == unix.SIGSTOP {
			pause(ctx, rnd, 500*time.Millisecond)
			_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		}
		return nil
	}
}

// imageAway takes an image away and gives it back.
func (s *soak) imageAway(ctx context.Context, _ *rand.Rand) error {
	if err := s.sup.images.store.Untag(ctx, "later:latest"); err != nil {
		return err
	}
	return s.rebuild("later", guide)
}

// rebuild builds an image; a disk that is full fails no test.
func (s *soak) rebuild(tag string, files map[string]string) error {
	if _, err := s.build(tag, files); err != nil {
		s.t.Logf("build %s: %v", tag, err)
	}
	return nil
}

// brokenBlob breaks a blob of the registry for a while.
func (s *soak) brokenBlob(harm, undo func(string) error) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, rnd *rand.Rand) error {
		blobs, err := filepath.Glob(filepath.Join(s.home, "registry", "blobs", "*"))
		if err != nil || len(blobs) == 0 {
			return errors.Join(err, errors.New("the registry has no blob of a file of its own"))
		}
		path := blobs[rnd.IntN(len(blobs))]
		if err := harm(path); err != nil {
			return err
		}
		pause(ctx, rnd, 500*time.Millisecond)
		return undo(path)
	}
}

// hide and show move a file out of its folder and back.
func hide(path string) error { return os.Rename(path, filepath.Dir(path)+"-hidden") }
func show(path string) error { return os.Rename(filepath.Dir(path)+"-hidden", path) }

// flip changes one byte of a file; doing it again undoes it.
func flip(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 100); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, 100)
	return err
}

// fullDisk takes all that is free on the home's disk for a while.
func (s *soak) fullDisk(ctx context.Context, rnd *rand.Rand) error {
	release, err := fillDisk(filepath.Dir(s.home))
	if err != nil {
		return err
	}
	pause(ctx, rnd, 500*time.Millisecond)
	return release()
}

// fillDisk takes all that is free on the disk of a folder until it is released.
func fillDisk(dir string) (release func() error, err error) {
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return nil, err
	}
	release = func() error { return errors.Join(f.Close(), os.Remove(f.Name())) }
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, release())
	}
	// Others take and give back meanwhile: what is left in the end is less than a page.
	size := int64(0)
	for more := int64(st.Bfree) * st.Bsize; more >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, size, more); errors.Is(err, unix.ENOSPC) {
			more /= 2
		} else if err != nil {
			return nil, errors.Join(err, release())
		} else {
			size += more
		}
	}
	return release, nil
}

// What fills a disk is often an agent: it can be stopped and removed all the same.
func TestAFullDiskKeepsNobodyFromStoppingAndRemoving(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	if err := ownDisk(t, filepath.Dir(home)); err != nil {
		t.Skipf("no file system of the test's own: %v", err)
	}
	d := boot(t, home)
	d.image("guide", guide)
	for _, name := range []string{"stopped", "killed", "removed"} {
		d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: name})
		d.await(name, "ready")
	}
	// Nothing is written any more that would give room back.
	d.stored(map[string]string{"stopped": "ready", "killed": "ready", "removed": "ready"})
	release, err := fillDisk(filepath.Dir(home))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", Name: "new"})
	if status.Code(err) != codes.ResourceExhausted || hintOf(err) != freeSpace {
		t.Errorf("create: %v", err)
	}
	_, err = d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "stopped"})
	stopped(t, d, "stopped", err)
	_, err = d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "killed"})
	stopped(t, d, "killed", err)
	root := d.get("removed").GetRoot()
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "removed", Force: true}); err != nil {
		t.Errorf("removal: %v", err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the removed agent's tree: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	// With room again everything goes on, and what could not be stored is.
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "new"})
	d.await("new", "ready")
	d.stored(map[string]string{"stopped": "stopped", "killed": "stopped", "new": "ready"})
}

// stored waits until the database has these agents alone, each with that status.
func (d *testDaemon) stored(want map[string]string) {
	d.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		rows, err := d.db.agents(d.t.Context())
		if err != nil {
			d.t.Fatal(err)
		}
		got := map[string]string{}
		for _, r := range rows {
			got[r.name] = r.state.status.String()
		}
		if maps.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("stored %v, want %v", got, want)
		}
	}
}

// stopped holds what came of an agent's end against what it may be where the disk is full.
func stopped(t *testing.T, d *testDaemon, agent string, err error) {
	t.Helper()
	if c := status.Code(err); c != codes.OK && (c != codes.ResourceExhausted || !strings.Contains(err.Error(), "is stopped, but")) {
		t.Errorf("%s: %v", agent, err)
	}
	if a := d.get(agent); a.GetSummary().GetStatus() != "stopped" || a.GetPid() != 0 {
		t.Errorf("%s: %v", agent, a)
	}
}
