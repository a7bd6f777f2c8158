package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// maxRecord bounds what is read of a record; the largest a monitor writes is some 130 KiB.
const maxRecord = 256 << 10

// LauncherOptions configure a Launcher; the zero value works.
type LauncherOptions struct {
	// Monitor is the path of otters-sandbox. Empty looks beside this executable, then in PATH.
	Monitor string
	// Warm is how many monitors are kept started ahead for a level, at most 16; 0 means 1, negative none.
	Warm int
	// Level is whose programs a monitor is started ahead for before any has run; empty is Off. The
	// monitors of strict differ from the others'.
	Level Level
	// Logger gets what happens out of a caller's sight; nil discards it.
	Logger *slog.Logger
}

// ReadExit reads the record of the exit in stateDir. It is false where there is none: nothing ran
// there, or it still runs. A program whose monitor ended without a record is reported as Lost,
// with the time of the call.
func ReadExit(stateDir string) (Exit, bool, error) {
	exit, err := readRecord[Exit](stateDir, wire.ExitFile)
	if err == nil {
		return exit, true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Exit{}, false, err
	}
	p, err := readRecord[processRecord](stateDir, wire.ProcessFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Exit{}, false, nil
	}
	if err != nil {
		return Exit{}, false, err
	}
	if p.alive() {
		return Exit{}, false, nil
	}
	// The monitor may have written the record between the two looks.
	if exit, err := readRecord[Exit](stateDir, wire.ExitFile); err == nil {
		return exit, true, nil
	}
	return lost(), true, nil
}

// processRecord is what a monitor writes about a running program.
type processRecord struct {
	Version      int    `json:"version"`
	PID          int    `json:"pid"`
	Start        uint64 `json:"start"`
	Monitor      int    `json:"monitor"`
	MonitorStart uint64 `json:"monitor_start"`
	Boot         string `json:"boot"`
}

func readRecord[T any](dir, name string) (T, error) {
	var record T
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return record, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return record, err
	}
	if len(b) > maxRecord {
		return record, fmt.Errorf("%s: larger than %d bytes", f.Name(), maxRecord)
	}
	if err := json.Unmarshal(b, &record); err != nil {
		return record, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return record, nil
}
