package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

// A log that is a symbolic link is not followed, and is told with what to do.
func TestALogThatIsALinkIsTold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "agent.log")
	if err := os.Symlink("elsewhere.log", path); err != nil {
		t.Fatal(err)
	}
	_, err := openLog(path)
	if want := "log: " + path + ": a symbolic link, which a log does not follow; remove it, or put the file in its place"; err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
}
