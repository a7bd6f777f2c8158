package registry_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/otters-sh/otters/registry"
)

// What is timed is tested in a bubble of synctest, over connections in memory: its clock goes on when all
// else waits, and so to the second, on any machine.

// pipes is a listener of such connections.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return p }
func (*pipes) Network() string  { return "pipe" }
func (*pipes) String() string   { return "registry.test:80" }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// servePipes serves in a bubble, with all times as they are without options.
func servePipes(t *testing.T, dir string) *server {
	t.Helper()
	s := openStore(t, dir, registry.Options{})
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	return serveOn(t, s, p, p.dial, s.Handler(registry.HandlerOptions{TokenHash: sha256.Sum256([]byte(token))}))
}

// wantTook compares the time since started, to the second.
func wantTook(t *testing.T, started time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(started).Truncate(time.Second); got != want {
		t.Errorf("it took %s, want %s", got, want)
	}
}

func TestR2BodyThatStandsStoresNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := servePipes(t, dir)
		started := time.Now()
		if status, code := s.raw(t, blobRequest("wh", 5), false); status != 408 || code != "BLOB_UPLOAD_INVALID" {
			t.Errorf("%d %s", status, code)
		}
		wantTook(t, started, 30*time.Second)
		s.want(s.do("GET", "/v2/r/blobs/"+string(digest.FromString("whole")), nil), 404, "BLOB_UNKNOWN")
		emptyFolder(t, dir+"/tmp")
	})
}

func TestR2BodyThatNobodyReadsIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := servePipes(t, t.TempDir()).dial(t)
		started := time.Now()
		fmt.Fprint(conn, "PUT /v2/r/manifests/v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 1000\r\n\r\n")
		data, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(data), "HTTP/1.1 401 ") {
			t.Errorf("%.40q %v, want 401 and the end", data, err)
		}
		wantTook(t, started, 30*time.Second)
	})
}

// A byte now and then keeps no connection; who keeps to the least rate is let finish.
func TestR2SlowDripIsCutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		piece, status int
		took          time.Duration
	}{{1, http.StatusRequestTimeout, 30 * time.Second}, {512, http.StatusRequestTimeout, 59 * time.Second}, {1024, http.StatusAccepted, 199 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			s := servePipes(t, t.TempDir())
			at, conn := s.start("/v2/r/blobs/uploads/"), s.dial(t)
			started := time.Now()
			fmt.Fprintf(conn, "PATCH %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", at, token, 200*c.piece)
			var drip sync.WaitGroup
			drip.Go(func() {
				time.Sleep(time.Second / 2) // so that none comes at the moment of the cut
				for range 200 {
					if _, err := io.WriteString(conn, strings.Repeat("x", c.piece)); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			wantTook(t, started, c.took)
			if resp.StatusCode != c.status {
				t.Errorf("%d bytes a second: status %d, want %d", c.piece, resp.StatusCode, c.status)
			}
			_ = conn.Close()
			drip.Wait()
		})
	}
}

func TestR2AbandonedUploadsAreRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := servePipes(t, dir)
		at := s.start("/v2/r/blobs/uploads/")
		// Each request starts the rest of 15 minutes anew.
		for range 3 {
			time.Sleep(15*time.Minute - time.Second)
			s.want(s.do("PATCH", at, bigBlob("b")), 202, "")
		}
		time.Sleep(15*time.Minute - time.Second)
		if left, err := os.ReadDir(dir + "/tmp"); err != nil || len(left) != 1 {
			t.Errorf("a second before: %v %v", left, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		emptyFolder(t, dir+"/tmp")
		s.want(s.do("GET", at, nil), 404, "BLOB_UPLOAD_UNKNOWN")
	})
}
