package monitor

import (
	"bytes"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	// maxLine is the longest line of a log in bytes; a longer one is split into lines that carry
	// "more":true, all but its last.
	maxLine = 64 << 10
	// readSize is how much is taken from a pipe at once, a quarter of what it holds.
	readSize = 16 << 10
)

// streams are the names of the program's outputs in its log. A third, "monitor", tells of lines
// that were lost.
var streams = [2]string{"stdout", "stderr"}

// pump starts reading the pipe of stream i.
func (m *monitor) pump(i int, r *os.File) {
	p := &pump{stream: streams[i], tee: m.tees[i], sink: m.sink}
	if i == 1 {
		p.tail = &m.tail
	}
	m.pumps.Add(1)
	go func() {
		defer m.pumps.Done()
		defer r.Close()
		p.run(r)
	}()
}

// pump turns one output of the program into lines of the log.
type pump struct {
	stream  string
	tee     int // -1 for none
	sink    *sink
	tail    *tail
	pending []byte // a line that is not complete
	split   bool   // pending continues a line that was too long
	out     []byte
	count   int
}

func (p *pump) run(r *os.File) {
	buf := make([]byte, readSize)
	for {
		n, err := r.Read(buf)
		p.feed(buf[:n])
		p.flush()
		if p.tee >= 0 && n > 0 {
			if _, e := writeAll(p.tee, buf[:n]); e != nil {
				_ = unix.Close(p.tee) // whoever read it is gone
				p.tee = -1
			}
		}
		if err != nil {
			break
		}
	}
	if len(p.pending) > 0 {
		p.line(p.pending, false)
		p.flush()
	}
}

func (p *pump) feed(b []byte) {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i >= 0 && len(p.pending)+i <= maxLine {
			if len(p.pending) == 0 {
				p.line(b[:i], false)
			} else {
				p.pending = append(p.pending, b[:i]...)
				p.line(p.pending, false)
				p.pending = p.pending[:0]
			}
			b = b[i+1:]
			continue
		}
		n := min(len(b), maxLine-len(p.pending))
		p.pending = append(p.pending, b[:n]...)
		b = b[n:]
		if len(p.pending) == maxLine && len(b) > 0 {
			cut := runeStart(p.pending)
			p.line(p.pending[:cut], true)
			p.pending = append(p.pending[:0], p.pending[cut:]...)
		}
	}
}

// runeStart is where a rune begins that the end of b cuts in two, else the end.
func runeStart(b []byte) int {
	for i := len(b) - 1; i >= len(b)-utf8.UTFMax && i > 0; i-- {
		if utf8.RuneStart(b[i]) {
			if utf8.FullRune(b[i:]) {
				return len(b)
			}
			return i
		}
	}
	return len(b)
}

// line adds a line to the log; more tells that it goes on in the next.
func (p *pump) line(b []byte, more bool) {
	if p.tail != nil && !p.split {
		p.tail.add(b)
	}
	p.split = more
	p.out = appendLine(p.out, p.stream, b, more)
	p.count++
	if len(p.out) > maxLine {
		p.flush()
	}
}

func (p *pump) flush() {
	p.sink.write(p.out, p.count)
	p.out, p.count = p.out[:0], 0
}

// tail keeps the last lines of standard error.
type tail struct {
	mu   sync.Mutex
	ring [wire.TailLines][]byte
	n    int
}

func (t *tail) add(line []byte) {
	if len(line) > wire.TailBytes {
		line = line[:runeStart(line[:wire.TailBytes])]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := &t.ring[t.n%len(t.ring)]
	*slot = append((*slot)[:0], line...)
	t.n++
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	for i := max(0, t.n-len(t.ring)); i < t.n; i++ {
		line := bytes.ToValidUTF8(t.ring[i%len(t.ring)], []byte("\uFFFD"))
		if len(line) > wire.TailBytes {
			line = line[:runeStart(line[:wire.TailBytes])]
		}
		all = append(all, string(line))
	}
	return all
}

// appendLine appends {"t":…,"stream":…,"line":…} and a newline.
func appendLine(b []byte, stream string, line []byte, more bool) []byte {
	b = append(b, `{"t":"`...)
	b = time.Now().UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","stream":"`...)
	b = append(b, stream...)
	b = append(b, `","line":`...)
	b = appendString(b, line)
	if more {
		b = append(b, `,"more":true`...)
	}
	return append(b, "}\n"...)
}

// appendString appends s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendString[S string | []byte](b []byte, s S) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}
