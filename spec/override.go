package spec

// Override changes a definition at deploy. Overrides are applied in order, and the outcome is
// checked like a file; see (*Agentfile).Validate.
type Override func(*Agentfile)

// WithRuntime replaces RUNTIME by the image ref. Unlike the instruction it leaves CONFIG alone.
func WithRuntime(ref string) Override {
	return func(a *Agentfile) { a.Runtime = ref }
}

// WithModel replaces MODEL by provider/model.
func WithModel(model string) Override {
	return func(a *Agentfile) { a.Model = model }
}

// WithConfig gives the CONFIG key a value.
func WithConfig(key, value string) Override {
	return func(a *Agentfile) {
		for i := range a.Configs {
			if a.Configs[i].Key == key {
				a.Configs[i].Value = &value
				return
			}
		}
		a.Configs = append(a.Configs, Config{Key: key, Value: &value})
	}
}

// WithExtraEnvs adds variables; one that the definition has already is replaced.
func WithExtraEnvs(envs ...Env) Override {
	return func(a *Agentfile) {
	next:
		for _, e := range envs {
			for i := range a.Envs {
				if a.Envs[i].Key == e.Key {
					a.Envs[i].Value = e.Value
					if e.Description != "" {
						a.Envs[i].Description = e.Description
					}
					continue next
				}
			}
			a.Envs = append(a.Envs, e)
		}
	}
}

// WithMounts adds mounts.
func WithMounts(mounts ...Mount) Override {
	return func(a *Agentfile) { a.Mounts = append(a.Mounts, mounts...) }
}
