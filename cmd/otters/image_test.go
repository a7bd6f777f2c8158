package main

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	otherregistry "github.com/google/go-containerregistry/pkg/registry"

	"github.com/otters-sh/otters/client"
)

// Invariant: an image has the same digest wherever it was copied to and from, whoever copied it.

// otherHost is a registry of another project.
func otherHost(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(otherregistry.New(otherregistry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func (m *machine) digest(image string) string {
	m.t.Helper()
	var got imageDetailJSON
	if err := json.Unmarshal([]byte(m.must("image", "inspect", "--format", "json", image).out), &got); err != nil {
		m.t.Fatal(err)
	}
	return got.Digest
}

func (m *machine) refused(says string, args ...string) {
	m.t.Helper()
	if got := m.otters(args...); got.code != exitFailed || got.out != "" || !strings.Contains(got.err, says) {
		m.t.Errorf("%q: %+v; want %q", args, got, says)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.must("daemon", "start")
	defer m.must("daemon", "stop", "--stop-agents")
	m.must("build", "-t", "guide:1", guide(t))
	digest := m.digest("guide:1")
	m.names(digest)
	m.parents(t)

	file := filepath.Join(t.TempDir(), "guide.tar")
	m.must("image", "save", "-o", file, "guide:1")
	m.must("image", "rm", "guide:1")
	m.refused("not in the registry", "image", "inspect", "guide:1")
	if got := m.must("image", "load", "-i", file); got.out != "guide:1 "+digest+"\n" {
		t.Errorf("%+v", got)
	}
	m.refused("nothing.tar", "image", "load", "-i", file+"/nothing.tar")

	host := otherHost(t)
	there := host + "/team/guide:1"
	got := m.must("image", "push", "guide:1", there)
	if got.out != there+" "+digest+"\n" || !strings.Contains(got.err, " done ") || strings.Contains(got.err, "\x1b") {
		t.Errorf("%+v", got)
	}
	if got := m.must("image", "pull", there); got.out != there+" "+digest+"\n" {
		t.Errorf("%+v", got)
	}
	m.refused("names no other registry", "image", "push", "guide:1")
	m.refused("names no other registry", "image", "pull", "guide:1")
	m.must("image", "rm", there)
	if got := m.must("run", "-d", there); !strings.Contains(got.err, " exists ") {
		t.Errorf("%+v", got)
	}
	m.standardInput(t)
	m.terminal(t, host)
	m.otherPrograms(t, file, host, digest)
	m.bins(t, host)
}

func (m *machine) names(digest string) {
	m.t.Helper()
	if got := m.must("image", "tag", "guide:1", "other"); got.out != "other:latest "+digest+"\n" {
		m.t.Errorf("%+v", got)
	}
	if got := m.must("image", "ls", "--format", "json"); !strings.Contains(got.out, "other:latest") || got.out != m.must("images", "--format", "json").out {
		m.t.Errorf("%+v", got)
	}
	if got := m.must("image", "diff", "guide:1", "other"); got.out != "" {
		m.t.Errorf("%+v", got)
	}
	if got := m.must("image", "rm", "other"); got.out != "other:latest\n" {
		m.t.Errorf("%+v", got)
	}
	m.refused("not in the registry", "image", "rm", "guide:1", "other")
	m.refused("invalid reference", "image", "tag", "guide:1", "Other")
	got := m.must("image", "inspect", "guide:1")
	for _, want := range []string{"kind", "agent", digest, "MODEL offline/otter", "Agentfile"} {
		if !strings.Contains(got.out, want) {
			m.t.Errorf("no %q in %s", want, got.out)
		}
	}
}

func (m *machine) parents(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Agentfile"), "FROM guide:1\nNAME child\nCONFIG region=north\n")
	m.must("build", "-t", "child", dir)
	got := m.must("image", "history", "child")
	if lines := strings.Split(got.out, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], "child:latest") || !strings.HasPrefix(lines[2], "guide:1") {
		t.Errorf("%+v", got)
	}
	got = m.must("image", "diff", "guide:1", "child")
	for _, want := range []string{"- NAME guide\n", "+ NAME child\n", "+ CONFIG region=north\n", "+ FROM guide:1@sha256:"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in %s", want, got.out)
		}
	}
	if strings.Contains(got.out, "MODEL") {
		t.Errorf("what is the same is shown: %s", got.out)
	}
	m.refused("it is no agent", "image", "history", "otters/tools/cat")
	writeFile(t, filepath.Join(dir, "Agentfile"), "FROM child\nNAME grandchild\n")
	m.must("run", "-d", "--name", "built", dir)
	if a := m.inspect("built"); a.Image != "grandchild:latest" {
		t.Errorf("%+v", a)
	}
}

// standardInput builds the same image of the same folder however that comes.
func (m *machine) standardInput(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	const text = "FROM scratch\nNAME piped\nADD data\n"
	writeFile(t, filepath.Join(dir, "data"), "otters")
	writeFile(t, filepath.Join(dir, "Agentfile"), "FROM scratch\nNAME another\n")
	writeFile(t, filepath.Join(dir, ".agentignore"), "*\n!data\n")
	build := func(in string, args ...string) string {
		t.Helper()
		got := m.ottersIn(in, append([]string{"build", "-t", "piped"}, args...)...)
		if got.code != 0 {
			t.Fatalf("%q: %+v", args, got)
		}
		return got.out
	}
	want := build(text, "-f", "-", dir)
	writeFile(t, filepath.Join(dir, "Agentfile"), text)
	if got := build("", dir); got != want {
		t.Errorf("of a file: %s, want %s", got, want)
	}
	var plain, packed bytes.Buffer
	if err := client.WriteArchive(t.Context(), &plain, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for what, in := range map[string]string{"an archive": plain.String(), "with gzip": packed.String()} {
		if got := build(in, "-"); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	if got := m.ottersIn("FROM scratch\nNAM x\n", "build", "-t", "piped", "-f", "-", dir); got.code != exitFailed || !strings.Contains(got.err, "-:2:1: unknown instruction \"NAM\"; did you mean NAME?") {
		t.Errorf("%+v", got)
	}
	writeFile(t, filepath.Join(dir, "-"), "")
	if got := build(text, "-f", "-", dir); got != want {
		t.Errorf("with a file - that is left out: %s, want %s", got, want)
	}
	writeFile(t, filepath.Join(dir, ".agentignore"), "")
	if got := m.ottersIn(text, "build", "-t", "piped", "-f", "-", dir); got.code != exitFailed || !strings.Contains(got.err, "is in the way") {
		t.Errorf("%+v", got)
	}
	m.must("image", "rm", "piped")
}

// otherPrograms copies out and in with the programs of other projects that are on this machine.
func (m *machine) otherPrograms(t *testing.T, archive, host, digest string) {
	t.Helper()
	copyWith := func(program string, args ...string) {
		if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
			t.Errorf("%s %q: %v\n%s", program, args, err, out)
		}
	}
	policy := filepath.Join(t.TempDir(), "policy.json")
	writeFile(t, policy, `{"default":[{"type":"insecureAcceptAnything"}]}`)
	if m.skopeo = skopeoUnpacks(t, policy, archive); m.skopeo {
		back := filepath.Join(t.TempDir(), "back.tar")
		copyWith("skopeo", "--policy", policy, "copy", "--preserve-digests", "--dest-tls-verify=false", "oci-archive:"+archive+":guide:1", "docker://"+host+"/skopeo/guide:1")
		copyWith("skopeo", "--policy", policy, "copy", "--preserve-digests", "--src-tls-verify=false", "docker://"+host+"/skopeo/guide:1", "oci-archive:"+back+":skopeo:1")
		if got := m.must("image", "pull", host+"/skopeo/guide:1"); !strings.HasSuffix(got.out, " "+digest+"\n") {
			t.Errorf("%+v; want %s", got, digest)
		}
		if got := m.must("image", "load", "-i", back); got.out != "skopeo:1 "+digest+"\n" {
			t.Errorf("%+v; want %s", got, digest)
		}
		// An index goes whole with --all.
		tool := filepath.Join(t.TempDir(), "cat.tar")
		m.must("image", "save", "-o", tool, "otters/tools/cat")
		copyWith("skopeo", "--policy", policy, "copy", "--all", "--preserve-digests", "--dest-tls-verify=false", "oci-archive:"+tool+":otters/tools/cat:latest", "docker://"+host+"/skopeo/cat:1")
		want := m.must("image", "tag", "otters/tools/cat", "copied").out
		if got := m.must("image", "pull", host+"/skopeo/cat:1"); strings.Fields(got.out)[1] != strings.Fields(want)[1] {
			t.Errorf("%+v; want %s", got, want)
		}
		m.must("image", "rm", "copied", host+"/skopeo/cat:1")
	}
	if _, err := exec.LookPath("crane"); err == nil {
		copyWith("crane", "copy", "--insecure", host+"/team/guide:1", host+"/crane/guide:1")
		if got := m.must("image", "pull", host+"/crane/guide:1"); !strings.HasSuffix(got.out, " "+digest+"\n") {
			t.Errorf("%+v; want %s", got, digest)
		}
	}
}

// skopeoUnpacks tells whether there is a skopeo that reads archives. One of before 2023 gives what it unpacks to the
// owner that the archive names, which only root can do.
func skopeoUnpacks(t *testing.T, policy, archive string) bool {
	t.Helper()
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Log("skopeo is not on this machine")
		return false
	}
	out, err := exec.CommandContext(t.Context(), "skopeo", "--policy", policy, "inspect", "--raw", "oci-archive:"+archive+":guide:1").CombinedOutput()
	if err != nil && os.Geteuid() != 0 && strings.Contains(string(out), "operation not permitted") {
		t.Logf("the skopeo of this machine unpacks archives for root alone: %s", out)
		return false
	}
	return true
}

func (m *machine) bins(t *testing.T, host string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"hello from the holt\") }\n")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "own", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// A program for another machine, as far as its header tells.
	program, err := os.ReadFile(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	own, other, machine := "linux/amd64", "linux/arm64", elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		own, other, machine = other, own, elf.EM_X86_64
	}
	binary.LittleEndian.PutUint16(program[18:], uint16(machine))
	writeFile(t, filepath.Join(dir, "other"), string(program))
	usage := filepath.Join(dir, "USAGE.md")
	writeFile(t, usage, "# holt\n\nholt says hello.\n")
	amd, arm := own+"="+filepath.Join(dir, "own"), other+"="+filepath.Join(dir, "other")
	args := []string{"bin", "build", "-t", "tools/holt:1", "--name", "holt", "--description", "says hello", "--usage", usage, amd, arm}
	built := m.must(args...)
	if again := m.must(args...); built.out != again.out || !regexp.MustCompile(`^tools/holt:1 sha256:[0-9a-f]{64}\n$`).MatchString(built.out) {
		t.Errorf("%+v %+v", built, again)
	}
	if got := m.must("bin", "ls"); !strings.Contains(got.out, "tools/holt:1") || strings.Contains(got.out, "guide:1") {
		t.Errorf("%+v", got)
	}
	got := m.must("bin", "inspect", "tools/holt:1")
	for _, want := range []string{"linux/amd64", "linux/arm64", "says hello", "holt says hello.", "io.openotters.bin.name=holt", "vnd.openotters.bin.name=holt"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in %s", want, got.out)
		}
	}
	script := filepath.Join(dir, "script")
	writeFile(t, script, "#!/bin/sh\necho\n")
	m.refused("it is no ELF program", "bin", "build", "-t", "x", "linux/amd64="+script)
	m.refused("is no platform", "bin", "build", "-t", "x", "LINUX="+script)
	m.refused("give the one for "+own, "bin", "build", "-t", "x", own+"="+filepath.Join(dir, "other"))
	m.refused("it is no BIN image", "bin", "rm", "guide:1")
	m.refused("it is no BIN image", "bin", "inspect", "guide:1")
	m.must("bin", "push", "tools/holt:1", host+"/tools/holt:1")
	if got := m.must("bin", "pull", host+"/tools/holt:1"); strings.Fields(got.out)[1] != strings.Fields(built.out)[1] {
		t.Errorf("%+v", got)
	}
	m.must("bin", "rm", "tools/holt:1", host+"/tools/holt:1")
	m.shown(t, host, dir)

	agent := t.TempDir()
	m.must(append([]string{"bin", "build", "-t", host + "/tools/holt:2", "--name", "holt"}, amd, arm)...)
	m.must("bin", "push", host+"/tools/holt:2")
	m.must("bin", "rm", host+"/tools/holt:2")
	writeFile(t, filepath.Join(agent, "Agentfile"), "FROM scratch\nMODEL offline/otter\nNAME holt\nBIN holt "+host+"/tools/holt:2\n")
	m.must("run", "--name", "holt", agent)
	if got := m.must("prompt", "holt", "Use `holt now`"); !strings.Contains(got.out+got.err, "hello from the holt") {
		t.Errorf("%+v", got)
	}
}

// shown runs the commands of docs/image-format.md, with the registry of this test in place of its own.
func (m *machine) shown(t *testing.T, host, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "image-format.md"))
	if err != nil {
		t.Fatal(err)
	}
	from := map[string]string{"USAGE.md": "USAGE.md", "holt-amd64": "own", "holt-arm64": "other"}
	if runtime.GOARCH == "arm64" {
		from["holt-amd64"], from["holt-arm64"] = "other", "own"
	}
	for name, file := range from {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(m.dir, name), string(b))
	}
	commands := console(t, string(text))
	if len(commands) < 4 {
		t.Fatalf("%d commands", len(commands))
	}
	for _, c := range commands {
		args := words(t, strings.ReplaceAll(c, "registry.example", host))
		if args[0] == "otters" {
			m.must(args[1:]...)
			continue
		}
		if args[0] != "skopeo" {
			t.Errorf("%q is neither ours nor known here", c)
		}
		if !m.skopeo {
			continue
		}
		// What the test's machine has not: a policy for all images, and a certificate.
		args = append([]string{"--insecure-policy", args[1], "--dest-tls-verify=false"}, args[2:]...)
		cmd := exec.CommandContext(t.Context(), "skopeo", args...)
		cmd.Dir = m.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", c, err, out)
		}
	}
}
