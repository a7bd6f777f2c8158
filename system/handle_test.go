package system_test

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
	"github.com/otters-sh/otters/workspace"
)

// Invariant: what Create was given is on disk when it returns, and an agent that Load returns can't
// be told from the one that Create returned. The three worst inputs: a handle of a later version, a
// handle whose tree is gone, a seal key that is another one. Each costs its own agent and no other.

// everyKind is one override of each kind, and one that does what no function of spec does.
func everyKind(host string) []spec.Override {
	return []spec.Override{
		spec.WithRuntime("otters/another"),
		spec.WithModel("offline/other"),
		spec.WithConfig("temperature", "1.10"),
		spec.WithConfig("region", ""),
		spec.WithExtraEnvs(spec.Env{Key: "GREETING", Value: "hello"}, spec.Env{Key: roleVar, Value: "serve", Description: "which"}, spec.Env{Key: "EMPTY"}),
		spec.WithMounts(spec.Mount{Host: host, Target: "/workspace/override", Description: "given as an override"}),
		func(a *spec.Agentfile) {
			a.Name = "renamed"
			a.Exec = []string{"serve", "--fast"}
			a.Contexts = append(a.Contexts, spec.Context{Name: "EXTRA", Content: "more", Description: "added"})
			a.Bins = append(a.Bins, spec.Bin{Name: "env", Image: "otters/tools/env", Usage: "prints"})
			a.Labels = append(a.Labels, spec.Pair{Key: "org.example.k", Value: "v"})
			a.Args = append(a.Args, spec.Pair{Key: "stage", Value: "test"})
			a.Capabilities = append(a.Capabilities, "recall")
		},
	}
}

const rich = plain + "CONFIG temperature=0.5 \"how wild\"\nCONFIG region! \"where\"\nENV GREETING=hi \"what to say\"\nCONTEXT BASE <<E\nbase\nE\n"

func TestLoadRestoresEverythingThatCreateWasGiven(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	local := filepath.Join(host(t), "runtime")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(local, text, 0o755); err != nil {
		t.Fatal(err)
	}
	given := []system.AgentOption{
		system.WithAgentToken("tok"), system.WithDaemonURL("unix:///d"), system.WithImageRef("example.org/image:1"),
		system.WithAgentLocalRuntime(local), system.WithCapabilities([]executor.Capability{{Name: "recall", Description: "recalls"}}),
		system.WithMounts([]executor.Mount{{Host: source, Target: "/workspace/option", Description: "given as an option"}}),
	}
	// Defaults have overrides too, which must not be there twice after a load.
	defaults := system.WithAgentDefaults(system.WithOverrides(spec.WithMounts(spec.Mount{Host: source, Target: "/workspace/default"})))
	for name, prepared := range map[string]bool{"before its tree is made": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := host(t)
			first := provider(t, dir, rich, defaults)
			a := created(t, first, given, everyKind(source)...)
			if prepared {
				if err := a.Prepare(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			b := loaded(t, provider(t, dir, rich, defaults))
			if b.UUID() != a.UUID() || b.Addr() != a.Addr() {
				t.Errorf("agent %s at %s became %s at %s", a.UUID(), a.Addr(), b.UUID(), b.Addr())
			}
			if err := b.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			// What it should be is what a new agent of the same things is.
			want := created(t, provider(t, host(t), rich, defaults), given, everyKind(source)...)
			if err := want.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.Runtime().Source, b.Runtime().Source); d != "" {
				t.Errorf("the definition differs (-new +loaded):\n%s", d)
			}
			if d := cmp.Diff(rootless(want.Runtime().Config), rootless(b.Runtime().Config)); d != "" {
				t.Errorf("agent.yaml differs (-new +loaded):\n%s", d)
			}
			running(t, b)
			env := prompt(t, b, "env") + "\n"
			for _, line := range []string{"GREETING=hello", "RUNTIME_TEMPERATURE=1.10", "OTTERS_AGENT_TOKEN=tok", "OTTERSD_URL=unix:///d", "OFFLINE_API_KEY=otr_key"} {
				if !strings.Contains(env, line+"\n") {
					t.Errorf("the runtime lacks %s:\n%s", line, env)
				}
			}
			if args := prompt(t, b, "args"); !strings.HasPrefix(args, "serve\n--fast\n--root\n") || !strings.Contains(args, "--model\noffline/other\n") {
				t.Errorf("arguments %q", args)
			}
		})
	}
}

// rootless is a configuration without what differs between two agents of one kind.
func rootless(c *workspace.Config) *workspace.Config {
	out := *c
	root := strings.TrimSuffix(c.Workspace, "/workspace")
	out.ID, out.Workspace, out.Runtime.Binary = "", "", ""
	out.Mounts, out.Tools = append([]workspace.Mount(nil), c.Mounts...), append([]workspace.Tool(nil), c.Tools...)
	for i := range out.Mounts {
		out.Mounts[i].Target = strings.TrimPrefix(out.Mounts[i].Target, root)
	}
	for i := range out.Tools {
		out.Tools[i].Binary = strings.TrimPrefix(out.Tools[i].Binary, root)
	}
	return &out
}

// loaded is the one agent that p finds, with live options.
func loaded(t *testing.T, p *system.Provider, opts ...system.AgentOption) *system.Agent {
	t.Helper()
	agents, err := p.LoadWithOptions(t.Context(), func(uuid.UUID) []system.AgentOption { return opts })
	if err != nil || len(agents) != 1 {
		t.Fatalf("loaded %v, %v", agents, err)
	}
	return agents[0].(*system.Agent)
}

func TestTheHandleIsOnDiskWhenCreateReturns(t *testing.T) {
	t.Parallel()
	dir := host(t)
	a := created(t, provider(t, dir, plain), nil, role("serve"))
	home := filepath.Join(dir, a.UUID().String())
	info, err := os.Stat(filepath.Join(home, "handle.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	entries, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		// root.new is there where the folder was made ahead.
		if name := e.Name(); name != "handle.json" && name != "state" && name != "root.new" {
			t.Errorf("the folder holds %s", name)
		}
	}
}

func TestTheHandlesFormatIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	source := shared(t)
	dir := host(t)
	a := created(t, provider(t, dir, rich), []system.AgentOption{
		system.WithAgentToken("tok"), system.WithDaemonURL("u"), system.WithImageRef("i"), system.WithCapabilities([]executor.Capability{{Name: "c"}}),
		system.WithMounts([]executor.Mount{{Host: source, Target: "/workspace/m"}}), system.WithStopGrace(3 * time.Second),
		system.WithLevel(launcher(t).Strongest()), system.WithLimits(sandbox.Limits{Memory: 1 << 30}),
		system.WithAllowNet([]string{"example.com"}), system.WithEgress(func(system.Egress, net.Listener) {}),
	}, everyKind(source)...)
	running(t, a)
	text, err := os.ReadFile(filepath.Join(dir, a.UUID().String(), "handle.json"))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../docs/state.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range fields {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/state.md does not know %s", name)
		}
	}
	_, section, _ := strings.Cut(string(doc), "## handle.json, version 1\n")
	_, table, _ := strings.Cut(section, "| Field | Is |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n") {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		for _, name := range strings.Split(names, ", ") {
			// A program of the host is given to agents that pull none.
			if name = strings.Trim(name, "`"); fields[name] == nil && name != "local_runtime" {
				t.Errorf("the handle has no %s, which docs/state.md tells of", name)
			}
		}
	}
	if string(fields["version"]) != "1" {
		t.Errorf("version %s", fields["version"])
	}
}

func TestASetTokenSurvivesALoad(t *testing.T) {
	t.Parallel()
	dir := host(t)
	first := provider(t, dir, plain)
	a := created(t, first, []system.AgentOption{system.WithAgentToken("one"), system.WithDaemonURL("unix:///x")}, role("serve"))
	a.SetAgentToken("two")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	b := loaded(t, provider(t, dir, plain))
	running(t, b)
	if env := prompt(t, b, "env"); !strings.Contains(env, "OTTERS_AGENT_TOKEN=two") {
		t.Error("the old token came back")
	}
}

func TestValuesAreSealedWithAKeyOutsideTheAgentsFolders(t *testing.T) {
	t.Parallel()
	secret := spec.WithExtraEnvs(spec.Env{Key: "PASSWORD", Value: "hunter2-secret"})
	t.Run("its own, made once", func(t *testing.T) {
		t.Parallel()
		dir := host(t)
		created(t, provider(t, dir, plain), nil, secret)
		before, err := os.ReadFile(filepath.Join(dir, "seal.key"))
		if err != nil || len(before) != 32 {
			t.Fatalf("%d bytes, %v", len(before), err)
		}
		if info, err := os.Stat(filepath.Join(dir, "seal.key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		loaded(t, provider(t, dir, plain))
		if after, err := os.ReadFile(filepath.Join(dir, "seal.key")); err != nil || string(after) != string(before) {
			t.Errorf("the key was made anew: %v", err)
		}
	})
	t.Run("the caller's", func(t *testing.T) {
		t.Parallel()
		dir := host(t)
		key, other := []byte(strings.Repeat("k", 32)), []byte(strings.Repeat("o", 32))
		created(t, provider(t, dir, plain, system.WithSealKey(key)), nil, secret)
		if _, err := os.Stat(filepath.Join(dir, "seal.key")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a key was made beside the caller's: %v", err)
		}
		agents, err := provider(t, dir, plain, system.WithSealKey(other)).Load(t.Context())
		if len(agents) != 0 || !errors.Is(err, system.ErrHandle) || !strings.Contains(err.Error(), "seal key") {
			t.Errorf("with another key: %v, %v", agents, err)
		}
		b := loaded(t, provider(t, dir, plain, system.WithSealKey(key)))
		if err := b.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if envs := b.Runtime().Source.Envs; len(envs) != 1 || envs[0].Value != "hunter2-secret" {
			t.Errorf("%+v", envs)
		}
	})
	t.Run("none of the wrong size", func(t *testing.T) {
		t.Parallel()
		_, err := provider(t, host(t), plain, system.WithSealKey([]byte("short"))).Create(t.Context(), uuid.New(), ref)
		if err == nil || !strings.Contains(err.Error(), "5 bytes, want 32") {
			t.Error(err)
		}
	})
}

func TestAnAgentThatCanNotBeRestoredStopsNoOther(t *testing.T) {
	t.Parallel()
	dir := host(t)
	first := provider(t, dir, plain)
	good := created(t, first, nil, role("serve"))
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			if err := os.WriteFile(filepath.Join(home, "handle.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	edit := func(old, fresh string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			text, err := os.ReadFile(filepath.Join(home, "handle.json"))
			if err != nil || !strings.Contains(string(text), old) {
				t.Fatalf("no %s in %s, %v", old, text, err)
			}
			write(strings.Replace(string(text), old, fresh, 1))(t, home)
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, home string) {
			if err := os.RemoveAll(filepath.Join(home, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	ids := make(map[string]string)
	for says, damage := range map[string]func(*testing.T, string){
		"unexpected end of JSON":                 write(""),
		"invalid character":                      write("{nonsense"),
		"has version 99, this program knows 1":   edit(`"version":1`, `"version":99`),
		"has version 0":                          write("{}"),
		"is of agent " + good.UUID().String():    write(`{"version":1,"id":"` + good.UUID().String() + `"}`),
		"no such file":                           remove("handle.json"),
		"the agent's tree is not there":          remove("root"),
		"does not open":                          edit(`"sealed_envs":{"`+roleVar+`":"`, `"sealed_envs":{"`+roleVar+`":"AAAA`),
		"it has no source":                       edit(`"source":`, `"sauce":`),
		"over 8388608 bytes":                     write(strings.Repeat(" ", 8<<20+1)),
		"handle.json: json: cannot unmarshal st": edit(`"uid":`, `"uid":"x","was":`),
	} {
		bad := created(t, first, nil, role("serve"))
		if err := bad.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		damage(t, filepath.Join(dir, bad.UUID().String()))
		ids[bad.UUID().String()] = says
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := provider(t, dir, plain)
	agents, err := second.Load(t.Context())
	if len(agents) != 1 || agents[0].UUID() != good.UUID() {
		t.Errorf("loaded %v", agents)
	}
	lines := strings.Split(err.Error(), "\n")
	if !errors.Is(err, system.ErrHandle) || len(lines) != len(ids) {
		t.Errorf("%d errors, want %d:\n%v", len(lines), len(ids), err)
	}
	for _, line := range lines {
		id, what, _ := strings.Cut(strings.TrimPrefix(line, "load agent "), ": ")
		if says, ok := ids[id]; !ok || !strings.Contains(what, says) {
			t.Errorf("error %q lacks %q", line, says)
		}
	}
	running(t, agents[0].(*system.Agent))
	// Destroy removes what could not be restored too, and leaves alone what runs.
	if err := second.Destroy(t.Context()); !errors.Is(err, system.ErrRunning) {
		t.Errorf("a running agent was destroyed: %v", err)
	}
	if err := agents[0].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	onlyShared(t, dir)
}

// onlyShared tells that nothing of any agent is left in a provider's folder.
func onlyShared(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != ".store" && e.Name() != "seal.key" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestFieldsOfALaterProgramAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := host(t)
	a := created(t, provider(t, dir, plain), nil)
	name := filepath.Join(dir, a.UUID().String(), "handle.json")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(text), "{", `{"later":true,`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded(t, provider(t, dir, plain))
}

func TestAnAgentThatRunsOnIsNotRemovedUnseen(t *testing.T) {
	t.Parallel()
	dir := host(t)
	first := provider(t, dir, plain)
	a := created(t, first, nil, role("serve"))
	running(t, a)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := provider(t, dir, plain)
	b := loaded(t, second)
	if err := b.Remove(t.Context()); !errors.Is(err, system.ErrRunning) {
		t.Errorf("Remove: %v", err)
	}
	if err := second.Destroy(t.Context()); !errors.Is(err, system.ErrRunning) {
		t.Errorf("Destroy: %v", err)
	}
	if ok, err := b.Attach(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	onlyShared(t, dir)
}
