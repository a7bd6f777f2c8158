package registry_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/registry"
)

// Environment of the crash test: how often the process is killed, and, in the process that is, the
// store's folder.
const (
	crashRounds = "OTTERS_CRASH_ROUNDS"
	crashFolder = "OTTERS_CRASH_FOLDER"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashFolder); dir != "" {
		fmt.Fprintln(os.Stderr, victim(dir))
		os.Exit(1)
	}
	// Tests compare paths, and programs that they run have folders of their own.
	if dir, err := filepath.Abs(os.TempDir()); err == nil {
		_ = os.Setenv("TMPDIR", dir)
	}
	os.Exit(m.Run())
}

// expectation is what a tag may name: what was acknowledged last, or what was under way.
type expectation struct{ done, begun int }

// ledger is what the victim was heard to say: of tags, and of the manifests, each "repository n", that were
// deleted by digest and not pushed since.
type ledger struct {
	tags map[string]expectation
	gone map[string]bool
}

// hear takes a line of the victim and tells whether it acknowledges a change.
func (l *ledger) hear(line string) bool {
	var verb, what string
	var n int
	if _, err := fmt.Sscanf(line, "%s %s %d;", &verb, &what, &n); err != nil || !strings.HasSuffix(line, ";") {
		return false // the last line, cut off
	}
	if strings.Contains(what, ":") {
		return l.hearOfTag(verb, what, n)
	}
	for ref, e := range l.tags {
		if !strings.HasPrefix(ref, what+":") || e.done != n {
			continue
		}
		switch verb {
		case "begin":
			e.begun = -1
		case "done":
			e = expectation{-1, -1}
		case "fail":
			e.begun = e.done
		}
		l.tags[ref] = e
	}
	if verb == "done" {
		l.gone[fmt.Sprint(what, " ", n)] = true
	}
	return verb == "done"
}

func (l *ledger) hearOfTag(verb, ref string, n int) bool {
	e := l.tags[ref]
	switch verb {
	case "begin":
		e.begun = n
		delete(l.gone, fmt.Sprint(strings.Split(ref, ":")[0], " ", n))
	case "done":
		e = expectation{n, n}
	case "fail":
		e.begun = e.done
	}
	l.tags[ref] = e
	return verb == "done"
}

// R11: killed at any instant during pushes in one piece and in chunks, deletes by tag and by digest, and
// collections, the store opens again, is consistent, and has every tag as it was acknowledged or as it
// was being made, whole; and a manifest that was deleted is not there.
func TestR11KilledStoreLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	rounds := 2 // make crash does more
	if text := os.Getenv(crashRounds); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("%s=%q", crashRounds, text)
		}
	}
	dir := t.TempDir()
	want := &ledger{tags: map[string]expectation{}, gone: map[string]bool{}}
	for w := range crashWorkers {
		for tag := range crashTags {
			want.tags[fmt.Sprintf("crash/w%d:t%d", w, tag)] = expectation{-1, -1}
		}
	}
	changes := 0
	for round := range rounds {
		changes += liveAndDie(t, dir, want)
		survive(t, dir, want)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
	t.Logf("%d kills, %d acknowledged changes, %d manifests deleted and gone", rounds, changes, len(want.gone))
}

// liveAndDie runs the victim until it has made some changes and kills it at a random instant.
func liveAndDie(t *testing.T, dir string, want *ledger) int {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), crashFolder+"="+dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	changes, killAt := 0, 1+rand.IntN(60)
	var kill sync.Once
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if want.hear(lines.Text()) {
			changes++
		}
		if changes == killAt {
			kill.Do(func() {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	_ = cmd.Wait()
	if changes < killAt {
		t.Fatalf("ended before it was killed: %s", errs.String())
	}
	return changes
}

// survive opens the store again, checks it and compares its tags.
func survive(t *testing.T, dir string, want *ledger) {
	t.Helper()
	s, err := registry.Open(dir, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	wantConsistent(t, s)
	for ref, e := range want.tags {
		got := tagged(t, s, ref, e)
		want.tags[ref] = expectation{got, got}
	}
	for what := range want.gone {
		var worker, n int
		if _, err := fmt.Sscanf(what, "crash/w%d %d", &worker, &n); err != nil {
			t.Fatal(err)
		}
		manifest, _ := crashImage(worker, n)
		ref := fmt.Sprintf("crash/w%d@%s", worker, digest.FromBytes(manifest))
		if _, err := s.Resolve(context.Background(), ref); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("%s was deleted and is back: %v", ref, err)
		}
	}
	refs, err := s.References(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		if _, ok := want.tags[ref]; !ok {
			t.Errorf("unknown tag %s", ref)
		}
	}
}

// tagged tells which image a tag names, of those it may name, and reads it whole.
func tagged(t *testing.T, s *registry.Store, ref string, e expectation) int {
	t.Helper()
	ctx := context.Background()
	desc, err := s.Resolve(ctx, ref)
	if errors.Is(err, errdef.ErrNotFound) {
		if e.done >= 0 && e.begun >= 0 {
			t.Errorf("%s is gone, it was image %d", ref, e.done)
		}
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	worker, _ := strconv.Atoi(strings.TrimPrefix(strings.Split(ref, ":")[0], "crash/w"))
	for _, n := range []int{e.begun, e.done} {
		if n < 0 {
			continue
		}
		manifest, blobs := crashImage(worker, n)
		if content.NewDescriptorFromBytes(desc.MediaType, manifest).Digest != desc.Digest {
			continue
		}
		for _, b := range append(blobs, manifest) {
			if got := fetch(t, s, content.NewDescriptorFromBytes("", b)); !bytes.Equal(got, b) {
				t.Errorf("%s: content differs", ref)
			}
		}
		return n
	}
	t.Errorf("%s names %s, want image %d or %d", ref, desc.Digest, e.done, e.begun)
	return -1
}

// smallDisk is a file system of its own with little room.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("otters-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		t.Skipf("mounting a file system needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// R11: on a full disk pushes of every kind fail with a clear error, what was there stays readable
// and whole, and when there is room again pushes go on.
func TestR11FullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 3<<20)
	s := serve(t, openStore(t, filepath.Join(dir, "store"), registry.Options{}), registry.HandlerOptions{})
	kept := s.pushImage("app", "kept", []byte("small"), bigBlob("kept"))
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 64 {
		data := bigBlob(fmt.Sprint("fill", i))
		a := s.do("POST", "/v2/app/blobs/uploads/?digest="+string(content.NewDescriptorFromBytes("", data).Digest), data)
		if a.status == 507 && a.code() == "UNAVAILABLE" && strings.Contains(string(a.body), "full") {
			refused++
		} else if a.status != 201 {
			t.Fatalf("blob: status %d %s", a.status, a.body)
		}
	}
	config := content.NewDescriptorFromBytes("", []byte("{}"))
	for i := range 64 {
		data := image(config, nil, nil, map[string]string{"pad": strings.Repeat(fmt.Sprint(i), 20000)})
		a := s.do("PUT", fmt.Sprintf("/v2/app/manifests/t%d", i), data, "Content-Type", ocispec.MediaTypeImageManifest)
		if a.status == 507 {
			refused++
		} else if a.status != 201 {
			t.Fatalf("manifest: status %d %s", a.status, a.body)
		}
	}
	if refused < 2 {
		t.Errorf("%d pushes were refused: the disk was not full", refused)
	}
	s.want(s.do("GET", "/v2/app/manifests/"+string(kept.Digest), nil), 200, "")
	wantConsistent(t, s.store)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.pushImage("app", "again", []byte("more"))
	wantConsistent(t, s.store)
	if entries, err := os.ReadDir(filepath.Join(dir, "store", "tmp")); err != nil || len(entries) > 0 {
		t.Errorf("left over: %v %v", entries, err)
	}
}

// R11: a disk that cannot be written is told when the store is opened, and loses nothing.
func TestR11ReadOnlyDiskIsToldAtOpening(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, 4<<20)
	dir := filepath.Join(disk, "store")
	s, err := registry.Open(dir, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	desc := push(t, s, "application/octet-stream", bigBlob("kept"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A child of another test that has not executed its program yet has the store's files open as well.
	syscall.ForkLock.RLock()
	err = unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Open(dir, registry.Options{}); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, registry.Options{})
	r, err := s.Fetch(context.Background(), desc)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, bigBlob("kept")) {
		t.Errorf("content after the disk was read-only: %d bytes, %v", len(got), err)
	}
	wantConsistent(t, s)
}
