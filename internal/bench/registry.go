//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// registryServer is one of the servers that the same client drives.
type registryServer struct {
	name, dir, url, token string

	cmd    *exec.Cmd
	client *http.Client
}

// clientCounts are the numbers of clients at once of every row.
var clientCounts = []int{1, 8, 64}

// benchRegistry holds ottersd's registry against the ones of other projects. They differ in what an
// answer promises: ours is on disk, with its name; distribution syncs a blob's data and not its
// folder; go-containerregistry syncs nothing and keeps manifests in memory, so it is a ceiling.
func benchRegistry(ctx context.Context, b *built, runs int) ([]row, error) {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.path("peers"), ".")
	build.Dir = filepath.Join("internal", "bench", "peers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build peers: %w: %s", err, out)
	}
	scratch := b.path("registry")
	if err := os.Mkdir(scratch, 0o711); err != nil {
		return nil, err
	}
	var rows []row
	var servers []*registryServer
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	for _, args := range [][]string{
		{"otters", b.path("ottersd"), "registry", "serve", "--log-level", "error", "--home"},
		{"distribution", b.path("peers"), "distribution"},
		{"ggcr", b.path("peers"), "ggcr"},
	} {
		s, err := startRegistry(ctx, args[0], filepath.Join(scratch, args[0]), args[1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", args[0], err)
		}
		servers = append(servers, s)
	}
	l := &registryLoad{ctx: ctx, servers: servers, scratch: scratch, budget: time.Duration(runs) * 10 * time.Millisecond}
	steps := []func() ([]row, error){l.smallPushes, l.mediumPushes, l.largePushes, l.manifests, l.tags, l.referrers, l.memory}
	for _, step := range steps {
		more, err := step()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	more, err := growth(ctx, b, filepath.Join(scratch, "growth"))
	return append(rows, more...), err
}

// startRegistry starts a server on a folder of its own and reads its address from its first line.
func startRegistry(ctx context.Context, name, dir string, args []string) (*registryServer, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	s := &registryServer{name: name, dir: dir}
	s.cmd = exec.CommandContext(ctx, args[0], append(args[1:], dir)...)
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, s.cmd.Process.Kill(), s.cmd.Wait())
	}
	addr, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "registry ready: "), ",")
	s.url = "http://" + addr
	if token, err := os.ReadFile(filepath.Join(dir, "registry.token")); err == nil {
		s.token = strings.TrimSpace(string(token))
	}
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	return s, nil
}

// stop kills the server.
func (s *registryServer) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// do makes a request, reads the answer to its end, and wants one of the class 2xx.
func (s *registryServer) do(ctx context.Context, method, url string, size int64, body io.Reader, contentType string) (http.Header, error) {
	if !strings.HasPrefix(url, "http://") {
		url = s.url + url
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	if s.token != "" {
		req.SetBasicAuth("bench", s.token)
	}
	req.Header.Set("Accept", mediaTypeManifest+", */*")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text := &bytes.Buffer{}
	if resp.StatusCode/100 != 2 {
		_, _ = io.Copy(text, io.LimitReader(resp.Body, 300))
		return nil, fmt.Errorf("%s %s %s: %s: %s", s.name, method, url, resp.Status, text)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header, err
}

// push pushes a blob by POST and PUT, which every server knows.
func (s *registryServer) push(ctx context.Context, digest string, size int64, body io.Reader) error {
	header, err := s.do(ctx, http.MethodPost, "/v2/bench/blobs/uploads/", 0, nil, "")
	if err != nil {
		return err
	}
	at, sep := header.Get("Location"), "?"
	if strings.Contains(at, "?") {
		sep = "&"
	}
	_, err = s.do(ctx, http.MethodPut, at+sep+"digest="+digest, size, body, "application/octet-stream")
	return err
}

// peak is the server's largest memory since reset, in MB.
func (s *registryServer) peak() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("no VmHWM")
}

func (s *registryServer) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0)
}

// syncByHand is how many files of 1 KiB one writer makes durable in a second by create, sync,
// rename and folder sync: what small pushes are held against, measured just before them.
func syncByHand(dir string) (float64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	data := make([]byte, 1<<10)
	started, n := time.Now(), 0
	for ; time.Since(started) < time.Second/2; n++ {
		path := filepath.Join(dir, strconv.Itoa(n))
		f, err := os.Create(path + ".tmp")
		if err != nil {
			return 0, err
		}
		_, err = f.Write(data)
		if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
			err = errors.Join(os.Rename(path+".tmp", path), folder.Sync())
		}
		if err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(started).Seconds(), os.RemoveAll(dir)
}

// hashRate is one core's sha256 in MB/s.
func hashRate() float64 {
	data := make([]byte, 64<<20)
	started := time.Now()
	sha256.Sum256(data)
	return float64(len(data)) / 1e6 / time.Since(started).Seconds()
}
