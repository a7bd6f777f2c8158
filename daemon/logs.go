package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// maxLogLine bounds a line of a log as it is told; what is longer is cut. A monitor's longest is 64 KiB
// of control characters, each of which is six bytes as JSON.
const maxLogLine = 512 << 10

// maxLogFiles is how many files of one log there may be; log-files has it as its bound.
const maxLogFiles = 100

// logQuery is what of a log is asked for.
type logQuery struct {
	follow bool
	// sinceMs leaves out lines before it; 0 leaves out none.
	sinceMs int64
	// tail is how many lines to begin with; negative begins with the first.
	tail int
}

// logFile is an open file of a log, read up to size where it does not grow any more.
type logFile struct {
	*os.File
	size int64
}

// openLog opens one file; nil where there is none.
func openLog(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("log: %s: a symbolic link, which a log does not follow; remove it, or put the file in its place", path)
	}
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("log: %w", err)
	}
	return &logFile{f, info.Size()}, nil
}

// logNames are the files of the log at path, oldest first, those among them that there may be.
func logNames(path string, files int) []string {
	var out []string
	for i := files - 1; i > 0; i-- {
		out = append(out, path+"."+strconv.Itoa(i))
	}
	return append(out, path)
}

func openLogs(names []string) ([]*logFile, error) {
	var out []*logFile
	for _, name := range names {
		f, err := openLog(name)
		if err != nil {
			closeLogs(out)
			return nil, err
		}
		if f != nil {
			out = append(out, f)
		}
	}
	return out, nil
}

func closeLogs(files []*logFile) {
	for _, f := range files {
		_ = f.Close()
	}
}

// tailStart is where the last n lines of the files begin: which file, and the offset in it.
func tailStart(files []*logFile, n int) (int, int64, error) {
	if n < 0 || len(files) == 0 {
		return 0, 0, nil
	}
	last := len(files) - 1
	if n == 0 {
		return last, files[last].size, nil
	}
	buf := make([]byte, 64<<10)
	for i := last; i >= 0; i-- {
		for end := files[i].size; end > 0; {
			from := max(end-int64(len(buf)), 0)
			block := buf[:end-from]
			if _, err := files[i].ReadAt(block, from); err != nil {
				return 0, 0, fmt.Errorf("log: %w", err)
			}
			for j := len(block) - 1; j >= 0; j-- {
				// The newline at the very end begins no line.
				if block[j] != '\n' || from+int64(j) == files[i].size-1 {
					continue
				}
				if n--; n == 0 {
					return i, from + int64(j) + 1, nil
				}
			}
			end = from
		}
		if files[i].size > 0 {
			if n--; n == 0 {
				return i, 0, nil
			}
		}
	}
	return 0, 0, nil
}

// logSender cuts what it is fed into lines and sends those that are asked for.
type logSender struct {
	ctx     context.Context
	sinceMs int64
	send    func(*daemonv1.LogsResponse) error
	rest    []byte
	// buf is what drain reads into.
	buf []byte
	// late tells that the last line with a time was not before sinceMs.
	late bool
}

// drain reads r to its end; a line that is not complete is kept for the next one.
func (s *logSender) drain(r io.Reader) error {
	if s.buf == nil {
		s.buf = make([]byte, 64<<10)
	}
	for {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(s.buf)
		if ferr := s.feed(s.buf[:n]); ferr != nil {
			return ferr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
}

func (s *logSender) feed(b []byte) error {
	for len(b) > 0 {
		line, after, complete := bytes.Cut(b, []byte{'\n'})
		if room := maxLogLine - len(s.rest); room > 0 {
			s.rest = append(s.rest, line[:min(room, len(line))]...)
		}
		if !complete {
			return nil
		}
		b = after
		if err := s.line(); err != nil {
			return err
		}
	}
	return nil
}

// flush sends a line that ended without a newline.
func (s *logSender) flush() error {
	if len(s.rest) == 0 {
		return nil
	}
	return s.line()
}

// finish sends the line that was begun when the files were measured: a write seen half done is waited
// out, and what comes after its line was not asked for.
func (s *logSender) finish(files []*logFile) error {
	for len(s.rest) > 0 {
		n, err := files[len(files)-1].Read(s.buf)
		if n == 0 || err != nil {
			return s.flush() // nobody goes on with it
		}
		b := s.buf[:n]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			return s.feed(b[:i+1])
		}
		if err := s.feed(b); err != nil {
			return err
		}
	}
	return nil
}

func (s *logSender) line() error {
	m := logLine(s.rest)
	s.rest = s.rest[:0]
	if m.GetAtMs() > 0 {
		s.late = m.GetAtMs() >= s.sinceMs
	}
	if s.sinceMs > 0 && !s.late {
		return nil
	}
	return s.send(m)
}

// readAll sends what the files had when they were opened, all of it or the last tail lines; the last
// file may grow on. Memory does not grow with the files.
func (s *logSender) readAll(files []*logFile, tail int) error {
	first, offset, err := tailStart(files, tail)
	if err != nil {
		return err
	}
	for i, f := range files {
		if i < first {
			continue
		}
		from := int64(0)
		if i == first {
			from = offset
		}
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return fmt.Errorf("log: %w", err)
		}
		if err := s.drain(io.LimitReader(f, f.size-from)); err != nil {
			return err
		}
		if i < len(files)-1 {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readLogs sends what q asks for; with follow until the agent is removed, ctx ends, or ending does.
func (a *supervised) readLogs(ctx, ending context.Context, q logQuery, send func(*daemonv1.LogsResponse) error) error {
	s := &logSender{ctx: ctx, sinceMs: q.sinceMs, send: send}
	written, cancel := a.sup.logs.follow(a.id)
	defer cancel()
	path := a.sup.logPath(a.id)
	a.logMu.RLock()
	rotations := a.rotations
	files, err := openLogs(logNames(path, maxLogFiles))
	a.logMu.RUnlock()
	defer func() { closeLogs(files) }()
	if err != nil {
		return err
	}
	if err := s.readAll(files, q.tail); err != nil {
		return err
	}
	if !q.follow {
		return s.finish(files)
	}
	told, cancelTold := a.watch()
	defer cancelTold()
	for {
		if err := a.drainOn(s, path, &files, &rotations); err != nil {
			return err
		}
		if now, _ := a.state(); now.status == executor.StatusRemoved {
			return s.flush()
		}
		select {
		case <-written:
		case <-told:
		case <-ctx.Done():
			return ctx.Err()
		case <-ending.Done():
			return fail(codes.Unavailable, "", "logs of agent %s: %w", a.name, errClosed)
		}
	}
}

// drainOn sends what has come since: in the file at hand, and after a rotation in those that followed.
func (a *supervised) drainOn(s *logSender, path string, files *[]*logFile, rotations *int) error {
	if n := len(*files); n > 0 {
		if err := s.drain((*files)[n-1]); err != nil {
			return err
		}
	}
	a.logMu.RLock()
	behind := a.rotations - *rotations
	if behind == 0 && len(*files) > 0 {
		a.logMu.RUnlock()
		return nil
	}
	*rotations = a.rotations
	next, err := openLogs(logNames(path, min(behind, maxLogFiles)))
	a.logMu.RUnlock()
	if err != nil {
		return err
	}
	if n := len(*files); n > 0 {
		// Nothing is written to it any more; what came before the switch is in it.
		if err := errors.Join(s.drain((*files)[n-1]), s.flush()); err != nil {
			closeLogs(next)
			return err
		}
	}
	closeLogs(*files)
	*files = next
	if gone := behind - len(next); gone > 0 && len(next) > 0 {
		// With log-files few and a reader slow there are fewer left than were begun.
		if err := s.send(&daemonv1.LogsResponse{
			AtMs: time.Now().UnixMilli(), Stream: "daemon",
			Line: fmt.Sprintf("lines lost: %d files of the log were replaced before they were read", gone),
		}); err != nil {
			return err
		}
	}
	for _, f := range next {
		if err := s.drain(f); err != nil {
			return err
		}
	}
	return nil
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
