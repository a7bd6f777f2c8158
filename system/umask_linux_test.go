package system

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/internal/rootfs"
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
	done := make(chan error)
	go func() {
		// The umask is this thread's alone, which ends with the goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o077)
			_, err = newPrograms(fs, true)
		}
		if err == nil {
			err = p.makeHome(id)
		}
		if err == nil {
			blank, err = (&blanks{fs: fs, mode: 0o711}).make()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{storeDir: p.passMode(), storeRefs: p.passMode(), id.String(): p.passMode(), blank: 0o711, blank + "/" + stateDir: 0o700} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v", name, info.Mode(), want)
		}
	}
}
