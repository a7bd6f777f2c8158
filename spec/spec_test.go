package spec

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseReference(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 255)
	for in, want := range map[string]struct {
		ref        Reference
		host, repo string
	}{
		"guide":                         {Reference{Name: "guide"}, "", "guide"},
		"guide:1.0":                     {Reference{Name: "guide", Tag: "1.0"}, "", "guide"},
		"otters/tools/cat":              {Reference{Name: "otters/tools/cat"}, "", "otters/tools/cat"},
		"ghcr.io/a/b__c:x":              {Reference{Name: "ghcr.io/a/b__c", Tag: "x"}, "ghcr.io", "a/b__c"},
		"localhost/a":                   {Reference{Name: "localhost/a"}, "localhost", "a"},
		"localhost:5000/a":              {Reference{Name: "localhost:5000/a"}, "localhost:5000", "a"},
		"localhost:5000":                {Reference{Name: "localhost", Tag: "5000"}, "", "localhost"},
		"foo.bar":                       {Reference{Name: "foo.bar"}, "", "foo.bar"},
		"[::1]:5000/a:t":                {Reference{Name: "[::1]:5000/a", Tag: "t"}, "[::1]:5000", "a"},
		"a@sha256:" + hex64:             {Reference{Name: "a", Digest: "sha256:" + hex64}, "", "a"},
		"Host.X/a:t@sha256:" + hex64:    {Reference{Name: "Host.X/a", Tag: "t", Digest: "sha256:" + hex64}, "Host.X", "a"},
		long:                            {Reference{Name: long}, "", long},
		"a:" + strings.Repeat("t", 128): {Reference{Name: "a", Tag: strings.Repeat("t", 128)}, "", "a"},
	} {
		got, err := ParseReference(in)
		if err != nil || got != want.ref || got.String() != in || got.Host() != want.host || got.Repository() != want.repo {
			t.Errorf("%.80s: %+v %q %q %v", in, got, got.Host(), got.Repository(), err)
		}
	}
	// R3 of the attack cases is in here: names that a file system or a URL would take otherwise.
	for in, want := range map[string]string{
		"":                                   "is empty",
		"..":                                 "is not lower-case letters",
		"a//b":                               "a part of the name is empty",
		"a/../b":                             "is not lower-case",
		"_":                                  "is not lower-case",
		"a/":                                 "is empty",
		"/a":                                 "is empty",
		"Guide":                              `write "guide"`,
		"a%2fb":                              "is not lower-case",
		"a:.t":                               "the tag",
		"a:..":                               "the tag",
		"a:":                                 "the tag",
		"a b":                                "is not lower-case",
		"a@sha256:12":                        "the digest",
		"a@md5:" + hex64[:32]:                "the digest",
		"a@sha256:" + strings.ToUpper(hex64): "the digest",
		"a@":                                 "the digest",
		"@sha256:" + hex64:                   "is empty",
		"-a.b/c":                             "is not a host",
		"a.b:x/c":                            "is not a host",
		"../a":                               "is not a host",
		long + "a":                           "256 bytes, more than 255",
		"a:" + strings.Repeat("t", 129):      "the tag",
		"a...b":                              "is not lower-case",
		"a\x00b":                             "is not lower-case",
		"a\n":                                "is not lower-case",
	} {
		got, err := ParseReference(in)
		if !errors.Is(err, ErrInvalidReference) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %+v %v", in, got, err)
		}
	}
	r, _ := ParseReference("a")
	if r.WithDefaultTag("latest").String() != "a:latest" || r.Identifier() != "latest" {
		t.Error("default tag")
	}
	r, _ = ParseReference("a@sha256:" + hex64)
	if r.WithDefaultTag("latest") != r || r.Identifier() != "sha256:"+hex64 {
		t.Error("a reference with a digest needs no tag")
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"a", "ghcr.io/a/b:1@sha256:" + hex64, "[::1]:1/a", "a//b", "../..", "A:b:c@d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			if !errors.Is(err, ErrInvalidReference) {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseReference(r.String())
		if err != nil || again != r || r.String() != s {
			t.Fatalf("%q: %+v, then %+v: %v", s, r, again, err)
		}
		if strings.Contains(r.Repository(), "..") || strings.ContainsAny(r.Repository(), "\\\x00 ") {
			t.Fatalf("%q", r.Repository())
		}
	})
}

func parse(t *testing.T, src string) *Agentfile {
	t.Helper()
	a, err := Parse("Agentfile", []byte(src), ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestMergeInherits(t *testing.T) {
	t.Parallel()
	parent := parse(t, "FROM scratch\nRUNTIME r:1\nMODEL a/b\nNAME p\nEXEC [\"x\"]\nCONTEXT A <<E\na\nE\nCONTEXT B <<E\nb\nE\nCONFIG c=1\nCONFIG d!\nENV X=1\nENV Y=1\nBIN cat i\nADD f\nLABEL l=1\nARG g=1\nCAPABILITY one two")
	before := parent.Clone()
	child := parse(t, "FROM p\nMODEL c/d\nCONTEXT A <<E\nmine\nE\nCONTEXT C <<E\nc\nE\nCONFIG d=2\nENV X=2\nCAPABILITY two three")
	got := Merge(parent, child)
	two, one := "2", "1"
	want := &Agentfile{
		Syntax: DefaultSyntax, From: "p", Runtime: "r:1", Model: "c/d", Name: "p", Exec: []string{"x"},
		Contexts: []Context{{Name: "A", Content: "mine\n"}, {Name: "B", Content: "b\n"}, {Name: "C", Content: "c\n"}},
		Configs:  []Config{{Key: "c", Value: &one}, {Key: "d", Value: &two}},
		Envs:     []Env{{Key: "X", Value: "2"}, {Key: "Y", Value: "1"}},
		Bins:     []Bin{{Name: "cat", Image: "i"}}, Adds: []Add{{Src: "f", Name: "f"}},
		Labels: Pairs{{"l", "1"}}, Args: Pairs{{"g", "1"}}, Capabilities: []string{"one", "two", "three"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(before, parent); d != "" {
		t.Error("Merge changed the parent:", d)
	}
	if again := Merge(got, child); !cmp.Equal(again, got) {
		t.Error("merging a child twice inherits something twice")
	}

	// A RUNTIME of the child drops what the parent configured, and nothing else.
	got = Merge(parent, parse(t, "FROM p\nRUNTIME r:2\nCONFIG e=1\nEXEC [\"y\"]"))
	if len(got.Configs) != 1 || got.Configs[0].Key != "e" || got.Runtime != "r:2" || len(got.Envs) != 2 || got.Exec[0] != "y" {
		t.Errorf("%+v", got)
	}
}

func TestOverridesAreCheckedLikeTheFile(t *testing.T) {
	t.Parallel()
	base := parse(t, "FROM scratch\nCONFIG key! \"d\"\nENV A=1")
	for name, tc := range map[string]struct {
		bad  Override
		want string
		good Override
	}{
		"runtime":               {WithRuntime("A B"), "RUNTIME: invalid reference", WithRuntime("a/b:1")},
		"model":                 {WithModel("otter"), `MODEL: "otter" is not a model`, WithModel("offline/otter")},
		"config":                {WithConfig("K", "1"), `CONFIG "K"`, WithConfig("k", "1")},
		"config value":          {WithConfig("k", "\x00"), "NUL", WithConfig("k", "")},
		"env":                   {WithExtraEnvs(Env{Key: "LISTEN_PID"}), "reserved", WithExtraEnvs(Env{Key: "A"}, Env{Key: "B"})},
		"env key":               {WithExtraEnvs(Env{Key: "A=B"}), "is not an ENV key", WithExtraEnvs(Env{Key: "AB"})},
		"mount host":            {WithMounts(Mount{Host: "src", Target: "/workspace/x"}), "is not absolute", WithMounts(Mount{Host: "/src", Target: "/workspace/x"})},
		"mount host with dots":  {WithMounts(Mount{Host: "/a/../b", Target: "x"}), `write "/b"`, WithMounts(Mount{Host: "/b/", Target: "x"})},
		"mount target dots":     {WithMounts(Mount{Host: "/a", Target: "workspace/../etc"}), "..", WithMounts(Mount{Host: "/a", Target: "workspace/etc"})},
		"mount over etc":        {WithMounts(Mount{Host: "/a", Target: "/etc/context"}), "/etc is not the agent's", WithMounts(Mount{Host: "/a", Target: "/etc2"})},
		"mount over usr":        {WithMounts(Mount{Host: "/a", Target: "usr/./bin"}), "/usr is not", WithMounts(Mount{Host: "/a", Target: "data"})},
		"mount over the root":   {WithMounts(Mount{Host: "/a", Target: "/"}), "root of the agent's tree", WithMounts(Mount{Host: "/a", Target: "/d"})},
		"mount over the home":   {WithMounts(Mount{Host: "/a", Target: "/home"}), "mount below it", WithMounts(Mount{Host: "/a", Target: "/home/x"})},
		"mounts that overlap":   {WithMounts(Mount{Host: "/a", Target: "/d"}, Mount{Host: "/b", Target: "d/e"}), "overlaps", WithMounts(Mount{Host: "/a", Target: "/d"}, Mount{Host: "/b", Target: "de"})},
		"the whole file system": {WithMounts(Mount{Host: "/", Target: "/d"}), "whole file system", WithMounts(Mount{Host: "/d", Target: "/d"})},
	} {
		if _, err := base.Apply(tc.bad); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := base.Apply(tc.good); err != nil {
			t.Errorf("%s, its allowed twin: %v", name, err)
		}
	}
	got, err := base.Apply(WithConfig("key", "v"), WithExtraEnvs(Env{Key: "A", Value: "2"}))
	if err != nil || len(got.MissingConfigs()) != 0 || !got.Configs[0].Required || got.Configs[0].Description != "d" || got.Envs[0].Value != "2" {
		t.Errorf("%+v %v", got, err)
	}
	if len(base.MissingConfigs()) != 1 || base.Envs[0].Value != "1" {
		t.Error("Apply changed what it was given")
	}
}

func TestValidateNamesEveryField(t *testing.T) {
	t.Parallel()
	a := &Agentfile{
		From: "X", Name: "/", Contexts: []Context{{Name: "../x"}, {Name: "A"}, {Name: "A"}}, Bins: []Bin{{Name: "b", Image: ""}},
		Adds: []Add{{Name: ".."}}, Labels: Pairs{{"", ""}}, Args: Pairs{{"1", ""}}, Capabilities: []string{"a_b", "a-b"}, Exec: []string{"\x00"},
	}
	err := a.Validate()
	for _, want := range []string{"FROM: ", "NAME: ", `CONTEXT "../x": `, `CONTEXT: "A" is there twice`, `BIN "b": `, `ADD "..": `, `LABEL "": `, `ARG "1": `, `CAPABILITY: "a-b" is there twice`, "EXEC: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	if err := (&Agentfile{}).Validate(); err != nil {
		t.Error("the zero value:", err)
	}
}

func TestJSONOfOlderBuildsIsRead(t *testing.T) {
	t.Parallel()
	var a Agentfile
	blob := `{"from":"scratch","configs":[{"key":"a","value":1.10},{"key":"b","value":"x"},{"key":"c","value":null},{"key":"d","value":true}],
		"adds":[{"src":"x/y.txt","dst":"/data/deep/z.txt"},{"src":"x/y.txt"}],"labels":[{"key":"k","value":"v"}],"args":{"z":"1","a":"2"},
		"capabilities":["job_submit","job-submit"],"unknown":1}`
	if err := json.Unmarshal([]byte(blob), &a); err != nil {
		t.Fatal(err)
	}
	if *a.Configs[0].Value != "1.10" || *a.Configs[1].Value != "x" || a.Configs[2].Value != nil || *a.Configs[3].Value != "true" {
		t.Errorf("%+v", a.Configs)
	}
	if a.Adds[0].Name != "z.txt" || a.Adds[1].Name != "y.txt" || !cmp.Equal(a.Labels, Pairs{{"k", "v"}}) ||
		!cmp.Equal(a.Args, Pairs{{"z", "1"}, {"a", "2"}}) || !cmp.Equal(a.Capabilities, []string{"job-submit"}) {
		t.Errorf("%+v", a)
	}
	if out, _ := json.Marshal(a.Args); string(out) != `{"z":"1","a":"2"}` {
		t.Errorf("the order is lost: %s", out)
	}
	for _, bad := range []string{`{"labels":{"a":"1","a":"2"}}`, `{"labels":"x"}`, `{"labels":{"a":1}}`, `{"configs":[{"key":"a","value":{}}]}`} {
		if err := json.Unmarshal([]byte(bad), &a); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
