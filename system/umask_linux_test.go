package system

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/workspace"
)

// What an agent's own user passes through is open to it whatever the umask of the daemon.
func TestATightUmaskKeepsNoAgentOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fs, err := rootfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	p := &Provider{root: fs}
	id := uuid.New()
	blank := ""
	underTightUmask(t, func() error {
		_, err := newPrograms(fs, true)
		if err == nil {
			err = p.makeHome(id)
		}
		if err == nil {
			blank, err = (&blanks{fs: fs, mode: 0o711}).make()
		}
		return err
	})
	modes(t, dir, map[string]os.FileMode{storeDir: p.passMode(), storeRefs: p.passMode(), id.String(): p.passMode(), blank: 0o711, blank + "/" + stateDir: 0o700})
}

// The same of what is in the tree; what is the agent's alone stays so.
func TestATightUmaskKeepsNoAgentOutOfItsTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fs, err := rootfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	underTightUmask(t, func() error {
		err := makeDirs(fs, "")
		if err == nil {
			err = util.WriteFile(fs, workspace.AgentYAML, []byte("id: x\n"), 0o644)
		}
		if err == nil {
			err = readable(fs, fs)
		}
		for isolated, at := range map[bool]string{true: "placed", false: "linked"} {
			given := []executor.Mount{{Host: dir, Target: "/workspace/" + at + "/deep/er"}, {Host: dir, Target: "/mnt/" + at}}
			if err == nil {
				err = applyMounts(fs, osfs.New("/"), given, executor.WorkspaceView{Root: "/", Isolated: isolated}, true)
			}
		}
		return err
	})
	modes(t, dir, map[string]os.FileMode{
		"etc": 0o755, "usr/local/bin": 0o755, workspace.AgentYAML: 0o644, "var": 0o755, "var/lib": 0o700, "workspace": 0o700, "tmp": 0o700,
		"workspace/placed": 0o755, "workspace/placed/deep/er": 0o755, "workspace/linked/deep": 0o755, "mnt": 0o755, "mnt/placed": 0o755,
	})
}

// underTightUmask does what a daemon with a umask of 077 would.
func underTightUmask(t *testing.T, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// The umask is this thread's alone, which ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o077)
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func modes(t *testing.T, dir string, all map[string]os.FileMode) {
	t.Helper()
	for name, want := range all {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v", name, info.Mode(), want)
		}
	}
}
