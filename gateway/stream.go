package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// minScrubbed is the shortest key that is looked for in answers. Shorter ones ("ollama", "none") are
// no secrets but placeholders for servers that want a header, and are words of their answers.
const minScrubbed = 16

// maxKey is the longest key, in bytes; far below the buffer that answers are copied through.
const maxKey = 4 << 10

// watched reads a provider's answer, and ends the call when it stays silent or when the agent does
// not take what was read.
type watched struct {
	src io.Reader
	out *outgoing
}

func (r *watched) Read(p []byte) (int, error) {
	r.out.silence.Reset(r.out.idle)
	n, err := r.src.Read(p)
	r.out.silence.Stop()
	_ = r.out.control.SetWriteDeadline(time.Now().Add(r.out.idle))
	return n, err
}

// scrub hides key from what is read: a provider, or a proxy in front of one, that quotes the request
// it got must not hand the key to the agent. Every byte of it becomes an asterisk.
func scrub(src io.Reader, key string) io.Reader {
	if len(key) < minScrubbed {
		return src
	}
	return &scrubber{src: src, key: []byte(key), mask: bytes.Repeat([]byte("*"), len(key))}
}

type scrubber struct {
	src       io.Reader
	key, mask []byte
	held      []byte // the end of what was read, while it may be the beginning of the key
}

// Read holds back only bytes that may begin the key, so events pass as they come. The buffer must be
// more than twice as long as the key.
func (s *scrubber) Read(p []byte) (int, error) {
	if len(p) <= 2*len(s.key) {
		return 0, io.ErrShortBuffer
	}
	for {
		had := copy(p, s.held)
		n, err := s.src.Read(p[had:])
		data := p[:had+n]
		for at := 0; ; {
			i := bytes.Index(data[at:], s.key)
			if i < 0 {
				break
			}
			at += i + copy(data[at+i:], s.mask)
		}
		keep := 0
		if err == nil {
			keep = overlap(data, s.key)
		}
		s.held = append(s.held[:0], data[len(data)-keep:]...)
		if len(data) > keep || err != nil {
			return len(data) - keep, err
		}
	}
}

// overlap is the length of the longest end of data that is a beginning of key, but not all of it.
func overlap(data, key []byte) int {
	for n := min(len(data), len(key)-1); n > 0; n-- {
		if bytes.HasSuffix(data, key[:n]) {
			return n
		}
	}
	return 0
}

// answerBody is an answer on its way to the agent. A stream that breaks between two events ends with
// an event that tells why, in the shape clients know.
type answerBody struct {
	out    *outgoing
	src    io.Reader
	closer io.Closer
	stream bool
	whole  bool   // what was passed on ends with a whole event
	last   []byte // what is still to be said, once src has ended
	ended  bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.ended {
		n := copy(p, b.last)
		b.last = b.last[n:]
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	n, err := b.src.Read(p)
	if n > 0 {
		b.whole = bytes.HasSuffix(p[:n], []byte("\n\n")) || bytes.HasSuffix(p[:n], []byte("\r\n\r\n"))
	}
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	why := b.out.cause()
	b.out.log.Warn("answer of the provider broke off", "error", err, "cause", why)
	if !b.stream || !b.whole || errors.Is(why, context.Canceled) {
		return n, err
	}
	b.ended, b.last = true, b.out.speaks.event(b.farewell(why))
	return n, nil
}

func (b *answerBody) farewell(why error) refusal {
	if why != nil {
		return cutOff(why)
	}
	return refusal{http.StatusBadGateway, "api_error", "provider_broke_off",
		fmt.Sprintf("provider %s: it broke its answer off; try again", b.out.ref.Provider)}
}

func (b *answerBody) Close() error { return b.closer.Close() }
