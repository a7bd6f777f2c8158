package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/uuid"

	"github.com/otters-sh/otters/system"
)

const (
	// sizePause is how long a log is not measured again after it was: how late a rotation may be. What
	// floods waits that long each time its log is full.
	sizePause = 20 * time.Millisecond
	// lookPause is how often logs are looked at where the kernel does not tell of changes.
	lookPause = time.Second
	// logLimitFactor is how many times log-max-size a file is that takes no more, whether or not a daemon
	// runs. It leaves a whole log to an agent whose daemon is away.
	logLimitFactor = 2
	// rotateTime bounds the wait for a monitor that is to switch its log.
	rotateTime = 10 * time.Second
)

// logWatch tells of changes of the agents' logs and has those rotated that are too large. One watch of
// the folder serves all of them.
type logWatch struct {
	sup     *supervisor
	watcher *fsnotify.Watcher // nil where the kernel gives none

	mu        sync.Mutex
	followers map[uuid.UUID]map[chan struct{}]struct{}
	measured  map[uuid.UUID]time.Time

	// late are logs to be measured once more, for run alone: they changed too soon after they were, or
	// while they were rotated. One that is full gives no other sign for a second.
	late map[uuid.UUID]struct{}
}

func newLogWatch(s *supervisor) *logWatch {
	return &logWatch{
		sup: s, followers: make(map[uuid.UUID]map[chan struct{}]struct{}),
		measured: make(map[uuid.UUID]time.Time), late: make(map[uuid.UUID]struct{}),
	}
}

// start watches the folder of the logs until the supervisor closes.
func (w *logWatch) start() {
	s := w.sup
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(s.home.path("logs")); err != nil {
			_ = watcher.Close()
		} else {
			w.watcher = watcher
		}
	}
	if err != nil {
		s.logger.Warn("the kernel does not tell of changed logs; they are looked at every second", "error", err)
	}
	s.work.Go(w.run)
}

func (w *logWatch) run() {
	var events chan fsnotify.Event
	var failures chan error
	var look <-chan time.Time
	if w.watcher != nil {
		defer w.watcher.Close()
		events, failures = w.watcher.Events, w.watcher.Errors
	} else {
		ticker := time.NewTicker(lookPause)
		defer ticker.Stop()
		look = ticker.C
	}
	var again <-chan time.Time
	w.all()
	for {
		select {
		case <-again:
			again = nil
			late := w.late
			w.late = make(map[uuid.UUID]struct{})
			for id := range late {
				w.measure(id)
			}
		case e := <-events:
			if id, err := uuid.Parse(strings.TrimSuffix(filepath.Base(e.Name), ".log")); err == nil {
				w.changed(id)
			}
		case err := <-failures:
			// Events may have been lost, so anything may have changed.
			w.sup.logger.Warn("changes of logs missed", "error", err)
			w.all()
		case <-look:
			w.all()
		case <-w.sup.over.Done():
			return
		}
		if again == nil && len(w.late) > 0 {
			again = time.After(sizePause)
		}
	}
}

func (w *logWatch) all() {
	for _, a := range w.sup.list() {
		w.changed(a.id)
	}
}

// changed tells those who follow a log, and has it measured, now or a little later.
func (w *logWatch) changed(id uuid.UUID) {
	w.tell(id)
	w.measure(id)
}

func (w *logWatch) tell(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ch := range w.followers[id] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// measure has a log rotated where that is due. It is for run alone.
func (w *logWatch) measure(id uuid.UUID) {
	a := w.sup.byID(id)
	if a == nil {
		return
	}
	now := time.Now()
	w.mu.Lock()
	due := now.Sub(w.measured[id]) >= sizePause
	if due {
		w.measured[id] = now
	}
	w.mu.Unlock()
	if !due || !a.measureLog() {
		w.late[id] = struct{}{}
	}
}

// follow returns a channel that gets a value after changes of the log, and a function that ends that.
func (w *logWatch) follow(id uuid.UUID) (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.followers[id] == nil {
		w.followers[id] = make(map[chan struct{}]struct{})
	}
	w.followers[id][ch] = struct{}{}
	return ch, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.followers[id], ch); len(w.followers[id]) == 0 {
			delete(w.followers, id)
		}
	}
}

// forget drops what is known of an agent that is gone.
func (w *logWatch) forget(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.measured, id)
}

// measureLog rotates the log where it is too large, or was removed, beside the caller. It returns false
// where a rotation is under way.
func (a *supervised) measureLog() bool {
	unit, ok := a.unit.(interface {
		RotateLog(ctx context.Context, keep int) error
	})
	set := a.sup.settings
	if !ok {
		return true
	}
	// Looked at while nobody rotates it: what was too large before a rotation is not rotated again after it.
	if !a.rotating.CompareAndSwap(false, true) {
		return false
	}
	if info, err := os.Lstat(a.sup.logPath(a.id)); err == nil && info.Size() <= set.logMaxSize || err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.rotating.Store(false)
		return true
	}
	a.sup.work.Go(func() {
		defer a.rotating.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), rotateTime)
		defer cancel()
		a.logMu.Lock()
		err := unit.RotateLog(ctx, set.logFiles-1)
		if err == nil {
			a.rotations++
		}
		a.logMu.Unlock()
		switch {
		case err == nil:
			a.sup.logs.tell(a.id)
		case !errors.Is(err, system.ErrNotRunning):
			a.sup.logger.Error("log not rotated", "agent", a.id, "error", err)
		}
	})
	return true
}
