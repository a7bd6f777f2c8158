package system

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/workspace"
)

const (
	// storeBlanks holds agents' folders that are made ahead: state and an empty tree each. What one
	// Provider has not used the next one does.
	storeBlanks = ".store/blanks"
	// blanksAhead is how many are kept. A folder costs more than all else in making a small tree.
	blanksAhead = 2
	// blankPause lets the start that took one have the machine to itself.
	blankPause = 50 * time.Millisecond
)

// blanks are agent folders made ahead. It is safe for concurrent use, and nil has none.
type blanks struct {
	fs   billy.Filesystem
	mode os.FileMode

	mu     sync.Mutex
	ready  []string
	timer  *time.Timer
	closed bool
	wg     sync.WaitGroup
}

// newBlanks finds the folders that an earlier Provider made. Those that are not whole are removed.
func newBlanks(fs billy.Filesystem, mode os.FileMode) (*blanks, error) {
	b := &blanks{fs: fs, mode: mode}
	if err := fs.MkdirAll(storeBlanks, 0o700); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(storeBlanks)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := fs.Join(storeBlanks, e.Name())
		if _, err := fs.Lstat(fs.Join(name, stateDir)); err == nil && hasMode(fs, name, mode) == nil {
			b.ready = append(b.ready, name)
			continue
		}
		// Half of one is in nobody's way; the next Provider tries again.
		_ = removeAll(fs, name)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(0)
	return b, nil
}

// take makes the folder name of one made ahead, and tells whether there was one.
func (b *blanks) take(name string) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ready) > 0 {
		blank := b.ready[len(b.ready)-1]
		b.ready = b.ready[:len(b.ready)-1]
		b.refill(blankPause)
		if b.fs.Rename(blank, name) == nil {
			return true
		}
	}
	return false
}

// refill makes folders after a pause, which starts anew with each call. The caller holds mu.
func (b *blanks) refill(pause time.Duration) {
	if b.closed {
		return
	}
	if b.timer != nil {
		if b.timer.Stop() {
			b.wg.Done()
		}
	}
	b.wg.Add(1)
	b.timer = time.AfterFunc(pause, func() {
		defer b.wg.Done()
		for b.short() {
			name, err := b.make()
			if err != nil {
				// The agent that finds none ahead makes its own, and tells what is wrong.
				return
			}
			b.mu.Lock()
			b.ready = append(b.ready, name)
			b.mu.Unlock()
		}
	})
}

func (b *blanks) short() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.closed && len(b.ready) < blanksAhead
}

// make makes one folder; state comes last, so that one with it is whole.
func (b *blanks) make() (name string, err error) {
	name = b.fs.Join(storeBlanks, rand.Text())
	defer func() {
		if err != nil {
			err = errors.Join(err, removeAll(b.fs, name))
		}
	}()
	if err := makeFolder(b.fs, name, b.mode); err != nil {
		return "", err
	}
	if err := makeDirs(b.fs, b.fs.Join(name, newTree)); err != nil {
		return "", err
	}
	return name, b.fs.MkdirAll(b.fs.Join(name, stateDir), 0o700)
}

// close waits until nothing is made any more. What is ahead stays for the next Provider.
func (b *blanks) close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.closed = true
	if b.timer != nil && b.timer.Stop() {
		b.wg.Done()
	}
	b.timer = nil
	b.mu.Unlock()
	b.wg.Wait()
}

// makeDirs makes the folders of a tree at root.
func makeDirs(fs billy.Filesystem, root string) error {
	for _, dir := range append(workspace.ReadOnlyDirs(), "var") {
		if err := fs.MkdirAll(fs.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	for _, dir := range workspace.WritableDirs() {
		if err := fs.MkdirAll(fs.Join(root, dir), 0o700); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	return nil
}
