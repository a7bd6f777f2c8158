package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// maxLog is the size above which the log goes on in a new file, in bytes. The one before it is kept.
const maxLog = 10 << 20

// logFile is a log in at most two files, path and path.1, of about most bytes each.
type logFile struct {
	path string
	most int64
	// moved is told of each file that the log goes on in.
	moved func(*os.File) error

	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLogFile(path string, most int64, moved func(*os.File) error) (*logFile, error) {
	l := &logFile{path: path, most: most, moved: moved}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("log: %w; name another with --log-file", err)
	}
	return l, nil
}

// open goes on in path; the file before is let go.
func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", l.path)
	}
	if err == nil {
		err = l.moved(f)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if l.f != nil {
		_ = l.f.Close() // what was written to it has been written
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write writes a line. Where the log can't go on in a new file, on a full disk for instance, it goes on in
// the one it has, and the next line tries again.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.most {
		if err := os.Rename(l.path, l.path+".1"); err == nil || errors.Is(err, fs.ErrNotExist) {
			_ = l.open()
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// Close closes the file that is written to.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

// takeStandard makes f what standard output and standard error are, so that what is not a line of the
// log, as a crash, goes where the log does.
func takeStandard(f *os.File) error {
	for _, to := range []*os.File{os.Stdout, os.Stderr} {
		if err := duplicate(int(f.Fd()), int(to.Fd())); err != nil {
			return fmt.Errorf("standard output and error: %w", err)
		}
	}
	return nil
}
