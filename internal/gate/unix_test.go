//go:build unix

package gate_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/internal/gate"
)

// Invariant: what answers at a socket of ours is ours, and only we and root can reach it. The worst
// three: a folder that another user can write (A4), a symlink in the socket's place (A4), a stranger
// who can reach the socket all the same (A3).

const dialVar = "GATE_TEST_DIAL"

// TestMain makes of this binary the stranger of A3, when it is told what to dial.
func TestMain(m *testing.M) {
	if path := os.Getenv(dialVar); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			fmt.Println("dial:", err)
			os.Exit(0)
		}
		got, err := io.ReadAll(conn)
		fmt.Printf("read: %q %v\n", got, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	base := os.TempDir()
	if len(base) > gate.MaxSocketPath/2 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "gate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestListenUnixIsPrivateAndLeavesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "a", "b", "s")
	l, err := gate.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if c, ok := conn.(*gate.Conn); !ok || c.UID != os.Geteuid() {
		t.Errorf("accepted %#v, want user id %d", conn, os.Geteuid())
	}
	if c, err := gate.CheckPeer(client); err != nil || c.UID != os.Geteuid() {
		t.Errorf("the client sees %v, %v", c, err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}

func TestA4ListenUnixReplacesOnlyADeadSocketOfOurs(t *testing.T) {
	t.Parallel()
	stale := func(t *testing.T, path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
	}
	for _, tc := range []struct {
		name string
		lay  func(t *testing.T, path string)
		want error
	}{
		{"nothing there", func(*testing.T, string) {}, nil},
		{"a dead socket", stale, nil},
		{"a live socket", func(t *testing.T, path string) {
			l, err := gate.ListenUnix(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, gate.ErrInUse},
		{"a file", func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, gate.ErrUnsafePath},
		{"a folder", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, gate.ErrUnsafePath},
		{"a pipe", func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o600)) }, gate.ErrUnsafePath},
		{"a symlink to nothing", func(t *testing.T, path string) { must(t, os.Symlink(path+"x", path)) }, gate.ErrUnsafePath},
		{"a symlink to a dead socket", func(t *testing.T, path string) {
			stale(t, path+"x")
			must(t, os.Symlink(path+"x", path))
		}, gate.ErrUnsafePath},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(shortDir(t), "s")
			tc.lay(t, path)
			before, _ := os.Lstat(path)
			l, err := gate.ListenUnix(path)
			if !isA(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err != nil {
				if after, _ := os.Lstat(path); !os.SameFile(before, after) {
					t.Error("what was refused was replaced")
				}
				return
			}
			_ = l.Close()
		})
	}
}

func TestA4ListenUnixRefusesAFolderThatOthersCanChange(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		lay  func(t *testing.T, dir string) string
		want error
	}{
		{"our own", func(t *testing.T, dir string) string { return dir }, nil},
		{"our own, readable by others", func(t *testing.T, dir string) string { must(t, os.Chmod(dir, 0o755)); return dir }, nil},
		{"writable by its group", func(t *testing.T, dir string) string { must(t, os.Chmod(dir, 0o770)); return dir }, gate.ErrUnsafePath},
		{"writable by all, sticky", func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777|os.ModeSticky))
			return dir
		}, gate.ErrUnsafePath},
		{"below a sticky one", func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777|os.ModeSticky))
			return filepath.Join(dir, "own")
		}, nil},
		{"below one that all can write", func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777))
			return filepath.Join(dir, "own")
		}, gate.ErrUnsafePath},
		{"a symlink to our own", func(t *testing.T, dir string) string {
			must(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
			must(t, os.Symlink("real", filepath.Join(dir, "link")))
			return filepath.Join(dir, "link")
		}, gate.ErrUnsafePath},
		{"a file", func(t *testing.T, dir string) string {
			must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
			return filepath.Join(dir, "file")
		}, gate.ErrUnsafePath},
		{"of another user", func(t *testing.T, dir string) string {
			needRoot(t)
			must(t, os.Chown(dir, 65533, 65533))
			return dir
		}, gate.ErrUnsafePath},
		{"below one of another user", func(t *testing.T, dir string) string {
			needRoot(t)
			must(t, os.Mkdir(filepath.Join(dir, "own"), 0o700))
			must(t, os.Chown(dir, 65533, 65533))
			return filepath.Join(dir, "own")
		}, gate.ErrUnsafePath},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := gate.ListenUnix(filepath.Join(tc.lay(t, shortDir(t)), "s"))
			if !isA(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil {
				_ = l.Close()
			} else if !strings.Contains(err.Error(), ": ") || !strings.Contains(err.Error(), "; ") {
				t.Errorf("%q does not say what to do", err)
			}
		})
	}
}

func TestListenUnixTellsThatAPathIsTooLong(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	fits := filepath.Join(dir, strings.Repeat("x", gate.MaxSocketPath-len(dir)-1))
	l, err := gate.ListenUnix(fits)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := gate.ListenUnix(fits + "x"); !isA(err, gate.ErrPathTooLong) || !strings.Contains(err.Error(), fmt.Sprintf("where %d are allowed", gate.MaxSocketPath)) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{"", "a\x00b"} {
		if _, err := gate.ListenUnix(bad); !isA(err, gate.ErrUnsafePath) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCloseLeavesASocketThatIsNotOurs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	l, err := gate.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}
}

func TestOneOfManyGetsADeadSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	const many = 16
	var wg sync.WaitGroup
	got := make(chan net.Listener, many)
	for range many {
		wg.Go(func() {
			l, err := gate.ListenUnix(path)
			switch {
			case err == nil:
				got <- l
			case !isA(err, gate.ErrInUse):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(got)
	if len(got) != 1 {
		t.Errorf("%d listen, want 1", len(got))
	}
	for l := range got {
		if conn, err := net.Dial("unix", path); err != nil {
			t.Error(err)
		} else {
			_ = conn.Close()
		}
		_ = l.Close()
	}
}

func TestA3AnotherUserIsTurnedAway(t *testing.T) {
	t.Parallel()
	needRoot(t)
	// The program, the folder and the socket are opened to all, so that only the peer check is left.
	dir := shortDir(t)
	must(t, os.Chmod(dir, 0o755))
	exe := filepath.Join(dir, "stranger")
	self, err := os.Executable()
	must(t, err)
	text, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(exe, text, 0o755))
	must(t, os.Chmod(exe, 0o755)) // whatever the umask is
	path := filepath.Join(dir, "s")
	var log bytes.Buffer
	l, err := gate.UnixConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}.Listen(path)
	must(t, err)
	must(t, os.Chmod(path, 0o666))
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	dial := func(uid uint32) string {
		cmd := exec.Command(exe)
		cmd.Dir, cmd.Env = dir, []string{dialVar + "=" + path, "GORACE=atexit_sleep_ms=0"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := dial(65533); strings.Contains(got, "hello") || !strings.HasPrefix(got, "read:") {
		t.Errorf("user 65533: %s", got)
	}
	if got := dial(0); !strings.Contains(got, "hello") {
		t.Errorf("root: %s", got)
	}
	must(t, os.Chmod(path, 0o600))
	if got := dial(65533); !strings.HasPrefix(got, "dial:") {
		t.Errorf("the socket's mode let user 65533 in: %s", got)
	}
	_ = l.Close()
	<-served
	if !strings.Contains(log.String(), "user id 65533") {
		t.Errorf("log %q", log.String())
	}
}

func TestCheckPeerRefusesWhatIsNoUnixSocket(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := gate.CheckPeer(a); !isA(err, gate.ErrPeer) {
		t.Errorf("got %v", err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
