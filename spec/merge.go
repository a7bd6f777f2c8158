package spec

import "slices"

// Merge is the child with what it inherits. RUNTIME, MODEL, NAME and EXEC of the child replace the
// parent's, and a RUNTIME of the child drops the parent's CONFIG; the lists keep the parent's order,
// an element of the child replacing the one with its key and the rest following; capabilities are a
// union. Neither argument is changed and the outcome shares nothing with them.
func Merge(parent, child *Agentfile) *Agentfile {
	p, c := parent.Clone(), child.Clone()
	out := &Agentfile{
		Syntax:  c.Syntax,
		From:    c.From,
		Runtime: or(c.Runtime, p.Runtime),
		Model:   or(c.Model, p.Model),
		Name:    or(c.Name, p.Name),
		Exec:    c.Exec,
		Mounts:  append(p.Mounts, c.Mounts...),

		Contexts: union(p.Contexts, c.Contexts, func(e Context) string { return e.Name }),
		Configs:  c.Configs,
		Bins:     union(p.Bins, c.Bins, func(e Bin) string { return e.Name }),
		Adds:     union(p.Adds, c.Adds, func(e Add) string { return e.Name }),
		Labels:   union(p.Labels, c.Labels, func(e Pair) string { return e.Key }),
		Args:     union(p.Args, c.Args, func(e Pair) string { return e.Key }),
		Envs:     union(p.Envs, c.Envs, func(e Env) string { return e.Key }),

		Capabilities: union(p.Capabilities, c.Capabilities, func(e string) string { return e }),
	}
	if c.Runtime == "" {
		out.Configs = union(p.Configs, c.Configs, func(e Config) string { return e.Key })
	}
	if out.HasSkills() {
		out.Syntax = SkillSyntax
	}
	if out.Exec == nil {
		out.Exec = p.Exec
	}
	return out
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

func union[L ~[]T, T any](base, over L, key func(T) string) L {
	if len(base) == 0 {
		return over
	}
	at := make(map[string]int, len(base))
	for i, e := range base {
		at[key(e)] = i
	}
	for _, e := range over {
		if i, ok := at[key(e)]; ok {
			base[i] = e
			continue
		}
		at[key(e)] = len(base)
		base = append(base, e)
	}
	return base
}

// Clone is a copy that shares nothing with a.
func (a *Agentfile) Clone() *Agentfile {
	out := *a
	out.Contexts = slices.Clone(a.Contexts)
	out.Configs = slices.Clone(a.Configs)
	for i, c := range out.Configs {
		if c.Value != nil {
			value := *c.Value
			out.Configs[i].Value = &value
		}
	}
	out.Bins = slices.Clone(a.Bins)
	out.Adds = slices.Clone(a.Adds)
	out.Exec = slices.Clone(a.Exec)
	out.Labels = slices.Clone(a.Labels)
	out.Args = slices.Clone(a.Args)
	out.Envs = slices.Clone(a.Envs)
	out.Capabilities = slices.Clone(a.Capabilities)
	out.Mounts = slices.Clone(a.Mounts)
	return &out
}

// Apply is a copy of a with the overrides, checked. The error is an *InvalidError.
func (a *Agentfile) Apply(overrides ...Override) (*Agentfile, error) {
	out := a.Clone()
	for _, o := range overrides {
		o(out)
	}
	if err := out.Validate(); err != nil {
		return nil, err
	}
	return out, nil
}

// MissingConfigs are the keys of the CONFIGs that must be given at deploy and are not, in order.
func (a *Agentfile) MissingConfigs() []string {
	var keys []string
	for _, c := range a.Configs {
		if c.Required && c.Value == nil {
			keys = append(keys, c.Key)
		}
	}
	return keys
}
