package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxLogLine bounds a line of a log as it is told; what is longer is cut.
const maxLogLine = 256 << 10

// readLog calls send for each line that the log had when it was opened. Memory does not grow with
// the file. No file means that nothing was written yet.
func readLog(ctx context.Context, path string, send func(*daemonv1.LogsResponse) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("log: %s is not a regular file", path)
	}
	r := bufio.NewReaderSize(io.LimitReader(f, info.Size()), maxLogLine)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			if err := send(logLine(line)); err != nil {
				return err
			}
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
}

// logLine reads {t, stream, line}; anything else is told as it is, without time and stream.
func logLine(b []byte) *daemonv1.LogsResponse {
	b = bytes.TrimRight(b, "\r\n")
	var rec struct {
		T      time.Time `json:"t"`
		Stream string    `json:"stream"`
		Line   *string   `json:"line"`
	}
	if err := json.Unmarshal(b, &rec); err != nil || rec.Line == nil {
		return &daemonv1.LogsResponse{Line: strings.ToValidUTF8(string(b), "\uFFFD")}
	}
	return &daemonv1.LogsResponse{AtMs: milliseconds(rec.T), Stream: rec.Stream, Line: *rec.Line}
}
