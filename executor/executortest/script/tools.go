package script

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Tools are the names of the tools that the program is, each when it is called by it.
func Tools() []string { return []string{"echo", "env", "fail", "hang", "held", "read", "write"} }

// heldFile is in the working folder; a lock on it shows that a process lives.
const heldFile = "held.lock"

var tools = map[string]func(args []string) int{
	// echo writes its arguments and then its standard input.
	"echo": func(args []string) int {
		fmt.Println(strings.Join(args, " "))
		_, err := io.Copy(os.Stdout, os.Stdin)
		return told(err)
	},
	"env": func([]string) int {
		_, err := fmt.Println(strings.Join(os.Environ(), "\n"))
		return told(err)
	},
	"fail": func([]string) int {
		fmt.Fprintln(os.Stderr, "as asked")
		return 7
	},
	// hang leaves a process behind that would outlive it and holds the lock, says so and waits.
	"hang": func([]string) int {
		f, err := os.OpenFile(heldFile, os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			// The tool held has the lock for a moment now and then.
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			return told(err)
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Args[0], cmd.ExtraFiles = "holder", []*os.File{f}
		if err := cmd.Start(); err != nil {
			return told(err)
		}
		fmt.Println("held")
		return wait()
	},
	"holder": func([]string) int { return wait() },
	// held tells whether a process that hang left behind is there.
	"held": func([]string) int {
		f, err := os.OpenFile(heldFile, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return told(err)
		}
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			fmt.Println("held")
		case err != nil:
			return told(err)
		default:
			fmt.Println("free")
		}
		return 0
	},
	// read writes the file that its argument names.
	"read": func(args []string) int {
		text, err := os.ReadFile(strings.Join(args, " "))
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return told(err)
	},
	// write writes its standard input to the file that its argument names.
	"write": func(args []string) int {
		text, err := io.ReadAll(os.Stdin)
		if err == nil {
			err = os.WriteFile(strings.Join(args, " "), text, 0o644)
		}
		return told(err)
	},
}

// wait is for ever, as far as a test is concerned; it ends in case nobody kills the process.
func wait() int {
	time.Sleep(10 * time.Minute)
	return 1
}

func told(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
