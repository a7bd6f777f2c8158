package system

import (
	"path"
	"strings"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/workspace"
)

// RuntimeArgs are the arguments of the runtime of the agent rt, which sees its tree at root and answers
// on addr: EXEC, by default serve, then --root, --model and --addr. Other executors start their runtimes
// with them too. Ours.
func RuntimeArgs(rt *executor.Runtime, root, addr string) []string {
	args := rt.Source.Exec
	if len(args) == 0 {
		args = []string{"serve"}
	}
	return append(append([]string(nil), args...), "--root", root, "--model", rt.Source.Model, "--addr", addr)
}

// RuntimeEnv is the environment of the runtime of the agent rt, which sees its tree at root: what ToolEnv
// has, the model's address and key where they are not empty, the CONFIG settings, and more, such as
// OTTERSD_URL with OTTERS_AGENT_TOKEN. ENV comes last, so that it wins where a name is there twice. Other
// executors start their runtimes with it too. Ours.
func RuntimeEnv(rt *executor.Runtime, root, apiURL, apiKey string, more ...string) []string {
	env := append(treeEnv(root), more...)
	if ref, err := model.ParseRef(rt.Source.Model); err == nil {
		if apiKey != "" {
			env = append(env, ref.EnvPrefix()+"_API_KEY="+apiKey)
		}
		if apiURL != "" {
			env = append(env, ref.EnvPrefix()+"_API_BASE="+apiURL)
		}
	}
	for _, c := range rt.Source.Configs {
		if c.Value != nil {
			env = append(env, "RUNTIME_"+strings.ToUpper(strings.ReplaceAll(c.Key, "-", "_"))+"="+*c.Value)
		}
	}
	return lastWins(append(env, declaredEnv(rt)...))
}

// lastWins keeps the last of each name: programs look at the first that they find.
func lastWins(env []string) []string {
	at := make(map[string]int, len(env))
	out := env[:0]
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// ToolEnv is the environment of a BIN of the agent rt, which sees its tree at root: the folders of the tree
// and ENV. There is no token and no key in it. Ours.
func ToolEnv(rt *executor.Runtime, root string) []string {
	return append(treeEnv(root), declaredEnv(rt)...)
}

func treeEnv(root string) []string {
	home := path.Join(root, workspace.HomeDir)
	return []string{
		"PATH=" + path.Join(root, workspace.BinDir),
		"HOME=" + home,
		"XDG_CONFIG_HOME=" + path.Join(home, ".config"),
		"XDG_CACHE_HOME=" + path.Join(home, ".cache"),
		"XDG_DATA_HOME=" + path.Join(home, ".local/share"),
		"TMPDIR=" + path.Join(root, workspace.TmpDir),
		"LANG=C.UTF-8",
		"OTTERS_AGENT_ROOT=" + root,
	}
}

func declaredEnv(rt *executor.Runtime) []string {
	var env []string
	for _, e := range rt.Source.Envs {
		env = append(env, e.Key+"="+e.Value)
	}
	return env
}
