package spec

import "slices"

// Record is what the overrides do to an empty definition: how they are kept by whoever must apply them
// again later, since functions can't be written down. What an override takes away from a definition is
// not kept. The outcome is checked like a file. Its JSON form, as that of every definition, has no
// mounts.
func Record(overrides ...Override) (*Agentfile, error) {
	if _, err := (&Agentfile{Syntax: DefaultSyntax, From: "scratch"}).Apply(overrides...); err != nil {
		return nil, err
	}
	rec := new(Agentfile)
	for _, o := range overrides {
		o(rec)
	}
	return rec, nil
}

// Replay is the override that has the effect of those that Record recorded. It shares nothing with rec
// that the definition could change.
func Replay(rec *Agentfile) Override {
	return func(a *Agentfile) {
		over := rec.Clone()
		// RUNTIME would drop the settings, and a setting or variable that is given a value keeps
		// its description: these are replayed one by one.
		over.Runtime, over.Configs, over.Envs = "", nil, nil
		out := Merge(a, over)
		out.Syntax, out.From = a.Syntax, a.From
		*a = *out
		if rec.Runtime != "" {
			WithRuntime(rec.Runtime)(a)
		}
		for _, c := range rec.Clone().Configs {
			replayConfig(a, c)
		}
		WithExtraEnvs(rec.Envs...)(a)
	}
}

func replayConfig(a *Agentfile, c Config) {
	known := slices.ContainsFunc(a.Configs, func(have Config) bool { return have.Key == c.Key })
	switch {
	case !known:
		a.Configs = append(a.Configs, c)
	case c.Value != nil:
		WithConfig(c.Key, *c.Value)(a)
	}
}
