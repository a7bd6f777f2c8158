package client

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

type entry struct {
	Name, Link, Body string
	Type             byte
	Mode             int64
}

func untar(t *testing.T, archive io.Reader) []entry {
	t.Helper()
	var out []entry
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s carries time or owner: %+v", h.Name, h)
		}
		out = append(out, entry{h.Name, h.Linkname, string(body), h.Typeflag, h.Mode})
	}
}

func write(t *testing.T, dir, name, body string, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), mode); err != nil {
		t.Fatal(err)
	}
}

func openRoot(t *testing.T, dir string) fs.FS {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root.FS()
}

func TestBuildSendsTheFolder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var options *daemonv1.BuildOptions
	var archive bytes.Buffer
	c, _ := serve(t, &fake{build: func(s grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error {
		mu.Lock()
		defer mu.Unlock()
		for {
			r, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return s.SendAndClose(&daemonv1.BuildResponse{Digest: "sha256:1", References: options.GetTags()})
			}
			if err != nil {
				return err
			}
			if o := r.GetOptions(); o != nil {
				options = o
			}
			if len(r.GetArchive()) > chunk {
				t.Errorf("a message of %d bytes", len(r.GetArchive()))
			}
			archive.Write(r.GetArchive())
		}
	}})
	dir := t.TempDir()
	big := strings.Repeat("0123456789abcdef", 20<<10)
	write(t, dir, "Agentfile", "FROM scratch\n", 0o600)
	write(t, dir, "b/run.sh", "#!", 0o700)
	write(t, dir, "b/big", big, 0o664)
	if err := os.Symlink("../../outside", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	r, err := c.Build(t.Context(), BuildOptions{Tags: []string{"a:1", "b"}, Args: map[string]string{"K": "V"}, Source: openRoot(t, dir)})
	if err != nil || r.GetDigest() != "sha256:1" || len(r.GetReferences()) != 2 {
		t.Fatalf("build: %v, %v", r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if options.GetFile() != "Agentfile" || options.GetBuildArgs()["K"] != "V" {
		t.Errorf("options %v", options)
	}
	want := []entry{
		{"Agentfile", "", "FROM scratch\n", tar.TypeReg, 0o644},
		{"b/", "", "", tar.TypeDir, 0o755},
		{"b/big", "", big, tar.TypeReg, 0o644},
		{"b/run.sh", "", "#!", tar.TypeReg, 0o755},
		{"link", "../../outside", "", tar.TypeSymlink, 0o777},
	}
	if diff := cmp.Diff(want, untar(t, &archive)); diff != "" {
		t.Error(diff)
	}
}

func TestBuildRefusedByTheDaemonSaysWhy(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, &fake{build: func(s grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error {
		return status.Error(codes.InvalidArgument, `tag "A": upper case`)
	}})
	source := fstest.MapFS{"Agentfile": {Data: []byte("x")}, "big": {Data: make([]byte, 8<<20)}}
	_, err := c.Build(t.Context(), BuildOptions{Tags: []string{"A"}, Source: source})
	var e *Error
	if !errors.As(err, &e) || e.Code != codes.InvalidArgument || e.Message != `tag "A": upper case` {
		t.Fatalf("error %v", err)
	}
}

func TestBuildFolderThatCannotBeSent(t *testing.T) {
	t.Parallel()
	var sent atomic.Bool
	c, _ := serve(t, &fake{build: func(s grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error {
		for {
			if _, err := s.Recv(); err != nil {
				if errors.Is(err, io.EOF) {
					sent.Store(true)
				}
				return s.SendAndClose(&daemonv1.BuildResponse{Digest: "sha256:1"})
			}
		}
	}})
	cases := map[string]struct {
		file string
		make func(t *testing.T, dir string)
		says string
	}{
		"no Agentfile":             {"", func(*testing.T, string) {}, "no Agentfile in it"},
		"Agentfile is a folder":    {"", func(t *testing.T, d string) { write(t, d, "Agentfile/x", "", 0o600) }, "Agentfile is a folder"},
		"Agentfile outside":        {"../Agentfile", func(*testing.T, string) {}, "not a path inside the folder"},
		"Agentfile escapes (P10)":  {"", func(t *testing.T, d string) { link(t, "/etc/passwd", filepath.Join(d, "Agentfile")) }, "escapes"},
		"a named pipe (P5)":        {"", func(t *testing.T, d string) { write(t, d, "Agentfile", "", 0o600); fifo(t, filepath.Join(d, "p")) }, "p is a named pipe"},
		"a socket (P5)":            {"", func(t *testing.T, d string) { write(t, d, "Agentfile", "", 0o600); listen(t, filepath.Join(d, "s")) }, "s is a socket"},
		"another Agentfile's name": {"other", func(t *testing.T, d string) { write(t, d, "Agentfile", "", 0o600) }, "no other in it"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			tc.make(t, dir)
			_, err := c.Build(t.Context(), BuildOptions{Tags: []string{"a"}, File: tc.file, Source: openRoot(t, dir)})
			if !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v; want %q", err, tc.says)
			}
		})
	}
	if sent.Load() {
		t.Error("the daemon got a whole archive")
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func fifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func TestArchiveIsBounded(t *testing.T) {
	t.Parallel()
	source := fstest.MapFS{"a": {Data: make([]byte, 600)}, "b": {Data: make([]byte, 400)}}
	cases := map[string]struct {
		a    archiver
		says string
	}{
		"fits":          {archiver{maxBytes: 1000, maxEntries: 2}, ""},
		"one byte less": {archiver{maxBytes: 999, maxEntries: 2}, "more than 999 bytes at b"},
		"one file less": {archiver{maxBytes: 1000, maxEntries: 1}, "more than 1 files"},
	}
	for name, c := range cases {
		err := c.a.write(t.Context(), io.Discard, source)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := WriteArchive(ctx, io.Discard, source); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestArchiveHasNothingOfTheMachine (S4): the same content at another time and with other modes of
// other users is the same archive.
func TestArchiveHasNothingOfTheMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "Agentfile", "FROM scratch\n", 0o600)
	write(t, dir, "b/big", "data", 0o664)
	var first, again bytes.Buffer
	if err := WriteArchive(t.Context(), &first, openRoot(t, dir)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "b", "big")
	if err := errors.Join(os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)), os.Chmod(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := WriteArchive(t.Context(), &again, openRoot(t, dir)); err != nil || !bytes.Equal(again.Bytes(), first.Bytes()) {
		t.Errorf("archive differs, %v", err)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	again.Reset()
	if err := WriteArchive(t.Context(), &again, openRoot(t, dir)); err != nil || bytes.Equal(again.Bytes(), first.Bytes()) {
		t.Errorf("a file made executable is the same archive, %v", err)
	}
}
