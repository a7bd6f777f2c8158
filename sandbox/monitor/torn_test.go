//go:build linux

package monitor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Invariant: a line that is half there stays one of its own, and a log that ends with its line gets no empty
// one. Worst inputs: a log that goes on in another file which ends so, one that was left so by lines
// that are lost, and one that can't be read.
func TestALineThatIsHalfThereIsEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, want string
		flag         int
	}{
		"half":           {"whole\nhal", "whole\nhal\nline\n", os.O_RDWR},
		"whole":          {"whole\n", "whole\nline\n", os.O_RDWR},
		"empty":          {"", "line\n", os.O_RDWR},
		"cannot be read": {"hal", "halline\n", os.O_WRONLY},
	} {
		for _, moved := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, c.flag|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := newSink(-1, 0)
			if moved {
				s.to(int(f.Fd()), 0)
			} else {
				s = newSink(int(f.Fd()), 0)
			}
			s.write([]byte("line\n"), 1)
			s.write(nil, 0)
			s.close()
			b, err := os.ReadFile(path)
			if err != nil || string(b) != c.want {
				t.Errorf("%s, moved %v: %q, %v; want %q", name, moved, b, err, c.want)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestHalfALineComesBeforeWhatTellsOfLostOnes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("hal"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := newSink(int(f.Fd()), 1)
	s.release()
	s.lost, s.why = 2, noRoom
	s.write([]byte("line\n"), 1)
	b, err := os.ReadFile(path)
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) != 4 || lines[0] != "hal" || !strings.Contains(lines[1], `"line":"2 lines lost: the log was full"`) || lines[2] != "line" {
		t.Errorf("%q, %v", b, err)
	}
}
